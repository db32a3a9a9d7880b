"""A task in a model's tokens, with everything checked that can be before the first forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lens_diversity.tasks import Task, option_token_ids, tokenize_prompts

OVERLONG = ("error", "truncate")


@dataclass(frozen=True)
class Encoded:
    """Prompts and options as token ids."""

    prompts: list[list[int]]
    """Token ids of each prompt."""
    options: list[list[int]]
    """The token that stands for each option, row by row."""
    gold: list[int]
    """Index of the right option."""
    multi_token: dict[str, list[str]]
    """Options of which only the first of several tokens is scored."""
    n_truncated: int
    """Prompts that were cut to the context length."""

    @property
    def n_tokens(self) -> list[int]:
        """Length of each prompt."""
        return [len(prompt) for prompt in self.prompts]


def encode(tokenizer: Any, task: Task, n_ctx: int, overlong: str) -> Encoded:
    """Tokenise a task for a model.

    Args:
        tokenizer: The model's tokenizer.
        task: Prompts with options.
        n_ctx: The model's context length in tokens.
        overlong: What to do with longer prompts: ``"error"``, or ``"truncate"`` to cut tokens
            from the left (a BOS token stays).

    Returns:
        Token ids of prompts and options.

    Raises:
        ValueError: If ``overlong`` is unknown, prompts are too long, or the options' tokens cannot
            be told apart.
    """
    if overlong not in OVERLONG:
        raise ValueError(f"overlong must be one of {OVERLONG}, got {overlong!r}")
    options = option_token_ids(tokenizer, task)
    prompts = tokenize_prompts(tokenizer, task.prompts)
    too_long = [row for row, prompt in enumerate(prompts) if len(prompt) > n_ctx]
    if too_long and overlong == "error":
        raise ValueError(_too_long_message(too_long, prompts, n_ctx))
    for row in too_long:
        prompts[row] = _truncated(prompts[row], n_ctx, tokenizer.bos_token_id)
    return Encoded(prompts, options.ids, list(task.gold), options.multi_token, len(too_long))


def _too_long_message(rows: Sequence[int], prompts: Sequence[Sequence[int]], n_ctx: int) -> str:
    longest = max(rows, key=lambda row: len(prompts[row]))
    shown = ", ".join(str(row) for row in rows[:10]) + (", ..." if len(rows) > 10 else "")
    return (
        f"{len(rows)} of {len(prompts)} prompts are longer than the model's context of {n_ctx} "
        f"tokens (the longest is prompt {longest} with {len(prompts[longest])}): prompts {shown}. "
        'Leave them out, or pass overlong="truncate" to cut them from the left.'
    )


def _truncated(prompt: list[int], n_ctx: int, bos: int | None) -> list[int]:
    if prompt[0] == bos:
        return [prompt[0], *prompt[len(prompt) - n_ctx + 1 :]]
    return prompt[len(prompt) - n_ctx :]
