"""What the runs of a report were made from, and what a reader should know about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lens_diversity.evaluation import Run
from lens_diversity.paper._cells import task_title

# The components are in the tables already.
_HIDDEN = ("labels", "modules")
_SHOWN_APART = ("task.template", "task.options")


@dataclass(frozen=True)
class Configuration:
    """One run's record."""

    model: str
    task: str
    template: str
    options: str
    facts: list[tuple[str, str]]


def configurations(grid: Sequence[tuple[str, str, Run]]) -> list[Configuration]:
    """Describe each run.

    Args:
        grid: Model, task and run of each cell.

    Returns:
        One description a run, in the same order.
    """
    return [_configuration(model, task, run) for model, task, run in grid]


def overview(grid: Sequence[tuple[str, str, Run]]) -> list[dict[str, Any]]:
    """List what tells the runs apart.

    Args:
        grid: Model, task and run of each cell.

    Returns:
        One record a run, in the same order.
    """
    return [
        {
            "model": model,
            "task": task,
            "n_examples": len(run),
            "revision": run.metadata["model"].get("revision"),
            "dtype": run.metadata["model"]["dtype"],
            "weights": run.metadata["model"].get("weights"),
            "data": run.metadata["task"].get("fingerprint"),
            "reconstruction_error": float(run.reconstruction_error.max()),
            "created": run.metadata.get("created"),
        }
        for model, task, run in grid
    ]


def notes(grid: Sequence[tuple[str, str, Run]]) -> list[str]:
    """Say what limits a comparison of the runs.

    Args:
        grid: Model, task and run of each cell.

    Returns:
        Sentences: cells that were not run, tasks of which models saw different rows, prompts that
        were cut, models with a soft cap.
    """
    return [*_missing_cells(grid), *_different_rows(grid), *_facts_of_runs(grid)]


def _configuration(model: str, task: str, run: Run) -> Configuration:
    record = {key: value for key, value in run.metadata.items() if key not in _HIDDEN}
    about = record["task"]
    shown = [", ".join(options) for options in about.get("options", [])]
    more = about.get("n_option_sets", len(shown)) - len(shown)
    return Configuration(
        model=model,
        task=task_title(task),
        template=about.get("template") or "",
        options="; ".join(shown) + (f"; and {more} more sets" if more > 0 else ""),
        facts=[(key, value) for key, value in _leaves(record) if key not in _SHOWN_APART],
    )


def _missing_cells(grid: Sequence[tuple[str, str, Run]]) -> Iterator[str]:
    tasks = dict.fromkeys(task for _, task, _ in grid)
    ran = {(model, task) for model, task, _ in grid}
    for model in dict.fromkeys(model for model, _, _ in grid):
        missing = [task_title(task) for task in tasks if (model, task) not in ran]
        if missing:
            yield (
                f"{model} was not run on {', '.join(missing)}; its averages are over the other "
                "tasks."
            )


def _different_rows(grid: Sequence[tuple[str, str, Run]]) -> Iterator[str]:
    for name in dict.fromkeys(task for _, task, _ in grid):
        runs = [run for _, task, run in grid if task == name]
        if len({run.metadata["task"].get("fingerprint") for run in runs}) > 1:
            yield (
                f"The models saw different examples of {task_title(name)} (rows, template or "
                "options differ), so its column does not compare them on equal terms."
            )


def _facts_of_runs(grid: Sequence[tuple[str, str, Run]]) -> Iterator[str]:
    for model, task, run in grid:
        cut = run.metadata.get("n_truncated", 0)
        if cut:
            yield f"{model}, {task_title(task)}: {cut:,} prompts were cut to the context length."
    for model in dict.fromkeys(model for model, _, run in grid if run.metadata.get("soft_cap")):
        yield (
            f"{model} caps its logits; everything here is about the logits before the cap, which "
            "does not change predictions."
        )


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested records to dotted names and text."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif value not in (None, {}, []):
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
