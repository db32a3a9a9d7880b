"""Models that apply a block several times in one forward pass: a component per application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.capture import (
    Pos,
    _drops_axis,
    _final_stream,
    _position_selector,
    _stacked,
)
from lens_diversity.stack import ComponentStack, require_finite
from lens_diversity.units import module_of

_STREAM = (
    _bridge.EMBED,
    _bridge.FINAL_NORM_INPUT,
    _bridge.FINAL_NORM_SCALE,
    _bridge.FINAL_NORM_OUTPUT,
    _bridge.UNEMBED_INPUT,
    _bridge.UNEMBED_OUTPUT,
)


def looped_component_stack(
    model: Any, tokens: Tensor, pos: Pos = -1, attention_mask: Tensor | None = None
) -> ComponentStack:
    """Run a model and collect what every *application* of a component wrote to the stream.

    ``x = sum_i z_i`` (Kamigaito et al. 2025, Eq. 1) over the embedding(s) and every output of an
    attention or an MLP. An ``ActivationCache`` keeps the last output of a block only; here the
    second application of a block's attention follows as ``"3_attn_out@2"``, in the order of
    execution. A model that runs each block once gives the stack of
    [`component_stack`][lens_diversity.component_stack].

    Args:
        model: A ``TransformerBridge`` in evaluation mode.
        tokens: Token ids ``[batch, pos]``.
        pos: Positions to keep, as in [`component_stack`][lens_diversity.component_stack].
        attention_mask: ``[batch, pos]``, ones on real tokens.

    Returns:
        The stack, on the device of the final norm, in the model's dtype.

    Raises:
        UnsupportedModelError: If the model's logits are not one sum of such components: also where
            the final norm runs between the loops, as in Ouro.
        ValueError: If an activation is NaN or infinite, the model is in training mode, or ``pos``
            does not apply.

    Example:
        >>> stack = looped_component_stack(model, tokens)  # doctest: +SKIP
        >>> stack.labels[:4]  # doctest: +SKIP
        ['embed', '0_attn_out', '0_mlp_out', '0_attn_out@2']
    """
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    select = _position_selector(torch.empty(*tokens.shape, 1), pos, attention_mask, batched=True)
    parts, stream = _record(model, tokens, select, attention_mask)
    final = _final_stream(SimpleNamespace(cache_dict=stream), model, select)
    values = _stacked(list(parts.values()), final.scale.device)
    labels = list(parts)
    require_finite(values, labels)
    return ComponentStack(
        values=values,
        labels=labels,
        modules=[module_of(label.partition("@")[0]) for label in labels],
        axes=("batch",) + ("pos",) * (not _drops_axis(pos)),
        stream=final,
        readout=_bridge.read_readout(model),
    )


def _record(
    model: Any, tokens: Tensor, select: Callable[[Tensor], Tensor], attention_mask: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run once; return the selected positions of every component, and the stream's last record."""
    fired: Counter[str] = Counter()
    parts: dict[str, Tensor] = {}
    stream: dict[str, Tensor] = {}

    def component(label: str) -> Callable[..., None]:
        def write(tensor: Tensor, hook: Any) -> None:
            fired[label] += 1
            name = label if fired[label] == 1 else f"{label}@{fired[label]}"
            parts[name] = select(tensor.detach())

        return write

    def last(name: str) -> Callable[..., None]:
        def write(tensor: Tensor, hook: Any) -> None:
            fired[name] += 1
            stream[name] = tensor.detach()

        return write

    hooks = [(name, last(name)) for name in _STREAM if name in model.hook_dict]
    hooks += [(name, component(label)) for label, name in _bridge.component_hooks(model).items()]
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks, attention_mask=attention_mask)
    norms = fired[_bridge.FINAL_NORM_SCALE]
    if norms > 1:
        raise _bridge.UnsupportedModelError(
            f"{model.cfg.architecture} runs its final norm {norms} times in a forward pass: "
            "between its loops the stream is normalised, so that what the earlier ones wrote does "
            "not add up with the rest."
        )
    return parts, stream
