"""What every member would predict: top tokens, entropy and the rank of the gold token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.decomposition._members import check_members
from lens_diversity.full_vocab._sample import check_on_sample
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.softmax import (
    DEFAULT_BUDGET,
    RunningSoftmax,
    check_budget,
    rows_within,
    tiles,
)
from lens_diversity.full_vocab.targets import flat_targets
from lens_diversity.readout import CONSTANTS, place_constant, readout_dtype, without_autocast
from lens_diversity.stack import ComponentStack


@dataclass(frozen=True, eq=False)
class MemberReadout:
    """Every member's softmax over the vocabulary, without its numbers."""

    top_ids: Int[Tensor, "member *batch k"]
    """Token ids of the largest logits, largest first."""
    top_log_probs: Float[Tensor, "member *batch k"]
    """Their log-probabilities, in nats."""
    entropy: Float[Tensor, "member *batch"]
    """Entropy in nats."""
    log_normaliser: Float[Tensor, "member *batch"]
    """``log sum_j exp(u_j)``."""
    gold_rank: Int[Tensor, "member *batch"] | None
    """How many tokens have a larger logit than the gold one; None without targets."""
    gold_log_prob: Float[Tensor, "member *batch"] | None
    """Log-probability of the gold token, in nats; None without targets."""


@torch.no_grad()
@without_autocast
def member_readout(
    stack: ComponentStack,
    targets: Tensor | Sequence[int] | int | None = None,
    k: int = 5,
    memory_budget: int = DEFAULT_BUDGET,
    *,
    constant: str = "spread",
    cumulative: bool = False,
    dtype: torch.dtype | None = None,
) -> MemberReadout:
    """Read every member's own prediction in one pass over the vocabulary.

    Args:
        stack: Components of the residual stream.
        targets: Gold token ids ``[batch(, pos)]``, or None.
        k: How many top tokens to keep.
        memory_budget: Bytes that may be used beside the stack and the result; chunk sizes follow
            from it, and memory does not grow with vocabulary, components or positions.
        constant: As in [`component_logits`][lens_diversity.component_logits].
        cumulative: Read the sums of the first ``1, 2, ...`` components (the logit lens along the
            stream, at the final norm's statistics, each with the whole constant) instead of the
            components.
        dtype: ``torch.float32`` (default) or ``torch.float64``.

    Returns:
        Numbers ``[member, batch(, pos)]`` on the stack's device (before a soft cap).

    Raises:
        TypeError: If targets or ``dtype`` have a wrong type.
        ValueError: If ``k`` is not between 1 and the vocabulary's size, ``constant`` is unknown,
            targets do not fit, or the budget does not hold one row.

    Example:
        >>> import torch
        >>> import lens_diversity as ld
        >>> readout = ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3))
        >>> stack = ld.ComponentStack.from_values(torch.tensor([[[4.0, 2.0, 0.0]]]), readout)
        >>> found = member_readout(stack, targets=[1], k=2)
        >>> found.top_ids.tolist(), found.gold_rank.tolist()
        ([[[0, 1]]], [[1]])
    """
    if constant not in CONSTANTS:
        raise ValueError(f"constant must be one of {CONSTANTS}, got {constant!r}")
    check_budget(memory_budget)
    basis = VocabularyBasis.of(stack.readout)
    if not 1 <= k <= basis.d_vocab:
        raise ValueError(f"k must be between 1 and the vocabulary's {basis.d_vocab}, got {k}")
    compute = readout_dtype(stack.values.dtype, dtype)
    labels = None if targets is None else flat_targets(targets, stack, None, "cross_entropy")
    check_on_sample(stack, compute)
    rows = stack.rows()
    count = len(stack) + (constant == "component" and not cumulative)
    step = rows_within(memory_budget, count, basis, compute)

    parts: list[MemberReadout] = []
    for start in range(0, rows.values.shape[1], step):
        chunk = slice(start, start + step)
        own, kappa = basis.components(rows.select_rows(chunk), compute)
        own = check_members(own)
        members = own.cumsum(0) + kappa if cumulative else place_constant(own, kappa, constant)
        gold = None if not isinstance(labels, Tensor) else labels[chunk]
        parts.append(_read(basis, members, gold, k, memory_budget))

    def joined(name: str) -> Any:
        pieces = [getattr(part, name) for part in parts]
        if pieces[0] is None:
            return None
        whole = torch.cat(pieces, 1)
        return whole.reshape(count, *stack.batch_shape, *whole.shape[2:])

    return MemberReadout(**{field.name: joined(field.name) for field in fields(MemberReadout)})


def _read(
    basis: VocabularyBasis,
    members: Float[Tensor, "member row basis"],
    labels: Int[Tensor, " row"] | None,
    k: int,
    budget: int,
) -> MemberReadout:
    count, rows = members.shape[:2]
    flat = members.flatten(0, 1)
    sums, best = _Entropy(flat), _Best(flat, k)
    rank = None if labels is None else _Rank(basis, members, labels)
    for tokens, tile in tiles(basis, flat, budget):
        best.update(tile, tokens)
        if rank is not None:
            rank.update(tile, tokens)
        sums.update(tile)

    def shaped(values: Tensor) -> Tensor:
        narrow = values if values.dtype == torch.long else values.to(members.dtype)
        return narrow.reshape(count, rows, *values.shape[1:])

    return MemberReadout(
        top_ids=shaped(best.ids),
        top_log_probs=shaped(best.logits - sums.log_sum.unsqueeze(1)),
        entropy=shaped(sums.entropy),
        log_normaliser=shaped(sums.log_sum),
        gold_rank=None if rank is None else shaped(rank.count),
        gold_log_prob=None if rank is None else shaped(rank.gold - sums.log_sum),
    )


class _Entropy:
    """The running softmax with its mean logit."""

    def __init__(self, like: Float[Tensor, "vector basis"]) -> None:
        self._softmax = RunningSoftmax(like)
        self.mean = torch.zeros_like(self.log_sum)

    def update(self, tile: Float[Tensor, "vector token"]) -> None:
        log_probabilities, share = self._softmax.update(tile)
        self.mean += share * (log_probabilities.exp_().mul_(tile).sum(1) - self.mean)

    @property
    def log_sum(self) -> Float[Tensor, " vector"]:
        return self._softmax.log_sum

    @property
    def entropy(self) -> Float[Tensor, " vector"]:
        return self.log_sum - self.mean


class _Best:
    """The ``k`` largest logits so far, with their tokens."""

    def __init__(self, like: Float[Tensor, "vector basis"], k: int) -> None:
        self.k = k
        self.logits = like.new_empty(len(like), 0)
        self.ids = torch.empty(len(like), 0, dtype=torch.long, device=like.device)

    def update(self, tile: Float[Tensor, "vector token"], tokens: slice) -> None:
        values, columns = tile.topk(min(self.k, tile.shape[1]), dim=1)
        values = torch.cat([self.logits, values], 1)
        ids = torch.cat([self.ids, columns + tokens.start], 1)
        self.logits, order = values.topk(min(self.k, values.shape[1]), dim=1)
        self.ids = ids.gather(1, order)


class _Rank:
    """How many tokens so far have a larger logit than the gold one."""

    def __init__(
        self,
        basis: VocabularyBasis,
        members: Float[Tensor, "member row basis"],
        labels: Int[Tensor, " row"],
    ) -> None:
        columns = basis.columns(labels, like=members)
        self.gold = torch.einsum("irb,br->ir", members, columns).flatten()
        self.labels = labels.repeat(len(members))
        self.count = torch.zeros_like(self.labels)

    def update(self, tile: Float[Tensor, "vector token"], tokens: slice) -> None:
        larger = tile > self.gold.unsqueeze(1)
        # The gold logit itself may have been rounded otherwise here.
        column = self.labels - tokens.start
        inside = (column >= 0) & (column < tile.shape[1])
        column = column.clamp(0, tile.shape[1] - 1).unsqueeze(1)
        itself = larger.gather(1, column).squeeze(1) & inside
        self.count += larger.sum(1) - itself.long()
