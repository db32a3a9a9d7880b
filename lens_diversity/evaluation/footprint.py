"""What a model will need, from its configuration alone: no weights are read or downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from lens_diversity import _bridge, mobilellm


@dataclass(frozen=True)
class Footprint:
    """Size of a model; what is not known is None."""

    layers: int | None
    """Applications of a block: one that runs twice counts twice."""
    components: int | None
    """Members of the ensemble: embeddings, attention and MLP outputs."""
    parameters: int | None
    """Shared weights counted once."""
    source: str
    """Where the numbers are from, or why there are none."""

    def weight_bytes(self, dtype: torch.dtype) -> int | None:
        """Memory of the weights alone; activations come on top."""
        return None if self.parameters is None else self.parameters * dtype.itemsize


def declared(parameters: int | None, layers: int | None, applications: int = 1) -> Footprint:
    """Use what somebody wrote down (``1 + 2 x applications`` components, as in Table 4).

    Args:
        parameters: Number of weights.
        layers: Number of blocks.
        applications: How often each block runs.

    Example:
        >>> declared(125_000_000, layers=30, applications=2).components
        121
    """
    applied = None if layers is None else layers * applications
    components = None if applied is None else 1 + 2 * applied
    return Footprint(applied, components, parameters, "the sweep file")


def from_config(ref: str, revision: str | None = None) -> Footprint:
    """Build the model without memory for its weights, and count.

    Args:
        ref: A folder with a ``config.json``, or a Hub name, of which that file alone is fetched.
        revision: Branch, tag or commit on the Hub.

    Returns:
        The counts, or unknown ones with the reason.
    """
    if Path(ref).is_absolute() and not (Path(ref) / "config.json").is_file():
        return _unknown(f"unknown: {ref} holds no config.json")
    try:
        return _count(_without_weights(ref, revision), ref)
    # A configuration can be wrong in too many ways to list, and the other models' rows matter.
    except Exception as error:
        return _unknown(f"unknown: {type(error).__name__}: {str(error).strip().splitlines()[0]}")


def _unknown(reason: str) -> Footprint:
    return Footprint(None, None, None, reason)


def _without_weights(ref: str, revision: str | None) -> Any:
    config, _ = PreTrainedConfig.get_config_dict(ref, revision=revision)
    is_mobilellm = config.get("model_type") == mobilellm.MODEL_TYPE
    if is_mobilellm:
        hf_config = mobilellm._llama_config(config)
    else:
        hf_config = AutoConfig.from_pretrained(ref, revision=revision, trust_remote_code=False)
    with torch.device("meta"):
        hf_model = AutoModelForCausalLM.from_config(hf_config)
    if is_mobilellm and config.get("layer_sharing", False):
        mobilellm.unroll(hf_model, times=2)
    return hf_model


def _count(hf_model: Any, ref: str) -> Footprint:
    from transformer_lens.model_bridge import TransformerBridge

    layers = int(hf_model.config.get_text_config().num_hidden_layers)
    parameters = sum(weight.numel() for weight in hf_model.parameters())
    # Before the bridge, which wraps its modules.
    embeddings = sum(isinstance(module, nn.Embedding) for module in hf_model.modules())
    try:
        bridge = TransformerBridge.boot_transformers(
            ref, hf_model=hf_model, tokenizer=_no_tokenizer(), device="meta"
        )
    except NotImplementedError:
        # A bridge splits fused query, key and value weights, so it needs them. Tokens, and learned
        # positions where there are any, are the embeddings of these families.
        return Footprint(layers, embeddings + 2 * layers, parameters, "config.json")
    _bridge.require_supported(bridge)
    components = len(_bridge.component_hooks(bridge))
    return Footprint(layers, components, parameters, "config.json")


def _no_tokenizer() -> Any:
    """A tokenizer of no words: nothing is tokenised, but a bridge would look for its own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>"))
    special = {"bos_token": "<s>", "eos_token": "<s>", "pad_token": "<s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=empty, add_bos_token=True, name_or_path="none", **special
    )
