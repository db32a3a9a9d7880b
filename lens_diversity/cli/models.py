"""Check the identities on a model of one's own."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import (
    DeviceOption,
    DtypeOption,
    ModelArgument,
    Precision,
    RevisionOption,
    app,
    load_bridge,
)


@app.command()
def verify(
    model: ModelArgument,
    device: DeviceOption = None,
    dtype: DtypeOption = Precision.float32,
    revision: RevisionOption = None,
) -> None:
    """Check on a model of your own that its components sum to its logits."""
    from lens_diversity.verification import verify as run_checks

    checks = run_checks(load_bridge(model, device, dtype, revision))
    table = Table("check", "error", "tolerance", "result", title=f"Identities of {model}")
    for check in checks:
        verdict = "[green]passed[/]" if check.passed else "[bold red]failed[/]"
        name = Text(check.name).append(f"\n{check.detail}", style="dim")
        table.add_row(name, f"{check.value:.2e}", f"{check.tolerance:.0e}", verdict)
    Console().print(table)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
