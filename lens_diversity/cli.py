"""The command line: evaluate models, look at tasks, verify a model of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

if TYPE_CHECKING:
    from lens_diversity.bench import Measurement
    from lens_diversity.evaluation import Run
    from lens_diversity.tasks import Task

_PACKAGE = Path(__file__).parent


class _Group(TyperGroup):
    """Shows our own errors as one message; those of a bug keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, OSError) as error:
            if ctx.params.get("debug") or not _is_ours(error):
                raise
            Console(stderr=True, soft_wrap=True).print(Text(f"Error: {error}", style="bold red"))
            raise typer.Exit(2) from error


def _is_ours(error: BaseException) -> bool:
    """Whether the package raised it itself, or a file that the user named is not there."""
    if isinstance(error, FileNotFoundError):
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and _PACKAGE in Path(frame.tb_frame.f_code.co_filename).parents


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Bias-diversity decompositions of transformer layers through the logit lens.",
)
tasks_app = typer.Typer(no_args_is_help=True, help="Look at the tasks and their exact prompts.")
app.add_typer(tasks_app, name="tasks")


class Overlong(StrEnum):
    """What to do with prompts longer than the context."""

    error = "error"
    truncate = "truncate"


class Precision(StrEnum):
    """Dtypes a model can be loaded in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


ModelArgument = Annotated[
    str, typer.Argument(help="Hub name, folder, .gguf file or smollm2.", show_default=False)
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Where to run, for example cuda or cpu.", show_default="automatic"),
]
DtypeOption = Annotated[Precision, typer.Option(help="Dtype of the model.")]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model.")]
DataOption = Annotated[
    list[Path] | None,
    typer.Option(help="Local file instead of the Hub; repeat it for several.", show_default=False),
]


def _print_version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        typer.echo(f"lens-diversity {version('lens-diversity')}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


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
) -> None:
    """Evaluate a model on a task and write the decomposition of its layers."""
    from lens_diversity.evaluation import evaluate
    from lens_diversity.evaluation.distributed import is_first, own_device
    from lens_diversity.tasks import load

    loaded = load(task, limit=limit, data_files=data, n_shots=shots, seed=seed)
    bridge = _load_model(model, device or own_device(), dtype, revision)
    result = evaluate(bridge, loaded, batch_size, out, overlong=overlong.value)
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
    from lens_diversity import _sweep_view as view
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
def verify(
    model: ModelArgument,
    device: DeviceOption = None,
    dtype: DtypeOption = Precision.float32,
    revision: RevisionOption = None,
) -> None:
    """Check on a model of your own that its components sum to its logits."""
    from lens_diversity.verification import verify as run_checks

    checks = run_checks(_load_model(model, device, dtype, revision))
    table = Table("check", "error", "tolerance", "result", title=f"Identities of {model}")
    for check in checks:
        verdict = "[green]passed[/]" if check.passed else "[bold red]failed[/]"
        name = Text(check.name).append(f"\n{check.detail}", style="dim")
        table.add_row(name, f"{check.value:.2e}", f"{check.tolerance:.0e}", verdict)
    Console().print(table)
    if not all(check.passed for check in checks):
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


@app.command()
def information(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Folder for curves and figures.")] = None,
    estimator: Annotated[str, typer.Option(help="plugin, gaussian, knn or probe.")] = "plugin",
    gauge: Annotated[str, typer.Option(help="model, or centred.")] = "model",
    seed: Annotated[int, typer.Option(help="Seed of orders, folds and shuffles.")] = 0,
) -> None:
    """Estimate the information of a run's components about its labels (Theorems 4-8)."""
    from lens_diversity.evaluation import load_run
    from lens_diversity.plots import information_figures

    found = load_run(run).information(estimator, gauge=gauge, seed=seed)
    console = Console()
    console.print(Text(str(found.estimate if found.estimate is not None else found.reason)))
    bounds = Table("", "error", "members", "holds for")
    for name, row in found.errors().iterrows():
        cells = (str(name), f"{row['error']:.4f}", str(row["members"]), row["holds_for"])
        bounds.add_row(*(Text(cell) for cell in cells))
    console.print(bounds)
    for note in found.notes:
        console.print(Text(note))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        found.to_dataframe().to_csv(out / f"curves-{estimator}.csv", index=False)
        found.members().to_csv(out / f"members-{estimator}.csv", index=False)
        for name, figure in information_figures(found).items():
            figure.write_html(out / f"{name}-{estimator}.html", include_plotlyjs=True)
        console.print(Text(f"curves     {out}"), soft_wrap=True)


class BenchTable(StrEnum):
    """What is measured."""

    squared = "squared"
    softmax = "softmax"
    forward = "forward"
    growth = "growth"


class BenchShape(StrEnum):
    """Whose sizes."""

    smollm2 = "smollm2"
    llama3 = "llama3"


@app.command()
def bench(
    tables: Annotated[
        list[BenchTable] | None, typer.Argument(help="Which tables; all if none is named.")
    ] = None,
    shape: Annotated[
        BenchShape, typer.Option(help="Components, d_model and vocabulary of a model.")
    ] = BenchShape.smollm2,
    positions: Annotated[int | None, typer.Option(min=1, help="Positions of the stack.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, taken in turn.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on the CPU.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
    csv: Annotated[Path | None, typer.Option(help="Write the measurements here too.")] = None,
) -> None:
    """Measure the full-vocabulary engines on this machine: time, ratios and peak memory."""
    import torch

    from lens_diversity.bench import SHAPES, TABLES, Meter

    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"torch sees no CUDA device, so nothing can be measured on {device!r}")
    if threads:
        torch.set_num_threads(threads)
    sizes = SHAPES[shape.value]
    if positions:
        sizes = replace(sizes, positions=positions)
    console = Console()
    where = f"{device}, {torch.get_num_threads()} threads" if device == "cpu" else device
    console.print(Text(f"torch {torch.__version__}, {where}, {sizes}"))
    meter, rows = Meter(device, repeats), []
    with torch.inference_mode():
        for table in tables or list(BenchTable):
            for title, measured in TABLES[table.value](meter, sizes):
                _print_measurements(console, title, measured)
                rows += [{"table": title, **asdict(row)} for row in measured]
    if csv is not None:
        import pandas as pd

        pd.DataFrame(rows).to_csv(csv, index=False)


def _print_measurements(console: Console, title: str, measured: Sequence[Measurement]) -> None:
    table = Table("", title=Text(title), title_justify="left")
    for column in ("median s", "fastest s", "ratio", "peak MiB"):
        table.add_column(column, justify="right")
    for row in measured:
        peak = "" if row.peak is None else f"{row.peak:.1f}"
        cells = f"{row.seconds:.4f}", f"{row.fastest:.4f}", f"{row.ratio:.4f}", peak
        table.add_row(Text(row.case), *cells)
    console.print(table)


@tasks_app.command("list")
def list_tasks() -> None:
    """List the known tasks with their options."""
    from lens_diversity import tasks

    table = Table("task", "version", "options", "data on the Hub")
    for name in tasks.names():
        facts = tasks.describe(name)
        options, hub = facts["options"], facts["hub"]
        where = "" if hub is None else f"{hub['path']} {hub['config'] or ''} ({hub['split']})"
        shown = options if isinstance(options, str) else ", ".join(options)
        table.add_row(*(Text(part) for part in (name, facts["version"], shown, where)))
    Console().print(table)


@tasks_app.command("show")
def show_task(
    name: Annotated[str, typer.Argument(help="Name of a task, or a YAML file of your own.")],
    row: Annotated[int, typer.Option(help="Which row, counted from 0.")] = 0,
    data: DataOption = None,
    shots: Annotated[int, typer.Option(help="Demonstrations before the prompt.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of their draw.")] = 0,
) -> None:
    """Print the exact prompt of a row, its options and the right one."""
    from lens_diversity import tasks

    if row < 0:
        raise ValueError(f"--row counts from 0, got {row}")
    task = tasks.load(name, limit=row + 1, data_files=data, n_shots=shots, seed=seed)
    if row >= len(task):
        raise ValueError(f"task '{task.name}' has {len(task)} rows, so there is no --row {row}")
    _print_row(task, row)


def _load_model(name: str, device: str | None, dtype: Precision, revision: str | None) -> Any:
    from lens_diversity.models import load_model

    return load_model(name, device=device, dtype=dtype.value, revision=revision)


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


def _print_row(task: Task, row: int) -> None:
    # Plain text: a prompt is shown as it is, whatever a terminal would make of its brackets.
    options = task.row_options(row)
    typer.echo(task.prompts[row])
    typer.echo("")
    typer.echo(f"options: {options} after {task.answer_prefix!r}")
    typer.echo(f"gold:    {options[task.gold[row]]!r} (index {task.gold[row]})")


def main() -> None:
    """Run the command line."""
    app()
