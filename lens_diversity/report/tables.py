"""Tables of a report: text cells for the page, full numbers for the download."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lens_diversity.paper._cells import AVERAGE, sorted_tasks, task_title

if TYPE_CHECKING:
    import pandas as pd

MISSING = ""


@dataclass(frozen=True)
class Cell:
    """One cell, as plain text; the template escapes it."""

    text: str
    numeric: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    cells: list[Cell]
    baseline: bool = False
    """Whether it is there for comparison only."""


@dataclass(frozen=True)
class Group:
    """Rows under a heading of their own."""

    heading: str
    rows: list[Row]


@dataclass(frozen=True)
class Table:
    """A table of the page with its numbers as a CSV file."""

    columns: list[Cell]
    groups: list[Group]
    csv_name: str
    csv_uri: str


def frame_table(
    frame: pd.DataFrame,
    csv_name: str,
    titles: Mapping[str, str] | None = None,
    formats: Mapping[str, Callable[[Any], str]] | None = None,
    shown: pd.DataFrame | None = None,
) -> Table:
    """Lay out a data frame, one row a row.

    Args:
        frame: The numbers; the CSV file has all its columns in full precision.
        csv_name: Name of the CSV file.
        titles: Columns to show, with their headings (default: all, by name).
        formats: How to write a column's values.
        shown: What the page shows instead of ``frame``, where some of it is prepared for reading.

    Returns:
        The table; missing values are empty cells.
    """
    import pandas as pd

    shown = frame if shown is None else shown
    titles = titles or {name: name for name in shown.columns}
    formats = formats or {}
    numeric = {name: pd.api.types.is_numeric_dtype(shown[name]) for name in titles}
    rows = [
        Row(
            [
                Cell(_text(value, formats.get(name, _plain)), numeric[name])
                for name, value in zip(titles, record, strict=True)
            ]
        )
        for record in shown[list(titles)].itertuples(index=False)
    ]
    columns = [Cell(title, numeric[name]) for name, title in titles.items()]
    return Table(columns, [Group("", rows)], csv_name, csv_uri(frame))


def printed_table1(frame: pd.DataFrame) -> Table:
    """Lay out Table 1 as the paper does: a block a quantity, models against tasks.

    Args:
        frame: From [`paper.table1`][lens_diversity.paper].

    Returns:
        The table, with the two trivial predictors under accuracy and MSE. Cells that were not run
        are empty; an average of fewer tasks than there are columns says of how many.
    """
    tasks = sorted_tasks(set(frame["task"]) - {AVERAGE})
    blocks = {
        "Accuracy x 100": ("accuracy", 100, ("majority", "always the most frequent answer")),
        "MSE x 100": ("mse", 100, ("uniform_mse", "equal probabilities")),
        "Bias x 100": ("bias", 100, None),
        "Diversity x 100": ("diversity", 100, None),
        "Diversity, raw": ("diversity", 1, None),
    }
    groups = []
    for heading, (metric, scale, baseline) in blocks.items():
        rows = [
            _table1_row(model, found, metric, scale, tasks)
            for model, found in frame.groupby("model", sort=False)
        ]
        if baseline is not None:
            name, title = baseline
            rows.append(_baseline_row(title, frame, name, scale, tasks))
        groups.append(Group(heading, rows))
    columns = [Cell("Model"), *(Cell(task_title(task), True) for task in tasks), Cell("Avg.", True)]
    return Table(columns, groups, "table1.csv", csv_uri(frame))


def _table1_row(model: Any, found: pd.DataFrame, metric: str, scale: int, tasks: list[str]) -> Row:
    values: dict[str, float] = dict(zip(found["task"], scale * found[metric], strict=True))
    digits = 2 if scale == 100 else 4
    texts = [f"{values[task]:.{digits}f}" if task in values else MISSING for task in tasks]
    n_tasks = len(values) - 1
    note = "" if n_tasks == len(tasks) else f"({n_tasks} of {len(tasks)})"
    average = Cell(f"{values[AVERAGE]:.{digits}f}", True, note)
    return Row([Cell(str(model)), *(Cell(text, True) for text in texts), average])


def _baseline_row(title: str, frame: pd.DataFrame, name: str, scale: int, tasks: list[str]) -> Row:
    """A predictor that looks at no prompt; a range where models saw different rows."""
    cells = [Cell(title)]
    for task in tasks:
        values = frame.loc[frame["task"] == task, name] * scale
        ends = dict.fromkeys(f"{value:.2f}" for value in (values.min(), values.max()))
        cells.append(Cell(" to ".join(ends), True))
    return Row([*cells, Cell(MISSING, True)], baseline=True)


def csv_uri(frame: pd.DataFrame) -> str:
    """Embed a data frame as a CSV file.

    Args:
        frame: The numbers.

    Returns:
        A ``data:`` address with every column in full precision.
    """
    data = base64.b64encode(frame.to_csv(index=False).encode()).decode()
    return f"data:text/csv;charset=utf-8;base64,{data}"


def percent(value: float) -> str:
    """A share of one in percent."""
    return f"{value:.2%}"


def _text(value: Any, write: Callable[[Any], str]) -> str:
    import pandas as pd

    return MISSING if value is None or pd.isna(value) else write(value)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
