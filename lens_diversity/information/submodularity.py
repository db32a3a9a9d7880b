"""Do gains diminish? The submodularity gap, and the condition under which the theory says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._sample import Sample, as_sample
from lens_diversity.information._scores import Rows, total
from lens_diversity.information.estimators import correlations, make_estimator

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class SubmodularityGap:
    """Gains of a member before and after another, over random triples of sets; in bits."""

    table: pd.DataFrame
    """One row a triple: ``base`` (the members of S), ``first``, ``second``, ``gap``, its interval
    ``low`` and ``high`` (simultaneous over triples by Bonferroni), and
    ``conditional_total_correlation`` of S with both (NaN where the estimator has none)."""
    mean: float
    """Mean gap: positive where gains diminish."""
    interval: tuple[float, float]
    """Of the mean gap over these triples."""
    condition: float | None
    """Mean conditional total correlation: 0 is the condition of Theorems 7 and 8."""
    condition_interval: tuple[float, float] | None
    """Of the mean conditional total correlation, or None."""
    reason: str
    """Why the condition is not measured; empty where it is."""
    estimator: str
    """Name of the estimator."""

    @property
    def n_violations(self) -> int:
        """Triples whose gain grows beyond what sampling explains: the interval is below 0."""
        return int((self.table["high"] < 0).sum())


def submodularity_gap(
    outputs: Any,
    labels: Any,
    estimator: str = "plugin",
    *,
    base_size: int = 1,
    draws: int = 20,
    level: float = 0.95,
    seed: int = 0,
) -> SubmodularityGap:
    """Measure ``[I(S+a;Y) - I(S;Y)] - [I(S+a+b;Y) - I(S+b;Y)]`` on random triples ``(S, a, b)``.

    ``I`` is submodular where no gap is negative. Independence given the label implies it
    (Theorem 7), and the conditional total correlation says how far the members are from that.

    Args:
        outputs: As in [`mutual_information`][lens_diversity.information.mutual_information].
        labels: As there.
        estimator: As there. With ``probe`` the gap is one of extractable information.
        base_size: Size of ``S``.
        draws: How many triples are drawn.
        level: Coverage of the intervals.
        seed: Seed of the draw.

    Returns:
        Gaps with intervals, and the measured condition.

    Raises:
        InsufficientSampleError: If the sample cannot support ``base_size + 2`` members.
        ValueError: If there are too few members, or labels take one value only.

    Example:
        >>> u = np.random.default_rng(0).integers(2, size=(2000, 2))
        >>> gap = submodularity_gap(u, u[:, 0] ^ u[:, 1], base_size=0, draws=1)
        >>> round(gap.mean, 1), gap.n_violations
        (-1.0, 1)
    """
    sample = as_sample(outputs, labels)
    if sample.n_classes == 1:
        raise ValueError("one label occurs: every information is 0 and so is every gap")
    if base_size < 0 or sample.n_members < base_size + 2:
        raise ValueError(
            f"triples with a base of {base_size} need {base_size + 2} members, got "
            f"{sample.n_members}"
        )
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    fitted = make_estimator(sample, estimator, level, seed)
    assert fitted is not None
    return _measure(fitted, base_size, draws, level, seed)


def within_class_permutation(outputs: Any, labels: Any, seed: int = 0) -> np.ndarray:
    """Make members independent given the label, each as informative on its own as before.

    Each member's outputs are permuted among the rows of a label, independently of the others'.
    What remains is the world in which Theorems 7 and 8 hold.

    Args:
        outputs: [example, component] or [example, component, option].
        labels: [example] integers.
        seed: Seed of the permutations.

    Returns:
        The permuted outputs.
    """
    sample = as_sample(outputs, labels)
    array = np.asarray(outputs.detach().cpu() if hasattr(outputs, "detach") else outputs).copy()
    generator = np.random.default_rng(seed)
    for label in range(sample.n_classes):
        rows = np.flatnonzero(sample.labels == label)
        for member in range(sample.n_members):
            array[rows, member] = array[generator.permutation(rows), member]
    return array


def _measure(
    fitted: Estimator, base_size: int, draws: int, level: float, seed: int
) -> SubmodularityGap:
    import pandas as pd

    simultaneous = 1 - (1 - level) / draws
    gaps, conditions, rows = [], [], []
    for drawn in _draw(fitted.sample, base_size, draws, seed):
        base, first, second = drawn[:base_size], drawn[-2], drawn[-1]
        gap, condition = _gap(fitted, base, first, second)
        low, high = gap.interval(simultaneous)
        value = math.nan if condition is None else condition.value
        rows.append((tuple(base), first, second, gap.value, low, high, value))
        gaps.append(gap)
        if condition is not None:
            conditions.append(condition)
    columns = ["base", "first", "second", "gap", "low", "high", "conditional_total_correlation"]
    mean = total(gaps).scaled(1 / draws)
    condition = total(conditions).scaled(1 / draws) if conditions else None
    return SubmodularityGap(
        table=pd.DataFrame(rows, columns=columns),
        mean=mean.value,
        interval=mean.interval(level),
        condition=None if condition is None else condition.value,
        condition_interval=None if condition is None else condition.interval(level),
        reason=fitted.no_correlations,
        estimator=fitted.name,
    )


def _gap(fitted: Estimator, base: list[int], first: int, second: int) -> tuple[Rows, Rows | None]:
    whole = fitted.scores([*base, first, second])
    either = [fitted.scores([*base, member]).information for member in (first, second)]
    gap = either[0] + either[1] - whole.information
    if base:
        gap = gap - fitted.scores(base).information
    both = correlations([fitted.scores([m]) for m in (*base, first, second)], whole)
    return gap, None if both is None else both[1]


def _draw(sample: Sample, base_size: int, draws: int, seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    size = base_size + 2
    return [generator.choice(sample.n_members, size, replace=False).tolist() for _ in range(draws)]
