"""The ensemble growing along the residual stream."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import (
    check_combine,
    check_labels,
    check_members,
    dense_target,
    one_hot,
)
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.decomposition.terms import JunctionTerms


def junctions(
    members: Float[Tensor, "..."],
    target: Tensor,
    loss: str = "paper",
    combine: str = "mean",
    constant: Tensor | None = None,
    rescale: Tensor | None = None,
) -> JunctionTerms:
    """Decompose the error of the ensembles of members ``1..k``, for every ``k``.

    Junction ``k`` has the members ``r_k u_i + constant / k`` (``i <= k``, uniform weights; times
    ``k`` with ``combine="sum"``), so that each junction carries the whole constant (Kamigaito et
    al. 2025, section 5.2). Squared quantities are cumulative (a running mean and a running sum of
    squares, updated as Welford does); so are softmax losses as long as a member's logits do not
    change with ``k``.

    Args:
        members: Logits ``[component, batch..., vocab]`` without the constant.
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
    goal = (
        dense_target(target, members)
        if loss == "squared"
        else one_hot(check_labels(target, members), members)
    )
    stream = _Stream.accumulate(members, constant, rescale)
    if loss == "squared":
        error = (goal - stream.mean(combine)).square().mean(-1)
        diversity = stream.diversity(combine)
        return JunctionTerms(error, error + diversity, diversity, stream.logits)
    if combine == "mean" and constant is None and rescale is None:
        return _cumulative(members, goal, loss, stream)
    return _one_by_one(members, target, loss, combine, stream)


class _Stream:
    """Running mean and running sum of squared deviations of the members, at every junction."""

    def __init__(self, means: Tensor, squares: Tensor, constant: Tensor, rescale: Tensor) -> None:
        self.counts = torch.arange(1, len(means) + 1, device=means.device, dtype=means.dtype)
        self.constant = constant
        self.rescale = rescale
        self._means = means
        self._squares = squares

    @classmethod
    def accumulate(
        cls, members: Tensor, constant: Tensor | None, rescale: Tensor | None
    ) -> _Stream:
        means, squares = running_moments(members)
        return cls(
            means,
            squares,
            members.new_zeros(()) if constant is None else constant.to(members.dtype),
            members.new_ones(members.shape[:-1]) if rescale is None else rescale.to(members.dtype),
        )

    @property
    def logits(self) -> Float[Tensor, "junction *batch vocab"]:
        return self._per_junction(self.counts) * self.mean("mean")

    def mean(self, combine: str) -> Float[Tensor, "junction *batch vocab"]:
        """Centroid of each junction's members."""
        counts = self._per_junction(self.counts)
        mean = self.rescale.unsqueeze(-1) * self._means + self.constant / counts
        return mean if combine == "mean" else counts * mean

    def diversity(self, combine: str) -> Float[Tensor, "junction *batch"]:
        """Mean squared distance of each junction's members from their centroid."""
        counts = self.counts.reshape(-1, *[1] * (self._squares.ndim - 1))
        diversity = self.rescale.square() * self._squares / counts
        return diversity if combine == "mean" else counts.square() * diversity

    def members_at(
        self, members: Tensor, junction: int, combine: str
    ) -> Float[Tensor, "component *batch vocab"]:
        count = junction + 1
        first = self.rescale[junction].unsqueeze(-1) * members[:count] + self.constant / count
        return first if combine == "mean" else count * first

    def _per_junction(self, values: Tensor) -> Tensor:
        return values.reshape(-1, *[1] * (self._means.ndim - 1))


def running_moments(
    members: Float[Tensor, "component *batch vocab"],
) -> tuple[Float[Tensor, "component *batch vocab"], Float[Tensor, "component *batch"]]:
    """Mean of the first k members, and their summed squared distance from it (mean over vocab).

    Welford's update ``M2_k = M2_{k-1} + (u_k - m_{k-1})(u_k - m_k)`` never subtracts two large
    squares, which ``E u^2 - m^2`` does.
    """
    mean, square = members[0], torch.zeros_like(members[0, ..., 0])
    means, squares = [mean], [square]
    for count, member in enumerate(members[1:], start=2):
        before = member - mean
        mean = mean + before / count
        square = square + (before * (member - mean)).mean(-1)
        means.append(mean)
        squares.append(square)
    return torch.stack(means), torch.stack(squares)


def _cumulative(members: Tensor, goal: Tensor, loss: str, stream: _Stream) -> JunctionTerms:
    """Softmax losses whose members are the same at every junction: one pass."""
    counts = stream.counts.reshape(-1, *[1] * (members.ndim - 2))
    logits = stream.logits
    if loss == "brier":
        means, squares = running_moments(members.softmax(-1))
        error = (goal - means).square().mean(-1)
        return JunctionTerms(error, error + squares / counts, squares / counts, logits)
    if loss == "paper":
        error = (goal - stream.mean("mean").softmax(-1)).square().mean(-1)
        bias = (goal - members.softmax(-1)).square().mean(-1).cumsum(0) / counts
        return JunctionTerms(error, bias, stream.diversity("mean"), logits)
    log_p = members.log_softmax(-1)
    log_mean = log_p.cumsum(0) / counts.unsqueeze(-1)
    # E_i KL(q || p_i) = sum_j q_j (log q_j - E_i log p_ij): the members enter by their mean only.
    log_q = log_mean.log_softmax(-1)
    diversity = (log_q.exp() * (log_q - log_mean)).sum(-1)
    error = -(goal * log_q).sum(-1)
    bias = -(goal * log_mean).sum(-1)
    return JunctionTerms(error, bias, diversity, logits)


def _one_by_one(
    members: Tensor, target: Tensor, loss: str, combine: str, stream: _Stream
) -> JunctionTerms:
    """Softmax losses whose members change from junction to junction."""
    terms = [
        LOSSES[loss](stream.members_at(members, junction, combine), target)
        for junction in range(members.shape[0])
    ]
    return JunctionTerms(
        error=torch.stack([term.error for term in terms]),
        bias=torch.stack([term.bias for term in terms]),
        diversity=torch.stack([term.diversity for term in terms]),
        logits=stream.logits,
    )
