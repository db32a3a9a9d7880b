"""A look at a few tokens of the vocabulary, where all of it would cost more than the analysis."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from lens_diversity.neurons import Stack
from lens_diversity.readout import Readout, Reconstruction, check_reconstruction

_SAMPLED_TOKENS = 64


def sampled_tokens(readout: Readout) -> Int[Tensor, " token"]:
    """A few token ids that are spread over the vocabulary."""
    count = min(_SAMPLED_TOKENS, readout.d_vocab)
    steps = torch.arange(count, device=readout.W_U.device)
    return steps * (readout.d_vocab // count)


def check_on_sample(stack: Stack, dtype: torch.dtype) -> Reconstruction:
    """Compare the summed components with the model's own readout, its logits at a few tokens.

    Raises:
        ValueError: If they do not add up, or there is no row.
    """
    if 0 in stack.batch_shape:
        raise ValueError(f"there are no rows to analyse: {stack}")
    readout = stack.readout
    ids = sampled_tokens(readout).to(stack.device)
    total = stack.total(dtype)
    normalised = readout.normalise(total, stack.stream.scale.to(dtype))
    logits = readout.project(normalised, ids) + readout.constant(ids, like=total)
    return check_reconstruction(stack, logits, ids)
