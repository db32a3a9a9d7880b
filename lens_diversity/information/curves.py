"""Information, its terms and the error bounds as members are added (Theorems 5-8)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._sample import Sample, as_sample
from lens_diversity.information._scores import Scores, label_entropy
from lens_diversity.information.bounds import error_bounds, tight_fano
from lens_diversity.information.estimates import InsufficientSampleError
from lens_diversity.information.estimators import make_estimator

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("network", "greedy", "random")
# A linear probe is fitted anew for every size, so it looks at fewer of them.
_GRID_ESTIMATORS = ("probe",)


@dataclass(frozen=True, eq=False)
class Curve:
    """``I(U_1:k;Y)`` and what follows from it, along one kind of order; all in bits."""

    table: pd.DataFrame
    """One row an order and size: ``order``, ``repeat``, ``size``, ``member`` (index of the member
    added last), ``information`` (not clipped), ``low``, ``high``, ``kind``, ``baseline`` (shuffled
    labels), ``gain`` (information a member added since the size before), ``relevancy``,
    ``total_correlation``, ``conditional_total_correlation``, ``diversity``, ``fano_weak``,
    ``fano_tight`` (NaN where only a lower bound on the information is known), ``hellman_raviv``
    and ``combiner_error`` (held-out error of the estimator's own Bayes rule)."""
    order: str
    """``network``, ``greedy``, ``random`` or ``given``."""
    members: tuple[tuple[int, ...], ...]
    """The full orders, one a repeat."""
    stopped: tuple[str, ...]
    """Why each order ends before its last member; empty where it does not."""
    estimator: str
    """Name of the estimator."""
    entropy: float
    """``H(Y)``."""
    n_examples: int
    """Rows of the estimates."""
    n_classes: int
    """Number of labels."""
    level: float
    """Coverage of the intervals."""
    notes: tuple[str, ...] = field(default=())
    """How the order was found."""

    def bands(self, quantity: str = "information", coverage: float = 0.9) -> pd.DataFrame:
        """Spread of a quantity over repeats of the order.

        Args:
            quantity: A column of ``table``.
            coverage: Share of the repeats between ``low`` and ``high``.

        Returns:
            Indexed by size: ``median``, ``low``, ``high``, and ``repeats`` (how many orders the
            sample supports at that size).
        """
        tail = (1 - coverage) / 2
        groups = self.table.groupby("size")[quantity]
        bands: pd.DataFrame = groups.quantile(np.array([0.5, tail, 1 - tail])).unstack()
        bands.columns = ["median", "low", "high"]
        return bands.assign(repeats=groups.count())


def curve(
    outputs: Any,
    labels: Any,
    order: str | Sequence[int] = "network",
    estimator: str = "plugin",
    *,
    sizes: Sequence[int] | None = None,
    repeats: int = 20,
    level: float = 0.95,
    seed: int = 0,
) -> Curve:
    """Follow the information as members are added.

    The true ``I``, ``TC`` and ``CTC`` never fall when a member is added (chain rule), so the true
    bounds never rise; where an estimate does otherwise, that is what the sample cannot resolve.

    Args:
        outputs: As in [`mutual_information`][lens_diversity.information.mutual_information].
        labels: As there.
        order: ``"network"``: members as they come; ``"greedy"``: each adds the most information
            given those before it, chosen on one half of the rows and measured on the other, since
            the best of many noisy estimates is too good on the rows it was chosen by; ``"random"``:
            ``repeats`` random orders; or the indices themselves.
        estimator: As there.
        sizes: Numbers of members to look at; None takes all (powers of two for ``probe``).
        repeats: How many random orders.
        level: Coverage of the intervals.
        seed: Seed of orders, folds and shuffles.

    Returns:
        The curve. Where the sample cannot support a size it stops, with the reason.

    Raises:
        ValueError: If an argument is out of range, or labels take one value only.
        TypeError: As there.

    Example:
        >>> import numpy as np
        >>> y = np.random.default_rng(0).integers(2, size=1000)
        >>> found = curve(np.stack([y, y], axis=1), y)
        >>> found.table["information"].round(2).tolist()
        [1.0, 1.0]
    """
    sample = as_sample(outputs, labels)
    return curve_of(sample, order, estimator, sizes, repeats, level, seed)


def curve_of(
    sample: Sample,
    order: str | Sequence[int],
    estimator: str,
    sizes: Sequence[int] | None,
    repeats: int,
    level: float,
    seed: int,
    fitted: Estimator | None = None,
) -> Curve:
    """`curve` for a checked sample, reusing an estimator that was made for it."""
    if sample.n_classes == 1:
        raise ValueError("one label occurs: every information is 0 and there is no curve to draw")
    steps = _check_sizes(sizes, sample.n_members, estimator)
    notes: tuple[str, ...] = ()
    if order == "greedy":
        choice, check = halves(sample, seed)
        chooser = _made(sample.rows(choice), estimator, level, seed)
        found = chooser.greedy(sample.n_members)
        sample, fitted = sample.rows(check), None
        orders = [found]
        notes = (f"chosen on {len(choice)} rows, measured on the other {len(check)}",)
    else:
        orders = _orders(order, sample.n_members, repeats, seed)
    fitted = fitted or _made(sample, estimator, level, seed)
    sums = _Sums(fitted)
    rows: list[dict[str, Any]] = []
    stopped = []
    for repeat, members in enumerate(orders):
        possible = [size for size in steps if size <= len(members)]
        # Many random orders average the baseline themselves.
        shuffles = 1 if len(orders) > 1 else None
        found_rows, reason = _along(fitted, sums, members, possible, shuffles)
        if order == "greedy" and len(members) < sample.n_members and not reason:
            reason = f"the rows of the choice support no more than {len(members)} members"
        name = order if isinstance(order, str) else "given"
        rows += [{"order": name, "repeat": repeat, **row} for row in found_rows]
        stopped.append(reason)
    return Curve(
        table=_frame(rows),
        order=order if isinstance(order, str) else "given",
        members=tuple(tuple(members) for members in orders),
        stopped=tuple(stopped),
        estimator=estimator,
        entropy=label_entropy(sample.labels)[0],
        n_examples=len(sample),
        n_classes=sample.n_classes,
        level=level,
        notes=notes,
    )


def halves(sample: Sample, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two halves of the rows, each with half of every label."""
    generator = np.random.default_rng(seed)
    first: list[int] = []
    for label in range(sample.n_classes):
        rows = generator.permutation(np.flatnonzero(sample.labels == label))
        first += rows[: (len(rows) + label % 2) // 2].tolist()
    choice = np.array(sorted(first), dtype=np.int64)
    return choice, np.setdiff1d(np.arange(len(sample)), choice)


class _Sums:
    """Running sums over single members; each member is scored when a curve first comes to it."""

    def __init__(self, fitted: Estimator) -> None:
        self._fitted = fitted
        self._known: dict[int, Scores] = {}

    def along(self, members: Sequence[int]) -> Iterator[_Single]:
        """Sums over the first 1, 2, ... members."""
        sums = _Single(0.0, 0.0, 0.0)
        for member in members:
            if member not in self._known:
                self._known[member] = self._fitted.scores([member])
            sums = sums.plus(self._known[member])
            yield sums


class _Single(NamedTuple):
    """Sums of single members' terms in bits; NaN where the estimator has no entropies."""

    relevancy: float
    marginal: float
    conditional: float

    def plus(self, scores: Scores) -> _Single:
        """One member more."""
        marginal, conditional = _entropies(scores)
        return _Single(
            self.relevancy + scores.information.value,
            self.marginal + marginal,
            self.conditional + conditional,
        )


def _entropies(scores: Scores) -> tuple[float, float]:
    """``-H(U)`` and ``-H(U|Y)``."""
    if scores.marginal is None or scores.conditional is None:
        return math.nan, math.nan
    return scores.marginal.value, scores.conditional.value


def _along(
    fitted: Estimator,
    sums: _Sums,
    members: Sequence[int],
    sizes: Sequence[int],
    shuffles: int | None,
) -> tuple[list[dict[str, Any]], str]:
    rows: list[dict[str, Any]] = []
    if not sizes:
        return rows, ""
    baseline = fitted.baseline(members, sizes, shuffles)
    before = 0.0
    singles = enumerate(sums.along(members), start=1)
    try:
        for index, scores in enumerate(fitted.prefixes(members, sizes)):
            size = sizes[index]
            single = next(found for count, found in singles if count == size)
            row = _point(fitted, single, scores)
            row |= {"size": size, "member": members[size - 1], "baseline": baseline[index]}
            row["gain"] = row["information"] - before
            before = row["information"]
            rows.append(row)
    except InsufficientSampleError as error:
        return rows, str(error)
    return rows, ""


def _point(fitted: Estimator, single: _Single, scores: Scores) -> dict[str, Any]:
    entropy, _, upper = label_entropy(fitted.sample.labels)
    n_classes = fitted.sample.n_classes
    information = scores.information.value
    weak, hellman_raviv = error_bounds(entropy, information, n_classes)
    tight = tight_fano(entropy, information, n_classes)
    low, high = scores.interval
    marginal, conditional = _entropies(scores)
    return {
        "information": information,
        "low": max(low, 0.0),
        "high": upper if scores.is_bound else min(high, math.log2(n_classes)),
        "kind": scores.kind,
        "relevancy": single.relevancy,
        "total_correlation": marginal - single.marginal,
        "conditional_total_correlation": conditional - single.conditional,
        "diversity": information - single.relevancy,
        "fano_weak": math.nan if scores.is_bound else weak,
        "fano_tight": math.nan if scores.is_bound else tight,
        "hellman_raviv": hellman_raviv,
        "combiner_error": math.nan if scores.correct is None else 1 - float(scores.correct.mean()),
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    leading = ["order", "repeat", "size", "member", "information", "low", "high", "kind"]
    middle = ["baseline", "gain", "relevancy", "total_correlation"]
    last = ["conditional_total_correlation", "diversity", "fano_weak", "fano_tight"]
    columns = [*leading, *middle, *last, "hellman_raviv", "combiner_error"]
    return pd.DataFrame(rows, columns=columns)


def _made(sample: Sample, estimator: str, level: float, seed: int) -> Estimator:
    fitted = make_estimator(sample, estimator, level, seed)
    assert fitted is not None
    return fitted


def _orders(order: str | Sequence[int], count: int, repeats: int, seed: int) -> list[list[int]]:
    if order == "network":
        return [list(range(count))]
    if order == "random":
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        generator = np.random.default_rng(seed)
        return [generator.permutation(count).tolist() for _ in range(repeats)]
    if isinstance(order, str):
        raise ValueError(f"order must be one of {ORDERS} or member indices, got {order!r}")
    members = [int(member) for member in order]
    if not members or len(set(members)) < len(members) or not set(members) <= set(range(count)):
        raise ValueError(f"an order names distinct members of 0..{count - 1}, got {members}")
    return [members]


def _check_sizes(sizes: Sequence[int] | None, count: int, estimator: str) -> list[int]:
    if sizes is None:
        return list(_powers(count)) if estimator in _GRID_ESTIMATORS else list(range(1, count + 1))
    steps = sorted({int(size) for size in sizes})
    if not steps or steps[0] < 1 or steps[-1] > count:
        raise ValueError(f"sizes must lie between 1 and {count}, got {list(sizes)}")
    return steps


def _powers(count: int) -> Iterator[int]:
    size = 1
    while size < count:
        yield size
        size *= 2
    yield count
