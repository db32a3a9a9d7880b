"""Measure every identity on tiny random models of each family and write docs/models.md.

python -m benchmarks.support_matrix
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import lens_diversity as ld
from lens_diversity._bridge import read_readout
from tests.families import FAMILIES, UNSUPPORTED, build, build_unsupported

HEADER = """# Models

Measured by `python -m benchmarks.support_matrix` on tiny random models built from configs, with all
norm weights and biases randomised (float32; bfloat16 where noted). `lens-diversity verify MODEL`
measures the same on a model of your own.

- *stream*: components against the final residual stream, relative norm
- *logits*: component logits against the model's own, relative to the range of the row's logits
- *padding*: left padding with a mask against none, relative norm
- *compat*: *logits* in TransformerLens' compatibility mode
- *bf16*: *logits* in bfloat16, where the model rounds its own stream

| family | members | norm | logit scale | soft cap | stream | logits | padding | compat | bf16 |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    rows = [row(family) for family in FAMILIES]
    refused = [refusal(name) for name in UNSUPPORTED]
    text = HEADER + "\n".join(rows)
    text += "\n\n## Refused before any forward pass\n\n| model | why |\n|---|---|\n"
    text += "\n".join(refused) + "\n"
    Path(__file__).parents[1].joinpath("docs", "models.md").write_text(text)
    print(text)


def row(family: str) -> str:
    model = build(family)
    stream, logits, _, padding = ld.verify(model)
    readout = read_readout(model)
    model.enable_compatibility_mode()
    compatible = ld.verify(model)[1]
    norm = "LayerNorm" if readout.centred else "RMSNorm"
    norm += " (1 + weight)" * (readout.norm_weight_offset == 1.0)
    norm += " (no weight)" * (readout.norm_weight is None)
    cells = [
        family,
        str(len(ld._bridge.component_hooks(model))),
        norm,
        f"{readout.logit_scale:.3g}",
        "" if readout.soft_cap is None else f"{readout.soft_cap:g}",
        *(f"{check.value:.1e}" for check in (stream, logits, padding, compatible)),
        half_precision(family),
    ]
    return f"| {' | '.join(cells)} |"


def half_precision(family: str) -> str:
    try:
        return f"{ld.verify(build(family, dtype=torch.bfloat16))[1].value:.1e}"
    except RuntimeError:
        return "the model itself does not run"


def refusal(name: str) -> str:
    try:
        ld.require_supported(build_unsupported(name))
    except ld.UnsupportedModelError as error:
        return f"| {name} | {error} |"
    raise SystemExit(f"{name} was not refused")


if __name__ == "__main__":
    main()
