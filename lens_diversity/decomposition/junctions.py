"""The ensemble growing along the residual stream."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.decomposition._members import (
    check_combine,
    check_constant,
    check_labels,
    check_members,
    check_rescale,
    dense_target,
    per_member,
    running_sum,
)
from lens_diversity.decomposition._softmax import (
    gold_margins,
    kullback_leibler,
    misses,
    surprisal,
)
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.decomposition.terms import JunctionTerms

Terms = tuple[Tensor, Tensor, Tensor]
"""Error, bias and diversity, each ``[junction, batch...]``."""


def junctions(
    members: Tensor,
    target: Tensor,
    loss: str = "paper",
    combine: str = "mean",
    constant: Tensor | None = None,
    rescale: Tensor | None = None,
) -> JunctionTerms:
    """Decompose the error of the ensembles of members ``1..k``, for every ``k``.

    Junction ``k`` has the members ``r_k u_i + constant / k`` (``i <= k``, uniform weights; times
    ``k`` with ``combine="sum"``), so that each junction carries the whole constant (Kamigaito et
    al. 2025, section 5.2). Squared quantities are cumulative; so are softmax losses as long as a
    member's logits do not change with ``k``.

    Args:
        members: Logits ``[component, batch..., vocab]`` without the constant; half precision is
            widened to float32.
        target: Labels ``[batch...]``; for ``loss="squared"`` also a dense ``[batch..., vocab]``.
        loss: ``"squared"``, ``"paper"``, ``"brier"`` or ``"cross_entropy"``.
        combine: ``"mean"`` or ``"sum"``.
        constant: Logits ``[vocab]`` or ``[batch..., vocab]`` that belong to no member.
        rescale: ``r_k``, ``[component, batch...]``: a factor on all members of junction ``k``, for
            a final norm recomputed at each junction (default 1).

    Returns:
        Terms ``[component, batch...]`` in the units of the loss, and the accumulated logits.

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If an option is unknown or the input does not fit (see `krogh_vedelsby`).

    Example:
        >>> terms = junctions(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor(0), "squared")
        >>> terms.error, terms.diversity
        (tensor([0.5000, 0.0000]), tensor([0.0000, 0.5000]))
    """
    check_loss(loss)
    check_combine(combine)
    members = check_members(members)
    goal = dense_target(target, members) if loss == "squared" else check_labels(target, members)
    whole = check_constant(constant, members)
    ratio = check_rescale(rescale, members)

    counts = _counts(members)
    # Junction k has the members factor_k u_i + share_k.
    factor, share = (
        (ratio, whole / per_member(counts, members))
        if combine == "mean"
        else (ratio * per_member(counts, ratio), whole.expand_as(members))
    )
    if loss == "squared":
        terms = _squared(members, goal, factor.unsqueeze(-1), share)
    elif combine == "mean" and rescale is None and _is_absent(constant):
        terms = _CUMULATIVE[loss](members, goal)
    else:
        terms = _one_by_one(members, goal, loss, factor.unsqueeze(-1), share)
    return JunctionTerms(*terms, logits=ratio.unsqueeze(-1) * running_sum(members) + whole)


def running_moments(
    values: Float[Tensor, "component *batch vocab"],
) -> tuple[Float[Tensor, "component *batch vocab"], Float[Tensor, "component *batch"]]:
    """Mean of the first k values relative to the first one, and their mean squared distance to it.

    Welford's update ``S_k = S_{k-1} + (1 - 1/k) (u_k - m_{k-1})^2`` never subtracts two large
    squares, which ``E u^2 - m^2`` does.
    """
    relative = values - values[:1]
    means = _running_mean(relative)
    steps = (relative[1:] - means[:-1]).square().mean(-1)
    counts = per_member(_counts(values), steps)
    added = torch.cat([torch.zeros_like(relative[:1, ..., 0]), (1 - 1 / counts[1:]) * steps])
    return means, running_sum(added) / counts


def _squared(
    members: Float[Tensor, "component *batch vocab"],
    goal: Float[Tensor, "*batch vocab"],
    factor: Float[Tensor, "component *batch 1"],
    share: Float[Tensor, "component *batch vocab"],
) -> Terms:
    means, spreads = running_moments(members)
    error = (goal - factor * members[0] - factor * means - share).square().mean(-1)
    diversity = factor.squeeze(-1).square() * spreads
    return error, error + diversity, diversity


def _paper(
    members: Float[Tensor, "component *batch vocab"], labels: Int[Tensor, "*batch"]
) -> Terms:
    margins = gold_margins(members, labels)
    error = misses(_running_mean(margins), labels).square().mean(-1)
    bias = _running_mean(misses(margins, labels).square().mean(-1))
    return error, bias, running_moments(members)[1]


def _brier(
    members: Float[Tensor, "component *batch vocab"], labels: Int[Tensor, "*batch"]
) -> Terms:
    missed = misses(gold_margins(members, labels), labels)
    error = _running_mean(missed).square().mean(-1)
    diversity = running_moments(missed)[1]
    return error, error + diversity, diversity


def _cross_entropy(
    members: Float[Tensor, "component *batch vocab"], labels: Int[Tensor, "*batch"]
) -> Terms:
    """Welford's update holds for any Bregman divergence.

    ``S_k = S_{k-1} + (k-1) KL(q_k || q_{k-1}) + KL(q_k || p_k)``, where ``q_k`` is the centroid.
    """
    margins = gold_margins(members, labels)
    means = _running_mean(margins)
    error, own = surprisal(means, labels), surprisal(margins, labels)
    added, before = [torch.zeros_like(error[0])], means[0].softmax(-1)
    for last in range(1, members.shape[0]):
        now, new = means[last].softmax(-1), margins[last].softmax(-1)
        step = (margins[last] - means[last - 1]) / (last + 1)
        gain, excess = error[last - 1] - error[last], own[last] - error[last]
        to_old = kullback_leibler(now, before, gain.unsqueeze(-1) + step)
        to_new = kullback_leibler(now, new, excess.unsqueeze(-1) - last * step)
        added.append(last * to_old + to_new)
        before = now
    return error, _running_mean(own), _running_mean(torch.stack(added))


def _one_by_one(
    members: Float[Tensor, "component *batch vocab"],
    labels: Int[Tensor, "*batch"],
    loss: str,
    factor: Float[Tensor, "component *batch 1"],
    share: Float[Tensor, "component *batch vocab"],
) -> Terms:
    """Softmax losses whose members change from junction to junction."""
    # From margins, so that no offset of the members' logits is there to be rescaled.
    margins, shares = gold_margins(members, labels), gold_margins(share, labels)
    terms = [
        LOSSES[loss](factor[last] * margins[: last + 1] + shares[last], labels)
        for last in range(members.shape[0])
    ]
    error = torch.stack([term.error for term in terms])
    bias = torch.stack([term.bias for term in terms])
    if loss == "paper":
        return error, bias, factor.squeeze(-1).square() * running_moments(members)[1]
    return error, bias, torch.stack([term.diversity for term in terms])


def _running_mean(values: Float[Tensor, "component *rest"]) -> Float[Tensor, "component *rest"]:
    return running_sum(values) / per_member(_counts(values), values)


def _counts(values: Tensor) -> Float[Tensor, " component"]:
    return torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)


def _is_absent(constant: Tensor | None) -> bool:
    """None or zeros, as models without biases have: then members do not change with ``k``."""
    return constant is None or not (constant.requires_grad or bool(constant.any()))


_CUMULATIVE: dict[str, Callable[[Tensor, Tensor], Terms]] = {
    "paper": _paper,
    "brier": _brier,
    "cross_entropy": _cross_entropy,
}
