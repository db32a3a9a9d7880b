"""Plug-in estimates from counts of predicted classes, with Miller and Madow's correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import chndtrix

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._sample import Floats, Integers
from lens_diversity.information._scores import Interval, Rows, Scores
from lens_diversity.information.estimates import InsufficientSampleError

# Share of rows whose (U, Y) was seen once: by Good and Turing the probability of what was not
# seen. Above it the correction by counted cells falls short (see docs/information.md).
MAX_UNSEEN = 0.1
_LN2 = math.log(2)


class PluginEstimator(Estimator):
    """Information between predicted classes and the label from their joint counts."""

    name: ClassVar[str] = "plugin"
    assumption: ClassVar[str] = "U is the members' predicted classes, not their logits"
    shuffles: ClassVar[int] = 50

    def prefixes(self, order: Sequence[int], sizes: Sequence[int]) -> Iterator[Scores]:
        """Refine the joint outcomes member by member."""
        codes = np.zeros(len(self.sample), dtype=np.int64)
        taken = 0
        for size in sizes:
            for member in order[taken:size]:
                codes = _refined(codes, self.sample.classes[:, member])
            taken = size
            table = _table(codes, self.sample.labels, self.sample.n_classes)
            self._require_support(table, size)
            yield self._scores(codes, table)

    def candidate_values(self, chosen: Sequence[int], candidates: Sequence[int]) -> Floats:
        """Miller-Madow estimates of each enlarged set."""
        codes = np.zeros(len(self.sample), dtype=np.int64)
        for member in chosen:
            codes = _refined(codes, self.sample.classes[:, member])
        values = np.full(len(candidates), -np.inf)
        for index, member in enumerate(candidates):
            joint = _refined(codes, self.sample.classes[:, member])
            table = _table(joint, self.sample.labels, self.sample.n_classes)
            if _unseen(table) <= MAX_UNSEEN:
                values[index] = _information(table) - _information_bias(table)
        if np.isinf(values).all():
            raise InsufficientSampleError("no further member is supported by the sample")
        return values

    def baseline(
        self, order: Sequence[int], sizes: Sequence[int], shuffles: int | None = None
    ) -> list[float]:
        """Mean corrected estimate over shuffles, from the tables alone."""
        codes = np.zeros(len(self.sample), dtype=np.int64)
        found, taken = [], 0
        for size in sizes:
            for member in order[taken:size]:
                codes = _refined(codes, self.sample.classes[:, member])
            taken = size
            tables = self._shuffled_tables(codes, shuffles)
            values = [_information(table) - _information_bias(table) for table in tables]
            found.append(float(np.mean(values)) / _LN2)
        return found

    def _require_support(self, table: Integers, size: int) -> None:
        unseen = _unseen(table)
        if unseen > MAX_UNSEEN:
            raise InsufficientSampleError(
                f"{len(self.sample)} examples cannot support {size} members: {unseen:.0%} of them "
                f"have a joint outcome of predicted classes and label that occurs once (at most "
                f"{MAX_UNSEEN:.0%}), and with unique rows the plug-in estimate is H(Y) whatever "
                'the truth. Use fewer members or estimator="probe".'
            )

    def _shuffled_tables(self, codes: Integers, count: int | None = None) -> Iterator[Integers]:
        for labels in self.shuffled_labels(count or self.shuffles):
            yield _table(codes, labels, self.sample.n_classes)

    def _scores(self, codes: Integers, table: Integers) -> Scores:
        n, labels = len(codes), self.sample.labels
        log_u = np.log2(table.sum(1)[codes] / n)
        log_u_given_y = np.log2(table[codes, labels] / table.sum(0)[labels])
        n_u, n_y, n_uy = _supports(table)
        null = float(np.mean([2 * n * _information(t) for t in self._shuffled_tables(codes)]))
        counted = n_uy - n_u - n_y + 1
        spread = math.sqrt(max(null, 1.0) / 2) / n / _LN2
        # Rare outcomes that no row shows leave the counts short of the degrees of freedom.
        slack = max(0.0, null - counted) / (2 * n * _LN2)
        marginal = Rows(log_u, bias=(n_u - 1) / (2 * n * _LN2))
        conditional = Rows(
            log_u_given_y, bias=(n_uy - n_y) / (2 * n * _LN2), spread=spread, slack=slack
        )
        information = conditional - marginal
        interval = _interval(information.held, information.bias, null, n_uy, self.level)
        return Scores(
            information,
            interval,
            False,
            marginal,
            conditional,
            _leave_one_out(codes, table, labels),
        )


def _refined(codes: Integers, classes: Integers) -> Integers:
    joint = codes * (int(classes.max()) + 1) + classes
    codes_of_joint: Integers = np.unique(joint, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes_of_joint


def _table(codes: Integers, labels: Integers, n_classes: int) -> Integers:
    n_codes = int(codes.max()) + 1
    flat = np.bincount(codes * n_classes + labels, minlength=n_codes * n_classes)
    return flat.reshape(n_codes, n_classes).astype(np.int64)


def _leave_one_out(codes: Integers, table: Integers, labels: Integers) -> Floats:
    """Whether the most frequent label of a row's outcome, the row not counted, is its own."""
    others = table[codes] - np.eye(table.shape[1], dtype=np.int64)[labels]
    # An outcome that no other row has says nothing, so all rows decide.
    others = np.where(others.any(1, keepdims=True), others, table.sum(0))
    right: Floats = (others.argmax(1) == labels).astype(np.float64)
    return right


def _supports(table: Integers) -> tuple[int, int, int]:
    occupied = table > 0
    return int(occupied.any(1).sum()), int(occupied.any(0).sum()), int(occupied.sum())


def _unseen(table: Integers) -> float:
    return float((table == 1).sum() / table.sum())


def _information(table: Integers) -> float:
    """Plug-in mutual information in nats."""
    n = table.sum()
    held = table[table > 0] / n
    expected = (table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / n**2)[table > 0]
    return float((held * np.log(held / expected)).sum())


def _information_bias(table: Integers) -> float:
    """Miller and Madow's bias of the plug-in information in nats."""
    n_u, n_y, n_uy = _supports(table)
    return float((n_uy - n_u - n_y + 1) / (2 * table.sum()))


@dataclass(frozen=True)
class _Null:
    """The law of ``T = 2 n I`` (plug-in, nats) at a true information ``noncentrality / 2n``.

    At independence ``T`` is chi-square, and noncentral chi-square near it; far from it normal with
    the delta method's variance. A noncentral chi-square stretched about its mean to that variance
    is both, and so valid at ``I = 0``, where a bootstrap is not.
    """

    degrees: float
    ratio: float
    """Delta-method variance relative to that of the noncentral chi-square."""

    def quantile(self, probability: float, noncentrality: float, bias: float) -> float:
        k, x = self.degrees, noncentrality
        stretch = math.sqrt((2 * k + 4 * self.ratio * x) / (2 * k + 4 * x))
        return x + bias + stretch * (float(chndtrix(probability, k, x)) - (k + x))


def _interval(rows: Floats, bias: float, null: float, cells: int, level: float) -> Interval:
    """Invert the law of the plug-in information, in bits.

    The bias lies between that of counted cells and that of shuffled labels (they agree where every
    cell is occupied); each end takes the one that is safer.
    """
    n = len(rows)
    statistic = 2 * n * max(0.0, float(rows.mean()) * _LN2)
    counted = 2 * n * bias * _LN2
    # Fitted to the rows it is measured on, the pointwise information varies too little.
    variance = float(rows.var()) * _LN2**2 * n / max(n - cells + 1, 1)
    ratio = variance * n / statistic if statistic > 1e-9 else 1.0
    # Fewer than one degree of freedom would claim to know what no row could show.
    law = _Null(max(null, 1.0), ratio)
    tail = (1 - level) / 2
    safe_low, safe_high = max(counted, law.degrees), min(counted, law.degrees)
    low = _solve(lambda x: law.quantile(1 - tail, x, safe_low) - statistic, statistic)
    high = _solve(lambda x: law.quantile(tail, x, safe_high) - statistic, statistic)
    return low / (2 * n * _LN2), high / (2 * n * _LN2)


def _solve(excess: Callable[[float], float], start: float) -> float:
    """The non-negative root of an increasing function, 0 where it is positive already."""
    if excess(0.0) >= 0:
        return 0.0
    upper = max(start, 1.0)
    while excess(upper) < 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-6))
