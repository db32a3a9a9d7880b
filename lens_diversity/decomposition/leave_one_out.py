"""What the ensemble's error would be without each of its members."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import (
    centred_members,
    check_combine,
    check_labels,
    check_members,
    dense_target,
    member_weights,
    one_hot,
)
from lens_diversity.decomposition.losses import check_loss


def leave_one_out(
    members: Float[Tensor, "..."],
    target: Tensor,
    loss: str = "squared",
    combine: str = "mean",
    weights: Tensor | Sequence[float] | None = None,
    constant: Tensor | None = None,
) -> Float[Tensor, "component ..."]:
    """Compute the error of the ensemble without member ``i``, for every ``i``, in closed form.

    ``m_{-i} = (m - w_i u_i) / (1 - w_i)`` with ``combine="mean"`` (remaining weights renormalised);
    with ``combine="sum"``, ``m_{-i} = sum_{k != i} u_k + constant``.

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        target: Labels ``[batch...]``; for ``loss="squared"`` also a dense ``[batch..., vocab]``.
        loss: ``"squared"``, ``"paper"``, ``"brier"`` or ``"cross_entropy"``.
        combine: ``"mean"`` or ``"sum"``.
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
    if members.shape[0] == 1 or bool((weights == 1).any()):
        raise ValueError("without its only member there is no ensemble left; give at least two")
    if constant is not None and combine == "mean":
        raise ValueError('constant= is for combine="sum"; members of a mean carry their own share')
    goal = (
        dense_target(target, members)
        if loss == "squared"
        else one_hot(check_labels(target, members), members)
    )
    if loss == "brier":
        return _brier_without(members, goal, combine, weights, constant)
    rest = _rest_mean(members, weights) if combine == "mean" else _rest_sum(members, constant)
    if loss == "squared":
        return (goal - rest).square().mean(-1)
    if loss == "paper":
        return (goal - rest.softmax(-1)).square().mean(-1)
    return -(goal * rest.log_softmax(-1)).sum(-1)


def _rest_mean(members: Tensor, weights: Tensor) -> Float[Tensor, "component *batch vocab"]:
    """Mean of the other members: the centroid moved away from the member that leaves."""
    shift, deviations = centred_members(members, weights)
    leverage = (weights / (1 - weights)).reshape(-1, *[1] * (members.ndim - 1))
    return members[0] + (shift - leverage * deviations)


def _rest_sum(
    members: Tensor, constant: Tensor | None
) -> Float[Tensor, "component *batch vocab"]:
    total = members.sum(0)
    return (total if constant is None else total + constant.to(members.dtype)) - members


def _brier_without(
    members: Tensor,
    goal: Tensor,
    combine: str,
    weights: Tensor,
    constant: Tensor | None,
) -> Float[Tensor, "component *batch"]:
    if combine == "mean":
        return (goal - _rest_mean(members.softmax(-1), weights)).square().mean(-1)
    errors = []
    for left_out in range(members.shape[0]):
        kept = torch.arange(members.shape[0], device=members.device) != left_out
        share = weights[kept] / (1 - weights[left_out])
        scaled = members[kept] / share.reshape(-1, *[1] * (members.ndim - 1))
        if constant is not None:
            scaled = scaled + constant.to(members.dtype)
        mean = torch.tensordot(share, scaled.softmax(-1), 1)
        errors.append((goal - mean).square().mean(-1))
    return torch.stack(errors)
