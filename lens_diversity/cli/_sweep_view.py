"""What the command line shows of a sweep: its cells, its needs, and how each cell ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from lens_diversity.evaluation.footprint import Footprint, declared, from_config
from lens_diversity.evaluation.sweep import Outcome, read_record
from lens_diversity.evaluation.sweep_file import Cell, ModelEntry, Sweep
from lens_diversity.models import DTYPES

_UNKNOWN = "unknown"
_T = TypeVar("_T")


def cell_table(sweep: Sweep, cells: Sequence[Cell]) -> Table:
    """List cells with their numbers and what `sweep.json` says of them."""
    record = read_record(sweep.out)
    table = Table(
        "cell", "model", "revision", "task", "status", title=str(sweep.path), box=box.SIMPLE
    )
    for cell in cells:
        status = record.get(cell.name, {}).get("status", "")
        values = (str(cell.index), cell.model.ref, cell.revision or "", cell.task.folder, status)
        table.add_row(*(Text(value) for value in values))
    return table


def model_table(cells: Sequence[Cell]) -> Table:
    """Show what each model of the cells needs, without its weights."""
    columns = ("model", "layers", "components", "parameters", "weights", "numbers from")
    table = Table(*columns, title="Models (activations come on top of weights)", box=box.SIMPLE)
    for model in _once([cell.model for cell in cells]):
        found = footprint(model)
        size = found.weight_bytes(DTYPES[model.dtype])
        row = (
            model.ref,
            _UNKNOWN if found.layers is None else str(found.layers),
            _UNKNOWN if found.components is None else str(found.components),
            _UNKNOWN if found.parameters is None else _rounded(found.parameters),
            _UNKNOWN if size is None else f"{size / 2**30:.2f} GiB {model.dtype}",
            found.source,
        )
        table.add_row(*(Text(value, overflow="fold") for value in row))
    return table


def task_table(cells: Sequence[Cell]) -> Table:
    """Show what each task of the cells reads."""
    table = Table("cells", "task", "rows", "shots", "data", title="Tasks", box=box.SIMPLE)
    for task in _once([cell.task for cell in cells]):
        row = (
            str(sum(cell.task == task for cell in cells)),
            task.folder,
            "all" if task.limit is None else f"first {task.limit}",
            str(task.shots),
            "Hub" if task.data is None else "\n".join(_with_presence(file) for file in task.data),
        )
        table.add_row(*(Text(value, overflow="fold") for value in row))
    return table


def footprint(model: ModelEntry) -> Footprint:
    """Take the numbers from a local config.json, the sweep file, or the Hub's config.json."""
    written = model.parameters is not None or model.layers is not None
    known = declared(model.parameters, model.layers, model.applications)
    if written and not Path(model.ref).exists():
        return known
    found = from_config(model.ref, model.revisions[0])
    return known if written and found.components is None else found


def outcome_line(outcome: Outcome, place: str) -> Text:
    """Say in one line how a cell ended."""
    text = Text(f"{place} {outcome.cell.name}: {outcome.status} ({outcome.seconds:.1f} s)")
    if outcome.error is not None:
        text.append(f" {outcome.error}", style="bold red")
    if outcome.run is not None:
        summary = outcome.run.summary()
        for name in ("accuracy", "mse", "bias", "diversity"):
            text.append(f"  {name} {summary[name]:.4g}")
    return text


def _once(values: Sequence[_T]) -> list[_T]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _rounded(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.4g}{name}"
    return str(number)


def _with_presence(file: str) -> str:
    return file if Path(file).exists() else f"{file} (not there)"
