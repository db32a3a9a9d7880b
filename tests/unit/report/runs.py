"""Runs of random logits, with whatever names, sizes and degeneracies a test needs."""

from __future__ import annotations

import torch

from lens_diversity.evaluation import Run


def make(
    model: str = "small",
    task: str = "sst2",
    *,
    widths: list[int] | None = None,
    n_layers: int = 2,
    parameters: int = 1000,
    seed: int = 0,
    logits: torch.Tensor | None = None,
    gold: torch.Tensor | None = None,
    **model_facts,
) -> Run:
    """A finished run; rows have the given numbers of options (default: 12 rows of two)."""
    generator = torch.Generator().manual_seed(seed)
    n_options = torch.tensor(widths or [2] * 12)
    rows, width = len(n_options), int(n_options.max())
    labels = ["embed", *(f"{i}_{kind}_out" for i in range(n_layers) for kind in ("attn", "mlp"))]
    if logits is None:
        logits = torch.randn(rows, len(labels), width, generator=generator)
    missing = torch.arange(width) >= n_options.unsqueeze(1)
    return Run(
        option_logits=logits.masked_fill(missing.unsqueeze(1), torch.nan),
        constant=torch.zeros(rows, width).masked_fill(missing, torch.nan),
        n_options=n_options,
        gold=torch.arange(rows) % n_options if gold is None else gold,
        n_tokens=torch.arange(3, 3 + rows),
        reconstruction_error=torch.full((rows,), 2.5e-7),
        metadata={
            "format": 1,
            "model": {
                "name": model,
                "dtype": "float32",
                "n_layers": n_layers,
                "d_model": 8,
                "d_vocab": 60,
                "n_parameters": parameters,
                "revision": None,
                "weights": "0123456789abcdef",
                **model_facts,
            },
            "task": {
                "name": task,
                "version": "1",
                "template": "{{ text }}\nAnswer:",
                "answer_prefix": " ",
                "options": [["no", "yes"]],
                "n_option_sets": 1,
                "fingerprint": f"rows of {task}",
            },
            "settings": {"save_every": 64, "readout_dtype": "float32"},
            "data": {"source": {"kind": "files"}, "notes": {}},
            "n_examples": rows,
            "n_truncated": 0,
            "soft_cap": None,
            "versions": {"torch": torch.__version__},
            "created": "2026-01-01T00:00:00+00:00",
            "labels": labels,
            "modules": ["embed", *["attn", "mlp"] * n_layers],
        },
    )


def constant_accuracy(**changes) -> Run:
    """Every junction answers option 0, which is right in every second row."""
    logits = torch.randn(12, 5, 2, generator=torch.Generator().manual_seed(3)).abs()
    logits[..., 1] *= -1
    return make(logits=logits, **changes)
