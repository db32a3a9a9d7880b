"""Stacks with vocabularies of every kind, and their full logits in float64 as the reference."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

import lens_diversity as ld

VOCABULARIES = ("plain", "tied rows", "rank deficient", "padded", "offset", "outlier dimension")
NORMS = ("none", "rms", "layer")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Case:
    """A stack that follows from the choices alone."""

    components: int
    batch: tuple[int, ...]
    d_model: int
    extra_tokens: int
    vocabulary: str
    norm: str
    has_bias: bool
    logit_scale: float
    weighting: str
    dtype: torch.dtype
    seed: int

    def randn(self, *shape, stream=0):
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * stream)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    @property
    def d_vocab(self):
        return self.d_model + 3 + self.extra_tokens

    def _unembedding(self, stream):
        W_U = self.randn(self.d_model, self.d_vocab, stream=stream)
        if self.vocabulary == "tied rows":
            W_U[:, 1::2] = W_U[:, ::2][:, : W_U[:, 1::2].shape[1]]
        if self.vocabulary == "rank deficient":
            W_U[-1] = 2 * W_U[0]
        if self.vocabulary == "padded":
            W_U[:, self.d_vocab // 2 :] = 0
        if self.vocabulary == "offset":
            W_U += 10
        if self.vocabulary == "outlier dimension":
            W_U[0] *= 1e3
        return W_U.to(self.dtype)

    def _readout(self, stream):
        vector = self.randn(3, self.d_model, stream=stream + 1).to(self.dtype)
        bias = self.randn(self.d_vocab, stream=stream + 2).to(self.dtype)
        return ld.Readout(
            W_U=self._unembedding(stream),
            b_U=bias if self.has_bias else torch.zeros_like(bias),
            norm_weight=None if self.norm == "none" else vector[0],
            norm_bias=vector[1] if self.norm == "layer" else None,
            centred=self.norm == "layer",
            eps=1e-5,
            normalised=self.norm != "none",
            logit_scale=self.logit_scale,
        )

    @cached_property
    def stack(self):
        values = self.randn(self.components, *self.batch, self.d_model, stream=4)
        return ld.ComponentStack.from_values(values.to(self.dtype), self._readout(1))

    @cached_property
    def other_target(self):
        """The residual stream of another model with the same vocabulary."""
        residual = self.randn(*self.batch, self.d_model, stream=5).to(self.dtype)
        return ld.full_vocab.ResidualTarget.from_residual(residual, self._readout(6), scale=0.7)

    @cached_property
    def other_logits(self):
        """The same target over the vocabulary, read out by a stack of one component."""
        residual = self.randn(*self.batch, self.d_model, stream=5).to(self.dtype)
        stack = ld.ComponentStack.from_values(residual.unsqueeze(0), self._readout(6))
        return 0.7 * ld.component_logits(stack, dtype=torch.float64)[0]

    @cached_property
    def labels(self):
        return self.randn(*self.batch, self.d_vocab, stream=9).argmax(-1)

    @cached_property
    def dense(self):
        return self.randn(*self.batch, self.d_vocab, stream=10).to(self.dtype)

    def weights(self, count):
        if self.weighting == "uniform":
            return None
        draws = self.randn(count, stream=11).square() + 1e-2
        return (draws / draws.sum()).tolist()

    def logits(self, constant="spread"):
        return ld.component_logits(self.stack, constant=constant, dtype=torch.float64)

    @cached_property
    def kappa(self):
        like = torch.zeros(0, dtype=torch.float64)
        return self.stack.readout.constant(None, like)

    @property
    def tolerance(self):
        return TOLERANCE[self.dtype]


def cases(dtypes=(torch.float64, torch.float32), min_components=1):
    return st.builds(
        Case,
        components=st.integers(min_components, 5),
        batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
        d_model=st.integers(2, 6),
        extra_tokens=st.integers(0, 30),
        vocabulary=st.sampled_from(VOCABULARIES),
        norm=st.sampled_from(NORMS),
        has_bias=st.booleans(),
        logit_scale=st.sampled_from([1.0, 0.25]),
        weighting=st.sampled_from(["uniform", "random"]),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**20),
    )


def assert_close(found, expected, scale, tolerance):
    """Within ``tolerance`` of the size of the terms that make up the expected number."""
    floor = torch.finfo(torch.float32).tiny
    worst = ((found.double() - expected).abs() / (scale.abs() + floor)).max()
    assert bool(worst <= tolerance), f"{float(worst):.2e} of the terms, allowed {tolerance:.0e}"
