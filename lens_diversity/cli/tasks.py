"""Look at the tasks and their exact prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lens_diversity.cli._app import DataOption, app

if TYPE_CHECKING:
    from lens_diversity.tasks import Task

tasks_app = typer.Typer(no_args_is_help=True, help="Look at the tasks and their exact prompts.")
app.add_typer(tasks_app, name="tasks")


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


def _print_row(task: Task, row: int) -> None:
    # Plain text: a prompt is shown as it is, whatever a terminal would make of its brackets.
    options = task.row_options(row)
    typer.echo(task.prompts[row])
    typer.echo("")
    typer.echo(f"options: {options} after {task.answer_prefix!r}")
    typer.echo(f"gold:    {options[task.gold[row]]!r} (index {task.gold[row]})")
