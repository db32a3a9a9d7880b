"""Ross' nearest-neighbour estimate between continuous members and a discrete label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from scipy.special import digamma

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._gaussian import as_matrix
from lens_diversity.information._sample import Floats, Integers, Sample
from lens_diversity.information._scores import Rows, Scores
from lens_diversity.information.estimates import InsufficientSampleError

NEIGHBOURS = 3
# Examples of every label below which the estimate is too high by more than its interval allows.
MIN_EXAMPLES = 40
# Coordinates up to which the estimate was found sound at a few hundred rows a class; beyond, the
# neighbours of a row are no longer near and the estimate falls short without being a bound.
MAX_DIMENSIONS = 4
_LN2 = math.log(2)


class KnnEstimator(Estimator):
    """``psi(n) + psi(k) - E psi(n_y) - E psi(m)`` in the maximum norm (Ross 2014).

    ``m`` counts the rows of any class within the distance of a row's k-th neighbour in its own.
    """

    name: ClassVar[str] = "knn"
    assumption: ClassVar[str] = "smooth densities in few dimensions"
    shuffles: ClassVar[int] = 20
    no_correlations: ClassVar[str] = (
        "nearest neighbours estimate I(U;Y) as a whole; the biases of separate entropies would "
        "not cancel"
    )

    def __init__(self, sample: Sample, level: float = 0.95, seed: int = 0) -> None:
        super().__init__(sample, level, seed)
        self._values, self._width = as_matrix(sample, self.name)
        if sample.class_counts.min() < MIN_EXAMPLES:
            raise InsufficientSampleError(
                f"nearest neighbours need at least {MIN_EXAMPLES} examples of every label, got "
                f"counts {sample.class_counts.tolist()}"
            )
        # Equal logits would give neighbours at distance zero, of any number.
        noise = np.random.default_rng(seed).standard_normal(self._values.shape)
        self._values = self._values + 1e-9 * noise

    def prefixes(self, order: Sequence[int], sizes: Sequence[int]) -> Iterator[Scores]:
        """Enlarge the maximum-norm distances member by member."""
        distances = np.zeros((len(self.sample),) * 2)
        taken = 0
        for size in sizes:
            self._require_support(size)
            for member in order[taken:size]:
                self._enlarge(distances, member)
            taken = size
            yield self._scores(distances)

    def candidate_values(self, chosen: Sequence[int], candidates: Sequence[int]) -> Floats:
        """Estimates of each enlarged set."""
        self._require_support(len(chosen) + 1)
        distances = np.zeros((len(self.sample),) * 2)
        for member in chosen:
            self._enlarge(distances, member)
        values = []
        for member in candidates:
            enlarged = distances.copy()
            self._enlarge(enlarged, member)
            values.append(self._pointwise(enlarged, self.sample.labels).mean())
        return np.array(values)

    def baseline(
        self, order: Sequence[int], sizes: Sequence[int], shuffles: int | None = None
    ) -> list[float]:
        """Mean estimate over shuffles, from the same distances."""
        distances = np.zeros((len(self.sample),) * 2)
        found, taken = [], 0
        for size in sizes:
            if size * self._width > MAX_DIMENSIONS:
                break
            for member in order[taken:size]:
                self._enlarge(distances, member)
            taken = size
            found.append(float(np.mean(self._null(distances, shuffles))))
        return found

    def _scores(self, distances: Floats) -> Scores:
        local = self._pointwise(distances, self.sample.labels)
        # Rows differ in what they tell, and in their numbers of neighbours: shuffles show that.
        null = self._null(distances)
        information = Rows(local, spread=float(np.std(null)))
        return Scores(information, information.interval(self.level), False)

    def _null(self, distances: Floats, count: int | None = None) -> list[float]:
        labels = self.shuffled_labels(count or self.shuffles)
        return [float(self._pointwise(distances, shuffled).mean()) for shuffled in labels]

    def _pointwise(self, distances: Floats, labels: Integers) -> Floats:
        counts = np.bincount(labels)[labels]
        radius = np.empty(len(labels))
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            own = distances[np.ix_(rows, rows)]
            # Position 0 is the row itself.
            radius[rows] = np.partition(own, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
        within = (distances < radius[:, None]).sum(1)
        local = digamma(len(labels)) + digamma(NEIGHBOURS) - digamma(counts) - digamma(within)
        return np.asarray(local) / _LN2

    def _enlarge(self, distances: Floats, member: int) -> None:
        for column in range(member * self._width, (member + 1) * self._width):
            values = self._values[:, column]
            np.maximum(distances, np.abs(values[:, None] - values[None]), out=distances)

    def _require_support(self, size: int) -> None:
        dimensions = size * self._width
        if dimensions > MAX_DIMENSIONS:
            raise InsufficientSampleError(
                f"nearest neighbours are sound up to {MAX_DIMENSIONS} coordinates, and {size} "
                f"members have {dimensions}. Use fewer members or estimator="
                '"probe".'
            )
