"""Measure the engines on the user's own machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import app

if TYPE_CHECKING:
    from lens_diversity.bench import Measurement


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
