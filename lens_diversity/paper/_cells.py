"""Runs as cells of a grid of models and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lens_diversity.evaluation import Run

# The paper's columns, in its order; other tasks follow by name.
TASK_TITLES = {
    "ag_news": "AG News",
    "arc": "ARC",
    "boolq": "BoolQ",
    "mnli": "MNLI",
    "qqp": "QQP",
    "rte": "RTE",
    "sst2": "SST-2",
    "wic": "WiC",
}
AVERAGE = "Avg."

# What tells two models of one name apart, and how much of it is shown.
_DISTINCTIONS = ("revision", "dtype", "weights")
_SHOWN = 8


def cells(
    runs: Sequence[Run | Any], sources: Sequence[str] | None = None
) -> list[tuple[str, str, Run]]:
    """Order runs as the rows and columns of the paper's tables.

    Models come by their number of parameters, as in Table 4. A model's name is that of its run,
    with revision, dtype or the fingerprint of its weights where runs of one name differ in them.

    Args:
        runs: Finished runs.
        sources: Where each came from, for error messages.

    Returns:
        Model, task and run of each cell.

    Raises:
        TypeError: If something is not a run.
        ValueError: If there is none, or two runs are of one model and task.
    """
    runs = list(runs)
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(
                f"expected runs, got {type(run).__name__}; read one with "
                "lens_diversity.load_run(folder)"
            )
    if not runs:
        raise ValueError("no runs were given")
    names = sources or [f"run {index}" for index in range(len(runs))]
    models = _model_names(runs)
    tasks = [str(run.metadata["task"]["name"]) for run in runs]
    found = list(zip(models, tasks, runs, strict=True))
    seen: dict[tuple[str, str], str] = {}
    for (model, task, _), name in zip(found, names, strict=True):
        if (model, task) in seen:
            raise ValueError(
                f"{seen[model, task]} and {name} are both runs of {model} on {task}; "
                "give one of them"
            )
        seen[model, task] = name
    return sorted(found, key=_order)


def task_title(task: str) -> str:
    """The name of a task as the paper prints it."""
    return TASK_TITLES.get(task, task)


def sorted_tasks(names: Iterable[str]) -> list[str]:
    """Different tasks in the paper's order."""
    return sorted(set(names), key=_task_order)


def _order(cell: tuple[str, str, Run]) -> tuple[Any, ...]:
    model, task, run = cell
    return (run.metadata["model"]["n_parameters"], model, _task_order(task))


def _task_order(task: str) -> tuple[int, str]:
    known = list(TASK_TITLES)
    return (known.index(task) if task in TASK_TITLES else len(known), task)


def _model_names(runs: list[Run]) -> list[str]:
    facts = [run.metadata["model"] for run in runs]
    names = []
    for fact in facts:
        alike = [other for other in facts if other["name"] == fact["name"]]
        parts = []
        for key in _DISTINCTIONS:
            if len({other.get(key) for other in alike}) > 1:
                parts.append(str(fact.get(key) or "none")[:_SHOWN])
                alike = [other for other in alike if other.get(key) == fact.get(key)]
        names.append(f"{fact['name']} ({', '.join(parts)})" if parts else str(fact["name"]))
    return names
