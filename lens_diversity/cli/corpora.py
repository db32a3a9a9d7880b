"""Average the decomposition of a model's next-token predictions over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import (
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
    import pandas as pd

    from lens_diversity.profiling import Profile


@app.command()
def profile(
    model: Annotated[str, typer.Option(help="Hub name, folder, .gguf file or smollm2.")],
    texts: Annotated[str, typer.Option(help="A file, or the name of a data set on the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the results; a stopped one goes on there.")],
    column: Annotated[str, typer.Option(help="Where rows have their text.")] = "text",
    config: Annotated[str | None, typer.Option(help="Configuration on the Hub.")] = None,
    split: Annotated[str, typer.Option(help="Split on the Hub.")] = "train",
    texts_revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the data set.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="First documents only.")] = None,
    loss: Annotated[
        str, typer.Option(help="cross_entropy, squared, paper or brier.")
    ] = "cross_entropy",
    combine: Annotated[
        str, typer.Option(help="mean, or sum: the ensemble is the model itself.")
    ] = "mean",
    gauge: Annotated[str, typer.Option(help="model, or centred.")] = "model",
    context: Annotated[
        int | None, typer.Option(help="Tokens a window.", show_default="512, or the model's")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Windows a forward pass.")] = 4,
    device: DeviceOption = None,
    dtype: DtypeOption = Precision.float32,
    revision: RevisionOption = None,
    unit: UnitOption = Unit.sublayer,
) -> None:
    """Average the full-vocabulary decomposition of next-token predictions over texts."""
    from lens_diversity.profiling import profile as measure

    bridge = load_bridge(model, device, dtype, revision)
    found = measure(
        bridge,
        texts,
        loss,
        combine,
        gauge,
        out,
        column=column,
        config=config,
        split=split,
        revision=texts_revision,
        limit=limit,
        context=context,
        batch_size=batch_size,
        unit=unit.value,
    )
    _print_profile(found, _write_tables(found, out))


def _write_tables(found: Profile, out: Path) -> list[Path]:
    from lens_diversity import plots

    tables = {
        "summary": found.summary().rename_axis("quantity").reset_index(),
        "components": found.by_component(),
        "modules": found.by_module().reset_index(),
        "positions": found.by_position(),
        "module_positions": found.by_module_and_position(),
    }
    files = []
    for name, table in tables.items():
        files.append(out / f"{name}.csv")
        table.to_csv(files[-1], index=False)
    if found.n_tokens:
        figures = {
            "components": plots.profile_components(found),
            "positions": plots.profile_positions(found),
        }
        for name, figure in figures.items():
            files.append(out / f"{name}.html")
            figure.write_html(files[-1], include_plotlyjs=True)
    return files


def _print_profile(found: Profile, files: list[Path]) -> None:
    from lens_diversity.results import UNITS

    console = Console()
    title = (
        f"{found.metadata['model']['name']}, {found.n_documents:,} documents, "
        f"{found.n_tokens:,} tokens"
    )
    unit = UNITS[found.metadata["settings"]["loss"]]
    means = Table("", "mean", "95% interval", title=Text(title), caption=Text(f"in {unit}"))
    for name, row in found.summary().iterrows():
        means.add_row(str(name), f"{row['mean']:.6g}", _interval(row))
    console.print(means)
    shares = Table("module", "components", "share of bias", "share of diversity")
    for module, row in found.by_module().iterrows():
        parts = (f"{row['bias_share']:.2%}", f"{row['diversity_share']:.2%}")
        shares.add_row(Text(str(module)), f"{row['components']:.0f}", *parts)
    console.print(shares)
    if found.n_without_targets:
        console.print(f"{found.n_without_targets} documents had nothing to predict.")
    for path in files:
        console.print(Text(str(path)), soft_wrap=True)


def _interval(row: pd.Series) -> str:
    return f"{row['low']:.6g} to {row['high']:.6g}"
