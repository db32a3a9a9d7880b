"""What the ensemble's error would be without each of its members."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.decomposition._members import (
    check_combine,
    check_constant,
    check_labels,
    check_members,
    dense_target,
    member_weights,
    per_member,
    require_every_weight,
    sum_of_others,
)
from lens_diversity.decomposition._softmax import gold_margins, misses, surprisal
from lens_diversity.decomposition.losses import LOSSES, check_loss


def leave_one_out(
    members: Tensor,
    target: Tensor,
    loss: str = "squared",
    combine: str = "mean",
    weights: Tensor | Sequence[float] | None = None,
    constant: Tensor | None = None,
) -> Float[Tensor, "component *batch"]:
    """Compute the error of the ensemble without member ``i``, for every ``i``.

    With ``combine="mean"`` the remaining weights are renormalised, ``m_{-i} = (m - w_i u_i) /
    (1 - w_i)``; with ``combine="sum"``, ``m_{-i} = sum_{k != i} u_k + constant``, which is what
    ablating the member's direct path to the logits does.

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        target: Labels ``[batch...]``; for ``loss="squared"`` also a dense ``[batch..., vocab]``.
        loss: ``"squared"``, ``"paper"``, ``"brier"`` or ``"cross_entropy"``.
        combine: ``"mean"``, or ``"sum"`` for members ``u_i / w_i``.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).
        constant: Logits ``[vocab]`` or ``[batch..., vocab]`` that belong to no member and stay
            whole; only with ``combine="sum"``.

    Returns:
        Errors ``[component, batch...]`` in the units of the loss.

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If there is a single member (or one holds all the weight), an option is
            unknown, or the input does not fit (see `krogh_vedelsby`).

    Example:
        >>> leave_one_out(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor(0))
        tensor([0.5000, 0.0000])
    """
    check_loss(loss)
    check_combine(combine)
    members = check_members(members)
    weights = member_weights(weights, members)
    if bool((sum_of_others(weights) == 0).any()):
        raise ValueError("without its only member with weight no ensemble is left; give two")
    if constant is not None and combine == "mean":
        raise ValueError('constant= needs combine="sum"; the members of a mean carry their share')
    if combine == "sum":
        require_every_weight(weights)
    whole = check_constant(constant, members)

    if loss == "squared":
        goal = dense_target(target, members)
        rest = (
            _mean_of_others(members - goal, weights)
            if combine == "mean"
            else sum_of_others(members) - goal + whole
        )
        return rest.square().mean(-1)
    labels = check_labels(target, members)
    margins, whole = gold_margins(members, labels), gold_margins(whole, labels)
    if loss == "brier":
        return _brier(margins, labels, weights, combine, whole)
    rest = (
        _mean_of_others(margins, weights) if combine == "mean" else sum_of_others(margins) + whole
    )
    if loss == "paper":
        return misses(rest, labels).square().mean(-1)
    return surprisal(rest, labels)


def _mean_of_others(
    values: Float[Tensor, "component *rest"], weights: Float[Tensor, " component"]
) -> Float[Tensor, "component *rest"]:
    """``(m - w_i u_i) / (1 - w_i)`` without its cancellations."""
    total = sum_of_others(per_member(weights, values) * values)
    return total / per_member(sum_of_others(weights), values)


def _brier(
    margins: Float[Tensor, "component *batch vocab"],
    labels: Int[Tensor, "*batch"],
    weights: Float[Tensor, " component"],
    combine: str,
    whole: Float[Tensor, "*batch vocab"],
) -> Float[Tensor, "component *batch"]:
    """Error of the others' mean probability; with ``"sum"`` they change as their weights do."""
    if combine == "mean":
        return _mean_of_others(misses(margins, labels), weights).square().mean(-1)
    errors = []
    for left_out in range(margins.shape[0]):
        kept = torch.arange(margins.shape[0], device=margins.device) != left_out
        shares = weights[kept] / weights[kept].sum()
        others = margins[kept] / per_member(shares, margins) + whole
        errors.append(LOSSES["brier"](others, labels, shares).error)
    return torch.stack(errors)
