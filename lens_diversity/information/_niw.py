"""Gaussian classes of unknown mean and covariance: their predictive densities.

With a flat prior on a class mean and an inverse-Wishart prior on its covariance, centred on the
covariance within classes, the predictive density of a new row is a multivariate t. Its heavy tails
are what not knowing the covariance costs, and the densities of nested sets of coordinates are those
of the subsets themselves, so one Cholesky factor serves every prefix of an order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import gammaln

from lens_diversity.information._sample import Floats, Integers


class Setting(NamedTuple):
    """How strongly covariances are shrunk."""

    pooled: float
    """Rows that the covariance within classes counts for in each class."""
    diagonal: float
    """Rows that its diagonal counts for in the covariance within classes."""


SETTINGS = (Setting(2.0, 2.0), Setting(100.0, 50.0), Setting(1e5, 500.0))
# Variance, relative to each coordinate's own, by which members are blurred: copies then have a
# finite total correlation, and rounding is not taken for a signal.
BLUR = 1e-4


@dataclass(frozen=True, eq=False)
class Classes:
    """Predictive t-distributions of every class."""

    means: Floats
    """[class, coordinate]."""
    scale: Floats
    """[class, coordinate, coordinate] scale matrices."""
    degrees: Floats
    """[class] degrees of freedom."""
    counts: Integers
    """[class] rows."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What a sample says about Gaussian classes; subsets of coordinates are subsets of it."""

    means: Floats
    """[class, coordinate]."""
    scatters: Floats
    """[class, coordinate, coordinate] sums of squares about the class means."""
    counts: Integers
    """[class] rows."""

    @classmethod
    def of(cls, values: Floats, labels: Integers, n_classes: int) -> Moments:
        """Moments of rows [example, coordinate]."""
        counts = np.bincount(labels, minlength=n_classes)
        means, scatters = [], []
        for label in range(n_classes):
            rows = values[labels == label]
            means.append(rows.mean(0))
            scatters.append((rows - means[-1]).T @ (rows - means[-1]))
        return cls(np.stack(means), np.stack(scatters), counts)

    def of_columns(self, columns: Integers) -> Moments:
        """Moments of some of the coordinates, in the given order."""
        scatters = self.scatters[:, columns[:, None], columns[None]]
        return Moments(self.means[:, columns], scatters, self.counts)


def fit_classes(moments: Moments, setting: Setting) -> Classes:
    """The classes' predictive densities."""
    counts, n = moments.counts, int(moments.counts.sum())
    within = moments.scatters.sum(0)
    diagonal = np.diag_indices_from(within)
    within[diagonal] *= 1 + setting.diagonal / n
    degrees = setting.pooled + counts + 1.0
    scale = moments.scatters + setting.pooled / (n + setting.diagonal) * within
    scale[:, diagonal[0], diagonal[1]] += BLUR * (counts + setting.pooled)[:, None]
    scale *= ((1 + 1 / counts) / degrees)[:, None, None]
    return Classes(moments.means, scale, np.asarray(degrees, dtype=np.float64), counts)


def log_predictive(classes: Classes, rows: Floats, ends: list[int]) -> Floats:
    """Log densities [end, class, example] of the first ``end`` coordinates of each row."""
    found = np.empty((len(ends), len(classes.means), len(rows)))
    starts = [0, *ends[:-1]]
    for c, (mean, scale) in enumerate(zip(classes.means, classes.scale, strict=True)):
        factor = cholesky(scale, lower=True, check_finite=False)
        whitened = solve_triangular(factor, (rows - mean).T, lower=True, check_finite=False)
        distance = np.add.reduceat(whitened**2, starts, axis=0).cumsum(0)
        half_logdet = np.add.reduceat(np.log(np.diag(factor)), starts).cumsum()
        found[:, c] = _log_t(
            distance, half_logdet[:, None], classes.degrees[c], np.asarray(ends)[:, None]
        )
    return found


class Elimination:
    """Rows under each class, given the members chosen so far: a block Cholesky factor in steps."""

    def __init__(self, classes: Classes, rows: Floats, width: int) -> None:
        self._width = width
        self._degrees = classes.degrees
        self._scale = classes.scale.copy()
        self._rest = rows[None] - classes.means[:, None]
        self._distance = np.zeros(self._rest.shape[:2])
        self._half_logdet = np.zeros(len(classes.means))
        self._dimension = 0

    def log_predictive(self) -> Floats:
        """Log densities [member, class, example] of those chosen with each further member."""
        n_classes, n_rows, size = self._rest.shape
        starts = range(0, size, self._width)
        blocks = [self._scale[:, i : i + self._width, i : i + self._width] for i in starts]
        factor = np.linalg.cholesky(np.stack(blocks, axis=1))
        rest = self._rest.reshape(n_classes, n_rows, -1, self._width).transpose(0, 2, 3, 1)
        added = (np.linalg.solve(factor, rest) ** 2).sum(2)
        logdet = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
        densities = _log_t(
            self._distance[:, None] + added,
            (self._half_logdet[:, None] + logdet)[..., None],
            self._degrees[:, None, None],
            self._dimension + self._width,
        )
        return densities.swapaxes(0, 1)

    def choose(self, member: int) -> None:
        """Take out of all coordinates what a member explains."""
        block = slice(member * self._width, (member + 1) * self._width)
        factor = np.linalg.cholesky(self._scale[:, block, block])
        across = np.linalg.solve(factor, self._scale[:, block, :])
        whitened = np.linalg.solve(factor, self._rest[:, :, block].transpose(0, 2, 1))
        self._scale -= across.transpose(0, 2, 1) @ across
        self._rest -= whitened.transpose(0, 2, 1) @ across
        # The block is spent: unit variance keeps its later factors defined.
        self._scale[:, block, block] = np.eye(self._width)
        self._rest[:, :, block] = 0.0
        self._distance += (whitened**2).sum(1)
        self._half_logdet += np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
        self._dimension += self._width


def _log_t(
    distance: Floats, half_logdet: Floats, degrees: Floats | float, dimension: Integers | int
) -> Floats:
    half = (degrees + dimension) / 2
    constant = gammaln(half) - gammaln(degrees / 2) - dimension / 2 * np.log(degrees * np.pi)
    density: Floats = constant - half_logdet - half * np.log1p(distance / degrees)
    return density
