"""Diversity within groups of members, between groups, and between groups of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity._choices import check_choice
from lens_diversity.decomposition._members import (
    check_members,
    member_weights,
    per_member,
    weighted_mean,
)
from lens_diversity.decomposition.losses import LOSSES

NESTED_LOSSES = ("squared", "cross_entropy")

Spread = Callable[[Tensor, Tensor], Tensor]
"""Members and weights that sum to one, to each member's distance from their centroid."""


def nested_diversity(
    members: Tensor,
    levels: Sequence[Sequence[int] | Tensor],
    weights: Tensor | Sequence[float] | None = None,
    loss: str = "squared",
) -> list[Float[Tensor, "_ ..."]]:
    """Split the diversity of members exactly into parts within groups and between them.

    With ``u_G = sum_{i in G} w_i u_i / w_G`` the mean of a group and ``m`` that of all,
    ``sum_i w_i D(m, u_i) = sum_i w_i D(u_G(i), u_i) + sum_G w_G D(m, u_G)``, and the same again
    for groups of groups (Huygens' theorem for the squared distance; for the KL divergence from a
    centroid in logit space, which is a Bregman divergence, Banerjee et al. 2005).

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        levels: For each level, finest first, the group of every member of the level below,
            numbered from 0 with none left out.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform). A
            group weighs what its members weigh together.
        loss: ``"squared"`` or ``"cross_entropy"``. (The centroid of ``brier`` is a mean of
            probabilities, which is not the prediction of a sum of logits.)

    Returns:
        ``w D(mean of the group it is in, its own mean)`` of every node: first of the members, then
        of the groups of each level, the last from the mean of all. Everything sums to the
        diversity of the members, in logits squared or nats.

    Raises:
        TypeError: If members are not floating-point or groups not integers.
        ValueError: If a level does not give a group to each node, leaves a number out, or a group
            has no weight; or as in `krogh_vedelsby`.

    Example:
        >>> import torch
        >>> members = torch.tensor([[0.0], [2.0], [5.0]])
        >>> within, between = nested_diversity(members, [[0, 0, 1]], weights=[0.25, 0.25, 0.5])
        >>> within.flatten(), between.flatten()
        (tensor([0.2500, 0.2500, 0.0000]), tensor([2., 2.]))
    """
    check_choice("loss", loss, NESTED_LOSSES)
    members = check_members(members)
    groups = check_levels(levels, len(members))
    shares = member_weights(weights, members)
    _require_weights(groups, shares)

    def spread(children: Tensor, within: Tensor) -> Tensor:
        label = torch.zeros(children.shape[1:-1], dtype=torch.long, device=children.device)
        return LOSSES[loss](children, label, within).component_diversity

    return nested(members, groups, shares, spread)


def nested(
    members: Float[Tensor, "component *rest"],
    levels: Sequence[Int[Tensor, " _"]],
    weights: Float[Tensor, " component"],
    spread: Spread,
) -> list[Tensor]:
    """`nested_diversity` with any way to measure distances from a centroid."""
    terms = []
    for groups in [*levels, torch.zeros(int(levels[-1].max()) + 1, dtype=torch.long)]:
        means, sizes = [], []
        found: dict[int, Tensor] = {}
        for group in range(int(groups.max()) + 1):
            nodes = (groups == group).nonzero().flatten().tolist()
            own = weights[nodes]
            total = own.sum()
            children, shares = members[nodes], own / total
            distances = spread(children, shares)
            found.update(zip(nodes, per_member(own, distances) * distances, strict=True))
            means.append(weighted_mean(children, shares))
            sizes.append(total)
        terms.append(torch.stack([found[node] for node in range(len(groups))]))
        members, weights = torch.stack(means), torch.stack(sizes)
    return terms


def check_levels(levels: Sequence[Sequence[int] | Tensor], count: int) -> list[Int[Tensor, " _"]]:
    """Refuse what does not put every node of a level into one of consecutive groups."""
    if not levels:
        raise ValueError("levels must hold at least one grouping of the members")
    checked = []
    for depth, level in enumerate(levels):
        groups = torch.as_tensor(level)
        if groups.is_floating_point() or groups.dtype == torch.bool:
            raise TypeError(f"level {depth} must hold group numbers, got dtype {groups.dtype}")
        if tuple(groups.shape) != (count,):
            raise ValueError(
                f"level {depth} must give a group to each of {count} nodes, got shape "
                f"{tuple(groups.shape)}"
            )
        found = sorted(set(groups.tolist()))
        if found != list(range(len(found))):
            raise ValueError(
                f"level {depth} must number its groups from 0 without a gap, got {found[:8]}"
            )
        checked.append(groups.cpu().long())
        count = len(found)
    return checked


def _require_weights(levels: Sequence[Tensor], weights: Float[Tensor, " component"]) -> None:
    """A group without weight has no mean; those of higher levels hold one of the first."""
    groups = levels[0].to(weights.device)
    totals = weights.new_zeros(int(groups.max()) + 1).index_add(0, groups, weights)
    empty = (totals == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"groups {empty[:8]} of the finest level have no weight: leave them out")
