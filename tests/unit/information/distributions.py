"""Distributions of members and label whose information is known, for tests and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.integrate import dblquad, quad
from scipy.stats import norm

from lens_diversity.information import exact_terms


@dataclass(frozen=True)
class Distribution:
    """A way to draw outputs and labels, and the true information in bits."""

    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    truth: float
    gaussian: bool = True
    """Whether the members are Gaussian given the label."""


def discrete(table: np.ndarray) -> Distribution:
    """Draws from a joint table ``p(u_1, ..., u_L, y)``."""
    cells = np.array(list(product(*map(range, table.shape))))

    def draw(rng, n):
        rows = cells[rng.choice(len(cells), size=n, p=table.ravel())]
        return rows[:, :-1], rows[:, -1]

    return Distribution(draw, exact_terms(table).joint)


def symmetric(n_classes: int, noise: float, members: int = 1) -> np.ndarray:
    """Members that each repeat a uniform label, or with probability ``noise`` any class."""
    channel = (1 - noise) * np.eye(n_classes) + noise / n_classes
    table = np.full((n_classes,), 1 / n_classes)
    for _ in range(members):
        table = table[..., None, :] * channel
    return table


def copies(n_classes: int, noise: float) -> np.ndarray:
    """Two equal members."""
    single = symmetric(n_classes, noise)
    table = np.zeros((n_classes,) * 3)
    table[np.arange(n_classes), np.arange(n_classes)] = single
    return table


def xor() -> np.ndarray:
    """Two fair bits and their parity."""
    table = np.zeros((2, 2, 2))
    for a, b in product(range(2), repeat=2):
        table[a, b, a ^ b] = 0.25
    return table


def skewed() -> np.ndarray:
    """A rare label, of which a member tells a little."""
    return np.array([[0.55, 0.05], [0.35, 0.05]])


def mixture(means: list[float], scales: list[float], copies: int = 1) -> Distribution:
    """One member of one coordinate, Gaussian given a uniform label, or several equal ones."""
    classes = list(zip(means, scales, strict=True))

    def density(x):
        return sum(norm.pdf(x, m, s) for m, s in classes) / len(classes)

    def integrand(x):
        joint = [norm.pdf(x, m, s) for m, s in classes]
        return sum(p * np.log2(p / density(x)) for p in joint if p > 0) / len(classes)

    truth = quad(integrand, -12, 14, limit=400)[0]

    def draw(rng, n):
        labels = rng.integers(len(classes), size=n)
        values = rng.normal(np.take(means, labels), np.take(scales, labels))
        return np.repeat(values[:, None, None], copies, axis=1), labels

    return Distribution(draw, max(truth, 0.0))


def two_members(separation: float) -> Distribution:
    """Two members with independent noise: as informative as one with ``sqrt 2`` the separation."""
    single = mixture([0.0, separation * np.sqrt(2)], [1.0, 1.0])

    def draw(rng, n):
        labels = rng.integers(2, size=n)
        return rng.normal(size=(n, 2, 1)) + separation * labels[:, None, None], labels

    return Distribution(draw, single.truth)


def noise(members: int, options: int, n_classes: int) -> Distribution:
    """Members that know nothing."""

    def draw(rng, n):
        return rng.normal(size=(n, members, options)), rng.integers(n_classes, size=n)

    return Distribution(draw, 0.0)


def continuous_xor(spread: float = 0.5) -> Distribution:
    """Two members around +-1, the label the parity of their signs: not Gaussian given the label."""

    def density(x, y, label):
        signs = [(a, b) for a in (-1, 1) for b in (-1, 1) if (a * b > 0) == label]
        return sum(norm.pdf(x, a, spread) * norm.pdf(y, b, spread) for a, b in signs) / 2

    def integrand(y, x):
        p, q = density(x, y, True), density(x, y, False)
        mean = (p + q) / 2
        return sum(v * np.log2(v / mean) for v in (p, q) if v > 0) / 2

    # Symmetric in both coordinates, so one quadrant is a quarter.
    truth = 4 * dblquad(integrand, 0, 4, 0, 4, epsabs=1e-5)[0]

    def draw(rng, n):
        signs = rng.choice([-1, 1], size=(n, 2))
        values = signs + spread * rng.normal(size=(n, 2))
        return values[:, :, None], (signs.prod(1) > 0).astype(int)

    return Distribution(draw, truth, gaussian=False)


DISCRETE = {
    "independent noise, 2 members": discrete(np.full((2, 2, 2), 1 / 8)),
    "independent noise, 4 classes": discrete(np.full((4, 4), 1 / 16)),
    "binary channel, noise 0.2": discrete(symmetric(2, 0.2)),
    "rare label": discrete(skewed()),
    "4-ary channel, noise 0.5": discrete(symmetric(4, 0.5)),
    "noiseless, 4 classes": discrete(symmetric(4, 0.0)),
    "3 members independent given Y": discrete(symmetric(2, 0.4, members=3)),
    "duplicated members": discrete(copies(2, 0.4)),
    "XOR": discrete(xor()),
}
CONTINUOUS = {
    "independent noise, 1 member": noise(1, 1, 2),
    "independent noise, 2 x 2, 4 classes": noise(2, 2, 4),
    "2 Gaussians, separation 0.3": mixture([0.0, 0.3], [1.0, 1.0]),
    "2 Gaussians, separation 1": mixture([0.0, 1.0], [1.0, 1.0]),
    "2 Gaussians, separation 4": mixture([0.0, 4.0], [1.0, 1.0]),
    "4 Gaussians, spacing 1.5": mixture([0.0, 1.5, 3.0, 4.5], [1.0] * 4),
    "Gaussians of widths 1 and 3": mixture([0.0, 0.0], [1.0, 3.0]),
    "2 members, separation 1 each": two_members(1.0),
    "duplicated members, separation 1": mixture([0.0, 1.0], [1.0, 1.0], copies=2),
    "XOR of signs": continuous_xor(),
}
