"""Random stacks and models of the sizes that matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Tokenizer, models
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from lens_diversity.capture import component_stack
from lens_diversity.readout import Readout
from lens_diversity.stack import ComponentStack


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack and its vocabulary."""

    components: int
    d_model: int
    d_vocab: int
    positions: int


SHAPES = {"smollm2": Shape(61, 576, 49152, 64), "llama3": Shape(65, 4096, 128256, 8)}


def random_stack(shape: Shape, device: str) -> tuple[ComponentStack, Int[Tensor, " pos"]]:
    """A stack under a random unembedding, laid out in memory as models hold it, and gold tokens."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape.d_vocab, shape.d_model, generator=generator).to(device)
    readout = Readout(
        W_U=0.05 * weight.T,
        b_U=torch.zeros(shape.d_vocab, device=device),
        norm_weight=torch.ones(shape.d_model, device=device),
        normalised=True,
    )
    return _random_values(shape, readout, generator)


def random_stack_of(model: Any, shape: Shape) -> tuple[ComponentStack, Int[Tensor, " pos"]]:
    """A stack under a model's own readout, and gold tokens."""
    _, cache = model.run_with_cache(torch.tensor([[0, 0]], device=model.W_U.device))
    readout = component_stack(cache).readout
    return _random_values(shape, readout, torch.Generator().manual_seed(0))


def _random_values(
    shape: Shape, readout: Readout, generator: torch.Generator
) -> tuple[ComponentStack, Int[Tensor, " pos"]]:
    device = readout.W_U.device
    size = (shape.components, shape.positions, shape.d_model)
    values = torch.randn(size, generator=generator).to(device)
    gold = torch.randint(0, shape.d_vocab, (shape.positions,), generator=generator).to(device)
    return ComponentStack.from_values(values, readout), gold


def random_model(shape: Shape, device: str) -> Any:
    """One Llama layer between an embedding and a tied unembedding of the wanted shape."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=shape.d_model,
        vocab_size=shape.d_vocab,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=max(1, shape.d_model // 64),
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.config.architectures = [type(model).__name__]
    bridge = TransformerBridge.boot_transformers(
        "random-llama", hf_model=model, tokenizer=_one_word(), device=device
    )
    return bridge.eval().requires_grad_(False)


def _one_word() -> PreTrainedTokenizerFast:
    """A tokenizer for a model that only reads token ids; a bridge wants one that has a BOS."""
    backend = Tokenizer(models.WordLevel({"<bos>": 0}, unk_token="<bos>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", name_or_path="one-word", add_bos_token=True
    )
