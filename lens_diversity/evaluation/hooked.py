"""Forward passes over a task's prompts under hooks that change what components write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lens_diversity.evaluation.forward import _answer_only
from lens_diversity.evaluation.prompts import Encoded

POSITIONS = ("answer", "all")


def answer_logits(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    mask: Int[Tensor, "batch pos"],
    hooks: list[tuple[str, Callable[..., Any]]],
) -> Float[Tensor, "batch vocab"]:
    """Logits at the last position, on the CPU, of a forward pass under hooks."""
    device = model.W_E.device
    with torch.no_grad():
        logits = model.run_with_hooks(
            tokens.to(device),
            fwd_hooks=hooks,
            attention_mask=mask.to(device),
            **_answer_only(model),
        )
    answers: Tensor = logits[:, -1].cpu()
    return answers


def places(mask: Int[Tensor, "batch pos"], positions: str) -> Bool[Tensor, "batch pos"]:
    """Positions to change; prompts are padded on the left, so the answer is last."""
    if positions == "all":
        return mask.bool()
    where = torch.zeros_like(mask, dtype=torch.bool)
    where[:, -1] = True
    return where


def replaced_by(value: Tensor, where: Bool[Tensor, "batch pos"]) -> Callable[..., Tensor]:
    """A hook that writes one vector at some positions."""

    def hook_function(tensor: Tensor, hook: Any) -> Tensor:
        return torch.where(where.to(tensor.device).unsqueeze(-1), value.to(tensor), tensor)

    return hook_function


def added_to(
    sums: dict[str, Tensor], name: str, where: Bool[Tensor, "batch pos"]
) -> Callable[..., None]:
    """A hook that adds up what is written at some positions, in float64."""

    def hook_function(tensor: Tensor, hook: Any) -> None:
        whole = tensor.expand(*where.shape, -1)
        found = whole[where.to(tensor.device)].double().sum(0)
        sums[name] = sums[name] + found if name in sums else found

    return hook_function


def batches_by_length(
    encoded: Encoded, chosen: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Examples of similar length together, so that little is padded."""
    by_length = sorted(chosen, key=lambda example: len(encoded.prompts[example]))
    for start in range(0, len(by_length), batch_size):
        yield by_length[start : start + batch_size]


def check_examples(examples: Sequence[int] | None, count: int) -> list[int]:
    """Choose examples of a task; None takes all.

    Raises:
        ValueError: If there is none, or one does not exist.
    """
    chosen = list(range(count)) if examples is None else [int(example) for example in examples]
    if not chosen or not set(chosen) <= set(range(count)):
        raise ValueError(f"examples must be some of 0..{count - 1}")
    return chosen
