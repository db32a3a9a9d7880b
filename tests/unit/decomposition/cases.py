"""Ensembles for the property tests: a few readable choices, and a seed for the numbers."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

EXTREME = (
    "plain",
    "shared offset",
    "offset of each",
    "close",
    "close and far",
    "close but one",
    "large",
    "confident",
)
# Probabilities of logits of a thousand keep few digits of float32, whichever way they are computed.
MODERATE = tuple(kind for kind in EXTREME if kind != "large")
NUMBERS = {
    "squared": EXTREME,
    "paper": MODERATE,
    "brier": MODERATE,
    "cross_entropy": EXTREME,
}
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
    copies: int = 1

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
        if self.numbers == "close but one":
            numbers[0] += 1e4
        if self.numbers == "large":
            numbers = 1e3 * numbers
        if self.numbers == "confident":
            numbers = numbers + 25 * torch.nn.functional.one_hot(self.labels, self.vocab)
        return numbers.to(self.dtype).repeat(self.copies, *[1] * (numbers.ndim - 1))

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
        draws = self.randn(len(self.members), stream=7).abs() + 0.1
        if self.weighting == "sparse" and len(draws) > 1:
            draws[0] = 0.0
        return draws / draws.sum()

    @cached_property
    def weight_list(self):
        count = len(self.members)
        return [1 / count] * count if self.weights is None else self.weights.tolist()


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


def in_double(target):
    """A dense target in float64, labels as they are."""
    return target.double() if target.is_floating_point() else target


def as_seen_by(loss, members):
    """Members in float64; for a softmax without their offsets, which it does not see.

    A definition that scales members would round at the size of the offset, even in float64.
    """
    members = members.double()
    return members if loss == "squared" else members - members[..., :1]


def assert_small(difference, scale, case, slack=1):
    """``|difference| <= tolerance * scale`` everywhere, above the numbers that have no digits."""
    kind = torch.finfo(case.dtype)
    allowed = slack * TOLERANCE[case.dtype] * scale.abs() + kind.tiny / kind.eps
    worst = float((difference.abs() / allowed).max())
    assert worst <= 1, f"off by {worst:.3g} times what rounding explains"
