"""A real, trained, tiny Llama-architecture model (stories260K), read from its llama2.c files."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

UNK, BOS, EOS = "<unk>", "<s>", "</s>"


class _Header(NamedTuple):
    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int


def data_dir() -> Path:
    """Find the evaluation data outside the repository, or skip the test that asks for it."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("LENS_DIVERSITY_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no evaluation data at {folder}; set LENS_DIVERSITY_DATA to its folder")
    return folder


def load(dtype: torch.dtype = torch.float32) -> TransformerBridge:
    """Build the bridge, or skip the test that asks for it where the model's files are absent."""
    folder = data_dir().parent / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip(f"no stories260K model at {folder}")
    hf_model = _read_model(folder / "stories260K.bin").to(dtype)
    bridge = TransformerBridge.boot_transformers(
        "stories260K",
        hf_model=hf_model,
        tokenizer=_read_tokenizer(folder / "tok512.bin", hf_model.config.vocab_size),
        device="cpu",
        dtype=dtype,
    )
    return bridge.eval().requires_grad_(False)


def _read_model(path: Path) -> LlamaForCausalLM:
    content = path.read_bytes()
    header = _Header(*struct.unpack_from("<7i", content))
    floats = np.frombuffer(content, dtype="<f4", offset=struct.calcsize("<7i"))
    config = LlamaConfig(
        vocab_size=header.vocab_size,
        hidden_size=header.dim,
        intermediate_size=header.hidden_dim,
        num_hidden_layers=header.n_layers,
        num_attention_heads=header.n_heads,
        num_key_value_heads=header.n_kv_heads,
        max_position_embeddings=header.seq_len,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(_state_dict(torch.from_numpy(floats.copy()), header))
    return model


def _state_dict(floats: Tensor, header: _Header) -> dict[str, Tensor]:
    """Cut the flat weights into transformers' parameters, in the file's order."""
    d, hidden, n = header.dim, header.hidden_dim, header.n_layers
    kv = d // header.n_heads * header.n_kv_heads
    layout = {
        "embed_tokens": (header.vocab_size, d),
        "input_layernorm": (n, d),
        "self_attn.q_proj": (n, d, d),
        "self_attn.k_proj": (n, kv, d),
        "self_attn.v_proj": (n, kv, d),
        "self_attn.o_proj": (n, d, d),
        "post_attention_layernorm": (n, d),
        "mlp.gate_proj": (n, hidden, d),
        "mlp.down_proj": (n, d, hidden),
        "mlp.up_proj": (n, hidden, d),
        "norm": (d,),
    }
    sizes = [int(np.prod(shape)) for shape in layout.values()]
    pieces = floats[: sum(sizes)].split(sizes)
    state = {}
    for (name, shape), piece in zip(layout.items(), pieces, strict=True):
        weight = piece.view(shape)
        if name in {"embed_tokens", "norm"}:
            state[f"model.{name}.weight"] = weight
            continue
        for layer in range(n):
            state[f"model.layers.{layer}.{name}.weight"] = (
                _halves_from_pairs(weight[layer], d // header.n_heads)
                if name in {"self_attn.q_proj", "self_attn.k_proj"}
                else weight[layer]
            )
    return state | {"lm_head.weight": state["model.embed_tokens.weight"]}


def _halves_from_pairs(weight: Tensor, d_head: int) -> Tensor:
    """Reorder each head from rotary pairs (0, 1), (2, 3), ... to transformers' (i, i + d/2)."""
    return weight.view(-1, d_head // 2, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def _read_tokenizer(path: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """Rebuild the SentencePiece BPE: pairs merge in the order of the merged piece's score."""
    pieces, scores = _read_pieces(path.read_bytes(), vocab_size)
    pieces[:3] = [UNK, BOS, EOS]
    ids = {piece: index for index, piece in enumerate(pieces)}
    by_score = sorted(range(3, vocab_size), key=lambda index: -scores[index])
    merges = [
        (pieces[index][:cut], pieces[index][cut:])
        for index in by_score
        for cut in range(1, len(pieces[index]))
        if pieces[index][:cut] in ids and pieces[index][cut:] in ids
    ]
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=UNK, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=UNK,
        name_or_path="stories260K",
        add_bos_token=True,
    )


def _read_pieces(content: bytes, vocab_size: int) -> tuple[list[str], list[float]]:
    """Read (score, length, bytes) records, with SentencePiece's mark for a space."""
    pieces, scores = [], []
    offset = struct.calcsize("<i")
    for _ in range(vocab_size):
        score, length = struct.unpack_from("<fi", content, offset)
        offset += struct.calcsize("<fi")
        pieces.append(content[offset : offset + length].decode().replace(" ", "▁"))
        scores.append(score)
        offset += length
    return pieces, scores
