"""What a cross-validated linear probe can extract: a lower bound on the information."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._gaussian import FOLDS, as_matrix, stratified_folds
from lens_diversity.information._sample import Floats, Integers, Sample
from lens_diversity.information._scores import (
    Rows,
    Scores,
    information_interval,
    label_entropy,
)
from lens_diversity.information._threads import one_thread

# Inverse ridge strengths for standardised columns; the class frequencies alone stand beside them.
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
_LN2 = math.log(2)


class ProbeEstimator(Estimator):
    """``I(U;Y) >= H(Y) - CE`` with the held-out cross-entropy of a logistic regression.

    The ridge is chosen within each training fold among four strengths and the class frequencies,
    so that a probe that finds nothing says nothing instead of less than nothing.
    """

    name: ClassVar[str] = "probe"
    assumption: ClassVar[str] = "none: a lower bound, what a linear probe can extract"
    shuffles: ClassVar[int] = 1
    no_correlations: ClassVar[str] = (
        "a probe bounds I(U;Y) from below and models no density of U, so it has no total "
        "correlation"
    )

    def __init__(self, sample: Sample, level: float = 0.95, seed: int = 0) -> None:
        super().__init__(sample, level, seed)
        self._features = _features(sample)
        self._folds = stratified_folds(sample, FOLDS, seed)

    def prefixes(self, order: Sequence[int], sizes: Sequence[int]) -> Iterator[Scores]:
        """A probe for every size."""
        for size in sizes:
            features = np.hstack([self._features[member] for member in order[:size]])
            with one_thread():
                scores = self._scores(features)
            yield scores

    def candidate_values(self, chosen: Sequence[int], candidates: Sequence[int]) -> Floats:
        """Held-out information of a probe on each enlarged set."""
        return np.array([self.scores([*chosen, j]).information.value for j in candidates])

    def greedy(self, count: int) -> list[int]:
        """Choose members by how much of the label's residual they explain.

        A probe for every candidate would be thousands of fits. As in orthogonal matching pursuit,
        each step takes the member whose part outside the span of those chosen explains most of the
        squared residual of the one-hot label.
        """
        residual = np.eye(self.sample.n_classes)[self.sample.labels]
        residual = residual - residual.mean(0)
        rest = {m: f - f.mean(0) for m, f in enumerate(self._features)}
        chosen: list[int] = []
        while rest and len(chosen) < count:
            bases = {m: _basis(part) for m, part in rest.items()}
            gains = {m: float(((basis.T @ residual) ** 2).sum()) for m, basis in bases.items()}
            best = max(gains, key=lambda m: gains[m])
            basis = bases[best]
            residual = residual - basis @ (basis.T @ residual)
            rest = {m: p - basis @ (basis.T @ p) for m, p in rest.items() if m != best}
            chosen.append(best)
        return chosen

    def _scores(self, features: Floats) -> Scores:
        labels, n_classes = self.sample.labels, self.sample.n_classes
        log_q = np.empty((len(labels), n_classes))
        for fold in range(FOLDS):
            test = self._folds == fold
            inner = (self._folds == (fold + 1) % FOLDS)[~test]
            log_q[test] = _fit_and_predict(
                features[~test], labels[~test], inner, features[test], n_classes
            )
        counts = self.sample.class_counts
        surprise = -np.log2(counts / counts.sum())[labels]
        pointwise = surprise + log_q[np.arange(len(labels)), labels] / _LN2
        # The plain entropy errs to the low side, as a lower bound may; Miller and Madow's would
        # credit a probe that predicts the frequencies with their correction.
        information = Rows(pointwise)
        low, _ = information_interval(information, self.level, label_entropy(labels)[0])
        correct = (log_q.argmax(1) == labels).astype(np.float64)
        return Scores(information, (low, label_entropy(labels)[2]), True, correct=correct)


def _features(sample: Sample) -> list[Floats]:
    if sample.values is None:
        return [np.eye(int(c.max()) + 1)[c][:, 1:] for c in sample.classes.T]
    values, width = as_matrix(sample, "probe")
    return [values[:, i * width : (i + 1) * width] for i in range(sample.n_members)]


def _basis(part: Floats) -> Floats:
    """Orthonormal basis of a member's columns, without those that rounding left."""
    u, singular, _ = np.linalg.svd(part, full_matrices=False)
    return u[:, singular > 1e-6 * math.sqrt(len(part))]


def _fit_and_predict(
    train: Floats, labels: Integers, inner: np.ndarray, test: Floats, n_classes: int
) -> Floats:
    """Log class probabilities of test rows, with the ridge chosen on the inner rows."""
    strength = _best_strength(train, labels, inner, n_classes)
    if strength is None:
        shares = np.bincount(labels, minlength=n_classes) / len(labels)
        return np.tile(np.log(shares), (len(test), 1))
    return np.asarray(_fitted(train, labels, strength).predict_log_proba(test))


def _best_strength(
    train: Floats, labels: Integers, inner: np.ndarray, n_classes: int
) -> float | None:
    fit, check = ~inner, inner
    shares = np.bincount(labels[fit], minlength=n_classes) / fit.sum()
    own = labels[check]
    best, best_score = None, float(np.log(shares)[own].mean())
    for strength in STRENGTHS:
        log_q = _fitted(train[fit], labels[fit], strength).predict_log_proba(train[check])
        score = float(log_q[np.arange(len(own)), own].mean())
        # Weaker ridges only overfit more once one does worse; the first fits are the cheap ones.
        if best is not None and score < best_score:
            break
        if score > best_score:
            best, best_score = strength, score
    return best


def _fitted(features: Floats, labels: Integers, strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # An unconverged probe is still a probe: it is scored on rows it has not seen.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, tol=1e-3, max_iter=200).fit(features, labels)
