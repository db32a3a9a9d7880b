"""MobileLLM checkpoints as plain Llama models, without running their repositories' own code."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

MODEL_TYPE = "mobilellm"

# Keys of the published config that are no part of a Llama's.
_OWN_KEYS = {
    "architectures",
    "auto_map",
    "layer_sharing",
    "model_type",
    "share_embedding",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
}


def load_mobilellm(
    ref: str | Path, config: dict[str, Any], *, dtype: torch.dtype, revision: str | None = None
) -> Any:
    """Load a MobileLLM checkpoint (Liu et al. 2024) as the Llama model that it computes.

    Parameter names and the forward pass are Llama's. ``share_embedding`` reads the logits through
    the token embedding, and ``layer_sharing`` runs each block twice in a row: then the model gets
    one block per *application*, so that each contributes a component of its own (61 members for
    125M, 121 for 125M-layer-share), with weights shared between the two.

    Args:
        ref: Hub name or folder.
        config: Its ``config.json``.
        dtype: Precision of the weights.
        revision: Branch, tag or commit on the Hub.

    Returns:
        A ``LlamaForCausalLM`` in evaluation mode.

    Raises:
        ValueError: If weights are missing from the checkpoint or not a Llama's.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {key: value for key, value in config.items() if key not in _OWN_KEYS}
    tied = bool(config.get("share_embedding", config.get("tie_word_embeddings", False)))
    llama = LlamaConfig(**settings, tie_word_embeddings=tied, architectures=["LlamaForCausalLM"])
    model, report = LlamaForCausalLM.from_pretrained(
        ref, config=llama, dtype=dtype, revision=revision, output_loading_info=True
    )
    problems = {
        kind: sorted(report[kind])[:3]
        for kind in ("missing_keys", "unexpected_keys")
        if report[kind]
    }
    if problems:
        raise ValueError(f"{ref} is not laid out as a MobileLLM checkpoint: {problems}")
    if config.get("layer_sharing", False):
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
        shared = {id(weight): weight for weight in block.parameters()}
        for _ in range(times):
            application = copy.deepcopy(block, memo=dict(shared))
            application.self_attn.layer_idx = len(blocks)
            blocks.append(application)
    model.model.layers = blocks
    model.config.num_hidden_layers = len(blocks)
