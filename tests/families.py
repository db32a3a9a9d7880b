"""Tiny random models of many architectures, built from configurations without a network.

Every parameter is drawn at random, norm weights and biases included: a freshly initialised model
has unit norm weights and zero biases, which would hide any mistake in them. Likewise every scalar
multiplier and soft cap that a family knows is set to a value that changes the logits.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerFast,
)

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
N_LAYERS = 2
N_CTX = 512


def tokenizer() -> PreTrainedTokenizerFast:
    """Printable characters, and letters with the space before them: " World" begins with " W"."""
    characters = sorted(set(string.printable) - set("\r\x0b\x0c "))
    spaced = ["▁" + letter for letter in string.ascii_letters]
    pieces = [PAD, BOS, EOS, UNK, "▁", *characters, *spaced]
    backend = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("▁", letter) for letter in string.ascii_letters],
            unk_token=UNK,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, pieces.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        # Without these two TransformerLens asks the Hub for the same tokenizer with a BOS.
        name_or_path="tiny-characters",
        add_bos_token=True,
    )


VOCAB = len(tokenizer())

_SPECIAL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MULTI_HEAD = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": N_CTX,
}
_GROUPED = _MULTI_HEAD | {"num_key_value_heads": 2}
_HEAD_DIM = _GROUPED | {"head_dim": 8}
_WINDOW = {"sliding_window": 16}
_GEMMA_2 = _HEAD_DIM | _WINDOW | {"query_pre_attn_scalar": 8}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GPT2 = {"n_embd": 32, "n_layer": N_LAYERS, "n_head": 4, "n_positions": N_CTX}
_OPT = {
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": N_CTX,
}
_GRANITE = _GROUPED | {
    "logits_scaling": 3.0,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.5,
}
_DEEPSEEK_V3 = _MULTI_HEAD | {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}
_GPT_NEO = {
    "hidden_size": 32,
    "num_layers": N_LAYERS,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "max_position_embeddings": N_CTX,
    "window_size": 16,
}
_FALCON = {
    "hidden_size": 32,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "bias": True,
}


@dataclass(frozen=True)
class _Family:
    """A transformers model type, its tiny configuration and the class that builds it."""

    model_type: str
    config: dict[str, Any]
    auto_class: Any = AutoModelForCausalLM

    def hf_model(self) -> nn.Module:
        config = AutoConfig.for_model(self.model_type, **_SPECIAL | self.config)
        model = self.auto_class.from_config(
            config,
            attn_implementation="eager",
            experts_implementation="eager",  # the fused experts refuse float64
        )
        model.config.architectures = [type(model).__name__]
        return model


_FAMILIES = {
    "bloom": _Family("bloom", {"hidden_size": 32, "n_layer": N_LAYERS, "n_head": 4}),
    "cohere": _Family("cohere", _GROUPED | {"logit_scale": 0.25}),
    "cohere2": _Family("cohere2", _GROUPED | _WINDOW | {"logit_scale": 0.25}),
    "deepseek_v3": _Family("deepseek_v3", _DEEPSEEK_V3),
    "exaone4": _Family("exaone4", _HEAD_DIM | _WINDOW),
    "falcon": _Family("falcon", _FALCON),
    "gemma": _Family("gemma", _HEAD_DIM),
    "gemma2": _Family(
        "gemma2", _GEMMA_2 | {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 10.0}
    ),
    "gemma3": _Family("gemma3_text", _GEMMA_2),
    "glm4": _Family("glm4", _HEAD_DIM),
    "gpt2": _Family("gpt2", _GPT2),
    "gpt_bigcode": _Family("gpt_bigcode", _GPT2),
    "gpt_neo": _Family("gpt_neo", _GPT_NEO),
    "gpt_neox": _Family("gpt_neox", _MULTI_HEAD | {"use_parallel_residual": True}),
    "gpt_neox_sequential": _Family("gpt_neox", _MULTI_HEAD | {"use_parallel_residual": False}),
    "gpt_oss": _Family("gpt_oss", _HEAD_DIM | _LOCAL_EXPERTS | _WINDOW),
    "gptj": _Family("gptj", _GPT2 | {"rotary_dim": 4}),
    "granite": _Family("granite", _GRANITE),
    "granitemoe": _Family("granitemoe", _GRANITE | _LOCAL_EXPERTS),
    "llama": _Family("llama", _GROUPED),
    "mistral": _Family("mistral", _GROUPED | _WINDOW),
    "mixtral": _Family("mixtral", _GROUPED | _LOCAL_EXPERTS),
    "mpt": _Family(
        "mpt", {"d_model": 32, "n_heads": 4, "n_layers": N_LAYERS, "max_seq_len": N_CTX}
    ),
    "nemotron": _Family("nemotron", _GROUPED),
    "olmo": _Family("olmo", _GROUPED),
    "olmo2": _Family("olmo2", _GROUPED),
    "olmo3": _Family("olmo3", _GROUPED | _WINDOW),
    "olmoe": _Family("olmoe", _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    "opt": _Family("opt", _OPT),
    "phi": _Family("phi", _MULTI_HEAD),
    "phi3": _Family("phi3", _GROUPED),
    "qwen2": _Family("qwen2", _GROUPED),
    "qwen3": _Family("qwen3", _HEAD_DIM),
    "qwen3_moe": _Family("qwen3_moe", _HEAD_DIM | _EXPERTS),
    "smollm3": _Family("smollm3", _GROUPED),
    "stablelm": _Family("stablelm", _GROUPED | {"use_qkv_bias": True}),
    "starcoder2": _Family("starcoder2", _GROUPED),
}

_STATE_SPACE = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": N_LAYERS}
_MAMBA_MIXER = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 4,
    "mamba_chunk_size": 8,
}
_JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
    "use_mamba_kernels": False,
}
_ZAMBA2 = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "layers_block_type": ["mamba", "hybrid", "mamba"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "mamba_d_state": 4,
    "n_mamba_heads": 8,
    "mamba_headdim": 8,
    "chunk_size": 8,
    "adapter_rank": 4,
    "num_mem_blocks": 1,
    "kv_channels": 8,
    "max_position_embeddings": N_CTX,
}
_QWEN3_NEXT = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_RECURRENT_GEMMA = {
    "lru_width": 32,
    "attention_window_size": 16,
    "num_hidden_layers": 3,
    "head_dim": 8,
}
_DEEPSEEK_V4 = _WINDOW | {
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "head_dim": 16,
    "q_lora_rank": 8,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "hc_mult": 2,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 8,
}
_RWKV = {
    "hidden_size": 32,
    "attention_hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "context_length": N_CTX,
}
_BART = {
    "d_model": 32,
    "encoder_layers": N_LAYERS,
    "decoder_layers": N_LAYERS,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": N_CTX,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": N_LAYERS, "num_heads": 4}
_XGLM = {
    "d_model": 32,
    "ffn_dim": 48,
    "num_layers": N_LAYERS,
    "attention_heads": 4,
    "max_position_embeddings": N_CTX,
}
_HRM = _MULTI_HEAD | {
    "num_hidden_layers": 8,
    "num_layers_per_stack": 2,
    "head_dim": 8,
    "H_cycles": 1,
    "L_cycles": 2,
    "L_bp_cycles": [1],
}

_UNSUPPORTED = {
    # Encoder-decoders.
    "bart": _Family("bart", _BART, AutoModelForSeq2SeqLM),
    "t5": _Family("t5", _T5, AutoModelForSeq2SeqLM),
    # No attention in any block.
    "mamba": _Family("mamba", _STATE_SPACE),
    "mamba2": _Family(
        "mamba2", _STATE_SPACE | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}
    ),
    "rwkv": _Family("rwkv", _RWKV),
    # No attention in some blocks, or another mixer beside it.
    "bamba": _Family("bamba", _GROUPED | _MAMBA_MIXER | {"attn_layer_indices": [1]}),
    "falcon_h1": _Family("falcon_h1", _GROUPED | _MAMBA_MIXER | {"mamba_d_ssm": 64}),
    "granitemoehybrid": _Family(
        "granitemoehybrid",
        _GRANITE
        | _MAMBA_MIXER
        | _LOCAL_EXPERTS
        | {
            "shared_intermediate_size": 48,
            "layer_types": ["mamba", "attention"],
            "position_embedding_type": "rope",
        },
    ),
    "jamba": _Family("jamba", _GROUPED | _JAMBA),
    "lfm2": _Family("lfm2", _GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": _Family("qwen3_next", _HEAD_DIM | _EXPERTS | _QWEN3_NEXT),
    "recurrent_gemma": _Family("recurrent_gemma", _GROUPED | _RECURRENT_GEMMA),
    "zamba2": _Family("zamba2", _ZAMBA2),
    # Several residual streams, or several passes over them.
    "deepseek_v4": _Family("deepseek_v4", _DEEPSEEK_V4),
    "hrm_text": _Family("hrm_text", _HRM),
    # A module between the residual stream and the unembedding.
    "bert": _Family("bert", _MULTI_HEAD, AutoModelForMaskedLM),
    "modernbert_decoder": _Family("modernbert-decoder", _MULTI_HEAD),
    "opt_project_out": _Family("opt", _OPT | {"word_embed_proj_dim": 16}),
    # Norms on the stream itself, or positions added where no hook sees them.
    "openai_gpt": _Family("openai-gpt", _GPT2),
    "opt_post_norm": _Family("opt", _OPT | {"do_layer_norm_before": False}),
    "xglm": _Family("xglm", _XGLM),
}

FAMILIES = tuple(_FAMILIES)
UNSUPPORTED = tuple(_UNSUPPORTED)
# TransformerLens 4.3 multiplies float32 attention with their half-precision values and raises.
NO_HALF_PRECISION = ("olmo", "olmo2", "olmo3")


def build(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> TransformerBridge:
    """Build the tiny model of a family of ``FAMILIES``; one seed, the same weights in any dtype."""
    return _bridge(_FAMILIES[name], dtype, seed)


def build_unsupported(
    name: str, dtype: torch.dtype = torch.float32, seed: int = 0
) -> TransformerBridge:
    """Build a tiny model whose logits are no plain sum of attention and MLP outputs."""
    return _bridge(_UNSUPPORTED[name], dtype, seed)


def _bridge(family: _Family, dtype: torch.dtype, seed: int) -> TransformerBridge:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf_model = family.hf_model().eval()
        _randomise(hf_model)
        for parameter in hf_model.parameters():  # and no buffer: rotary tables stay in float32
            parameter.data = parameter.data.to(dtype)
        hf_model.config.dtype = dtype
        bridge = TransformerBridge.boot_transformers(
            f"tiny-{family.model_type}",
            hf_model=hf_model,
            tokenizer=tokenizer(),
            device="cpu",
            dtype=dtype,
        )
    return bridge.eval().requires_grad_(False)


@torch.no_grad()
def _randomise(model: nn.Module) -> None:
    """Draw the matrices afresh and move vectors (norm weights, biases) off their initial values."""
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if any(parameter is weight for weight in embeddings):
            parameter.copy_(0.5 * noise)
        elif parameter.ndim >= 2:
            parameter.copy_(parameter.shape[-1] ** -0.5 * noise)
        else:
            parameter.add_(0.3 * noise)
