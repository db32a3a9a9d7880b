"""Lenses: what a component's output will have become at the end of the stream, before the readout.

The logit lens reads every component as it was written. A *lens* first translates it with a linear
map that belongs to its layer. The translated components are another ensemble: they sum to the
lens's reading of the model, not to the model's logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.neurons import Stack
from lens_diversity.results import layer_of
from lens_diversity.stack import ComponentStack, require_finite, widened

Lens = Callable[[Tensor, int], Tensor]
"""Takes vectors ``[..., d_model]`` that are part of the output of block ``layer`` (-1: of the
embedding) to the final stream. It has to be linear: the whole stream is a sum of such vectors."""


def through_lens(stack: Stack, lens: Lens) -> ComponentStack:
    """Translate every component of a stack from its own layer to the final stream.

    ``u_i = c A_x (J_l z_i) W_U`` with ``x = sum_i J_l z_i``: the norm's statistics are those of the
    translated sum, so that the result is an ensemble of its own with every identity of one.

    Args:
        stack: Components that each belong to one layer (no ``remainder``).
        lens: A linear map for each layer, such as [`jacobian_lens`][lens_diversity.lenses] or a
            [`TunedLens`][lens_diversity.lenses.TunedLens].

    Returns:
        A stack with the same labels, in float32 at least. Its sum is not that of the model, so it
        is checked against itself.

    Raises:
        TypeError: If the stack holds neurons, which have no vectors.
        ValueError: If a component belongs to no layer, or the lens changes a shape, makes a NaN or
            adds an offset.

    Example:
        >>> from lens_diversity import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> values = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> stack = ComponentStack.from_values(values, readout, ["embed", "0_mlp_out"])
        >>> through_lens(stack, lambda vectors, layer: (layer + 2) * vectors).values.squeeze()
        tensor([[1., 0.],
                [0., 2.]])
    """
    if not isinstance(stack, ComponentStack):
        raise TypeError(
            f"a lens translates vectors of the stream, which a {type(stack).__name__} does not "
            'hold; use unit="head" or coarser, or materialise() it'
        )
    if "remainder" in stack.modules:
        raise ValueError("the remainder belongs to no layer, so no lens translates it")
    values = widened(stack.values)
    parts = []
    for label, own in zip(stack.labels, values, strict=True):
        layer = layer_of(label)
        translated = lens(own, -1 if layer is None else layer)
        if tuple(translated.shape) != tuple(own.shape):
            raise ValueError(
                f"the lens made shape {tuple(translated.shape)} of {label}'s {tuple(own.shape)}"
            )
        nothing = lens(torch.zeros_like(own), -1 if layer is None else layer)
        if bool(nothing.isfinite().all() & nothing.any()):
            raise ValueError(
                f"the lens makes something of nothing at {label}: it adds an offset, which is no "
                "component's; give its linear part (a TunedLens itself, not its stream method)"
            )
        parts.append(translated.to(own))
    found = torch.stack(parts)
    require_finite(found, stack.labels)
    made = ComponentStack.from_values(found, stack.readout, stack.labels, stack.modules)
    return replace(made, axes=stack.axes)


def jacobian_lens(lens: Any, n_layers: int) -> Lens:
    """Use TransformerLens' ``JacobianLens``, fitted or loaded there.

    The embedding is read as a summand of block 0's output, which is where the fitted maps begin;
    the last block is read as it is.

    Args:
        lens: A ``transformer_lens.tools.analysis.jacobian_lens.JacobianLens``.
        n_layers: Number of the model's layers.

    Returns:
        A lens for [`through_lens`][lens_diversity.lenses.through_lens].

    Raises:
        ValueError: If a layer was not fitted.

    Example:
        >>> fitted = JacobianLens.load("lens.pt")  # doctest: +SKIP
        >>> translate = jacobian_lens(fitted, model.cfg.n_layers)  # doctest: +SKIP
        >>> stack = through_lens(ld.component_stack(cache), translate)  # doctest: +SKIP
    """
    missing = sorted(set(range(n_layers - 1)) - set(lens.source_layers))
    if missing:
        raise ValueError(
            f"the Jacobian lens has no map for layers {missing[:5]} of {n_layers}: fit it with "
            "source_layers=None"
        )

    def translate(vectors: Tensor, layer: int) -> Tensor:
        if layer == n_layers - 1:
            return vectors
        found: Tensor = lens.transport(vectors, max(layer, 0))
        return found

    return translate


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Affine translators ``h + W_k h + b_k`` of the stream after ``k`` blocks.

    (Belrose et al. 2023, Eliciting Latent Predictions from Transformers with the Tuned Lens.)

    Called with vectors that are part of the stream it applies the linear part, for
    [`through_lens`][lens_diversity.lenses.through_lens]: the offset ``b_k`` is no component's.
    ``stream`` translates a whole stream, for ``transformer_lens.tools.analysis.logit_lens(lens=)``.
    """

    weights: Float[Tensor, "layer d_model d_model"]
    """``W_k`` for the stream after 0, 1, ... blocks; after the last one it is read as it is."""
    offsets: Float[Tensor, "layer d_model"]
    """``b_k``."""

    @classmethod
    def load(cls, path: str | Path) -> TunedLens:
        """Read translators from safetensors: ``0.weight``, ``0.bias``, ``1.weight``, ...

        These are the names that the ``tuned-lens`` package gives them in its ``params.pt``;
        ``safetensors.torch.save_file(torch.load("params.pt"), "params.safetensors")`` converts.

        Raises:
            ValueError: If the file holds something else, or a layer is missing.
        """
        from safetensors.torch import load_file

        found = load_file(str(path))
        pairs = {name.rsplit(".", 1)[0] for name in found if name.endswith((".weight", ".bias"))}
        pairs = {pair.rsplit(".", 1)[-1] for pair in pairs}
        layers = sorted(int(pair) for pair in pairs if pair.isdigit())
        if not layers or layers != list(range(len(layers))):
            raise ValueError(
                f"{path} holds no translators 0.weight, 0.bias, 1.weight, ... without a gap; found "
                f"{sorted(found)[:6]}"
            )
        by_name = {".".join(name.rsplit(".", 2)[-2:]): value for name, value in found.items()}
        missing = [
            f"{layer}.{part}"
            for layer in layers
            for part in ("weight", "bias")
            if f"{layer}.{part}" not in by_name
        ]
        if missing:
            raise ValueError(f"{path} lacks {missing[:4]}")
        weights = torch.stack([by_name[f"{layer}.weight"] for layer in layers])
        offsets = torch.stack([by_name[f"{layer}.bias"] for layer in layers])
        return cls(weights.float(), offsets.float())

    def __call__(
        self, vectors: Float[Tensor, "*batch d_model"], layer: int
    ) -> Float[Tensor, "*batch d_model"]:
        """Translate a part of the output of block ``layer`` (-1: of the embedding)."""
        place = layer + 1
        if place >= len(self.weights):
            return vectors
        return vectors + vectors @ self.weights[place].to(vectors).T

    def stream(
        self, residual: Float[Tensor, "*batch d_model"], blocks: int
    ) -> Float[Tensor, "*batch d_model"]:
        """Translate a whole stream after so many blocks, offset and all."""
        if blocks >= len(self.weights):
            return residual
        return self(residual, blocks - 1) + self.offsets[blocks].to(residual)
