"""Softmax statistics of logit vectors, streamed over the vocabulary with running maxima."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.full_vocab.basis import VocabularyBasis, wide_device

Budget = int
DEFAULT_BUDGET: Budget = 256 * 2**20

# A quarter of the budget each for the coefficients of the rows at hand (with the copies that made
# them), a tile of logits, one temporary of its size, and what the matrix product itself asks for.
_SHARES = 4
_COPIES_OF_COEFFICIENTS = 4
_NARROWEST_TILE = 16


def rows_within(budget: Budget, vectors: int, basis: VocabularyBasis, dtype: torch.dtype) -> int:
    """How many rows of ``vectors`` logit vectors each to stream at once.

    Raises:
        ValueError: If the budget does not hold a single row.
    """
    per_row = vectors * dtype.itemsize * max(_COPIES_OF_COEFFICIENTS * basis.size, _NARROWEST_TILE)
    rows = int(budget) // _SHARES // per_row
    if rows < 1:
        raise ValueError(
            f"memory_budget={budget} bytes is too small for one row of {vectors} members over "
            f"{basis.size} dimensions; give at least {_SHARES * per_row} bytes "
            f"({_SHARES * per_row / 2**20:.3g} MiB)"
        )
    return rows


def tokens_within(budget: Budget, vectors: int, basis: VocabularyBasis, dtype: torch.dtype) -> int:
    """Width of the tiles of ``vectors`` logit vectors, the vocabulary split evenly."""
    widest = budget // _SHARES // (dtype.itemsize * max(vectors, basis.size))
    pieces = -(-basis.d_vocab // max(1, widest))
    return -(-basis.d_vocab // pieces)


def tiles(
    basis: VocabularyBasis, vectors: Float[Tensor, "vector basis"], budget: Budget
) -> Iterator[tuple[slice, Float[Tensor, "vector token"]]]:
    """Logits of all vectors at consecutive tokens; the next tile overwrites the one before."""
    count = len(vectors)
    width = tokens_within(budget, count, basis, vectors.dtype)
    buffer = vectors.new_empty(count * width)
    for start in range(0, basis.d_vocab, width):
        tokens = slice(start, min(start + width, basis.d_vocab))
        tile = buffer[: count * (tokens.stop - start)].view(count, -1)
        yield tokens, basis.logits(vectors, tokens, out=tile)


class RunningLogSum:
    """``log sum_j exp(logit_j)`` of growing sets of tokens, and the sum of squared probabilities.

    Sums are held relative to the largest logit so far, which only grows, and in float64 from one
    tile to the next.
    """

    def __init__(self, like: Float[Tensor, "vector basis"]) -> None:
        # Finite, so that a tile of only -inf (every token masked) gives a sum of zero, not NaN.
        self.peak = like.new_full((len(like),), torch.finfo(like.dtype).min)
        wide = torch.float64 if wide_device(like) == like.device else like.dtype
        self.total = torch.zeros(len(like), dtype=wide, device=like.device)
        self.squares = torch.zeros_like(self.total)

    def update(self, tile: Float[Tensor, "vector token"]) -> Float[Tensor, " vector"]:
        """Turn a tile into ``exp(tile - peak)`` and add it up; give what earlier sums lost."""
        peak = torch.maximum(self.peak, tile.amax(1))
        shrink = (self.peak - peak).exp()
        tile.sub_(peak.unsqueeze(1)).exp_()
        self.total.mul_(shrink).add_(tile.sum(1))
        self.squares.mul_(shrink.square()).add_(torch.linalg.vector_norm(tile, dim=1).square())
        self.peak = peak
        return shrink

    @property
    def log_sum(self) -> Float[Tensor, " vector"]:
        """``log sum_j exp(logit_j)``; ``-inf`` for no token."""
        return self.peak + self.total.log()


@dataclass(frozen=True, eq=False)
class GoldStatistics:
    """What the losses of ``softmax(u)`` on one gold token need, each ``[vector, row]``.

    The gold token is left out of the sums, so that nothing is lost to cancellation where a member
    is nearly certain of it: ``1 - p_y`` and ``-log p_y`` come from ``log_rest - gold``.
    """

    gold: Float[Tensor, "vector row"]
    """Logit of the gold token."""
    log_rest: Float[Tensor, "vector row"]
    """``log sum_{j != y} exp(u_j)``."""
    rest_squares: Float[Tensor, "vector row"]
    """``sum_{j != y} p_j^2 / (1 - p_y)^2``."""
    averages: Float[Tensor, "row basis"]
    """``sum_j p_j B_j`` of the last vector."""

    @property
    def log_sum(self) -> Float[Tensor, "vector row"]:
        """``log sum_j exp(u_j)``."""
        return torch.logaddexp(self.gold, self.log_rest)

    @property
    def cross_entropy(self) -> Float[Tensor, "vector row"]:
        """``-log p_y``."""
        return torch.logaddexp(self.log_rest - self.gold, torch.zeros_like(self.gold))

    @property
    def missing(self) -> Float[Tensor, "vector row"]:
        """``1 - p_y``."""
        return (self.log_rest - self.gold).sigmoid()

    @property
    def squared_error(self) -> Float[Tensor, "vector row"]:
        """``sum_j (y_j - p_j)^2``."""
        return self.missing.square() * (1 + self.rest_squares)


def gold_statistics(
    basis: VocabularyBasis,
    vectors: Float[Tensor, "vector row basis"],
    labels: Int[Tensor, " row"],
    budget: Budget,
) -> GoldStatistics:
    """Stream the vocabulary once past all vectors."""
    count, rows = vectors.shape[:2]
    flat = vectors.flatten(0, 1)
    gold_ids = labels.repeat(count)
    gold = flat.new_zeros(len(flat))
    sums = RunningLogSum(flat)
    averages = flat.new_zeros(rows, basis.size)
    for tokens, tile in tiles(basis, flat, budget):
        gold = mask_gold(tile, tokens, gold_ids, gold)
        shrink = sums.update(tile)
        averages.mul_(shrink[-rows:].unsqueeze(1))
        averages.add_(basis.weighted_tokens(tile[-rows:], tokens))

    found = GoldStatistics(
        gold=gold.to(sums.total).view(count, rows),
        log_rest=sums.log_sum.view(count, rows),
        rest_squares=(sums.squares / sums.total.square()).nan_to_num(0.0).view(count, rows),
        averages=averages,
    )
    missing = found.missing[-1].to(averages).unsqueeze(1)
    scale = sums.total[-rows:].to(averages).unsqueeze(1)
    others = (averages / scale).nan_to_num(0.0)
    own = basis.columns(labels, like=averages).T
    return GoldStatistics(
        found.gold, found.log_rest, found.rest_squares, missing * others + (1 - missing) * own
    )


def mask_gold(
    tile: Float[Tensor, "vector token"],
    tokens: slice,
    labels: Int[Tensor, " vector"],
    gold: Float[Tensor, " vector"],
) -> Float[Tensor, " vector"]:
    """Move the gold logits that a tile holds out of it (to ``-inf``) and into ``gold``.

    Without asking the device whether there are any, which would wait for it at every tile.
    """
    column = labels - tokens.start
    inside = (column >= 0) & (column < tile.shape[1])
    column = column.clamp(0, tile.shape[1] - 1).unsqueeze(1)
    held = tile.gather(1, column).squeeze(1)
    tile.scatter_(1, column, torch.where(inside, -torch.inf, held).unsqueeze(1))
    return torch.where(inside, held, gold)
