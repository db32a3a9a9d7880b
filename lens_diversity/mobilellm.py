"""MobileLLM checkpoints as plain Llama models, without running their repositories' own code."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

MODEL_TYPE = "mobilellm"

# What a Llama needs of the published config: the rest names the repository's own code and files.
_SETTINGS = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "vocab_size",
)
_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def load_mobilellm(
    ref: str | Path,
    config: dict[str, Any],
    *,
    dtype: torch.dtype,
    revision: str | None = None,
    device_map: Any = None,
) -> Any:
    """Load a MobileLLM checkpoint (Liu et al. 2024) as the Llama model that it computes.

    Parameter names and the forward pass are Llama's. ``share_embedding`` reads the logits through
    the token embedding, and ``layer_sharing`` runs each block twice in a row: then the model gets
    one block per *application*, so that each contributes components of its own (61 for 125M, 121
    for 125M-layer-share), with weights shared between the two.

    Args:
        ref: Hub name or folder.
        config: Its ``config.json``.
        dtype: Precision of the weights.
        revision: Branch, tag or commit on the Hub.
        device_map: Split over devices, as in ``transformers``.

    Returns:
        A ``LlamaForCausalLM`` in evaluation mode.

    Raises:
        ValueError: If weights are missing from the checkpoint, not a Llama's or not in safetensors
            files, or shared layers are to be split over devices.
        OSError: If files cannot be read or fetched.
    """
    from transformers import LlamaForCausalLM

    sharing = bool(config.get("layer_sharing", False))
    if sharing and device_map is not None:
        raise ValueError(
            f"{ref} runs each block twice with one set of weights, which device_map= would have to "
            "hold on one device under two names; give device= instead"
        )
    llama = _llama_config(config)
    try:
        model, report = LlamaForCausalLM.from_pretrained(
            ref,
            config=llama,
            dtype=dtype,
            revision=revision,
            device_map=device_map,
            use_safetensors=True,
            output_loading_info=True,
        )
    except OSError:
        _refuse_pickles(ref, revision)
        raise
    except RuntimeError as error:  # Weights of other shapes than the config says.
        raise ValueError(f"{ref} is not laid out as a MobileLLM checkpoint: {error}") from error
    _require_complete(ref, model, report)
    if sharing:
        unroll(model, times=2)
    model.eval()
    return model


def unroll(model: Any, times: int) -> None:
    """Repeat each block of a Llama in place: a module per application, one set of weights.

    Args:
        model: A ``LlamaForCausalLM``.
        times: How often each block runs before the next one.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2, vocab_size=11)
        >>> model = LlamaForCausalLM(config)
        >>> before = model.num_parameters()
        >>> unroll(model, times=2)
        >>> len(model.model.layers), model.num_parameters() == before
        (4, True)
    """
    blocks = nn.ModuleList()
    for block in model.model.layers:
        # One config too: the choice of an attention implementation is written to it later.
        shared = {id(part): part for part in (model.config, *block.parameters())}
        for _ in range(times):
            application = copy.deepcopy(block, memo=dict(shared))
            application.self_attn.layer_idx = len(blocks)
            blocks.append(application)
    model.model.layers = blocks
    model.config.num_hidden_layers = len(blocks)


def _llama_config(config: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        **{key: config[key] for key in _SETTINGS if key in config},
        tie_word_embeddings=bool(config.get("share_embedding", False)),
        architectures=["LlamaForCausalLM"],
    )


def _refuse_pickles(ref: str | Path, revision: str | None) -> None:
    from transformers.utils.hub import has_file

    def has_one(names: tuple[str, ...]) -> bool:
        return any(has_file(ref, name, revision) for name in names)

    if has_one(_PICKLED) and not has_one(_SAFE):
        raise ValueError(
            f"{ref} holds its weights in a pickle (*.bin) only, which is not read, since that can "
            "run code. If you trust it, convert it: "
            "safetensors.torch.save_file(torch.load('pytorch_model.bin', weights_only=True), "
            "'model.safetensors', metadata={'format': 'pt'})"
        )


def _require_complete(ref: str | Path, model: Any, report: dict[str, Any]) -> None:
    problems = {
        kind: sorted(report[kind])[:3]
        for kind in ("missing_keys", "unexpected_keys")
        if report[kind]
    }
    if problems:
        raise ValueError(f"{ref} is not laid out as a MobileLLM checkpoint: {problems}")
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    if model.config.tie_word_embeddings and not tied:
        raise ValueError(
            f"{ref} shares its embedding with the output (share_embedding), and yet its weights "
            "hold another lm_head.weight: remove the one that is wrong"
        )
