"""Decompositions of losses on the members' softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lens_diversity.decomposition._members import (
    centred_members,
    check_labels,
    check_members,
    member_weights,
    weighted_mean,
)
from lens_diversity.decomposition._softmax import (
    gold_margins,
    kullback_leibler,
    misses,
    surprisal,
)
from lens_diversity.decomposition.squared import krogh_vedelsby
from lens_diversity.decomposition.terms import AmbiguityTerms


def bias_diversity(
    members: Tensor,
    labels: Tensor,
    weights: Tensor | Sequence[float] | None = None,
) -> AmbiguityTerms:
    """Compute the paper's measures: error and bias after a softmax, diversity on logits.

    ``error = E_j (y_j - softmax(m)_j)^2``, ``bias = E_j E_i (y_j - softmax(u_i)_j)^2`` (Kamigaito
    et al. 2025, Eq. 14) and ``diversity = E_j E_i (m_j - u_ij)^2`` (Eq. 8). No identity holds
    between them: scaling all logits makes diversity exceed bias by any factor. The exact
    alternatives are `brier_ambiguity` and `cross_entropy_ambiguity`.

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        labels: Gold labels ``[batch...]``.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).

    Returns:
        Terms: error and bias in probability squared, diversity in logits squared.

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If shapes do not fit, labels are out of range, weights do not sum to 1, or a
            number is NaN or infinite.

    Example:
        >>> terms = bias_diversity(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor(0))
        >>> terms.diversity
        tensor(0.5000)
    """
    members = check_members(members)
    labels = check_labels(labels, members)
    weights = member_weights(weights, members)
    margins = gold_margins(members, labels)
    *_, deviations = centred_members(members, weights)
    return AmbiguityTerms.averaged(
        error=misses(weighted_mean(margins, weights), labels).square().mean(-1),
        component_bias=misses(margins, labels).square().mean(-1),
        component_diversity=deviations.square().mean(-1),
        weights=weights,
    )


def brier_ambiguity(
    members: Tensor,
    labels: Tensor,
    weights: Tensor | Sequence[float] | None = None,
) -> AmbiguityTerms:
    """Decompose the Brier score of the members' mean probability, exactly.

    `krogh_vedelsby` on ``p_i = softmax(u_i)`` with a one-hot target; the mean is over the
    vocabulary as elsewhere, so two classes give half the usual two-class Brier sum.

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        labels: Gold labels ``[batch...]``.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).

    Returns:
        Terms in probability squared.

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If shapes do not fit, labels are out of range, weights do not sum to 1, or a
            number is NaN or infinite.

    Example:
        >>> terms = brier_ambiguity(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor(1))
        >>> terms.error, terms.diversity
        (tensor(0.2500), tensor(0.))
    """
    members = check_members(members)
    labels = check_labels(labels, members)
    # In misses p - y rather than p, so that confident members keep the digits of 1 - p_y.
    missed = misses(gold_margins(members, labels), labels)
    return krogh_vedelsby(missed, torch.zeros_like(missed[0]), weights)


def cross_entropy_ambiguity(
    members: Tensor,
    labels: Tensor,
    weights: Tensor | Sequence[float] | None = None,
) -> AmbiguityTerms:
    """Decompose the cross-entropy of ``softmax(m)``, exactly.

    ``-log softmax(m)_y = E_i[-log p_iy] - E_i KL(softmax(m) || p_i)``: under the Kullback-Leibler
    divergence the members' centroid is their normalised geometric mean, which is the softmax of
    their mean logits (Heskes 1998; Wood et al. 2023).

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        labels: Gold labels ``[batch...]``.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).

    Returns:
        Terms in nats.

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If shapes do not fit, labels are out of range, weights do not sum to 1, or a
            number is NaN or infinite.

    Example:
        >>> terms = cross_entropy_ambiguity(torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.tensor(0))
        >>> round(float(terms.error), 4), round(float(terms.bias - terms.diversity), 4)
        (0.6931, 0.6931)
    """
    members = check_members(members)
    labels = check_labels(labels, members)
    weights = member_weights(weights, members)
    margins = gold_margins(members, labels)
    reference, shift, deviations = centred_members(margins, weights)
    centroid = reference + shift
    error, own = surprisal(centroid, labels), surprisal(margins, labels)
    q = centroid.softmax(-1)
    # One member at a time: a divergence needs more temporaries than all the rest.
    diversity = [
        kullback_leibler(q, margin.softmax(-1), excess.unsqueeze(-1) - deviation)
        for margin, excess, deviation in zip(margins, own - error, deviations, strict=True)
    ]
    return AmbiguityTerms.averaged(
        error=error,
        component_bias=own,
        component_diversity=torch.stack(diversity),
        weights=weights,
    )
