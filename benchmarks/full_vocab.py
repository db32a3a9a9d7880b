"""Time and peak memory of the full-vocabulary engines, as ratios measured in one process.

    python -m benchmarks.full_vocab [--tables squared softmax forward growth] [--positions 64]
                                    [--shape smollm2|llama3] [--repeats 5] [--threads N]
                                    [--device cpu|cuda]

Medians of interleaved repetitions, with the ratio of each to the first row of its table. Peak
memory is what one call adds: on CUDA the allocator's, on Linux the resident set's high-water mark
(which includes the result, and what the BLAS library asks for).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis.logit_lens import logit_readout
from transformers import AutoConfig, AutoModelForCausalLM

import lens_diversity as ld
from lens_diversity.full_vocab import member_readout
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import compact_vocabulary
from tests.families import tokenizer

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

Cases = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Shape:
    components: int
    d_model: int
    d_vocab: int
    positions: int


SHAPES = {"smollm2": Shape(61, 576, 49152, 64), "llama3": Shape(65, 4096, 128256, 8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--tables", nargs="+", default=["squared", "softmax", "forward", "growth"])
    parser.add_argument("--positions", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    if options.threads:
        torch.set_num_threads(options.threads)
    shape = SHAPES[options.shape]
    if options.positions:
        shape = Shape(shape.components, shape.d_model, shape.d_vocab, options.positions)
    print(
        f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads, {shape}"
    )
    meter = Meter(options.device, options.repeats)
    with torch.inference_mode():
        for name in options.tables:
            TABLES[name](meter, shape)


def squared(meter: Meter, shape: Shape) -> None:
    stack, gold = random_stack(shape, meter.device)
    basis = VocabularyBasis.of(stack.readout)
    built = meter.seconds(lambda: compact_vocabulary(basis))
    print(f"\nmoments of the unembedding, once per model: {built:.2f} s")
    dense_target = torch.randn(shape.positions, shape.d_vocab, device=meter.device)
    other = ld.full_vocab.ResidualTarget.from_stack(stack, 1 / shape.components)
    meter.table(
        "squared loss over the vocabulary",
        {
            "dense logits, 64 MiB of rows at a time": lambda: dense_squared(stack, gold),
            "the matrix product of the dense logits": lambda: bare_product(stack),
            "decompose, one-hot": lambda: ld.decompose(stack, gold, loss="squared"),
            "decompose, dense target": lambda: ld.decompose(stack, dense_target, loss="squared"),
            "decompose, residual target": lambda: ld.decompose(stack, other, loss="squared"),
            "leave_one_out": lambda: ld.leave_one_out(stack, gold, loss="squared"),
            "junctions": lambda: ld.junctions(stack, gold, loss="squared"),
        },
    )


def softmax(meter: Meter, shape: Shape) -> None:
    model = random_model(shape, meter.device)
    stack, gold = random_stack(shape, meter.device, model)
    values = stack.readout.normalise(stack.values, stack.stream.scale)
    product = values.flatten(0, 1).new_empty(values[..., 0].numel(), shape.d_vocab)
    meter.table(
        "softmax losses over the vocabulary",
        {
            "bare matrix product, into memory at hand": lambda: torch.mm(
                values.flatten(0, 1), stack.readout.W_U, out=product
            ),
            "bare matrix product": lambda: bare_product(stack),
            "decompose, cross_entropy": lambda: ld.decompose(stack, gold, loss="cross_entropy"),
            "decompose, paper": lambda: ld.decompose(stack, gold, loss="paper"),
            "decompose, brier (two passes)": lambda: ld.decompose(stack, gold, loss="brier"),
            "member_readout, top 5": lambda: member_readout(stack, gold),
            "TransformerLens logit_readout, top 5": lambda: logit_readout(
                model, values, apply_ln=False, top_k=5
            ),
            "leave_one_out, cross_entropy": lambda: ld.leave_one_out(
                stack, gold, loss="cross_entropy"
            ),
        },
    )


def forward(meter: Meter, shape: Shape) -> None:
    """The real SmolLM2, whatever the shape: 8 prompts of ``positions`` tokens."""
    model = ld.load_model("smollm2").to(meter.device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, model.cfg.d_vocab, (8, shape.positions), generator=generator)
    tokens = tokens.to(meter.device)
    gold = tokens.roll(-1, 1)

    def cached() -> Any:
        return model.run_with_cache(tokens, names_filter=ld.names_filter)[1]

    cache = cached()
    stack = ld.component_stack(cache, pos=None)
    meter.table(
        "a forward pass of SmolLM2 and what is added to it, 8 prompts, all positions",
        {
            "bare forward pass": lambda: model.original_model(tokens).logits,
            "run_with_cache(names_filter)": cached,
            "component_stack": lambda: ld.component_stack(cache, pos=None),
            "decompose, squared": lambda: ld.decompose(stack, gold, loss="squared"),
            "cache, stack and decompose, squared": lambda: ld.decompose(
                cached(), gold, loss="squared", pos=None
            ),
        },
    )


def growth(meter: Meter, shape: Shape) -> None:
    """One dimension doubled at a time, from half the size of the shape."""
    base = {
        "components": shape.components // 2,
        "positions": max(1, shape.positions // 2),
        "d_vocab": shape.d_vocab // 2,
        "d_model": shape.d_model // 2,
    }
    for loss in ("squared", "cross_entropy"):
        cases: Cases = {}
        for name in ("base", *base):
            grown = base | ({} if name == "base" else {name: 2 * base[name]})
            stack, gold = random_stack(Shape(**grown), meter.device)
            cases["base" if name == "base" else f"twice the {name}"] = (
                lambda stack=stack, gold=gold, loss=loss: ld.decompose(stack, gold, loss=loss)
            )
        meter.table(f"growth of {loss} from {base}", cases)


TABLES = {"squared": squared, "softmax": softmax, "forward": forward, "growth": growth}


def random_model(shape: Shape, device: str) -> Any:
    """One Llama layer between an embedding and a tied unembedding of the wanted shape."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=shape.d_model,
        vocab_size=shape.d_vocab,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=shape.d_model // 64,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.config.architectures = [type(model).__name__]
    bridge = TransformerBridge.boot_transformers(
        "random-llama", hf_model=model, tokenizer=tokenizer(), device=device
    )
    return bridge.eval().requires_grad_(False)


def random_stack(
    shape: Shape, device: str, model: Any | None = None
) -> tuple[ld.ComponentStack, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if model is None:
        # [d_vocab, d_model] in memory, as models hold it.
        weight = torch.randn(shape.d_vocab, shape.d_model, generator=generator).to(device)
        readout = ld.Readout(
            W_U=0.05 * weight.T,
            b_U=torch.zeros(shape.d_vocab, device=device),
            norm_weight=torch.ones(shape.d_model, device=device),
            normalised=True,
        )
    else:
        readout = ld.component_stack(
            model.run_with_cache(torch.tensor([[1, 2]], device=device))[1]
        ).readout
    size = (shape.components, shape.positions, shape.d_model)
    values = torch.randn(size, generator=generator).to(device)
    gold = torch.randint(0, shape.d_vocab, (shape.positions,), generator=generator).to(device)
    return ld.ComponentStack.from_values(values, readout), gold


def dense_squared(stack: ld.ComponentStack, gold: Tensor) -> list[object]:
    """What the decomposition is without an engine."""
    step = max(1, 64 * 2**20 // (4 * len(stack) * stack.readout.d_vocab))
    found: list[object] = []
    for start in range(0, len(gold), step):
        rows = slice(start, start + step)
        members = ld.component_logits(stack.select_rows(rows))
        found.append(ld.functional.krogh_vedelsby(members, gold[rows]))
    return found


def bare_product(stack: ld.ComponentStack) -> Tensor:
    return stack.values.flatten(0, 1) @ stack.readout.W_U


class Meter:
    """Runs the cases of a table in turn and prints medians, ratios and peaks."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        self.cuda = device.startswith("cuda")

    def table(self, title: str, cases: Cases) -> None:
        peaks = {name: self.peak(run) for name, run in cases.items()}
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(self.repeats):
            for name, run in cases.items():
                times[name].append(self.seconds(run))
        base = statistics.median(next(iter(times.values())))
        print(f"\n{title:52s} {'median s':>9s} {'min s':>9s} {'ratio':>8s} {'peak MiB':>9s}")
        for name, seconds in times.items():
            median = statistics.median(seconds)
            print(
                f"{name:52s} {median:9.4f} {min(seconds):9.4f} {median / base:8.4f} "
                f"{peaks[name]:9.1f}",
                flush=True,
            )

    def seconds(self, run: Callable[[], object]) -> float:
        self.wait()
        start = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def peak(self, run: Callable[[], object]) -> float:
        """MiB that one call adds at its highest, after a first call has warmed up."""
        run()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            return (torch.cuda.max_memory_allocated() - before) / 2**20
        _CLEAR.write_text("5")
        before = status("VmRSS")
        run()
        return (status("VmHWM") - before) / 1024


def status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
