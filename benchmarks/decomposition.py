"""Time and peak memory of a decomposition next to the bare forward pass, in one process.

    python benchmarks/decomposition.py [--model smollm2] [--batch 8] [--length 64] [--repeats 5]

Prints medians of interleaved repetitions and ratios to the bare Hugging Face forward pass (eager
attention, as TransformerLens runs it). Peak memory is the growth of the resident set during one
call, read from the kernel's high-water mark (Linux).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import lens_diversity as ld

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    model = ld.load_model(options.model)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, options.length)
    tokens = torch.randint(3, model.cfg.d_vocab, shape, generator=generator)
    gold = torch.randint(0, 2, shape, generator=generator)
    vocab = [3524, 2731]
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
        stack = ld.component_stack(cache, pos=None)
        hf = model.original_model
        cases: dict[str, Callable[[], object]] = {
            "bare forward pass": lambda: hf(tokens).logits,
            "run_with_cache(names_filter)": lambda: model.run_with_cache(
                tokens, names_filter=ld.names_filter
            ),
            "component_stack, all positions": lambda: ld.component_stack(cache, pos=None),
            "decompose, 2 options, paper": lambda: ld.decompose(stack, gold, vocab),
            "decompose, 2 options, cross_entropy": lambda: ld.decompose(
                stack, gold, vocab, "cross_entropy"
            ),
            "decompose, full vocabulary, cross_entropy, one position": lambda: ld.decompose(
                cache, gold[:, -1], loss="cross_entropy", combine="sum"
            ),
        }
        report(cases, options.repeats)


def report(cases: dict[str, Callable[[], object]], repeats: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in cases}
    peaks = {name: peak_growth(run) for name, run in cases.items()}
    for _ in range(repeats):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    base = statistics.median(times["bare forward pass"])
    print(f"{'':58s} {'median s':>9s} {'ratio':>7s} {'peak MiB':>9s}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:58s} {median:9.4f} {median / base:7.3f} {peaks[name]:9.1f}")


def peak_growth(run: Callable[[], object]) -> float:
    """MiB by which the resident set grows during one call."""
    run()
    _CLEAR.write_text("5")
    before = status("VmRSS")
    run()
    return (status("VmHWM") - before) / 1024


def status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
