"""How the units of a sublayer (heads, neurons) write to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Writer:
    """The linear map from a sublayer's units to what it adds to the stream.

    ``z_unit = multiplier * gain * (a_unit W_unit) / statistic``: the output matrix, then the
    RMSNorm that some models have after the sublayer (Gemma 2, OLMo 2) with its statistic held
    fixed, and a residual multiplier (Granite). The bias goes the same way as one more unit.
    """

    hook: str
    """Name of the hook that holds what the units computed."""
    weight: Float[Tensor, "unit d_unit d_model"]
    """Output matrix by unit, as the model holds it."""
    bias: Float[Tensor, " d_model"] | None = None
    """Output bias, if any."""
    multiplier: float = 1.0
    """Factor on everything the sublayer adds."""
    gain: Float[Tensor, " d_model"] | None = None
    """Weight of the norm after the sublayer, if any."""
    statistic_hook: str | None = None
    """Name of the hook that holds that norm's denominator."""

    def scaled(
        self, vectors: Float[Tensor, "*rest d_model"], statistic: Tensor | None
    ) -> Float[Tensor, "*rest d_model"]:
        """Take vectors from the output matrix to the stream."""
        if self.multiplier != 1.0:
            vectors = self.multiplier * vectors
        if statistic is not None:
            vectors = vectors / statistic.to(vectors)
        return vectors if self.gain is None else vectors * self.gain.to(vectors)
