"""The ambiguity decomposition of the squared error."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lens_diversity.decomposition._members import (
    centred_members,
    check_members,
    dense_target,
    member_weights,
)
from lens_diversity.decomposition.terms import AmbiguityTerms


def krogh_vedelsby(
    members: Tensor,
    target: Tensor,
    weights: Tensor | Sequence[float] | None = None,
) -> AmbiguityTerms:
    """Decompose the squared error of an ensemble's mean into bias minus diversity.

    ``E_j (t_j - m_j)^2 = E_j E_i (t_j - u_ij)^2 - E_j E_i (m_j - u_ij)^2`` with
    ``m = sum_i w_i u_i``, exactly (Krogh and Vedelsby 1994; Kamigaito et al. 2025, Theorem 1).

    Args:
        members: Outputs ``[component, batch..., vocab]``; half precision is widened to float32.
        target: Dense target ``[batch..., vocab]``, or integer labels ``[batch...]`` for a one-hot
            one.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).

    Returns:
        Terms in the squared units of the members (logits squared for logits).

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If shapes do not fit, labels are out of range, weights do not sum to 1, or a
            number is NaN or infinite.

    Example:
        >>> import torch
        >>> terms = krogh_vedelsby(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor(0))
        >>> terms.error, terms.bias, terms.diversity
        (tensor(0.1250), tensor(0.2500), tensor(0.1250))
    """
    members = check_members(members)
    target = dense_target(target, members)
    weights = member_weights(weights, members)
    reference, shift, deviations = centred_members(members, weights)
    miss = (target - reference) - shift
    return AmbiguityTerms.averaged(
        error=miss.square().mean(-1),
        component_bias=(miss - deviations).square().mean(-1),
        component_diversity=deviations.square().mean(-1),
        weights=weights,
    )
