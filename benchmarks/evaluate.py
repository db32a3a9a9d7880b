"""Throughput of `evaluate` next to the bare Hugging Face forward pass on the same batches.

    python benchmarks/evaluate.py --data sst2=DEV.TSV --data rte=VAL.JSONL [--limit 64]

The bare pass runs the same left-padded batches in sdpa attention with `logits_to_keep=1`. Medians
of interleaved repetitions, and ratios to the bare pass; also where the rest goes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

import lens_diversity as ld
from lens_diversity import _weights
from lens_diversity.evaluation import forward, prompts, store
from lens_diversity.models import _convert_gguf

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", required=True, help="TASK=FILE")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    model = ld.load_model("smollm2")
    folder = _weights.smollm2_checkpoint(_convert_gguf)
    bare = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    for named in options.data:
        name, _, file = named.partition("=")
        report(model, bare, ld.tasks.load(name, limit=options.limit, data_files=file), options)


def report(model: object, bare: torch.nn.Module, task: ld.tasks.Task, options: object) -> None:
    encoded = prompts.encode(model.tokenizer, task, int(model.cfg.n_ctx), "error")
    batches = [
        forward.left_padded([encoded.prompts[example] for example in shard[start : start + BATCH]])
        for shard in store.shard_plan(encoded.n_tokens, 128)
        for start in range(0, len(shard), BATCH)
    ]
    cases: dict[str, Callable[[], object]] = {
        "bare forward pass (sdpa)": lambda: [bare_logits(bare, *batch) for batch in batches],
        "forward pass with our hooks": lambda: [
            forward.last_position_cache(model, *batch) for batch in batches
        ],
        "tokenising": lambda: prompts.encode(model.tokenizer, task, 2048, "error"),
        "evaluate": lambda: ld.evaluate(model, task, BATCH, progress=False),
    }
    times: dict[str, list[float]] = {case: [] for case in cases}
    with torch.no_grad():
        for _ in range(options.repeats):
            for case, run in cases.items():
                start = time.perf_counter()
                run()
                times[case].append(time.perf_counter() - start)
    base = statistics.median(times["bare forward pass (sdpa)"])
    mean = sum(encoded.n_tokens) / len(encoded.n_tokens)
    print(f"{task.name}: {len(task)} rows, {mean:.0f} tokens on average")
    for case, seconds in times.items():
        median = statistics.median(seconds)
        print(f"  {case:30s} {median:8.3f} s {median / base:6.2f}x")


def bare_logits(bare: torch.nn.Module, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return bare(
        input_ids=tokens, attention_mask=mask, position_ids=positions, logits_to_keep=1
    ).logits


if __name__ == "__main__":
    main()
