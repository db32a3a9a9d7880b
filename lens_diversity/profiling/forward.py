"""One forward pass of a batch of windows: the decomposition at every position that predicts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.capture import component_stack
from lens_diversity.evaluation.forward import kept_cache
from lens_diversity.neurons import Stack
from lens_diversity.profiling.windows import Batch


def scored_stack(model: Any, batch: Batch, unit: str = "sublayer") -> Stack:
    """Run a batch and stack what every component wrote at the scored positions.

    Hooks keep those positions only; padding and logits are never stored.

    Args:
        model: A ``TransformerBridge`` in evaluation mode.
        batch: Padded windows.
        unit: What a member is.

    Returns:
        A stack ``[component, row, d_model]``, rows in the order of ``batch.targets``.
    """
    device = model.W_E.device
    shape = batch.scored.shape

    def keep(tensor: Tensor) -> Tensor:
        # Position embeddings come once for the whole batch.
        every = tensor.expand(*shape, *tensor.shape[2:])
        return every[batch.scored.to(tensor.device)].unsqueeze(1)

    names = {
        *_bridge.component_hooks(model).values(),
        *_bridge.hooks_of_units(model, unit),
        _bridge.FINAL_NORM_INPUT,
        _bridge.FINAL_NORM_SCALE,
        _bridge.FINAL_NORM_OUTPUT,
    }
    with torch.no_grad():
        tokens, mask = batch.tokens.to(device), batch.mask.to(device)
        return component_stack(kept_cache(model, tokens, mask, names, keep), pos=-1, unit=unit)
