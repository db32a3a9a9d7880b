"""Correlations with p-values, corrections for many tests, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

METHODS = ("pearson", "spearman")
CORRECTIONS = ("holm", "benjamini-hochberg")

_Array = npt.NDArray[np.float64]
# Relative spread below which numbers differ by rounding only.
_ROUNDING = 1e-12
_RESAMPLED = 1_000_000


@dataclass(frozen=True)
class Correlation:
    """A correlation coefficient, or the reason why there is none."""

    value: float | None
    """The coefficient, None where it is undefined."""
    p: float | None
    """Two-sided p-value of no association, for independent pairs."""
    n: int
    """Number of pairs."""
    reason: str = ""
    """Why the coefficient is undefined; empty where it is defined."""


def correlation(
    x: Any, y: Any, method: str = "pearson", names: tuple[str, str] = ("x", "y")
) -> Correlation:
    """Correlate two sequences.

    Args:
        x: Numbers.
        y: As many numbers.
        method: ``"pearson"`` (linear; p-value from the exact distribution under normality) or
            ``"spearman"`` (of ranks, ties averaged; p-value from Student's t).
        names: What the sequences are called in the reason.

    Returns:
        The coefficient, or the reason why it is undefined: fewer than three pairs (two always lie
        on a line), or a sequence without any variation.

    Raises:
        ValueError: If the method is unknown, lengths differ, or a number is not finite.

    Example:
        >>> correlation([1, 2, 3, 4], [1, 4, 9, 16], "spearman").value
        1.0
        >>> correlation([0.5, 0.5, 0.5], [1, 2, 3], names=("accuracy", "MSE")).reason
        'accuracy does not vary'
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    pair = [_finite(values, name) for values, name in zip((x, y), names, strict=True)]
    if pair[0].shape != pair[1].shape or pair[0].ndim != 1:
        raise ValueError(
            f"expected two sequences of one length, got shapes {pair[0].shape} and {pair[1].shape}"
        )
    n = len(pair[0])
    if n < 3:
        return Correlation(None, None, n, f"{n} points are too few, three are the least")
    still = [name for name, values in zip(names, pair, strict=True) if _is_constant(values)]
    if still:
        verb = "does" if len(still) == 1 else "do"
        return Correlation(None, None, n, f"{' and '.join(still)} {verb} not vary")
    found = (stats.pearsonr if method == "pearson" else stats.spearmanr)(*pair)
    return Correlation(float(found.statistic), float(found.pvalue), n)


def adjust_p_values(p_values: Sequence[float] | _Array, correction: str) -> _Array:
    """Correct the p-values of several tests for their number.

    Args:
        p_values: One p-value a test of the family.
        correction: ``"holm"`` bounds the probability of any false finding (Holm 1979, valid under
            any dependence); ``"benjamini-hochberg"`` bounds the expected share of false findings
            among the findings (Benjamini and Hochberg 1995, for independent or positively dependent
            tests).

    Returns:
        Adjusted p-values in the same order, to be compared with the level itself.

    Raises:
        ValueError: If the correction is unknown or a p-value lies outside [0, 1].

    Example:
        >>> adjust_p_values([0.01, 0.04, 0.03], "holm").tolist()
        [0.03, 0.06, 0.06]
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"correction must be one of {CORRECTIONS}, got {correction!r}")
    values = np.asarray(p_values, dtype=np.float64)
    outside = values[~((values >= 0) & (values <= 1))]
    if outside.size:
        raise ValueError(f"p-values lie between 0 and 1, got {outside[0]}")
    if correction == "benjamini-hochberg":
        adjusted: _Array = np.asarray(stats.false_discovery_control(values, method="bh"))
        return adjusted
    order = np.argsort(values)
    remaining = np.arange(len(values), 0, -1)
    stepped = np.maximum.accumulate(values[order] * remaining)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def bootstrap_interval(
    values: Any, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[_Array, _Array]:
    """Percentile bootstrap interval of a mean over independent rows (Efron 1979).

    Args:
        values: [row, ...]; trailing axes share the resampled rows.
        level: Coverage aimed at.
        resamples: Number of resampled data sets.
        seed: Seed of the resampling; one seed, one interval.

    Returns:
        ``(low, high)``, each of the shape of one row. Rows that are all equal give an interval of
        width zero, which says that the bootstrap has nothing to go on, not that there is no error.

    Raises:
        ValueError: If there is no row, a number is not finite, or an argument is out of range.

    Example:
        >>> low, high = bootstrap_interval([0, 1] * 100)
        >>> bool(low < 0.5 < high)
        True
    """
    rows = _finite(values, "values")
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError("expected at least one row to resample")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    generator = np.random.default_rng(seed)
    flat = rows.reshape(len(rows), -1)
    means = np.empty((resamples, flat.shape[1]))
    step = max(1, _RESAMPLED // len(rows))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = generator.integers(len(rows), size=(size, len(rows)))
        for column in range(flat.shape[1]):
            means[start : start + size, column] = flat[drawn, column].mean(1)
    tail = (1 - level) / 2
    ends = np.quantile(means, [tail, 1 - tail], axis=0).reshape(2, *rows.shape[1:])
    return np.asarray(ends[0]), np.asarray(ends[1])


def _finite(values: Any, name: str) -> _Array:
    array: _Array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return array


def _is_constant(values: _Array) -> bool:
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())
