"""The one place that knows TransformerLens' names: hooks, support checks, readout weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lens_diversity._choices import check_choice
from lens_diversity.readout import Readout
from lens_diversity.writers import Writer

EMBED = "hook_embed"
POS_EMBED = "hook_pos_embed"
FINAL_NORM_INPUT = "ln_final.hook_in"
FINAL_NORM_SCALE = "ln_final.hook_scale"
FINAL_NORM_OUTPUT = "ln_final.hook_out"
UNEMBED_INPUT = "unembed.hook_in"
UNEMBED_OUTPUT = "unembed.hook_out"

UNITS = ("sublayer", "block", "head", "neuron")

_SUBLAYER_HOOK = re.compile(r"blocks\.\d+\.hook_(attn|mlp)_out")
_STREAM_HOOKS = {FINAL_NORM_INPUT, FINAL_NORM_SCALE, FINAL_NORM_OUTPUT, UNEMBED_INPUT}

# What a sublayer's units hold before they are written: each head's and each neuron's activation.
_UNIT_HOOKS = {"attn": "attn.hook_z", "mlp": "mlp.hook_post"}
_SPLIT_SUBLAYERS = {"sublayer": "", "block": "", "head": "attn", "neuron": "mlp"}
_POST_NORMS = {"attn": "ln1_post", "mlp": "ln2_post"}

_NORM_TYPES = ("LN", "LNPre", "RMS", "RMSPre")
_MIXERS = {"attn", "linear_attn", "mamba", "mixer", "ssm"}
# Modules that a few bridges mount between the final norm and the unembedding.
_READOUT_DETOURS = (
    "classifier_ln",
    "hc_head",
    "mlm_head",
    "prediction_head",
    "project_out",
    "sigma_map",
)


class UnsupportedModelError(ValueError):
    """The model's logits are not one sum of embedding, attention and MLP outputs."""


def names_filter(name: str) -> bool:
    """Tell which hooks a component decomposition needs, for ``run_with_cache``.

    These are the embeddings, every sublayer's output, and what the final norm read and wrote:
    ``2 * n_layers + 5`` tensors of size ``[batch, pos, d_model]`` and no logits.

    Args:
        name: A hook name such as ``"blocks.3.hook_mlp_out"``.

    Returns:
        Whether to cache it.

    Example:
        >>> names_filter("blocks.3.hook_mlp_out"), names_filter("blocks.3.attn.hook_pattern")
        (True, False)
    """
    return (
        name in {EMBED, POS_EMBED}
        or name in _STREAM_HOOKS
        or _SUBLAYER_HOOK.fullmatch(name) is not None
    )


def unit_hooks(unit: str) -> Callable[[str], bool]:
    """Make the ``names_filter`` that a decomposition into finer units needs.

    Args:
        unit: ``"sublayer"``, ``"block"``, ``"head"`` or ``"neuron"``.

    Returns:
        A function for ``run_with_cache(names_filter=...)``: the hooks of
        [`names_filter`][lens_diversity.names_filter], and with heads or neurons every layer's
        ``attn.hook_z`` or ``mlp.hook_post`` with the statistic of a norm after the sublayer.

    Raises:
        ValueError: If ``unit`` is unknown.

    Example:
        >>> wanted = unit_hooks("head")
        >>> wanted("blocks.3.attn.hook_z"), wanted("blocks.3.mlp.hook_post")
        (True, False)
    """
    check_choice("unit", unit, UNITS)
    kind = _SPLIT_SUBLAYERS[unit]
    if not kind:
        return names_filter
    names = (_UNIT_HOOKS[kind], f"{_POST_NORMS[kind]}.hook_scale")
    pattern = re.compile(rf"blocks\.\d+\.({'|'.join(map(re.escape, names))})")
    return lambda name: names_filter(name) or pattern.fullmatch(name) is not None


def component_hooks(model: Any) -> dict[str, str]:
    """Map ``decompose_resid``'s labels to hook names, in the order of the residual stream."""
    embeddings = {"embed": EMBED}
    # A rotary model also resolves hook_pos_embed, to an angle that nothing adds to the stream.
    if "pos_embed" in dict(model.named_children()):
        embeddings["pos_embed"] = POS_EMBED
    return embeddings | _sublayer_hooks(model)


def _sublayer_hooks(model: Any) -> dict[str, str]:
    kinds = ("attn",) if getattr(model.cfg, "attn_only", False) else ("attn", "mlp")
    return {
        f"{layer}_{kind}_out": f"blocks.{layer}.hook_{kind}_out"
        for layer in range(int(model.cfg.n_layers))
        for kind in kinds
    }


def require_supported(model: Any) -> None:
    """Refuse models whose logits are not one sum of sublayer outputs, before any forward pass.

    Args:
        model: A ``TransformerBridge``.

    Raises:
        TypeError: If ``model`` is no TransformerLens bridge.
        UnsupportedModelError: For encoder-decoders, models without an unembedding, blocks without
            an attention/MLP split (state-space, recurrent and hybrid models), several residual
            streams, and modules between the final norm and the unembedding.
    """
    if not hasattr(model, "hook_dict") or not hasattr(model, "cfg"):
        raise TypeError(
            f"expected a TransformerLens bridge, got {type(model).__name__}; load one with "
            "lens_diversity.load_model(...) or TransformerBridge.boot_transformers(...)"
        )
    name = getattr(model.cfg, "architecture", None) or type(model).__name__
    parts = {child for child, _ in model.named_children()}
    if parts & {"encoder_blocks", "decoder_blocks", "encoder", "decoder"}:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder: its decoder also reads an encoder, so its logits are "
            "not one sum of embedding, attention and MLP outputs. Use a decoder-only model."
        )
    if not {"blocks", "unembed"} <= parts:
        missing = sorted({"blocks", "unembed"} - parts)
        raise UnsupportedModelError(
            f"{name} has no {' and no '.join(missing)}, so there is no residual stream of "
            "blocks to read through the logit lens. Use a decoder-only language model."
        )
    _require_single_stream(model, name)
    _require_sublayers(model, name)
    _require_direct_readout(model, name, parts)


def _require_single_stream(model: Any, name: str) -> None:
    several = [
        layer
        for layer, block in enumerate(model.blocks)
        if not getattr(block, "hook_out_is_single_residual_stream", True)
    ]
    if several:
        raise UnsupportedModelError(
            f"{name} carries several residual streams (blocks {_preview(several)}) that are "
            "combined before the final norm, so its components do not add up in one stream."
        )


def _require_sublayers(model: Any, name: str) -> None:
    several = [
        kind for kind in model.layer_types() if len(_MIXERS.intersection(kind.split("+"))) > 1
    ]
    if several:
        raise UnsupportedModelError(
            f"{name} adds several mixers in one block ({sorted(set(several))}), which its "
            "attention output alone does not hold. Use a model of attention and MLP sublayers."
        )
    available = model.hook_dict
    missing = [hook for hook in _sublayer_hooks(model).values() if hook not in available]
    if missing:
        kinds = sorted(set(model.layer_types()))
        raise UnsupportedModelError(
            f"{name} has no attention/MLP split in every block (block types {kinds}): it lacks "
            f"{_preview(missing)}. Only blocks that add an attention and an MLP output to the "
            "residual stream can be decomposed."
        )


def _require_direct_readout(model: Any, name: str, parts: set[str]) -> None:
    detours = sorted(parts & set(_READOUT_DETOURS))
    if detours:
        raise UnsupportedModelError(
            f"{name} transforms the stream between final norm and unembedding ({detours}), so "
            "W_U does not read the residual stream directly."
        )
    norm_type = getattr(model.cfg, "normalization_type", None)
    if norm_type is not None and norm_type not in _NORM_TYPES:
        raise UnsupportedModelError(
            f"{name} has normalization_type {norm_type!r}; an exact readout is known for "
            f"{_NORM_TYPES} and for models without a final norm."
        )
    if norm_type is not None and _wrapped_norm(model) is None:
        raise UnsupportedModelError(
            f"{name} has {norm_type} norms but none after its last block (a post-norm model), so "
            "its blocks do not add to one stream that a final norm reads."
        )
    positions = getattr(model.cfg, "positional_embedding_type", None)
    if positions == "standard" and "pos_embed" not in parts:
        raise UnsupportedModelError(
            f"{name} adds position embeddings that its bridge gives no hook for, so one component "
            "of the residual stream would be missing."
        )


def require_eval_mode(model: Any) -> None:
    """Refuse a model with any submodule in training mode, where dropout would change the stream.

    Args:
        model: A ``TransformerBridge``.

    Raises:
        ValueError: Naming the first submodules found in training mode.
    """
    roots = [model, getattr(model, "original_model", None)]
    # Names cost more than flags, and this runs with every batch.
    if not any(module.training for root in roots if root is not None for module in root.modules()):
        return
    training = [
        name or "the model itself"
        for root in roots
        if root is not None
        for name, module in root.named_modules()
        if module.training
    ]
    raise ValueError(
        f"the model is in training mode (at {_preview(training)}), so dropout may have changed "
        "what the components wrote. Call model.eval() and run the model again."
    )


def read_readout(model: Any) -> Readout:
    """Collect the weights that turn a residual vector into logits, detached but not copied."""
    scale, cap = _output_transform(model)
    W_U, b_U = model.W_U.detach(), model.b_U.detach()
    if W_U.device.type == "meta" or not W_U.is_floating_point():
        raise UnsupportedModelError(
            f"the unembedding cannot be read (dtype {W_U.dtype}, device {W_U.device}); keep the "
            "output head unquantised and on a device."
        )
    if not has_final_norm(model):
        return Readout(W_U=W_U, b_U=b_U, logit_scale=scale, soft_cap=cap)
    norm = model.ln_final
    rms = bool(norm.uses_rms_norm)
    weight = _parameter(norm, "weight")
    offset = bool(getattr(norm, "uses_weight_offset", False))
    return Readout(
        W_U=W_U,
        b_U=b_U,
        norm_weight=weight,
        norm_weight_offset=1.0 if offset and weight is not None else 0.0,
        norm_bias=None if rms else _parameter(norm, "bias"),
        centred=not rms,
        eps=_norm_eps(model, norm),
        normalised=True,
        logit_scale=scale,
        soft_cap=cap,
    )


def read_writers(model: Any, unit: str) -> dict[str, Writer]:
    """Collect how the heads or neurons of every layer write to the stream, by sublayer label.

    Args:
        model: A ``TransformerBridge``.
        unit: ``"head"`` or ``"neuron"``.

    Raises:
        UnsupportedModelError: If an MLP is a mixture of experts, whose experts no hook shows, or
            the norm after a sublayer is none that is known.
    """
    kind = _SPLIT_SUBLAYERS[unit]
    return {
        label: _read_writer(model, layer, kind)
        for layer in range(int(model.cfg.n_layers))
        if (label := f"{layer}_{kind}_out") in _sublayer_hooks(model)
    }


def hooks_of_units(model: Any, unit: str) -> list[str]:
    """Name the hooks that units need beside those of the sublayers."""
    if not _SPLIT_SUBLAYERS[unit]:
        return []
    writers = read_writers(model, unit).values()
    return [name for writer in writers for name in (writer.hook, writer.statistic_hook) if name]


def _read_writer(model: Any, layer: int, kind: str) -> Writer:
    block = model.blocks[layer]
    sublayer = getattr(block, kind)
    weight_name, bias_name = ("W_O", "b_O") if kind == "attn" else ("W_out", "b_out")
    weight = getattr(sublayer, weight_name, None)
    if weight is None:
        raise UnsupportedModelError(
            f"{model.cfg.architecture}: block {layer} has a {type(sublayer).__name__}, not one "
            "matrix that writes its neurons to the stream (a mixture of experts?), and "
            'TransformerLens shows no hook on its parts. Use unit="head" or unit="sublayer".'
        )
    weight = weight.detach()
    bias = getattr(sublayer, bias_name, None)
    norm_name = _POST_NORMS[kind]
    norm = dict(block.named_children()).get(norm_name)
    if norm is not None and not bool(norm.uses_rms_norm):
        raise UnsupportedModelError(
            f"{model.cfg.architecture}: block {layer} has a norm with a mean after its {kind} "
            'sublayer; its parts are known after RMSNorm only. Use unit="sublayer".'
        )
    return Writer(
        hook=f"blocks.{layer}.{_UNIT_HOOKS[kind]}",
        weight=weight if kind == "attn" else weight.unsqueeze(1),
        bias=None if bias is None else bias.detach(),
        multiplier=float(getattr(model.original_model.config, "residual_multiplier", None) or 1.0),
        gain=None if norm is None else _norm_gain(norm),
        statistic_hook=None if norm is None else f"blocks.{layer}.{norm_name}.hook_scale",
    )


def _norm_gain(norm: Any) -> Tensor | None:
    weight = _parameter(norm, "weight")
    if weight is None:
        return None
    return weight + 1.0 if getattr(norm, "uses_weight_offset", False) else weight


def has_final_norm(model: Any) -> bool:
    """Whether a norm stands between the last block and the unembedding."""
    return getattr(model.cfg, "normalization_type", None) is not None


def _wrapped_norm(model: Any) -> Any | None:
    bridge = dict(model.named_children()).get("ln_final")
    return getattr(bridge, "original_component", None)


def _parameter(module: Any, name: str) -> Tensor | None:
    value = getattr(module, name, None)
    return value.detach() if isinstance(value, Tensor) else None


def _norm_eps(model: Any, norm: Any) -> float:
    for name in ("eps", "variance_epsilon"):
        eps = getattr(norm.original_component, name, None)
        if eps is not None:
            return float(eps)
    return float(getattr(model.cfg, "eps", 1e-5))


def _output_transform(model: Any) -> tuple[float, float | None]:
    """Measure the linear logit scale and the soft cap of the model's own output transform.

    Families differ in the name and the sense of the factor (multiplied or divided by), so the
    adapter's documented transform is probed instead of a list of config fields.
    """
    probe = torch.tensor([0.0, 1e-6, -1e-6, 1.0, 1e9], dtype=torch.float64)
    zero, small, minus_small, one, large = model.adapter.apply_output_logits_transform(probe)
    scale = float(small) / 1e-6
    if float(zero) != 0.0 or scale <= 0.0 or not torch.isclose(small, -minus_small, rtol=1e-9):
        raise UnsupportedModelError(
            "the model transforms its logits by more than a positive scale and a soft cap, so "
            "component logits would not add up to them."
        )
    if torch.isclose(large, torch.tensor(scale * 1e9, dtype=torch.float64), rtol=1e-6):
        return float(one), None
    return scale, float(large)


def _preview(items: list[Any], shown: int = 3) -> str:
    head = ", ".join(str(item) for item in items[:shown])
    return head if len(items) <= shown else f"{head} and {len(items) - shown} more"


@contextmanager
def recorded(model: Any, activations: dict[str, Tensor]) -> Iterator[None]:
    """Record each forward pass as a cache would hold it, after all hooks and with gradients.

    A sublayer's output is taken from the module that returns it: that is what the model goes on
    with, whereas a hook sees the tensor before later hooks change it, and before the point at
    which backward hooks take its gradient.

    Raises:
        UnsupportedModelError: If a module does not return what its hook shows.
    """
    owners = _owners(model)
    stream = [
        name
        for name in (FINAL_NORM_INPUT, FINAL_NORM_SCALE, UNEMBED_INPUT, UNEMBED_OUTPUT)
        if name in model.hook_dict
    ]

    def keep(name: str) -> Callable[..., None]:
        def hook(tensor: Tensor, hook: Any) -> None:
            activations[name] = tensor

        return hook

    def keep_output(name: str) -> Callable[..., None]:
        def hook(module: Any, given: Any, output: Any) -> None:
            found = output[0] if isinstance(output, tuple) else output
            # OPT flattens batch and positions around its MLPs.
            flat = found.ndim == 2
            activations[name] = found.view(activations[EMBED].shape) if flat else found

        return hook

    handles = [owner.register_forward_hook(keep_output(name)) for name, owner in owners.items()]
    try:
        with model.hooks(fwd_hooks=[(name, keep(name)) for name in stream]):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _owners(model: Any) -> dict[str, Any]:
    """The module that returns what each component's hook shows, by hook name."""
    places = {id(model.hook_dict[name]): name for name in component_hooks(model).values()}
    owners = {
        places[id(child)]: module
        for module in model.modules()
        for child in module.children()
        if id(child) in places
    }
    blocks = {id(block) for block in model.blocks}
    inside = [name for name, owner in owners.items() if id(owner) in blocks]
    if inside or len(owners) < len(places):
        raise UnsupportedModelError(
            f"{model.cfg.architecture} scales its sublayers' outputs inside the block "
            f"({_preview(inside)}), where no module returns them: of bias and diversity there is "
            'no metric for it. Use quantity="error" with combine="sum", or decompose caches.'
        )
    return owners
