"""Heads and neurons: how exactly they sum to their sublayer, and what neurons cost.

    python -m benchmarks.units [--skip-timing] [--batch 8] [--length 64] [--repeats 5]

The first table is measured on tiny random models of every architecture, the second on SmolLM2.
"""

from __future__ import annotations

import argparse

import torch

import lens_diversity as ld
from lens_diversity.bench import Meter
from tests.families import FAMILIES, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-timing", action="store_true")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with torch.no_grad():
        print("| family | heads | error | neurons | error |\n|---|---|---|---|---|")
        for name in FAMILIES:
            print(f"| {name} | {' | '.join(row(build(name)))} |", flush=True)
        if not options.skip_timing:
            timing(options.batch, options.length, options.repeats)


def row(model) -> list[str]:
    tokens = torch.randint(3, 60, (4, 16), generator=torch.Generator().manual_seed(0))
    cells = []
    for unit, kind in (("head", "attn"), ("neuron", "mlp")):
        try:
            _, cache = model.run_with_cache(tokens, names_filter=ld.unit_hooks(unit))
            stack = ld.component_stack(cache, None, unit)
        except ld.UnsupportedModelError:
            cells += ["", "refused: mixture of experts"]
            continue
        cells += [str(sum(label.startswith("L") for label in stack.labels))]
        cells += [f"{largest_miss(stack, ld.component_stack(cache, None), kind):.1e}"]
    return cells


def largest_miss(parts, whole, kind: str) -> float:
    """Relative error of each sublayer's parts against what it wrote, the largest."""
    made = parts.materialise() if isinstance(parts, ld.NeuronStack) else parts
    worst = 0.0
    for label, value in zip(whole.labels, whole.values, strict=True):
        layer, _, rest = label.partition("_")
        if rest == f"{kind}_out":
            names = (f"L{layer}H", f"L{layer}N", f"{layer}_{kind}_bias")
            rows = [i for i, name in enumerate(made.labels) if name.startswith(names)]
            miss = (made.values[rows].sum(0) - value).norm(dim=-1) / value.norm(dim=-1)
            worst = max(worst, float(miss.max()))
    return worst


def timing(batch: int, length: int, repeats: int) -> None:
    model = ld.load_model("smollm2")
    tokens = torch.randint(3, model.cfg.d_vocab, (batch, length))
    gold = torch.randint(0, model.cfg.d_vocab, (batch, length))

    def decomposed(unit: str):
        _, cache = model.run_with_cache(tokens, names_filter=ld.unit_hooks(unit))
        stack = ld.component_stack(cache, None, unit)
        return ld.decompose(stack, gold, loss="squared", combine="sum")

    cases = {
        "forward pass and sublayer decomposition": lambda: decomposed("sublayer"),
        "the same with blocks": lambda: decomposed("block"),
        "the same with heads": lambda: decomposed("head"),
        "the same with neurons": lambda: decomposed("neuron"),
        "bare forward pass": lambda: model.original_model(tokens).logits,
    }
    print("\n| SmolLM2, all positions, whole vocabulary, squared | s | ratio | peak MiB |")
    print("|---|---|---|---|")
    with torch.inference_mode():
        for found in Meter("cpu", repeats).measure(cases):
            print(f"| {found.case} | {found.seconds:.3f} | {found.ratio:.2f} | {found.peak:.0f} |")


if __name__ == "__main__":
    main()
