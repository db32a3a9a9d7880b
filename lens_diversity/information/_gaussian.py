"""Information from class-conditional Gaussians, by their mixture density on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._niw import (
    SETTINGS,
    Elimination,
    Moments,
    fit_classes,
    log_predictive,
)
from lens_diversity.information._sample import Floats, Integers, Sample
from lens_diversity.information._scores import (
    Rows,
    Scores,
    information_interval,
    label_entropy,
)
from lens_diversity.information._threads import one_thread
from lens_diversity.information.estimates import InsufficientSampleError

FOLDS = 5
# Rows of the smallest class for each coordinate below which only a lower bound is claimed.
ROWS_A_DIMENSION = 10
_LN2 = float(np.log(2))


class GaussianEstimator(Estimator):
    """Information between logits and the label if logits are Gaussian given the label.

    Every row is scored by ``log2 q(u|y) / sum_c pi_c q(u|c)`` with ``q`` fitted without it. The
    mean is a lower bound on ``I`` for whatever distribution (Barber and Agakov 2003), and
    consistent for Gaussian classes. The difference of log-determinants, in contrast, is an upper
    bound that exceeds ``H(Y)`` for well-separated classes.
    """

    name: ClassVar[str] = "gaussian"
    assumption: ClassVar[str] = (
        "logits are Gaussian given the label; otherwise the estimate is of a lower bound"
    )
    shuffles: ClassVar[int] = 3

    def __init__(self, sample: Sample, level: float = 0.95, seed: int = 0) -> None:
        super().__init__(sample, level, seed)
        self._values, self._width = as_matrix(sample, self.name)
        self._folds = stratified_folds(sample, FOLDS, seed)
        self._known_moments: dict[int | None, Moments] = {}
        self._single: dict[int, Scores] = {}

    def prefixes(self, order: Sequence[int], sizes: Sequence[int]) -> Iterator[Scores]:
        """All sizes at once: one Cholesky factor of the last holds those of the others."""
        self._require_support(sizes[0])
        supported = [size for size in sizes if self._is_supported(size)]
        columns = _columns(order[: supported[-1]], self._width)
        ends = [size * self._width for size in supported]
        with one_thread():
            held = self._held_out(columns, ends)
            moments = self._moments(None).of_columns(columns)
            classes = fit_classes(moments, SETTINGS[0])
            fitted = log_predictive(classes, self._values[:, columns], ends)
        counts = self.sample.class_counts
        shares = np.log(counts / counts.sum())[:, None]
        for index, end in enumerate(ends):
            fair = counts.min() >= ROWS_A_DIMENSION * end
            yield self._scores(index, held, (fitted, shares), not fair)
        if len(supported) < len(sizes):
            self._require_support(sizes[len(supported)])

    def _is_supported(self, size: int) -> bool:
        return size * self._width <= int(self.sample.class_counts.min())

    def _require_support(self, size: int) -> None:
        if not self._is_supported(size):
            raise InsufficientSampleError(
                f"{size} members have {size * self._width} coordinates and the rarest label "
                f"{self.sample.class_counts.min()} examples, too few for a covariance of its own. "
                'Use fewer members or estimator="probe".'
            )

    def scores(self, members: Sequence[int]) -> Scores:
        """Scores of one set; those of single members are kept."""
        if len(members) > 1:
            return super().scores(members)
        if members[0] not in self._single:
            self._single[members[0]] = super().scores(members)
        return self._single[members[0]]

    def candidate_values(self, chosen: Sequence[int], candidates: Sequence[int]) -> Floats:
        """Held-out information of each enlarged set."""
        return np.array([self.scores([*chosen, j]).information.value for j in candidates])

    def greedy(self, count: int) -> list[int]:
        """Greedy choice on two folds, with the candidates' conditional densities kept up to date.

        After each choice what the chosen member explains of the others is eliminated (a block
        Cholesky step), so a step costs as much for all candidates as for one.
        """
        with one_thread():
            return self._greedy(count)

    def _greedy(self, count: int) -> list[int]:
        halves = stratified_folds(self.sample, 2, self.seed)
        states = [self._elimination(halves == half) for half in (0, 1)]
        chosen: list[int] = []
        for _ in range(min(count, self.sample.n_members)):
            gains = np.zeros(self.sample.n_members)
            for state, labels, log_prior in states:
                gains += _information(state.log_predictive(), log_prior, labels).sum(-1)
            gains[chosen] = -np.inf
            chosen.append(int(gains.argmax()))
            for state, _, _ in states:
                state.choose(chosen[-1])
        return chosen

    def _elimination(self, test: npt.NDArray[np.bool]) -> tuple[Elimination, Integers, Floats]:
        labels = self.sample.labels
        moments = Moments.of(self._values[~test], labels[~test], self.sample.n_classes)
        classes = fit_classes(moments, SETTINGS[1])
        log_prior = np.log(classes.counts / classes.counts.sum())[:, None]
        return Elimination(classes, self._values[test], self._width), labels[test], log_prior

    def _moments(self, fold: int | None) -> Moments:
        """Moments of all rows, or of those outside a fold."""
        if fold not in self._known_moments:
            rows = self._folds != (-1 if fold is None else fold)
            found = Moments.of(self._values[rows], self.sample.labels[rows], self.sample.n_classes)
            self._known_moments[fold] = found
        return self._known_moments[fold]

    def _held_out(self, columns: Integers, ends: list[int]) -> _HeldOut:
        """Held-out rows for every size.

        Each size and fold takes the shrinkage that did best on the other folds' rows: by the
        information for the information, by the likelihood for the density.
        """
        labels, n_classes = self.sample.labels, self.sample.n_classes
        values = self._values[:, columns]
        densities = np.empty((len(SETTINGS), len(ends), n_classes, len(values)))
        prior = np.empty((n_classes, len(values)))
        for fold in range(FOLDS):
            test = self._folds == fold
            moments = self._moments(fold).of_columns(columns)
            prior[:, test] = np.log(moments.counts / moments.counts.sum())[:, None]
            for index, setting in enumerate(SETTINGS):
                classes = fit_classes(moments, setting)
                densities[index][:, :, test] = log_predictive(classes, values[test], ends)
        conditional = _own(densities, labels)
        information = conditional - _marginal(densities, prior)
        correct = (densities + prior).argmax(-2) == labels
        return _HeldOut(
            self._best(information, information),
            self._best(conditional, conditional),
            self._best(correct.astype(np.float64), information),
        )

    def _best(self, rows: Floats, criterion: Floats) -> Floats:
        """Rows [size, example] of the setting that each fold's other folds are best with."""
        best = np.empty(rows.shape[1:])
        for fold in range(FOLDS):
            test = self._folds == fold
            choice = criterion[:, :, ~test].mean(-1).argmax(0)
            best[:, test] = rows[choice, np.arange(len(choice))][:, test]
        return best

    def _scores(
        self, index: int, held: _HeldOut, fitted: tuple[Floats, Floats], is_bound: bool
    ) -> Scores:
        """Scores of one size from held-out rows and from densities and shares of fitted classes."""
        own = _own(fitted[0][index], self.sample.labels)
        marginal = _marginal(fitted[0][index], fitted[1])
        information = Rows(held.information[index] / _LN2, (own - marginal) / _LN2)
        conditional = Rows(held.conditional[index] / _LN2, own / _LN2)
        interval = information_interval(
            information, self.level, label_entropy(self.sample.labels)[0]
        )
        return Scores(
            information,
            interval,
            is_bound,
            conditional - information,
            conditional,
            held.correct[index],
        )


class _HeldOut(NamedTuple):
    """What models that have not seen a row say about it, each [size, example]."""

    information: Floats
    """Nats."""
    conditional: Floats
    """Log density of the row given its label, nats."""
    correct: Floats
    """Whether the most probable label is the row's."""


def as_matrix(sample: Sample, name: str) -> tuple[Floats, int]:
    """Logits as standardised columns [example, component * option], and the number of options."""
    if sample.values is None:
        raise ValueError(f'estimator="{name}" needs logits: {sample.why_no_values}')
    flat = sample.values.reshape(len(sample), -1)
    deviation = flat.std(0)
    # What varies by rounding only is no signal, and scaled up it would pass for one.
    constant = deviation <= 1e-9 * np.abs(flat).max(0)
    scaled = (flat - flat.mean(0)) / np.where(constant, 1.0, deviation)
    return np.where(constant, 0.0, scaled), sample.values.shape[2]


def stratified_folds(sample: Sample, count: int, seed: int) -> Integers:
    """The fold of each row, with every class spread evenly over the folds."""
    if sample.class_counts.min() < 2 * count:
        raise ValueError(
            f"cross-validation needs at least {2 * count} examples of every label, got counts "
            f"{sample.class_counts.tolist()}"
        )
    generator = np.random.default_rng(seed)
    folds = np.empty(len(sample), dtype=np.int64)
    for label in range(sample.n_classes):
        rows = generator.permutation(np.flatnonzero(sample.labels == label))
        folds[rows] = (np.arange(len(rows)) + label) % count
    return folds


def _columns(members: Sequence[int], width: int) -> Integers:
    return (np.asarray(members)[:, None] * width + np.arange(width)).ravel()


def _marginal(densities: Floats, log_prior: Floats) -> Floats:
    """Log mixture density [..., example] of log densities [..., class, example]."""
    joint = densities + log_prior
    largest = joint.max(-2)
    mixed: Floats = largest + np.log(np.exp(joint - largest[..., None, :]).sum(-2))
    return mixed


def _own(densities: Floats, labels: Integers) -> Floats:
    chosen: Floats = densities[..., labels, np.arange(len(labels))]
    return chosen


def _information(densities: Floats, log_prior: Floats, labels: Integers) -> Floats:
    """Pointwise information in nats, [..., example]."""
    return _own(densities, labels) - _marginal(densities, log_prior)
