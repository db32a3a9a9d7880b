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
# Tokens of a tile among which one is looked for that is not unlikely.
_COMPARED = 64


def check_budget(budget: Budget) -> None:
    """Refuse what is no positive number of bytes.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is not positive.
    """
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise TypeError(f"memory_budget must be an integer number of bytes, got {budget!r}")
    if budget < 1:
        raise ValueError(f"memory_budget must be at least one byte, got {budget}")


def rows_within(budget: Budget, vectors: int, basis: VocabularyBasis, dtype: torch.dtype) -> int:
    """How many rows of ``vectors`` logit vectors each to stream at once.

    Raises:
        ValueError: If the budget does not hold a single row.
    """
    per_row = vectors * dtype.itemsize * max(_COPIES_OF_COEFFICIENTS * basis.size, _NARROWEST_TILE)
    rows = budget // _SHARES // per_row
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


class RunningSoftmax:
    """Softmax over the tokens so far, merged tile by tile.

    With the log-sum ``l`` of the tokens so far and ``l_t`` of a tile, the tile's share of the
    merged distribution is ``a = exp(l_t - log(e^l + e^l_t))``, and any average over the merged
    distribution is ``(1 - a)`` times the former plus ``a`` times the tile's. Nothing overflows, and
    everything but the tile itself is in float64.
    """

    def __init__(self, like: Float[Tensor, "vector basis"]) -> None:
        wide = torch.float64 if wide_device(like) == like.device else like.dtype
        self.log_sum = torch.full((len(like),), -torch.inf, dtype=wide, device=like.device)
        self._scratch = like.new_empty(0)

    def update(
        self, tile: Float[Tensor, "vector token"]
    ) -> tuple[Float[Tensor, "vector token"], Float[Tensor, " vector"]]:
        """Take in a tile; give its own log-softmax (to be read before the next) and its share."""
        if self._scratch.numel() < tile.numel():
            self._scratch = torch.empty_like(tile).flatten()
        out = self._scratch[: tile.numel()].view_as(tile)
        log_probabilities = torch.log_softmax(tile, 1, out=out)
        # Any token tells the log-sum, the likelier the more precisely; looking for the likeliest
        # of all would be another reading of the tile.
        logit = tile[:, :_COMPARED].amax(1).to(self.log_sum)
        log_sum = logit - log_probabilities[:, :_COMPARED].amax(1).to(self.log_sum)
        # A tile of nothing but a masked token has no softmax, and no share.
        log_sum = torch.where(logit == -torch.inf, logit, log_sum)
        merged = torch.logaddexp(self.log_sum, log_sum)
        self.log_sum = merged
        return log_probabilities, (log_sum - merged).exp().nan_to_num(0.0)


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
    averages: Float[Tensor, "row basis"]
    """``sum_j p_j B_j`` of the last vector."""
    rest_squares: Float[Tensor, "vector row"] | None
    """``sum_{j != y} p_j^2 / (1 - p_y)^2``, where it was asked for."""

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
        assert self.rest_squares is not None
        return self.missing.square() * (1 + self.rest_squares)


def gold_statistics(
    basis: VocabularyBasis,
    vectors: Float[Tensor, "vector row basis"],
    labels: Int[Tensor, " row"],
    budget: Budget,
    *,
    squares: bool,
) -> GoldStatistics:
    """Stream the vocabulary once past all vectors; ``squares`` costs one more reading of a tile."""
    count, rows = vectors.shape[:2]
    flat = vectors.flatten(0, 1)
    gold_ids = labels.repeat(count)
    gold = flat.new_zeros(len(flat))
    rest = RunningSoftmax(flat)
    averages = flat.new_zeros(rows, basis.size)
    lengths = torch.zeros_like(rest.log_sum)
    for tokens, tile in tiles(basis, flat, budget):
        gold = mask_gold(tile, tokens, gold_ids, gold)
        log_probabilities, share = rest.update(tile)
        centroid = log_probabilities[-rows:].exp().nan_to_num_(0.0)
        last = basis.weighted_tokens(centroid, tokens)
        averages += share[-rows:].to(averages).unsqueeze(1) * (last - averages)
        if squares:
            own = torch.linalg.vector_norm(log_probabilities.exp_(), dim=1).nan_to_num(0.0)
            lengths = torch.hypot((1 - share) * lengths, share * own)

    log_odds = (rest.log_sum - gold).view(count, rows)
    missing = log_odds[-1].sigmoid().to(averages).unsqueeze(1)
    at_gold = basis.columns(labels, like=averages).T
    return GoldStatistics(
        gold=gold.to(rest.log_sum).view(count, rows),
        log_rest=rest.log_sum.view(count, rows),
        averages=missing * averages + (1 - missing) * at_gold,
        rest_squares=lengths.square().view(count, rows) if squares else None,
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
