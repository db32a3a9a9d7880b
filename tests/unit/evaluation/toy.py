"""A home-made task and runs with known numbers."""

from __future__ import annotations

import torch

from lens_diversity.evaluation import Run
from lens_diversity.tasks import Task

TEXTS = (
    "a fine film",
    "no",
    "what a long and winding tale about nothing that anyone would care to remember",
    "dull, dull, dull",
    "it has its moments",
    "the second half redeems a slow and somewhat confused beginning",
)


def task(rows: int = 12, **changes) -> Task:
    """Prompts of very different lengths; options begin with different letters."""
    prompts = [f"{TEXTS[i % len(TEXTS)]} {i}.\nVerdict:" for i in range(rows)]
    fields = {"options": ["Bad", "Good", "Mixed"], "gold": [i % 3 for i in range(rows)]}
    return Task("toy", prompts, **fields | changes)


def mixed_task(rows: int = 12) -> Task:
    """Like ARC: two to five options a row."""
    options = ["A", "B", "C", "D", "E"]
    widths = [2 + i % 4 for i in range(rows)]
    return task(
        rows,
        options=[options[:width] for width in widths],
        gold=[i % width for i, width in enumerate(widths)],
    )


def run(widths: list[int], n_layers: int = 2, constant: float = 0.7, seed: int = 0) -> Run:
    """A run of random logits, with rows of the given numbers of options."""
    generator = torch.Generator().manual_seed(seed)
    labels = ["embed", *(f"{i}_{kind}_out" for i in range(n_layers) for kind in ("attn", "mlp"))]
    n_options = torch.tensor(widths)
    rows, components, width = len(widths), len(labels), max(widths)
    kappa = constant * torch.randn(rows, width, generator=generator)
    logits = torch.randn(rows, components, width, generator=generator)
    logits += kappa.unsqueeze(1) / components
    missing = torch.arange(width) >= n_options.unsqueeze(1)
    return Run(
        option_logits=logits.masked_fill(missing.unsqueeze(1), torch.nan),
        constant=kappa.masked_fill(missing, torch.nan),
        n_options=n_options,
        gold=torch.arange(rows) % n_options,
        n_tokens=torch.randint(3, 40, (rows,), generator=generator),
        reconstruction_error=1e-7 * torch.rand(rows, generator=generator),
        metadata={
            "format": 1,
            "model": {"name": "random"},
            "task": {"name": "toy"},
            "settings": {"save_every": 4},
            "n_examples": rows,
            "n_truncated": 0,
            "soft_cap": None,
            "versions": {"torch": torch.__version__},
            "labels": labels,
            "modules": ["embed", *["attn", "mlp"] * n_layers],
        },
    )
