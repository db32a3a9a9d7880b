"""The named result of an ambiguity decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import weighted_mean


@dataclass(frozen=True, eq=False)
class AmbiguityTerms:
    """Ensemble error, average bias and diversity, with the terms of each member.

    ``bias = sum_i w_i component_bias_i`` and ``diversity = sum_i w_i component_diversity_i``.
    """

    error: Float[Tensor, "*batch"]
    """Loss of the ensemble."""
    bias: Float[Tensor, "*batch"]
    """Average loss of the members."""
    diversity: Float[Tensor, "*batch"]
    """Average distance of the members from their centroid (the ambiguity)."""
    component_bias: Float[Tensor, "component *batch"]
    """Loss of each member."""
    component_diversity: Float[Tensor, "component *batch"]
    """Distance of each member from the centroid."""

    @property
    def residual(self) -> Float[Tensor, "*batch"]:
        """``error - (bias - diversity)``: rounding, where the loss has an exact identity."""
        return self.error - (self.bias - self.diversity)

    @classmethod
    def averaged(
        cls,
        error: Float[Tensor, "*batch"],
        component_bias: Float[Tensor, "component *batch"],
        component_diversity: Float[Tensor, "component *batch"],
        weights: Float[Tensor, " component"],
    ) -> AmbiguityTerms:
        """Average member terms into the whole."""
        return cls(
            error=error,
            bias=weighted_mean(component_bias, weights),
            diversity=weighted_mean(component_diversity, weights),
            component_bias=component_bias,
            component_diversity=component_diversity,
        )


@dataclass(frozen=True, eq=False)
class JunctionTerms:
    """Error, bias and diversity of the ensembles of the first k members, for every k."""

    error: Float[Tensor, "junction *batch"]
    """Loss of the ensemble of members 1..k."""
    bias: Float[Tensor, "junction *batch"]
    """Average loss of members 1..k."""
    diversity: Float[Tensor, "junction *batch"]
    """Average distance of members 1..k from their centroid."""
    logits: Float[Tensor, "junction *batch vocab"] | None
    """Accumulated logits ``sum_{i<=k} u_i + constant``, whose argmax is the prediction; None over
    the full vocabulary, where `full_vocab.member_readout` gives the predictions."""

    @classmethod
    def concatenate(cls, parts: list[JunctionTerms], shape: tuple[int, ...]) -> JunctionTerms:
        """Join results of consecutive rows ``[junction, row]`` into ``[junction, *batch]``."""
        logits = [part.logits for part in parts if part.logits is not None]
        return cls(
            error=torch.cat([part.error for part in parts], 1).reshape(shape),
            bias=torch.cat([part.bias for part in parts], 1).reshape(shape),
            diversity=torch.cat([part.diversity for part in parts], 1).reshape(shape),
            logits=torch.cat(logits, 1).reshape(*shape, -1) if logits else None,
        )
