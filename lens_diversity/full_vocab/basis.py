"""Vectors over the vocabulary, held by their coefficients on the rows of the unembedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.readout import Readout
from lens_diversity.stack import ComponentStack

# What one chunk of the unembedding may take in float64 while moments are accumulated.
_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, eq=False)
class VocabularyBasis:
    """The rows of ``W_U``, and ``b_U`` where it is not zero: every logit vector is their sum.

    A component's logits, the constant, a centroid and an ensemble with a member left out are all
    ``y B`` with ``B`` [basis, d_vocab], so the arithmetic of an ensemble (means, differences,
    weights) can be done on ``y``, which is ``d_vocab / basis`` times shorter.
    """

    readout: Readout
    has_bias: bool

    @classmethod
    def of(cls, readout: Readout) -> VocabularyBasis:
        """The basis of a readout."""
        return cls(readout, bool((readout.b_U != 0).any()))

    @property
    def size(self) -> int:
        """Number of basis vectors: ``d_model``, plus one for an unembedding bias."""
        return int(self.readout.W_U.shape[0]) + self.has_bias

    @property
    def d_vocab(self) -> int:
        """Size of the vocabulary."""
        return self.readout.d_vocab

    def components(
        self, stack: ComponentStack, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "component *batch basis"], Float[Tensor, " basis"]]:
        """Coefficients of every component's ``u_i`` without the constant, and of ``kappa``."""
        values = stack.values.to(dtype)
        normalised = stack.readout.normalise(values, stack.stream.scale.to(dtype))
        return self.widen(normalised, 0.0), self.widen(self.readout.norm_constant(values), 1.0)

    def widen(
        self, normalised: Float[Tensor, "*rest d_model"], bias: float
    ) -> Float[Tensor, "*rest basis"]:
        """Coefficients of ``c (y W_U + bias b_U)``."""
        scale = self.readout.logit_scale
        scaled = normalised if scale == 1.0 else scale * normalised
        if not self.has_bias:
            return scaled
        share = torch.full_like(scaled[..., :1], scale * bias)
        return torch.cat([scaled, share], -1)

    def columns(self, ids: Int[Tensor, " token"], like: Tensor) -> Float[Tensor, "basis token"]:
        """The basis at chosen tokens, in the dtype and place of ``like``."""
        weight = self.readout.W_U[:, ids.to(self.readout.W_U.device)]
        bias = self.readout.b_U[ids.to(self.readout.b_U.device)]
        return self._with_bias(weight.to(like.device).to(like.dtype), bias)

    def logits(
        self,
        vectors: Float[Tensor, "vector basis"],
        tokens: slice,
        out: Float[Tensor, "vector token"],
    ) -> Float[Tensor, "vector token"]:
        """``y B`` at consecutive tokens, written into ``out``."""
        d_model = self.readout.W_U.shape[0]
        weight = self.readout.W_U[:, tokens].to(vectors.dtype)
        torch.mm(vectors[:, :d_model], weight, out=out)
        if self.has_bias:
            out.addr_(vectors[:, d_model], self.readout.b_U[tokens].to(vectors))
        return out

    def weighted_tokens(
        self, weights: Float[Tensor, "vector token"], tokens: slice
    ) -> Float[Tensor, "vector basis"]:
        """``sum_j weights_j B_j`` over consecutive tokens."""
        summed = weights @ self.readout.W_U[:, tokens].to(weights.dtype).T
        if not self.has_bias:
            return summed
        return torch.cat([summed, weights @ self.readout.b_U[tokens].to(weights).unsqueeze(1)], -1)

    def mean(self) -> Float[Tensor, " basis"]:
        """Mean over the vocabulary, in float64."""
        total = torch.zeros(self.size, dtype=torch.float64, device=wide_device(self.readout.W_U))
        for _, columns in self.wide_chunks():
            total += columns.sum(1)
        return total / self.d_vocab

    def wide_chunks(self, beside: int = 0) -> Iterator[tuple[slice, Float[Tensor, "basis token"]]]:
        """The basis at consecutive tokens, in float64, with room for ``beside`` more vectors."""
        width = max(1, _CHUNK_BYTES // (8 * (self.size + beside)))
        for start in range(0, self.d_vocab, width):
            tokens = slice(start, min(start + width, self.d_vocab))
            weight, bias = self.readout.W_U[:, tokens], self.readout.b_U[tokens]
            weight = weight.to(wide_device(weight)).to(torch.float64)
            yield tokens, self._with_bias(weight, bias)

    def _with_bias(
        self, weight: Float[Tensor, "d_model token"], bias: Float[Tensor, " token"]
    ) -> Float[Tensor, "basis token"]:
        return torch.cat([weight, bias.to(weight).unsqueeze(0)]) if self.has_bias else weight


def wide_device(tensor: Tensor) -> torch.device:
    """Where float64 can be computed: the tensor's own device, except that Apple's has none."""
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device
