"""The paper's tables and averages, from the option logits of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lens_diversity.evaluation import Run
from lens_diversity.paper._cells import AVERAGE, cells
from lens_diversity.results import layer_of
from lens_diversity.statistics import bootstrap_interval

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("accuracy", "mse", "bias", "diversity")
"""Columns of Table 1: accuracy, MSE and bias (Eq. 14), diversity (Eq. 8)."""


def table1(runs: Sequence[Run | Any]) -> pd.DataFrame:
    """Accuracy, MSE, bias and diversity of each model on each task (Table 1).

    Args:
        runs: Finished runs, at most one for a model and task.

    Returns:
        One row per model and task and, with task ``Avg.``, one per model: the plain mean over the
        tasks it was run on, of which ``n_tasks`` says how many. ``accuracy``, ``mse``, ``bias``
        and ``diversity`` are raw; the same names with ``_x100`` are times 100, as the paper prints
        accuracy, MSE and bias (it does not say which of the two its diversity is). ``_low`` and
        ``_high`` are 95 % bootstrap intervals over examples, raw, missing in averages.
        ``uniform_mse`` is the MSE of equal probabilities, ``(k - 1) / k^2`` for ``k`` options, and
        ``majority`` the accuracy of always giving the most frequent answer.

    Raises:
        ValueError: If there is no run, or two are of one model and task.
    """
    import pandas as pd

    rows = []
    for model, task, run in cells(runs):
        rows.append({"model": model, "task": task, "n_tasks": 1, **_table1_cell(run)})
    frame = pd.DataFrame(rows)
    averaged = [*METRICS, "uniform_mse", "majority"]
    means = frame.groupby("model", sort=False)[averaged].mean()
    means["n_examples"] = frame.groupby("model")["n_examples"].sum()
    means["n_tasks"] = frame.groupby("model").size()
    averages = means.reset_index().assign(task=AVERAGE)
    frame = pd.concat([frame, averages], ignore_index=True)[frame.columns]
    for metric in METRICS:
        frame[f"{metric}_x100"] = 100 * frame[metric]
    return frame


def _table1_cell(run: Run) -> dict[str, int | float]:
    result = run.decomposition()
    right = (run.predictions == run.gold).double()
    rows = torch.stack([right, result.error, result.bias, result.diversity], dim=1).numpy()
    low, high = bootstrap_interval(rows)
    options = run.n_options.double()
    found: dict[str, int | float] = {"n_examples": len(run)}
    found |= dict(zip(METRICS, rows.mean(0).tolist(), strict=True))
    found["uniform_mse"] = float(((options - 1) / options.square()).mean())
    found["majority"] = float(run.gold.bincount().max()) / len(run)
    for metric, lower, upper in zip(METRICS, low.tolist(), high.tolist(), strict=True):
        found |= {f"{metric}_low": lower, f"{metric}_high": upper}
    return found


def table4(runs: Sequence[Run | Any]) -> pd.DataFrame:
    """Sizes of the models (Table 4).

    Args:
        runs: Finished runs; a model's first is read.

    Returns:
        One row per model: ``parameters`` (shared weights once), ``components`` (the paper's layer
        size: one embedding and the sublayers of every *application* of a block, so that a block
        run twice counts twice), ``layers`` (applications of blocks), and how many components are
        ``embed``, ``attn`` and ``mlp``; then ``d_model``, ``d_vocab`` and ``dtype``.

    Raises:
        ValueError: If there is no run, or two are of one model and task.
    """
    import pandas as pd

    first: dict[str, Run] = {}
    for model, _, run in cells(runs):
        first.setdefault(model, run)
    rows = []
    for model, run in first.items():
        facts = run.metadata["model"]
        sizes = {name: facts[name] for name in ("d_model", "d_vocab", "dtype")}
        rows.append(
            {"model": model, "parameters": facts["n_parameters"], **_components(run), **sizes}
        )
    return pd.DataFrame(rows)


def _components(run: Run) -> dict[str, int]:
    layers = {layer_of(label) for label in run.labels} - {None}
    kinds = {kind: run.modules.count(kind) for kind in ("embed", "attn", "mlp")}
    return {"components": len(run.labels), "layers": len(layers), **kinds}


def module_shares(runs: Sequence[Run | Any]) -> pd.DataFrame:
    """Share of bias and of diversity by kind of module (Eqs. 9-10, Figure 4).

    Args:
        runs: Finished runs, at most one for a model and task.

    Returns:
        One row per model, task and module and, with task ``Avg.``, the mean over the model's
        tasks, which is what Figure 4 shows: ``component_share`` (of the number of components),
        ``bias_share`` and ``diversity_share``, each summing to one over modules. A share of a
        total that is zero is missing, and left out of averages.

    Raises:
        ValueError: If there is no run, or two are of one model and task.
    """
    import pandas as pd

    shares = ["component_share", "bias_share", "diversity_share"]
    frames = []
    for model, task, run in cells(runs):
        modules = run.decomposition().by_module().reset_index()
        modules["component_share"] = modules["components"] / len(run.labels)
        frames.append(modules[["module", *shares]].assign(model=model, task=task))
    frame = pd.concat(frames, ignore_index=True)
    means = frame.groupby(["model", "module"], sort=False)[shares].mean().reset_index()
    frame = pd.concat([frame, means.assign(task=AVERAGE)], ignore_index=True)
    return frame[["model", "task", "module", *shares]]


def scaling(runs: Sequence[Run | Any], min_parameters: int = 0) -> pd.DataFrame:
    """Accuracy and MSE against the number of layers, over models (Figure 6).

    Only tasks that every model was run on count, so that models are compared on the same tasks.

    Args:
        runs: Finished runs, at most one for a model and task.
        min_parameters: Leave out smaller models; the paper shows those of at least 10^9.

    Returns:
        One row per model, by number of components: ``components`` (the paper's layer size),
        ``layers``, ``parameters``, ``accuracy`` and ``mse`` (raw means over tasks), and ``tasks``
        (their names). Empty if the models have no task in common, or none is large enough.

    Raises:
        ValueError: If there is no run, or two are of one model and task.
    """
    return scale_results(table1(runs), table4(runs), min_parameters)


def scale_results(
    results: pd.DataFrame, sizes: pd.DataFrame, min_parameters: int = 0
) -> pd.DataFrame:
    """Do as [`scaling`][lens_diversity.paper.scaling] from tables.

    Args:
        results: From [`table1`][lens_diversity.paper.table1].
        sizes: From [`table4`][lens_diversity.paper.table4], of the same runs.
        min_parameters: Leave out smaller models.

    Returns:
        The same table.
    """
    large = sizes.loc[
        sizes["parameters"] >= min_parameters, ["model", "parameters", "components", "layers"]
    ]
    found = results[results["model"].isin(large["model"]) & (results["task"] != AVERAGE)]
    counts = found.groupby("task", sort=False).size()
    common = list(counts.index[counts == len(large)])
    means = found[found["task"].isin(common)].groupby("model")[["accuracy", "mse"]].mean()
    frame = large.merge(means.reset_index(), on="model").assign(tasks=", ".join(common))
    return frame.sort_values(["components", "parameters"], ignore_index=True)
