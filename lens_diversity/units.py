"""From sublayers to coarser and finer units: blocks, attention heads, neurons."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.neurons import NeuronLayer, NeuronStack
from lens_diversity.readout import RECONSTRUCTION_TOLERANCE
from lens_diversity.stack import ComponentStack, widened
from lens_diversity.writers import Writer

_PART = re.compile(r"L(?P<layer>\d+)(?P<letter>[HN])\d+|(?P<of>\d+)_(?P<module>attn|mlp)_bias")

Select = Callable[[Tensor], Tensor]


def member_names(model: Any, unit: str) -> tuple[list[str], list[str]]:
    """Labels and modules of a model's members, before any forward pass.

    Args:
        model: A ``TransformerBridge``.
        unit: One of ``"sublayer"``, ``"block"``, ``"head"``, ``"neuron"``.

    Raises:
        UnsupportedModelError: If the model cannot be split into such units.
    """
    labels = list(_bridge.component_hooks(model))
    modules = [module_of(label) for label in labels]
    if unit == "sublayer":
        return labels, modules
    if unit == "block":
        return _merged(labels, modules)
    writers = _bridge.read_writers(model, unit)
    members = [_members_of(label, module, writers) for label, module in _pairs(labels, modules)]
    return [name for names, _ in members for name in names], [m for _, ms in members for m in ms]


def module_of(label: str) -> str:
    """The kind of the component of a label such as ``"3_mlp_out"``."""
    return "embed" if label.endswith("embed") else label.split("_")[1]


def sublayer_of(label: str) -> str:
    """The sublayer that a head, a neuron or a bias is part of; others are themselves."""
    found = _PART.fullmatch(label)
    if found is None:
        return label
    layer = found["layer"] or found["of"]
    module = found["module"] or ("attn" if found["letter"] == "H" else "mlp")
    return f"{layer}_{module}_out"


def as_blocks(sublayers: ComponentStack) -> ComponentStack:
    """Sum each block's attention and MLP output; embeddings stay as they are."""
    labels, modules = _merged(sublayers.labels, sublayers.modules)
    rows = torch.tensor([labels.index(_block_label(label)) for label in sublayers.labels])
    values = widened(sublayers.values)
    summed = values.new_zeros(len(labels), *values.shape[1:])
    summed.index_add_(0, rows.to(values.device), values)
    return replace(sublayers, values=summed, labels=labels, modules=modules)


def as_heads(
    sublayers: ComponentStack, cache: Any, writers: dict[str, Writer], select: Select
) -> ComponentStack:
    """Split every attention output into its heads, and its bias if it has one.

    Args:
        sublayers: The stack of sublayers.
        cache: The cache that it was made from.
        writers: From ``_bridge.read_writers``, by sublayer label.
        select: Picks the positions of the stack from ``[(batch,) pos, width]``.

    Returns:
        A stack whose heads are labelled ``L3H2`` as ``stack_head_results`` labels them, and
        biases ``3_attn_bias``, in float32 at least.

    Raises:
        ValueError: If the cache lacks a hook, or heads do not sum to what their attention wrote.
    """
    parts: list[Tensor] = []
    for own, label in zip(sublayers.values, sublayers.labels, strict=True):
        if label in writers:
            parts.append(_head_outputs(own, label, writers[label], cache, select))
        else:
            parts.append(widened(own).unsqueeze(0))
    members = [
        _members_of(label, module, writers)
        for label, module in _pairs(sublayers.labels, sublayers.modules)
    ]
    return replace(
        sublayers,
        values=torch.cat(parts),
        labels=[name for names, _ in members for name in names],
        modules=[module for _, modules in members for module in modules],
    )


def as_neurons(
    sublayers: ComponentStack, cache: Any, writers: dict[str, Writer], select: Select
) -> NeuronStack:
    """Split every MLP output into its neurons, held by their activations.

    Args:
        sublayers: The stack of sublayers.
        cache: The cache that it was made from.
        writers: From ``_bridge.read_writers``, by sublayer label.
        select: Picks the positions of the stack from ``[(batch,) pos, width]``.

    Returns:
        A stack whose neurons are labelled ``L3N17`` as ``stack_neuron_results`` labels them, and
        biases ``3_mlp_bias``.

    Raises:
        ValueError: If the cache lacks a hook, or neurons do not sum to what their MLP wrote.
    """
    labels: list[str] = []
    modules: list[str] = []
    dense: list[Tensor] = []
    slots: list[int] = []
    layers: list[NeuronLayer] = []
    pairs = _pairs(sublayers.labels, sublayers.modules)
    for own, (label, module) in zip(sublayers.values, pairs, strict=True):
        names, kinds = _members_of(label, module, writers)
        if label in writers:
            layer, bias = _neuron_layer(own, label, writers[label], cache, select, len(labels))
            layers.append(layer)
            written = [] if bias is None else [bias]
        else:
            written = [widened(own)]
        dense += written
        slots += range(len(labels) + len(names) - len(written), len(labels) + len(names))
        labels, modules = labels + names, modules + kinds
    return NeuronStack(
        others=replace(
            sublayers,
            values=torch.stack(dense),
            labels=[labels[slot] for slot in slots],
            modules=[modules[slot] for slot in slots],
        ),
        slots=slots,
        layers=layers,
        labels=labels,
        modules=modules,
    )


def require_hooks(cache: Any, writers: Any, unit: str) -> None:
    """Check that a cache holds what the units of every sublayer computed.

    Raises:
        ValueError: If hooks are missing, naming them.
    """
    wanted = [name for writer in writers for name in (writer.hook, writer.statistic_hook) if name]
    missing = [name for name in wanted if cache.cache_dict.get(name) is None]
    if missing:
        more = f" and {len(missing) - 3} more" * (len(missing) > 3)
        raise ValueError(
            f"the cache lacks {', '.join(missing[:3])}{more}. Cache them with "
            f'model.run_with_cache(tokens, names_filter=lens_diversity.unit_hooks("{unit}")).'
        )


@dataclass(frozen=True, eq=False)
class _Activations:
    """What one sublayer's units computed at the selected positions."""

    units: Float[Tensor, "*batch unit d_unit"]
    statistic: Tensor | None

    @classmethod
    def of(cls, writer: Writer, cache: Any, select: Select, device: torch.device) -> _Activations:
        count, width = writer.weight.shape[:2]
        stored = cache.cache_dict[writer.hook]
        # Heads have an axis of their own; some models cut it otherwise than their output matrix.
        if stored.shape[-1] != count * width:
            stored = stored.flatten(-2)
        statistic = None
        if writer.statistic_hook is not None:
            statistic = widened(select(cache.cache_dict[writer.statistic_hook])).to(device)
        selected = widened(select(stored)).to(device)
        units = selected.reshape(*selected.shape[:-1], count, width)
        return cls(units, statistic)


def _head_outputs(
    own: Tensor, label: str, writer: Writer, cache: Any, select: Select
) -> Float[Tensor, "head *batch d_model"]:
    found = _Activations.of(writer, cache, select, own.device)
    weight = writer.weight.to(found.units)
    outputs = torch.einsum("...hd,hdm->h...m", found.units, weight)
    if writer.bias is not None:
        bias = writer.bias.to(outputs).expand_as(outputs[:1])
        outputs = torch.cat([outputs, bias])
    outputs = writer.scaled(outputs, found.statistic)
    _require_sum(outputs.sum(0), own, label, "heads")
    return outputs


def _neuron_layer(
    own: Tensor, label: str, writer: Writer, cache: Any, select: Select, first: int
) -> tuple[NeuronLayer, Tensor | None]:
    found = _Activations.of(writer, cache, select, own.device)
    activations = found.units.squeeze(-1)
    if writer.multiplier != 1.0:
        activations = writer.multiplier * activations
    if found.statistic is not None:
        activations = activations / found.statistic
    weight = writer.weight.squeeze(1).to(own.device)
    layer = NeuronLayer.of(activations, weight, writer.gain, first)
    bias = None
    if writer.bias is not None:
        bias = writer.scaled(writer.bias.to(activations).expand(own.shape), found.statistic)
    total = layer.together if bias is None else layer.together + bias
    _require_sum(total, own, label, "neurons")
    return layer, bias


def _require_sum(found: Tensor, own: Tensor, label: str, parts: str) -> None:
    tolerance = RECONSTRUCTION_TOLERANCE[own.dtype]
    own = own.to(found)
    size = own.norm(dim=-1).clamp_min(torch.finfo(own.dtype).tiny)
    error = float(((found - own).norm(dim=-1) / size).max())
    if not error <= tolerance:
        raise ValueError(
            f"the {parts} of {label} do not sum to what it wrote (relative error {error:.3g}, "
            f"tolerance {tolerance:g}). Likely causes: a hook that edits the sublayer's output "
            f'itself (edit its {parts} instead, or use unit="sublayer"), or a model that '
            f"transforms that output in a way its hooks do not show"
        )


def _pairs(labels: Sequence[str], modules: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(labels, modules, strict=True))


def _members_of(label: str, module: str, writers: dict[str, Writer]) -> tuple[list[str], list[str]]:
    """Names of the members that a sublayer is split into."""
    writer = writers.get(label)
    if writer is None:
        return [label], [module]
    layer = label.split("_")[0]
    letter = "H" if module == "attn" else "N"
    names = [f"L{layer}{letter}{unit}" for unit in range(len(writer.weight))]
    if writer.bias is not None:
        names.append(f"{layer}_{module}_bias")
    return names, [module] * len(names)


def _block_label(label: str) -> str:
    layer = label.split("_")[0]
    return f"{layer}_block" if layer.isdigit() else label


def _merged(labels: Sequence[str], modules: Sequence[str]) -> tuple[list[str], list[str]]:
    kinds = {_block_label(label): module for label, module in _pairs(labels, modules)}
    return list(kinds), ["block" if name.endswith("_block") else kinds[name] for name in kinds]
