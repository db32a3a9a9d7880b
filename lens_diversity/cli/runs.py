"""Evaluate a model on a task, or a grid of both, and report what came of it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import (
    DataOption,
    DeviceOption,
    DtypeOption,
    Precision,
    RevisionOption,
    Unit,
    UnitOption,
    app,
    load_bridge,
)

if TYPE_CHECKING:
    from lens_diversity.evaluation import Run


class Overlong(StrEnum):
    """What to do with prompts longer than the context."""

    error = "error"
    truncate = "truncate"


@app.command()
def run(
    model: Annotated[str, typer.Option(help="Hub name, folder, .gguf file or smollm2.")],
    task: Annotated[str, typer.Option(help="Name of a task, or a YAML file of your own.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; a stopped run goes on there.")],
    data: DataOption = None,
    limit: Annotated[int | None, typer.Option(help="First rows only (the paper: 2000).")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples a forward pass.")] = 16,
    device: DeviceOption = None,
    dtype: DtypeOption = Precision.float32,
    revision: RevisionOption = None,
    shots: Annotated[int, typer.Option(help="Demonstrations before each prompt.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of their draw.")] = 0,
    overlong: Annotated[
        Overlong, typer.Option(help="Prompts longer than the context: refuse, or cut.")
    ] = Overlong.error,
    unit: UnitOption = Unit.sublayer,
) -> None:
    """Evaluate a model on a task and write the decomposition of its layers."""
    from lens_diversity.evaluation import evaluate
    from lens_diversity.evaluation.distributed import is_first, own_device
    from lens_diversity.tasks import load

    loaded = load(task, limit=limit, data_files=data, n_shots=shots, seed=seed)
    bridge = load_bridge(model, device or own_device(), dtype, revision)
    result = evaluate(bridge, loaded, batch_size, out, overlong=overlong.value, unit=unit.value)
    if not is_first():
        return
    files = _write_results(result, out)
    _print_run(result, files)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file with models, tasks and a folder.")],
    cells: Annotated[
        str | None,
        typer.Option("--cell", "--cells", help="Which ones: 3, 0-7 or 0-3,9.", show_default="all"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the grid and its needs.")
    ] = False,
    list_cells: Annotated[
        bool, typer.Option("--list", help="List cells and their status.")
    ] = False,
) -> None:
    """Evaluate a grid of models and tasks, each cell a run of its own that can be resumed."""
    from lens_diversity.cli import _sweep_view as view
    from lens_diversity.evaluation.sweep import run_sweep
    from lens_diversity.evaluation.sweep_file import load_sweep

    grid = load_sweep(file)
    chosen = grid.select(cells)
    console = Console()
    if list_cells:
        console.print(view.cell_table(grid, chosen))
    if dry_run:
        console.print(view.model_table(chosen), view.task_table(chosen))
        console.print(Text(f"{len(chosen)} cells in {grid.out}"), soft_wrap=True)
    if list_cells or dry_run:
        return
    failed = 0
    for number, outcome in enumerate(run_sweep(grid, chosen), start=1):
        failed += outcome.status == "failed"
        console.print(view.outcome_line(outcome, f"[{number}/{len(chosen)}]"), soft_wrap=True)
    if failed:
        console.print(Text(f"{failed} of {len(chosen)} cells failed, see {grid.out}/sweep.json"))
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders to search for runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    correction: Annotated[
        str | None,
        typer.Option(help="Correct Figure 3's p-values: holm or benjamini-hochberg."),
    ] = None,
) -> None:
    """Write one self-contained page with the paper's tables and figures from stored runs."""
    from lens_diversity.report import write_report

    Console().print(Text(f"report     {write_report(runs, out, correction)}"), soft_wrap=True)


def _write_results(result: Run, out: Path) -> dict[str, Path]:
    from lens_diversity.plots import layer_module_heatmap

    files = {
        "run": out / "run.json",
        "summary": out / "summary.json",
        "components": out / "components.csv",
        "heatmap": out / "heatmap.html",
    }
    decomposition = result.decomposition()
    files["summary"].write_text(json.dumps(result.summary(), indent=2) + "\n", encoding="utf-8")
    decomposition.by_component().to_csv(files["components"], index=False)
    figure = layer_module_heatmap(decomposition, quantity="diversity")
    figure.write_html(files["heatmap"], include_plotlyjs=True)
    return files


def _print_run(result: Run, files: dict[str, Path]) -> None:
    console = Console()
    summary = result.summary()
    model, task = result.metadata["model"]["name"], result.metadata["task"]["name"]
    means = Table("", "raw", "x 100", title=Text(f"{model} on {task}, {len(result)} examples"))
    for name in ("accuracy", "mse", "bias", "diversity"):
        means.add_row(name, f"{summary[name]:.6g}", f"{100 * summary[name]:.4g}")
    console.print(means)
    shares = Table("module", "share of bias", "share of diversity")
    for module, bias in summary["bias_share"].items():
        shares.add_row(module, f"{bias:.2%}", f"{summary['diversity_share'][module]:.2%}")
    console.print(shares)
    if result.metadata["n_truncated"]:
        console.print(f"{result.metadata['n_truncated']} prompts were cut to the context length.")
    for what, path in files.items():
        console.print(Text(f"{what:<11}{path}"), soft_wrap=True)
