"""The squared loss over the vocabulary, from members as coefficients, block by block.

After whitening, what costs is memory traffic: a decomposition of whitened members makes some
fifteen tensors of their size, slower together than the product. Here only a block of the axes
exists at a time, and it is changed in place, so no gradient can be taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import check_members, heaviest_member
from lens_diversity.decomposition.terms import AmbiguityTerms

Axes = Sequence[tuple[int, Float[Tensor, "_ _"]]]


@torch.no_grad()
def squared_ambiguity(
    members: Float[Tensor, "component row basis"],
    axes: Axes,
    target: Float[Tensor, "row _"],
    weights: Float[Tensor, " component"],
    d_vocab: int,
) -> AmbiguityTerms:
    """`krogh_vedelsby` over the vocabulary: a sum over axes that keep lengths and angles.

    Args:
        members: Coefficients on the rows of the unembedding; they are overwritten.
        axes: Blocks of the whitened basis (see `CompactVocabulary.axes`); the members have nothing
            on axes that are left out.
        target: On the axes in their order, then on whatever others it has.
        weights: Member weights that sum to one.
        d_vocab: Number of tokens that the means are over.

    Raises:
        ValueError: If members hold NaN or infinite numbers.
    """
    reference = heaviest_member(members, weights)
    members -= reference
    shift = torch.tensordot(weights, members, 1)
    members -= shift
    centroid = reference + shift

    diversity = torch.zeros_like(members[..., 0])
    bias = torch.zeros_like(diversity)
    error = torch.zeros_like(bias[0])
    start = 0
    for first, block in axes:
        stop = start + block.shape[1]
        miss = target[:, start:stop] - centroid[:, first:] @ block
        deviations = members[..., first:] @ block
        diversity += _square_length(deviations)
        deviations -= miss
        bias += _square_length(deviations)
        error += _square_length(miss)
        start = stop
    beyond = _square_length(target[:, start:])
    if not bool(diversity.isfinite().all()):
        check_members(members)
    return AmbiguityTerms.averaged(
        (error + beyond) / d_vocab, (bias + beyond) / d_vocab, diversity / d_vocab, weights
    )


def _square_length(vectors: Float[Tensor, "*rest axis"]) -> Float[Tensor, "*rest"]:
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return length.square()
