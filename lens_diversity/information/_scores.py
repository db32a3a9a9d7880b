"""Pointwise information of every row, from which all terms are sums and differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from scipy import stats

from lens_diversity.information._sample import Floats, Integers
from lens_diversity.information.estimates import ESTIMATE, LOWER_BOUND

Interval = tuple[float, float]
# The steps halve the distance to the fixed point at least.
_FIXED_POINT_STEPS = 20


@dataclass(frozen=True, eq=False)
class Rows:
    """A quantity that is a mean over rows, in bits, less a known bias.

    ``held`` scores a row under a model that has not seen it; ``fitted``, where an estimator fits
    densities, under one that has. The first is biased down by the fit and the second up, so both
    ends of the interval are safe, at 0 too.
    """

    held: Floats
    """[example] pointwise values."""
    fitted: Floats | None = None
    """[example] the same under a model fitted to these rows, or None."""
    bias: float = 0.0
    """What the mean of ``held`` is too large by."""
    spread: float = 0.0
    """Standard deviation of the estimate that remains where all pointwise values vanish."""
    slack: float = 0.0
    """How uncertain the bias is; it does not average out."""

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.held.mean()) - self.bias

    def __add__(self, other: Rows) -> Rows:
        return self._combined(other, 1.0)

    def __sub__(self, other: Rows) -> Rows:
        return self._combined(other, -1.0)

    def scaled(self, factor: float) -> Rows:
        """The quantity times a number."""
        fitted = None if self.fitted is None else factor * self.fitted
        size = abs(factor)
        return Rows(
            factor * self.held,
            fitted,
            factor * self.bias,
            size * self.spread,
            size * self.slack,
        )

    def _combined(self, other: Rows, sign: float) -> Rows:
        fitted = None
        if self.fitted is not None and other.fitted is not None:
            fitted = self.fitted + sign * other.fitted
        return Rows(
            self.held + sign * other.held,
            fitted,
            self.bias + sign * other.bias,
            math.hypot(self.spread, other.spread),
            self.slack + other.slack,
        )

    def interval(self, level: float) -> Interval:
        """Interval for the quantity by the delta method, widened by what the fit may have cost."""
        z = normal_quantile(level)
        half = z * math.hypot(float(self.held.std()) / math.sqrt(len(self.held)), self.spread)
        ends = [self.value]
        if self.fitted is not None:
            ends.append(float(self.fitted.mean()) - self.bias)
        return min(ends) - half - self.slack, max(ends) + half + self.slack


def information_interval(rows: Rows, level: float, entropy: float) -> Interval:
    """Interval of held-out information, safe at both ends of what is possible.

    Near 0 the variance of pointwise information is ``2 I`` (nats), so a low estimate comes with too
    small a variance, and the upper end takes that of the information it stands for. Near ``H(Y)`` a
    few wrong rows carry most of the variance, and a sample may show none: as Agresti and Coull add
    successes and failures to a proportion, the lower end counts two rows that were not seen, wrong
    by three times the mean. Both were found by measured coverage (docs/information.md).
    """
    low, high = rows.interval(level)
    n, value, z = len(rows.held), max(rows.value, 0.0), normal_quantile(level)
    own = float(rows.held.var())
    low = min(low, rows.value - z * math.sqrt((own + 2 * (4 * value) ** 2 / n) / n))
    centre = max(0.0, rows.value, rows.value if rows.fitted is None else float(rows.fitted.mean()))
    for _ in range(_FIXED_POINT_STEPS):
        share = min(high, entropy) / entropy
        local = 2 * entropy * share * (1 - share) ** 2 / math.log(2)
        high = max(high, centre + z * math.sqrt(max(own, local) / n))
    return low, high


@dataclass(frozen=True, eq=False)
class Scores:
    """What an estimator found for one set of members."""

    information: Rows
    """``log2 p(u|y) / p(u)``."""
    interval: Interval
    """For ``I(U;Y)``, not clipped."""
    is_bound: bool
    """Whether the interval's upper end means nothing, so that ``I`` is bounded from below only."""
    marginal: Rows | None = None
    """``log2 p(u)``, or None where the estimator has no such thing."""
    conditional: Rows | None = None
    """``log2 p(u|y)``."""
    correct: Floats | None = None
    """[example] whether the held-out Bayes rule of the fitted model is right, or None."""

    @property
    def kind(self) -> str:
        """``"estimate"`` or ``"lower bound"``."""
        return LOWER_BOUND if self.is_bound else ESTIMATE


def total(rows: list[Rows]) -> Rows:
    """Sum of several quantities of the same rows."""
    return reduce(add, rows)


def normal_quantile(level: float) -> float:
    """Half-width of a two-sided normal interval in standard deviations."""
    return float(stats.norm.ppf((1 + level) / 2))


def label_entropy(labels: Integers) -> tuple[float, float, float]:
    """``H(Y)`` (Miller-Madow, at most ``log2 |Y|``), the plain one, and its upper end, in bits."""
    counts = np.bincount(labels)
    p = counts[counts > 0] / len(labels)
    surprise = -np.log2(p)
    plain = float((p * surprise).sum())
    largest = math.log2(len(p))
    correction = (len(p) - 1) / (2 * len(labels) * math.log(2))
    deviation = math.sqrt(max(0.0, float((p * surprise**2).sum()) - plain**2) / len(labels))
    corrected = min(plain + correction, largest)
    return corrected, plain, min(corrected + 2 * deviation + 2 * correction, largest)
