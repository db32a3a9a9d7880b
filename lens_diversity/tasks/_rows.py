"""From records to rows of a task: a prompt, its options and the index of the right one."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from lens_diversity.tasks._checks import ENVIRONMENT, label_key
from lens_diversity.tasks._columns import Layout, find_layout, lookup
from lens_diversity.tasks.spec import TaskSpec

_SHOWN = 5


@dataclass(frozen=True)
class Row:
    """One example."""

    prompt: str
    options: list[str]
    gold: int


class _RowError(ValueError):
    """What is wrong with one row."""


def to_rows(
    spec: TaskSpec, records: Sequence[Mapping[str, Any]]
) -> tuple[list[Row], dict[str, Any]]:
    """Fill the template with every record; also count the rows that are out of the ordinary.

    No row is dropped: an empty text is kept and counted, a missing one is an error.

    Raises:
        ValueError: If columns are missing, or rows lack a text or a valid gold label; names the
            first such rows (counted from 1) and how many there are.
    """
    layout = find_layout(spec, records[0])
    template = ENVIRONMENT.from_string(spec.prompt)
    rows, counts, problems = [], Counter[str](), []
    n_choices = Counter[int]()
    for number, record in enumerate(records, start=1):
        try:
            fields = {name: _text(record, columns) for name, columns in layout.fields.items()}
            options, names = _options(spec, layout, record, fields)
            gold = _gold(spec, layout, record, names)
            prompt = _render(template, fields, options)
        except _RowError as error:
            problems.append(f"row {number}: {error}")
            continue
        rows.append(Row(prompt, options, gold))
        counts.update(f"empty_{name}" for name in layout.fields if not fields[name].strip())
        if layout.choices is not None:
            n_choices[len(options)] += 1
            counts["relabelled_choices"] += names != options
    if problems:
        shown = "; ".join(problems[:_SHOWN]) + ("; ..." if len(problems) > _SHOWN else "")
        raise ValueError(
            f"task '{spec.name}': {len(problems)} of {len(records)} rows cannot be used: {shown}"
        )
    notes: dict[str, Any] = {name: count for name, count in counts.items() if count}
    if n_choices:
        notes["rows_by_choices"] = {str(n): n_choices[n] for n in sorted(n_choices)}
    return rows, notes


def _render(template: jinja2.Template, fields: Mapping[str, Any], options: list[str]) -> str:
    try:
        # White space at the end would be tokenised apart from the answer's.
        prompt = template.render(fields, options=options).strip()
    except jinja2.TemplateError as error:
        raise _RowError(f"the template cannot be filled: {error}") from error
    if not prompt:
        raise _RowError("the prompt is empty")
    return prompt


def _text(record: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    values = [lookup(record, column) for column in columns]
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            found = "nothing" if value is None else type(value).__name__
            raise _RowError(f"'{column}' holds {found}, not a text")
    return " ".join(str(value) for value in values)


def _options(
    spec: TaskSpec, layout: Layout, record: Mapping[str, Any], fields: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the options and the names that the data give them; add choices to the fields."""
    if layout.choices is None:
        shared = list(spec.options or ())
        return shared, shared
    texts, names = _choices(lookup(record, layout.choices), layout.choices)
    letters = list(string.ascii_uppercase[: len(texts)])
    fields["choices"] = [
        {"letter": letter, "text": text} for letter, text in zip(letters, texts, strict=True)
    ]
    return letters, names


def _choices(raw: Any, column: str) -> tuple[list[str], list[str]]:
    """Read ``{text: [...], label: [...]}``, ``[{text:, label:}, ...]`` or a list of texts."""
    if isinstance(raw, Mapping) and {"text", "label"} <= set(raw):
        texts, names = list(raw["text"]), list(raw["label"])
    elif isinstance(raw, list) and all(isinstance(c, Mapping) for c in raw):
        texts, names = [c.get("text") for c in raw], [c.get("label") for c in raw]
    elif isinstance(raw, list):
        texts, names = raw, list(range(len(raw)))
    else:
        raise _RowError(f"'{column}' holds {raw!r}, not a list of choices")
    if not all(isinstance(text, str) for text in texts) or len(texts) != len(names):
        raise _RowError(f"'{column}' has choices without a text or a label")
    if not 2 <= len(texts) <= len(string.ascii_uppercase):
        raise _RowError(f"'{column}' has {len(texts)} choices, not 2 to 26")
    return texts, [str(name) for name in names]


def _gold(spec: TaskSpec, layout: Layout, record: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return the index of the right option."""
    raw = lookup(record, layout.label)
    key = label_key(raw)
    meaning = spec.label[layout.label]
    known = [label_key(name) for name in names] if meaning is None else list(meaning)
    if known.count(key) != 1:
        hidden = " (hidden or undecided)" if key in {"-1", "-", "", "none"} else ""
        raise _RowError(f"'{layout.label}' is {raw!r}{hidden}, which is none of {known}")
    return known.index(key) if meaning is None else list(names).index(meaning[key])
