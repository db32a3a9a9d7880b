"""Demonstrations for few-shot prompts, drawn from rows that are not evaluated."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lens_diversity.tasks._rows import Row


def draw(pool: Sequence[Row], n_shots: int, seed: int) -> list[int]:
    """Draw rows of the pool, one class after the other, and mix their order.

    A class that runs out is passed over. The same seed and pool give the same rows.

    Returns:
        Indices into the pool, in the order in which they are shown.

    Raises:
        ValueError: If the pool has fewer than ``n_shots`` rows.
    """
    if len(pool) < n_shots:
        raise ValueError(
            f"n_shots={n_shots} demonstrations are drawn from the rows after 'limit', where "
            f"{len(pool)} are left; lower limit or n_shots"
        )
    generator = random.Random(seed)
    order = list(range(len(pool)))
    generator.shuffle(order)
    classes = sorted({row.gold for row in pool})
    queues = [[i for i in order if pool[i].gold == gold] for gold in classes]
    picked: list[int] = []
    while len(picked) < n_shots:
        for queue in queues:
            if queue and len(picked) < n_shots:
                picked.append(queue.pop())
    generator.shuffle(picked)
    return picked


def prepend(demonstrations: Sequence[Row], prompt: str, answer_prefix: str) -> str:
    """Join answered demonstrations and a prompt with blank lines."""
    answered = [d.prompt + answer_prefix + d.options[d.gold] for d in demonstrations]
    return "\n\n".join([*answered, prompt])
