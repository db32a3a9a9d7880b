"""What the network is worth when the other components are replaced by their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.evaluation.forward import left_padded
from lens_diversity.evaluation.hooked import (
    POSITIONS,
    added_to,
    answer_logits,
    batches_by_length,
    check_examples,
    places,
    replaced_by,
)
from lens_diversity.evaluation.prompts import Encoded, encode
from lens_diversity.tasks import Task


@dataclass(frozen=True)
class Ablation:
    """Accuracy of a network of which some components were replaced by their means."""

    accuracy: float
    """Accuracy with the other components ablated."""
    network_accuracy: float
    """Accuracy of the whole network on the same examples."""
    kept: tuple[str, ...]
    """Names of the components that were kept."""
    positions: str
    """``answer`` or ``all``: where the others were replaced."""
    n_examples: int
    """Number of examples."""


def mean_ablation(
    model: Any,
    task: Task,
    keep: Sequence[int | str],
    *,
    examples: Sequence[int] | None = None,
    positions: str = "answer",
    batch_size: int = 16,
) -> Ablation:
    """Run the network with all but some components replaced by their mean output.

    Unlike the direct effect of [`select_components`][lens_diversity.information.select_components],
    components that are kept now read what the ablated ones leave in the stream.

    With ``positions="answer"`` a component's output at the answer position becomes its mean there
    over the examples; other positions run as they are, so attention still reads from them
    everything the network computed. With ``positions="all"`` its output at every real token
    becomes its mean over the real tokens of the examples, so that nothing of what it computes is
    left anywhere; without the embedding that leaves the kept components nothing to read.

    Args:
        model: A ``TransformerBridge`` in evaluation mode, with a tokenizer.
        task: Prompts, options and gold labels.
        keep: Components to leave as they are, by index or by name (``"3_mlp_out"``).
        examples: Which examples to use; None takes all. Give ``checked_on`` of a selection.
        positions: ``"answer"`` or ``"all"``.
        batch_size: Examples a forward pass.

    Returns:
        Accuracies with and without ablation.

    Raises:
        ValueError: If a component or an example does not exist, ``positions`` is unknown, or the
            task cannot be read by the model.

    Example:
        >>> import lens_diversity as ld
        >>> model, task = ld.load_model("smollm2"), ld.tasks.load("sst2")  # doctest: +SKIP
        >>> mean_ablation(model, task, ["29_mlp_out"]).accuracy  # doctest: +SKIP
    """
    if positions not in POSITIONS:
        raise ValueError(f"positions must be one of {POSITIONS}, got {positions!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    hooks = _bridge.component_hooks(model)
    kept = _names(keep, list(hooks))
    chosen = check_examples(examples, len(task))
    encoded = encode(model.tokenizer, task, int(model.cfg.n_ctx), "error")
    batches = list(batches_by_length(encoded, chosen, batch_size))
    ablated = [hook for name, hook in hooks.items() if name not in kept]
    means, before = _means(model, encoded, batches, ablated, positions)
    after = 0
    for batch in batches:
        tokens, mask = left_padded([encoded.prompts[example] for example in batch])
        where = places(mask, positions)
        replaced = [(hook, replaced_by(means[hook], where)) for hook in ablated]
        after += _hits(answer_logits(model, tokens, mask, replaced), encoded, batch)
    return Ablation(after / len(chosen), before / len(chosen), kept, positions, len(chosen))


def _means(
    model: Any, encoded: Encoded, batches: list[list[int]], hooks: list[str], positions: str
) -> tuple[dict[str, Float[Tensor, " d_model"]], int]:
    """Mean output of each hook over the chosen positions, and the network's right answers."""
    sums: dict[str, Tensor] = {}
    count = hits = 0
    for batch in batches:
        tokens, mask = left_padded([encoded.prompts[example] for example in batch])
        where = places(mask, positions)
        adders = [(hook, added_to(sums, hook, where)) for hook in hooks]
        hits += _hits(answer_logits(model, tokens, mask, adders), encoded, batch)
        count += int(where.sum())
    return {hook: total / count for hook, total in sums.items()}, hits


def _hits(logits: Float[Tensor, "batch vocab"], encoded: Encoded, batch: list[int]) -> int:
    return sum(
        int(row[encoded.options[example]].argmax()) == encoded.gold[example]
        for row, example in zip(logits, batch, strict=True)
    )


def _names(keep: Sequence[int | str], labels: list[str]) -> tuple[str, ...]:
    names = []
    for entry in keep:
        if isinstance(entry, str) and entry in labels:
            names.append(entry)
        elif isinstance(entry, int) and 0 <= entry < len(labels):
            names.append(labels[entry])
        else:
            raise ValueError(
                f"no component {entry!r}: give an index below {len(labels)} or a name such as "
                f"{labels[-1]!r}"
            )
    return tuple(names)
