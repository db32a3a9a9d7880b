"""Estimate what a run's components tell about its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import app


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
