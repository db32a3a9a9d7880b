"""From an activation cache to the stack of everything that was written to the residual stream."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.readout import Readout

Pos = int | slice | Sequence[int] | str | None

UNITS = ("sublayer",)

_POS_FORMS = 'pos must be an int, None, a slice, a list of ints or "last"'


@dataclass(frozen=True, eq=False)
class FinalStream:
    """What the model itself computed from the sum of the components, row by row."""

    scale: Float[Tensor, "*batch 1"]
    """The final norm's denominator (ones without a norm)."""
    residual: Float[Tensor, "*batch d_model"] | None = None
    """The stream that the final norm read, where the cache holds it."""
    normalised: Float[Tensor, "*batch d_model"] | None = None
    """The stream that the unembedding read, where the cache holds it."""
    logits: Float[Tensor, "*batch d_vocab"] | None = None
    """The unembedding's output (before logit scale and soft cap), where the cache holds it."""

    def map(self, function: Callable[[Tensor], Tensor]) -> FinalStream:
        """Apply one function to every recorded tensor."""
        parts = {name: getattr(self, name) for name in ("residual", "normalised", "logits")}
        return FinalStream(
            function(self.scale),
            **{name: None if part is None else function(part) for name, part in parts.items()},
        )


@dataclass(frozen=True, eq=False)
class ComponentStack:
    """The components of a residual stream with their names and the readout that fits them.

    Example:
        >>> import torch
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> ComponentStack.from_values(torch.ones(3, 4, 2), readout)
        ComponentStack(3 components x batch 4 x d_model 2: 3 other)
    """

    values: Float[Tensor, "component *batch d_model"]
    """What each component added to the stream, in the model's dtype."""
    labels: list[str]
    """Component names as TransformerLens' ``decompose_resid`` gives them."""
    modules: list[str]
    """Kind of each component: ``embed``, ``attn`` or ``mlp``."""
    axes: tuple[str, ...]
    """Names of the axes between component and d_model: ``batch`` and/or ``pos``."""
    stream: FinalStream
    """The model's own record of the sum, for the norm's statistics and the checks."""
    readout: Readout
    """The affine map from residual vectors to logits."""

    @classmethod
    def from_values(
        cls,
        values: Tensor,
        readout: Readout,
        labels: Sequence[str] | None = None,
        modules: Sequence[str] | None = None,
    ) -> ComponentStack:
        """Stack residual vectors that come from elsewhere than a cache.

        Args:
            values: The vectors ``[component, (batch, (pos,)) d_model]``; the norm's statistics
                are those of their sum.
            readout: Final norm and unembedding.
            labels: Names (default ``"0"``, ``"1"``, ...).
            modules: Kinds (default ``"other"``).

        Returns:
            A stack whose stream is the sum of ``values``.

        Raises:
            TypeError: If ``values`` is no floating-point tensor.
            ValueError: If it has another number of axes or width than the readout takes, a NaN or
                infinite number, or another number of components than labels or modules.
        """
        _require_vectors(values, int(readout.W_U.shape[0]))
        count = values.shape[0]
        names = [str(i) for i in range(count)] if labels is None else list(labels)
        kinds = ["other"] * count if modules is None else list(modules)
        if len(names) != count or len(kinds) != count:
            raise ValueError(
                f"{len(names)} labels and {len(kinds)} modules for {count} components; give one "
                "of each to every component"
            )
        _require_finite(values, names)
        return cls(
            values=values,
            labels=names,
            modules=kinds,
            axes=("batch", "pos")[: values.ndim - 2],
            stream=FinalStream(scale=readout.statistic(_widened(values).sum(0))),
            readout=readout,
        )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Sizes of ``axes``."""
        return tuple(self.values.shape[1:-1])

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __repr__(self) -> str:
        sizes = [
            f"{axis} {size}" for axis, size in zip(self.axes, self.batch_shape, strict=True)
        ] + [f"d_model {self.values.shape[-1]}"]
        counts = {module: self.modules.count(module) for module in self.modules}
        kinds = ", ".join(f"{count} {module}" for module, count in counts.items())
        return f"ComponentStack({len(self)} components x {' x '.join(sizes)}: {kinds})"

    def to(self, device: torch.device | str) -> ComponentStack:
        """Move the activations (not the model's weights) to a device."""
        return replace(
            self,
            values=self.values.to(device),
            stream=self.stream.map(lambda tensor: tensor.to(device)),
        )

    def rows(self) -> ComponentStack:
        """The same stack with all batch axes flattened into one."""
        count = len(self)
        return replace(
            self,
            values=self.values.reshape(count, -1, self.values.shape[-1]),
            axes=("batch",),
            stream=self.stream.map(lambda tensor: tensor.reshape(-1, tensor.shape[-1])),
        )

    def select_rows(self, rows: slice) -> ComponentStack:
        """Part of a stack along its first batch axis."""
        return replace(
            self,
            values=self.values[:, rows],
            stream=self.stream.map(lambda tensor: tensor[rows]),
        )

    def with_remainder(self) -> ComponentStack:
        """Append what the stream holds and no component wrote, as one more member.

        The remainder is the rounding of the model's own additions (about 1% of the stream in
        bfloat16) or an edit of the stream itself by a hook. With it the components sum exactly.

        Returns:
            A stack with a last component ``remainder`` of module ``remainder``, in float32 at
            least.

        Raises:
            ValueError: If the cache did not hold the final stream (``ln_final.hook_in``), or the
                stack has its remainder already.
        """
        if "remainder" in self.modules:
            raise ValueError("the stack has its remainder already")
        residual = self.stream.residual
        if residual is None:
            raise ValueError(
                f"the cache holds no {_bridge.FINAL_NORM_INPUT}, so the remainder is unknown; run "
                "the model with names_filter=lens_diversity.names_filter"
            )
        values = _widened(self.values)
        remainder = residual.to(values.dtype) - values.sum(0)
        return replace(
            self,
            values=torch.cat([values, remainder.unsqueeze(0)]),
            labels=[*self.labels, "remainder"],
            modules=[*self.modules, "remainder"],
        )


def component_stack(
    cache: Any,
    pos: Pos = -1,
    unit: str = "sublayer",
    *,
    attention_mask: Tensor | None = None,
) -> ComponentStack:
    """Collect what every component wrote to the residual stream.

    ``x = sum_i z_i`` over the embedding(s) and every layer's attention and MLP output
    (Kamigaito et al. 2025, Eq. 1).

    Args:
        cache: An ``ActivationCache`` from ``model.run_with_cache``, with or without a batch axis.
            It needs the hooks of [`names_filter`][lens_diversity.names_filter] only.
        pos: Positions to keep: an int (drops the axis), None for all, a slice or a list of ints,
            or ``"last"`` for each row's last real token.
        unit: What a component is: ``"sublayer"``.
        attention_mask: ``[batch, pos]`` of the input, ones on real tokens; for ``pos="last"``.

    Returns:
        The stack, on the device of the final norm, in the model's dtype.

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
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {UNITS}, got {unit!r}")
    model = _model_of(cache)
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    hooks = _component_hooks(cache, model)
    batched = bool(cache.has_batch_dim)
    select = _position_selector(cache[next(iter(hooks.values()))], pos, attention_mask, batched)

    stream = _final_stream(cache, model, select)
    values = _stacked([select(cache[hook]) for hook in hooks.values()], stream.scale.device)
    labels = list(hooks)
    _require_finite(values, labels)
    axes = ("batch",) * batched + ("pos",) * (not _drops_axis(pos))
    return ComponentStack(
        values=values,
        labels=labels,
        modules=[module_of(label) for label in labels],
        axes=axes,
        stream=stream,
        readout=_bridge.read_readout(model),
    )


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


def module_of(label: str) -> str:
    """The kind of the component of a label such as ``"3_mlp_out"``."""
    return "embed" if label.endswith("embed") else label.split("_")[1]


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


def _widened(values: Tensor) -> Tensor:
    """float32 at least, in which sums over many components keep their digits."""
    return values if values.dtype == torch.float64 else values.float()


def _require_vectors(values: Tensor, d_model: int) -> None:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a floating-point tensor, got {found}")
    if not 2 <= values.ndim <= 4 or len(values) == 0 or values.shape[-1] != d_model:
        raise ValueError(
            f"values must be [component, (batch, (pos,)) d_model={d_model}] with at least one "
            f"component, got shape {tuple(values.shape)}"
        )


def _require_finite(values: Float[Tensor, "component *batch d_model"], labels: list[str]) -> None:
    # One reading of the values; what overflows only in the sum is looked at again.
    if bool(values.sum().isfinite()):
        return
    finite = values.isfinite()
    if bool(finite.all()):
        return
    bad = ~finite.reshape(len(finite), -1).all(1)
    names = [label for label, is_bad in zip(labels, bad.tolist(), strict=True) if is_bad]
    rows = (~finite.all(-1).all(0)).sum()
    raise ValueError(
        f"NaN or infinite activations in {len(names)} components (first: {names[0]}), in "
        f"{int(rows)} of {finite[0, ..., 0].numel()} rows. Look for overflow in float16 (use "
        "bfloat16 or float32) or a hook that divides by zero."
    )
