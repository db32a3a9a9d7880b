"""From an activation cache to the stack of everything that was written to the residual stream."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity import _bridge, units
from lens_diversity._choices import check_choice
from lens_diversity.lenses import Lens, through_lens
from lens_diversity.neurons import NeuronStack, Stack
from lens_diversity.stack import ComponentStack, FinalStream, require_finite

Pos = int | slice | Sequence[int] | str | None

_POS_FORMS = 'pos must be an int, None, a slice, a list of ints or "last"'


@overload
def component_stack(
    cache: Any,
    pos: Pos = ...,
    unit: Literal["sublayer", "block", "head"] = ...,
    *,
    attention_mask: Tensor | None = ...,
    lens: Lens | None = ...,
) -> ComponentStack: ...
@overload
def component_stack(
    cache: Any,
    pos: Pos = ...,
    *,
    unit: Literal["neuron"],
    attention_mask: Tensor | None = ...,
) -> NeuronStack: ...
@overload
def component_stack(
    cache: Any,
    pos: Pos = ...,
    unit: str = ...,
    *,
    attention_mask: Tensor | None = ...,
    lens: Lens | None = ...,
) -> Stack: ...
def component_stack(
    cache: Any,
    pos: Pos = -1,
    unit: str = "sublayer",
    *,
    attention_mask: Tensor | None = None,
    lens: Lens | None = None,
) -> Stack:
    """Collect what every component wrote to the residual stream.

    ``x = sum_i z_i`` over the embedding(s) and every layer's attention and MLP output
    (Kamigaito et al. 2025, Eq. 1).

    Args:
        cache: An ``ActivationCache`` from ``model.run_with_cache``, with or without a batch axis.
            It needs the hooks of [`names_filter`][lens_diversity.names_filter] only.
        pos: Positions to keep: an int (drops the axis), None for all, a slice or a list of ints,
            or ``"last"`` for each row's last real token.
        unit: What a component is: ``"sublayer"``, ``"block"`` (both sublayers of a layer),
            ``"head"`` (attention by head) or ``"neuron"`` (MLPs by neuron); the last two need the
            hooks of [`unit_hooks`][lens_diversity.unit_hooks].
        attention_mask: ``[batch, pos]`` of the input, ones on real tokens; for ``pos="last"``.
        lens: A linear map for each layer that every component goes through first, see
            [`through_lens`][lens_diversity.lenses.through_lens]; None reads them as written.

    Returns:
        The stack, on the device of the final norm, in the model's dtype (blocks, heads and neurons
        in float32 at least). Neurons come as a [`NeuronStack`][lens_diversity.NeuronStack], which
        holds activations only.

    Raises:
        TypeError: If ``cache`` is not an ``ActivationCache`` with its model.
        UnsupportedModelError: If the model's logits are not one sum of such components.
        ValueError: If hooks are missing from the cache, an activation is NaN or infinite, the
            model is in training mode, or ``pos`` or ``unit`` do not apply.

    Example:
        >>> import lens_diversity as ld
        >>> logits, cache = model.run_with_cache(  # doctest: +SKIP
        ...     tokens, names_filter=ld.names_filter
        ... )
        >>> stack = ld.component_stack(cache, pos=-1)  # doctest: +SKIP
    """
    check_choice("unit", unit, _bridge.UNITS)
    model = _model_of(cache)
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    writers = _bridge.read_writers(model, unit) if unit in ("head", "neuron") else {}
    units.require_hooks(cache, writers.values(), unit)
    hooks = _component_hooks(cache, model)
    batched = bool(cache.has_batch_dim)
    select = _position_selector(cache[next(iter(hooks.values()))], pos, attention_mask, batched)

    stream = _final_stream(cache, model, select)
    values = _stacked([select(cache[hook]) for hook in hooks.values()], stream.scale.device)
    labels = list(hooks)
    require_finite(values, labels)
    axes = ("batch",) * batched + ("pos",) * (not _drops_axis(pos))
    sublayers = ComponentStack(
        values=values,
        labels=labels,
        modules=[units.module_of(label) for label in labels],
        axes=axes,
        stream=stream,
        readout=_bridge.read_readout(model),
    )
    stack: Stack = sublayers
    if unit == "block":
        stack = units.as_blocks(sublayers)
    elif unit == "head":
        stack = units.as_heads(sublayers, cache, writers, select)
    elif unit == "neuron":
        stack = units.as_neurons(sublayers, cache, writers, select)
    return stack if lens is None else through_lens(stack, lens)


def _model_of(cache: Any) -> Any:
    model = getattr(cache, "model", None)
    if model is None or not hasattr(cache, "has_batch_dim"):
        raise TypeError(
            f"expected an ActivationCache that knows its model, got {type(cache).__name__}; use "
            "the cache of model.run_with_cache(tokens), or wrap a dict of activations with "
            "ActivationCache(activations, model)"
        )
    return model


def _component_hooks(cache: Any, model: Any) -> dict[str, str]:
    hooks = _bridge.component_hooks(model)
    missing = [hook for hook in hooks.values() if cache.cache_dict.get(hook) is None]
    if _bridge.has_final_norm(model) and _bridge.FINAL_NORM_SCALE not in cache.cache_dict:
        missing.append(_bridge.FINAL_NORM_SCALE)
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" * (len(missing) > 4))
        raise ValueError(
            f"the cache lacks {shown}. Cache them with "
            "model.run_with_cache(tokens, names_filter=lens_diversity.names_filter), without "
            "stop_at_layer or start_at_layer."
        )
    return hooks


def _drops_axis(pos: Pos) -> bool:
    return pos == "last" or not (pos is None or isinstance(pos, slice | Sequence))


def _position_selector(
    example: Float[Tensor, "*batch pos d_model"],
    pos: Pos,
    attention_mask: Tensor | None,
    batched: bool,
) -> Callable[[Tensor], Tensor]:
    """Turn ``pos`` into one function that picks positions from any ``[(batch,) pos, d]``."""
    count = example.shape[-2]
    if pos is None:
        return lambda tensor: tensor
    if isinstance(pos, str):
        return _last_token_selector(example, pos, attention_mask, batched)
    if isinstance(pos, slice):
        if len(range(count)[pos]) == 0:
            raise ValueError(f"pos={pos} selects none of the cache's {count} positions")
        return lambda tensor: tensor[..., pos, :]
    several: Sequence[Any] = pos if isinstance(pos, Sequence) else (pos,)
    try:
        wanted = [operator.index(p) for p in several]
    except TypeError as error:
        raise TypeError(f"{_POS_FORMS}, got {pos!r}") from error
    if not wanted or not all(-count <= p < count for p in wanted):
        raise ValueError(f"pos={pos} is out of range: the cache holds {count} positions")
    if several is not pos:
        _require_real_tokens(attention_mask, wanted[0])
        return lambda tensor: tensor[..., wanted[0], :]
    index = torch.tensor([p % count for p in wanted])
    return lambda tensor: tensor.index_select(-2, index.to(tensor.device))


def _require_real_tokens(attention_mask: Tensor | None, pos: int) -> None:
    if attention_mask is None:
        return
    padding = (torch.as_tensor(attention_mask)[..., pos] == 0).flatten().nonzero().flatten()
    if len(padding):
        raise ValueError(
            f"pos={pos} is padding in rows {padding.tolist()[:5]} of attention_mask; "
            'pos="last" takes each row\'s last real token'
        )


def _last_token_selector(
    example: Tensor, pos: str, attention_mask: Tensor | None, batched: bool
) -> Callable[[Tensor], Tensor]:
    if pos != "last":
        raise ValueError(f"{_POS_FORMS}, got {pos!r}")
    expected = tuple(example.shape[:-1])
    if attention_mask is None:
        raise ValueError(
            'pos="last" needs attention_mask= (ones on real tokens) to find each row\'s last '
            "real token; without padding use pos=-1"
        )
    attention_mask = torch.as_tensor(attention_mask)
    if tuple(attention_mask.shape) != expected:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, the cache's tokens have "
            f"{expected}; give the mask of the run, over all cached positions"
        )
    real = attention_mask.to(example.device) != 0
    if not bool(real.any(-1).all()):
        raise ValueError("attention_mask has a row without any real token")
    positions = torch.arange(expected[-1], device=example.device)
    last = torch.where(real, positions, -1).amax(-1)
    if not batched:
        return lambda tensor: tensor[int(last)]
    rows = torch.arange(expected[0], device=example.device)
    return lambda tensor: tensor[rows.to(tensor.device), last.to(tensor.device)]


def _final_stream(cache: Any, model: Any, select: Callable[[Tensor], Tensor]) -> FinalStream:
    """The final norm's statistics and whatever else of the model's own readout was cached.

    With ``logits_to_keep`` the unembedding sees fewer positions than the cache holds; such
    records cannot be aligned with the components and are left out.
    """
    stored = cache.cache_dict
    embedded = stored[_bridge.EMBED]

    def aligned(*hooks: str) -> Tensor | None:
        for hook in hooks:
            tensor = stored.get(hook)
            if tensor is not None and tensor.shape[:-1] == embedded.shape[:-1]:
                return select(tensor)
        return None

    last_block = f"blocks.{int(model.cfg.n_layers) - 1}.hook_resid_post"
    if _bridge.has_final_norm(model):
        scale = select(stored[_bridge.FINAL_NORM_SCALE])
    else:
        scale = torch.ones_like(select(embedded)[..., :1])
    return FinalStream(
        scale=scale,
        residual=aligned(_bridge.FINAL_NORM_INPUT, last_block),
        # What the unembedding read comes first: a hook may have edited it after the norm.
        normalised=aligned(_bridge.UNEMBED_INPUT, _bridge.FINAL_NORM_OUTPUT),
        logits=aligned(_bridge.UNEMBED_OUTPUT, "hook_unembed"),
    )


def _stacked(parts: list[Tensor], device: torch.device) -> Tensor:
    """Stack what a model that is split over devices wrote, on one device and in one dtype."""
    dtype = reduce(torch.promote_types, [part.dtype for part in parts])
    together = [part.to(device=device, dtype=dtype) for part in parts]
    return torch.stack([part.expand_as(together[-1]) for part in together])
