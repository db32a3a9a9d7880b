"""The interface of an estimator: scores along nested sets of members, and a greedy order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from lens_diversity.information._sample import Floats, Integers, Sample
from lens_diversity.information._scores import Scores
from lens_diversity.information.estimates import InsufficientSampleError


class Estimator(ABC):
    """Estimates information between members of a sample and its labels."""

    name: ClassVar[str]
    assumption: ClassVar[str]
    shuffles: ClassVar[int]
    """How many shuffles of the labels a baseline takes."""
    no_correlations: ClassVar[str] = ""
    """Why there is no total correlation; empty where there is."""

    def __init__(self, sample: Sample, level: float = 0.95, seed: int = 0) -> None:
        self.sample = sample
        self.level = level
        self.seed = seed
        self._shuffled_labels: list[Integers] = []
        self._on_shuffled: list[Estimator] = []

    @abstractmethod
    def prefixes(self, order: Sequence[int], sizes: Sequence[int]) -> Iterator[Scores]:
        """Scores of the first ``k`` members of an order, for growing sizes ``k``.

        Raises:
            InsufficientSampleError: While iterating, where the sample cannot support a size.
        """

    @abstractmethod
    def candidate_values(self, chosen: Sequence[int], candidates: Sequence[int]) -> Floats:
        """Information of the chosen members with each candidate, for a choice among them."""

    def scores(self, members: Sequence[int]) -> Scores:
        """Scores of one set of members."""
        return next(iter(self.prefixes(members, [len(members)])))

    def singles(self) -> list[Scores]:
        """Scores of every member on its own."""
        return [self.scores([member]) for member in range(self.sample.n_members)]

    def baseline(
        self, order: Sequence[int], sizes: Sequence[int], shuffles: int | None = None
    ) -> list[float]:
        """Mean estimate on shuffled labels for each size that the sample supports."""
        found = [
            list(values_until_refused(estimator, order, sizes))
            for estimator in self._on_shuffled_labels(shuffles or self.shuffles)
        ]
        shortest = min(len(values) for values in found)
        return [float(np.mean([values[k] for values in found])) for k in range(shortest)]

    def shuffled_labels(self, count: int) -> list[Integers]:
        """Labels in random orders, the same ones for every set of members."""
        while len(self._shuffled_labels) < count:
            generator = np.random.default_rng([self.seed, len(self._shuffled_labels)])
            self._shuffled_labels.append(generator.permutation(self.sample.labels))
        return self._shuffled_labels[:count]

    def _on_shuffled_labels(self, count: int) -> list[Estimator]:
        for labels in self.shuffled_labels(count)[len(self._on_shuffled) :]:
            sample = replace(self.sample, labels=labels)
            self._on_shuffled.append(type(self)(sample, self.level, self.seed))
        return self._on_shuffled[:count]

    def greedy(self, count: int) -> list[int]:
        """Members by the information they add to those before them; shorter where refused."""
        chosen: list[int] = []
        rest = list(range(self.sample.n_members))
        while rest and len(chosen) < count:
            try:
                values = self.candidate_values(chosen, rest)
            except InsufficientSampleError:
                break
            chosen.append(rest.pop(int(values.argmax())))
        return chosen


def values_until_refused(
    estimator: Estimator, order: Sequence[int], sizes: Sequence[int]
) -> Iterator[float]:
    """Estimates along an order, ending where the sample no longer supports the size."""
    try:
        for scores in estimator.prefixes(order, sizes):
            yield scores.information.value
    except InsufficientSampleError:
        return
