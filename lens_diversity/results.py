"""The result of a decomposition and the ways to look at it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

EXACT_LOSSES = ("squared", "brier", "cross_entropy")
UNITS = {
    "squared": "logits squared",
    "paper": "probability squared (error, bias), logits squared (diversity)",
    "brier": "probability squared",
    "cross_entropy": "nats",
}
_LAYER = re.compile(r"L?(\d+)[_HN]")


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Error, bias and diversity of a residual stream read as an ensemble of its components.

    Per-component terms are raw: ``bias = sum_i w_i component_bias_i``, likewise diversity. For the
    exact losses (``squared``, ``brier``, ``cross_entropy``) ``error = bias - diversity`` in every
    row; for ``paper`` (Eq. 14 with Eq. 8) no identity holds.
    """

    error: Float[Tensor, "*batch"]
    """The ensemble's loss."""
    bias: Float[Tensor, "*batch"]
    """The members' average loss."""
    diversity: Float[Tensor, "*batch"]
    """How much the members differ from their centroid (the ambiguity)."""
    component_bias: Float[Tensor, "component *batch"]
    """Each member's own loss."""
    component_diversity: Float[Tensor, "component *batch"]
    """Each member's distance from the centroid."""
    weights: Float[Tensor, " component"]
    """Member weights ``w_i``, summing to one."""
    labels: list[str]
    """Member names, as ``decompose_resid`` gives them."""
    modules: list[str]
    """Member kinds: ``embed``, ``attn``, ``mlp`` (and ``constant``, ``remainder``)."""
    axes: tuple[str, ...]
    """Names of the batch axes: ``batch`` and/or ``pos``."""
    loss: str
    """``squared``, ``paper``, ``brier`` or ``cross_entropy``."""
    combine: str
    """``mean``: members as read out; ``sum``: members scaled so that their mean is the logits."""
    gauge: str
    """``model``: logits as the weights give them; ``centred``: minus their mean over the vocab."""
    constant: str
    """Where the constant logits went: ``spread``, ``component`` or ``drop``."""
    n_vocab: int
    """Number of tokens in the mean over the vocabulary."""
    soft_cap: float | None
    """The model's soft cap, if any: the decomposition is of the logits before it."""
    reconstruction_error: float
    """Largest relative error of the summed components against the model."""
    reconstruction_reference: str
    """What the reconstruction was measured against."""

    @property
    def residual(self) -> Float[Tensor, "*batch"]:
        """``error - (bias - diversity)``: rounding, for the exact losses."""
        return self.error - (self.bias - self.diversity)

    def by_module(self) -> pd.DataFrame:
        """Split the batch means of bias and diversity by module (Eqs. 9-10).

        Returns:
            One row per module with ``components`` (how many), ``bias`` and ``diversity``
            (weighted contributions, which sum to the whole) and ``bias_share`` and
            ``diversity_share`` (which sum to one; NaN where the whole is zero).
        """
        frame = self.by_component()
        weighted = frame.assign(
            bias=frame["bias"] * frame["weight"],
            diversity=frame["diversity"] * frame["weight"],
            components=1,
        )
        modules = weighted.groupby("module", sort=False)[["components", "bias", "diversity"]].sum()
        return modules.assign(
            bias_share=modules["bias"] / modules["bias"].sum(),
            diversity_share=modules["diversity"] / modules["diversity"].sum(),
        )

    def by_component(self) -> pd.DataFrame:
        """Average each member's terms over the batch.

        Returns:
            One row per member in stream order: ``label``, ``module``, ``layer`` (missing for
            embeddings), ``weight``, ``bias`` and ``diversity`` (raw terms, not weighted).
        """
        import pandas as pd

        layers = [layer_of(label) for label in self.labels]
        return pd.DataFrame(
            {
                "label": self.labels,
                "module": self.modules,
                "layer": pd.array(layers, dtype="Int64"),
                "weight": _numbers(self.weights),
                "bias": _numbers(_row_means(self.component_bias)),
                "diversity": _numbers(_row_means(self.component_diversity)),
            }
        )

    def to_dataframe(self) -> pd.DataFrame:
        """Lay out every number in one long table.

        Returns:
            One row per member and batch row: ``component`` (index), ``label``, ``module``,
            ``layer``, one column per batch axis, ``weight``, ``bias`` and ``diversity`` (raw terms
            of the member), and the row's ``ensemble_error``, ``ensemble_bias`` and
            ``ensemble_diversity``.
        """
        import pandas as pd

        count = len(self.labels)
        shape = tuple(self.error.shape)
        names = ["component", *self.axes]
        index = pd.MultiIndex.from_product([range(size) for size in (count, *shape)], names=names)
        frame = index.to_frame(index=False)
        members = self.by_component().drop(columns=["bias", "diversity"])
        frame = frame.join(members, on="component")
        frame["bias"] = _numbers(self.component_bias.flatten())
        frame["diversity"] = _numbers(self.component_diversity.flatten())
        for name in ("error", "bias", "diversity"):
            whole = getattr(self, name).expand(count, *shape).flatten()
            frame[f"ensemble_{name}"] = _numbers(whole)
        leading = ["component", "label", "module", "layer", *self.axes]
        return frame[leading + [column for column in frame if column not in leading]]

    def __repr__(self) -> str:
        shape = " x ".join(
            f"{axis} {size}" for axis, size in zip(self.axes, self.error.shape, strict=True)
        )
        shares = ", ".join(
            f"{module} {share:.1%}" for module, share in self.by_module()["diversity_share"].items()
        )
        notes = [f"combine={self.combine}", f"gauge={self.gauge}", f"constant={self.constant}"]
        if self.soft_cap is not None:
            notes.append(f"logits before the soft cap of {self.soft_cap:g}")
        sign = "=" if self.loss in EXACT_LOSSES else "vs"
        return (
            f"Decomposition({self.loss}, {len(self.labels)} members, {shape or 'one row'}, "
            f"{self.n_vocab} tokens; in {UNITS[self.loss]})\n"
            f"  error {float(self.error.mean()):.6g} {sign} bias {float(self.bias.mean()):.6g} - "
            f"diversity {float(self.diversity.mean()):.6g}  (batch means)\n"
            f"  diversity by module: {shares}\n"
            f"  {', '.join(notes)}; reconstruction error {self.reconstruction_error:.2g} "
            f"(of the {self.reconstruction_reference})"
        )


def layer_of(label: str) -> int | None:
    """The layer in a label such as ``"3_mlp_out"`` or ``"L3H2"``, or None for embeddings."""
    found = _LAYER.match(label)
    return None if found is None else int(found[1])


def _row_means(terms: Float[Tensor, "component *batch"]) -> Float[Tensor, " component"]:
    return terms.reshape(len(terms), -1).mean(1)


def _numbers(values: Tensor) -> list[float]:
    numbers: list[float] = values.detach().to("cpu", torch.float64).tolist()
    return numbers
