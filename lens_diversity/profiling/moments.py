"""Ratios of sums over documents, with intervals, from a few sums that can be added up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A mean with the ends of its confidence interval."""

    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class RatioMoments:
    """What a ratio ``R = sum_d y_d / sum_d x_d`` over documents and its interval are made of.

    Tokens of one document resemble each other, so documents are the independent units (clusters)
    and a mean over tokens is the ratio of two of their sums. Its linearised variance is
    ``D / (D - 1) * sum_d (y_d - R x_d)^2 / (sum_d x_d)^2`` (Cochran 1977, section 2.11), the
    interval takes Student's t with ``D - 1`` degrees of freedom.

    Example:
        >>> moments = RatioMoments.of(np.array([2.0, 9.0, 4.0]), np.array([1.0, 3.0, 2.0]))
        >>> moments.interval().mean
        array(2.5)
    """

    documents: Array
    """Number of documents with ``x > 0``."""
    y: Array
    x: Array
    yy: Array
    xy: Array
    xx: Array

    @classmethod
    def of(cls, y: Array, x: Array) -> RatioMoments:
        """Sum over documents.

        Args:
            y: Numerators ``[document, ...]``.
            x: Denominators, not negative, that broadcast to ``y``.

        Returns:
            Moments of shape ``[...]``.
        """
        x = np.broadcast_to(x, y.shape)
        parts = ((x > 0).astype(np.float64), y, x, y * y, x * y, x * x)
        return cls(*(np.asarray(part.sum(0)) for part in parts))

    def __add__(self, other: RatioMoments) -> RatioMoments:
        """Moments of the documents of both."""
        return RatioMoments(*(np.asarray(a + b) for a, b in zip(self, other, strict=True)))

    def __getitem__(self, index: int) -> RatioMoments:
        """One part along the first axis."""
        return RatioMoments(*(np.asarray(part[index]) for part in self))

    def __iter__(self) -> Iterator[Array]:
        """The sums in the order in which they are declared."""
        return (getattr(self, name) for name in self.__dataclass_fields__)

    def interval(self, level: float = 0.95) -> Interval:
        """Estimate the ratio.

        Args:
            level: Coverage aimed at.

        Returns:
            The ratio and the ends of its interval: NaN where there is nothing to divide by, and
            ends of NaN where there are fewer than two documents.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.y / self.x
            squares = self.yy - 2 * mean * self.xy + mean**2 * self.xx
            # Below this a sum of squares is rounding of its three parts.
            squares = np.where(squares > 1e-14 * self.yy, squares, 0.0)
            freedom = np.where(self.documents > 1, self.documents - 1, np.nan)
            error = np.sqrt(self.documents / freedom * squares) / self.x
            half = stats.t.ppf((1 + level) / 2, freedom) * error
        return Interval(*map(np.asarray, (mean, mean - half, mean + half)))
