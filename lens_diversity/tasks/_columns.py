"""Find a task's fields among the columns that a data set happens to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lens_diversity.tasks._checks import Alternatives
from lens_diversity.tasks.spec import TaskSpec


@dataclass(frozen=True)
class Layout:
    """The columns that one data set has for a task's fields, choices and label."""

    fields: dict[str, tuple[str, ...]]
    choices: str | None
    label: str


class MissingColumnsError(ValueError):
    """The data lack a column that the task needs."""


def find_layout(spec: TaskSpec, record: Mapping[str, Any]) -> Layout:
    """Choose, for each field, the first alternative whose columns the record has.

    Raises:
        MissingColumnsError: Naming what was found and what was expected.
    """
    missing: list[str] = []

    def first_present(name: str, ways: Alternatives) -> tuple[str, ...]:
        for columns in ways:
            if all(_has(record, column) for column in columns):
                return columns
        missing.append(f"for {name}: {_spell(ways)}")
        return ("",)

    fields = {name: first_present(name, ways) for name, ways in spec.columns.items()}
    choices = None if spec.choices is None else first_present("choices", _single(spec.choices))[0]
    label = first_present("label", _single(spec.label))[0]
    if missing:
        raise MissingColumnsError(
            f"task '{spec.name}' does not find its columns; expected {'; '.join(missing)}; "
            f"found {list(record)}"
        )
    return Layout(fields, choices, label)


def lookup(record: Mapping[str, Any], column: str) -> Any:
    """Return a value by column name, or by a dotted path into nested records; None if absent."""
    if column in record:
        return record[column]
    head, _, rest = column.partition(".")
    inner = record.get(head)
    return lookup(inner, rest) if rest and isinstance(inner, Mapping) else None


def _has(record: Mapping[str, Any], column: str) -> bool:
    head, _, rest = column.partition(".")
    inner = record.get(head)
    return column in record or (bool(rest) and isinstance(inner, Mapping) and _has(inner, rest))


def _single(columns: Iterable[str]) -> Alternatives:
    return tuple((column,) for column in columns)


def _spell(ways: Iterable[tuple[str, ...]]) -> str:
    return ", or ".join(" with ".join(f"'{column}'" for column in columns) for columns in ways)
