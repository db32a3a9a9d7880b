"""The tables: what is compared with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lens_diversity import functional
from lens_diversity._bridge import names_filter
from lens_diversity.bench.meter import Measurement, Meter
from lens_diversity.bench.shapes import Shape, random_model, random_stack, random_stack_of
from lens_diversity.capture import component_stack
from lens_diversity.ensemble import decompose, junctions, leave_one_out
from lens_diversity.full_vocab import ResidualTarget, clear_cache, member_readout
from lens_diversity.readout import component_logits
from lens_diversity.stack import ComponentStack

Cases = dict[str, Callable[[], object]]
Titled = list[tuple[str, list[Measurement]]]

_DENSE_BYTES = 64 * 2**20
_PROMPTS = 8


def squared(meter: Meter, shape: Shape) -> Titled:
    """The Gram engine beside the logits that it does without."""
    stack, gold = random_stack(shape, meter.device)
    target = torch.randn(shape.positions, shape.d_vocab, device=meter.device)
    other = ResidualTarget.from_stack(stack, 1 / shape.components)

    def with_moments() -> object:
        clear_cache()
        return decompose(stack, gold, loss="squared")

    cases: Cases = {
        "dense logits, 64 MiB of rows at a time": lambda: _dense_squared(stack, gold),
        "the matrix product of the dense logits": lambda: _bare_product(stack),
        "decompose, one-hot": lambda: decompose(stack, gold, loss="squared"),
        "the same with the moments made anew": with_moments,
        "decompose, dense target": lambda: decompose(stack, target, loss="squared"),
        "decompose, residual target": lambda: decompose(stack, other, loss="squared"),
        "leave_one_out": lambda: leave_one_out(stack, gold, loss="squared"),
        "junctions": lambda: junctions(stack, gold, loss="squared"),
    }
    return [("squared loss over the vocabulary", meter.measure(cases))]


def softmax(meter: Meter, shape: Shape) -> Titled:
    """The streaming engine beside the bare product of the same size, its floor."""
    from transformer_lens.tools.analysis.logit_lens import logit_readout

    model = random_model(shape, meter.device)
    stack, gold = random_stack_of(model, shape)
    values = stack.readout.normalise(stack.values, stack.stream.scale)
    flat = values.flatten(0, 1)
    product = flat.new_empty(len(flat), shape.d_vocab)
    cases: Cases = {
        "bare matrix product, into memory at hand": lambda: torch.mm(
            flat, stack.readout.W_U, out=product
        ),
        "bare matrix product": lambda: _bare_product(stack),
        "decompose, cross_entropy": lambda: decompose(stack, gold, loss="cross_entropy"),
        "decompose, paper": lambda: decompose(stack, gold, loss="paper"),
        "decompose, brier (two passes)": lambda: decompose(stack, gold, loss="brier"),
        "member_readout, top 5": lambda: member_readout(stack, gold),
        "TransformerLens logit_readout, top 5": lambda: logit_readout(
            model, values, apply_ln=False, top_k=5
        ),
        "leave_one_out, cross_entropy": lambda: leave_one_out(stack, gold, loss="cross_entropy"),
    }
    return [("softmax losses over the vocabulary", meter.measure(cases))]


def forward(meter: Meter, shape: Shape) -> Titled:
    """The real SmolLM2, whatever the shape's sizes, on prompts of ``positions`` tokens."""
    from lens_diversity.models import load_model

    model = load_model("smollm2", device=meter.device)
    generator = torch.Generator().manual_seed(0)
    size = (_PROMPTS, shape.positions)
    tokens = torch.randint(3, model.cfg.d_vocab, size, generator=generator).to(meter.device)
    gold = tokens.roll(-1, 1)

    def cached() -> Any:
        return model.run_with_cache(tokens, names_filter=names_filter)[1]

    cache = cached()
    stack = component_stack(cache, pos=None)
    cases: Cases = {
        "bare forward pass": lambda: model.original_model(tokens).logits,
        "run_with_cache(names_filter)": cached,
        "component_stack": lambda: component_stack(cache, pos=None),
        "decompose, squared": lambda: decompose(stack, gold, loss="squared"),
        "cache, stack and decompose, squared": lambda: decompose(
            cached(), gold, loss="squared", pos=None
        ),
    }
    title = f"SmolLM2, {_PROMPTS} prompts of {shape.positions} tokens, all positions"
    return [(title, meter.measure(cases))]


def growth(meter: Meter, shape: Shape) -> Titled:
    """One dimension doubled at a time, from half the size of the shape."""
    base = {name: max(1, size // 2) for name, size in asdict(shape).items()}
    found: Titled = []
    for loss in ("squared", "cross_entropy"):
        cases: Cases = {"base": _decomposition(Shape(**base), loss, meter)}
        for name, size in base.items():
            grown = Shape(**base | {name: 2 * size})
            cases[f"twice the {name}"] = _decomposition(grown, loss, meter)
        found.append((f"growth of {loss} from {base}", meter.measure(cases)))
    return found


TABLES = {"squared": squared, "softmax": softmax, "forward": forward, "growth": growth}


def _decomposition(shape: Shape, loss: str, meter: Meter) -> Callable[[], object]:
    stack, gold = random_stack(shape, meter.device)
    return lambda: decompose(stack, gold, loss=loss)


def _dense_squared(stack: ComponentStack, gold: Tensor) -> list[object]:
    """What the decomposition is without an engine."""
    step = max(1, _DENSE_BYTES // (4 * len(stack) * stack.readout.d_vocab))
    found: list[object] = []
    for start in range(0, len(gold), step):
        rows = slice(start, start + step)
        members = component_logits(stack.select_rows(rows))
        found.append(functional.krogh_vedelsby(members, gold[rows]))
    return found


def _bare_product(stack: ComponentStack) -> Tensor:
    return stack.values.flatten(0, 1) @ stack.readout.W_U
