"""A progress bar on a terminal, with speed and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Speed(ProgressColumn):
    def __init__(self, noun: str) -> None:
        super().__init__()
        self._noun = noun

    def render(self, task: Task) -> Text:
        """Items a second of the recent past."""
        return Text("" if task.speed is None else f"{task.speed:.1f} {self._noun}/s")


@contextmanager
def progress_bar(
    title: str, noun: str, total: int | None, done: int = 0, *, shown: bool
) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, none elsewhere.

    Args:
        title: What is being done.
        noun: What is counted.
        total: How many there are, None if that is not known.
        done: How many are done already.
        shown: Whether to show it at all.

    Yields:
        A function to call with the number of items that were done since.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        _Speed(noun),
        TimeRemainingColumn(),
    )
    hidden = not (shown and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda count: bar.advance(task, count)
