"""Ensembles for the property tests: a few readable choices, and a seed for the numbers."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

WELL_SCALED = ("plain",)
EXTREME = ("plain", "shared offset", "offset of each", "close", "close and far", "large")
# Relative to the sum of the absolute terms of an identity.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class Case:
    """Members, targets and weights that follow from the choices alone."""

    components: int
    batch: tuple[int, ...]
    vocab: int
    numbers: str
    weighting: str
    dtype: torch.dtype
    seed: int

    def randn(self, *shape, stream=0):
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * stream)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    @cached_property
    def members(self):
        shape = (self.components, *self.batch, self.vocab)
        numbers = self.randn(*shape)
        if self.numbers.startswith("close"):
            numbers = self.randn(*shape[1:], stream=1) + 1e-6 * numbers
        if self.numbers in ("shared offset", "close and far"):
            numbers = numbers + 1e4
        if self.numbers == "offset of each":
            numbers = numbers + 1e4 * self.randn(*shape[:-1], 1, stream=2)
        if self.numbers == "large":
            numbers = 1e3 * numbers
        return numbers.to(self.dtype)

    @cached_property
    def labels(self):
        return self.randn(*self.batch, self.vocab, stream=3).argmax(-1)

    @cached_property
    def one_hot(self):
        return torch.nn.functional.one_hot(self.labels, self.vocab).to(self.dtype)

    @cached_property
    def dense(self):
        """Somewhere near the members, so that the error is not all offset."""
        near = self.members[-1].double()
        return (near + self.randn(*self.batch, self.vocab, stream=4)).to(self.dtype)

    @cached_property
    def constant(self):
        return self.randn(self.vocab, stream=5).to(self.dtype)

    @cached_property
    def rescale(self):
        return (0.5 + self.randn(self.components, *self.batch, stream=6).abs()).to(self.dtype)

    @cached_property
    def weights(self):
        """None for uniform ones; "sparse" ones leave the first member out where another stays."""
        if self.weighting == "uniform":
            return None
        draws = self.randn(self.components, stream=7).square() + 1e-3
        if self.weighting == "sparse" and self.components > 1:
            draws[0] = 0.0
        return draws / draws.sum()

    @cached_property
    def weight_list(self):
        weights = self.weights
        return [1 / self.components] * self.components if weights is None else weights.tolist()

    @property
    def tolerance(self):
        return TOLERANCE[self.dtype]


def cases(
    numbers=EXTREME,
    weighting=("uniform", "random", "sparse"),
    dtypes=(torch.float64, torch.float32),
    min_components=1,
):
    return st.builds(
        Case,
        components=st.integers(min_components, 8),
        batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
        vocab=st.integers(2, 7),
        numbers=st.sampled_from(numbers),
        weighting=st.sampled_from(weighting),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**20),
    )


def assert_small(difference, scale, tolerance):
    """``|difference| <= tolerance * scale`` everywhere, up to the rounding of denormal numbers."""
    floor = torch.finfo(difference.dtype).tiny / torch.finfo(difference.dtype).eps
    allowed = tolerance * scale.abs() + floor
    worst = (difference.abs() / allowed).max()
    assert bool(worst <= 1), f"{float(worst) * tolerance:.2e} of the terms, allowed {tolerance:.0e}"
