"""Checks of a task's fields: each returns the normal form or says which field is wrong and why."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Neither files nor users' templates are trusted with more than text; an unknown variable is an
# error and not an empty string.
ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True
)

Alternatives = tuple[tuple[str, ...], ...]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def label_key(raw: Any) -> str:
    """Return one spelling for a raw label: ``1``, ``"1"``, ``True`` and ``"true"`` are the same."""
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    key = str(raw).strip().casefold()
    return {"false": "0", "true": "1"}.get(key, key)


def text(field: str, value: Any) -> None:
    """Check that a field is a non-empty string."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field '{field}': expected a non-empty string, found {value!r}")


def name(value: Any) -> None:
    """Check that a name can stand on a command line and in a file's name."""
    if not isinstance(value, str) or not re.fullmatch(r"\w[\w-]*", value):
        raise ValueError(
            f"field 'name': expected letters, digits, '_' and '-' only, found {value!r}"
        )


def answer_prefix(value: Any) -> None:
    """Check that what precedes an option is white space, or nothing."""
    if not isinstance(value, str) or value.strip():
        raise ValueError(
            f"field 'answer_prefix': expected white space or '', found {value!r}; "
            "words before the answer belong to the prompt"
        )


def options(value: Any) -> tuple[str, ...]:
    """Check the options that all rows share."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < 2:
        raise ValueError(f"field 'options': expected a list of two or more, found {value!r}")
    for option in value:
        if isinstance(option, bool):
            raise ValueError(
                f"field 'options': found the boolean {option}; YAML reads a bare Yes, No, True or "
                "False as a boolean, so write it in quotes"
            )
        if not isinstance(option, str) or not option or option != option.strip():
            raise ValueError(
                f"field 'options': expected words without space around them, found {option!r}; "
                "the space before an answer is 'answer_prefix'"
            )
    if len(set(value)) < len(value):
        raise ValueError(f"field 'options': {list(value)} has equal options")
    return tuple(value)


def template_variables(prompt: Any, *, has_choices: bool) -> list[str]:
    """Check a prompt template and return the fields it takes from a row."""
    text("prompt", prompt)
    try:
        found = jinja2.meta.find_undeclared_variables(ENVIRONMENT.parse(prompt))
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"field 'prompt': not a Jinja2 template: {error}") from error
    if "choices" in found and not has_choices:
        raise ValueError("field 'prompt': uses {{ choices }}, but no column is named by 'choices'")
    variables = sorted(found - {"options", "choices"})
    if not variables:
        raise ValueError(f"field 'prompt': uses no field of the data: {prompt!r}")
    return variables


def column_names(field: str, value: Any) -> tuple[str, ...]:
    """Check one column name or a list of them."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not given or not all(_is_column(c) for c in given):
        raise ValueError(f"field '{field}': expected a column name or a list, found {value!r}")
    return tuple(given)


def _is_column(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def alternatives(field: str, value: Any) -> Alternatives:
    """Return ``((column, ...), ...)``: alternatives, each of columns to join."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not given:
        raise ValueError(f"field '{field}': expected a column name or a list, found {value!r}")
    return tuple(column_names(field, item) for item in given)


def columns(value: Any, variables: Sequence[str]) -> dict[str, Alternatives]:
    """Return where each field of the template comes from."""
    if not isinstance(value, Mapping):
        raise ValueError(f"field 'columns': expected field: column names, found {value!r}")
    for field in value:
        if field not in variables:
            hint = did_you_mean(str(field), variables)
            raise ValueError(
                f"field 'columns': the prompt has no {{{{ {field} }}}}{hint}; "
                f"its fields are {list(variables)}"
            )
    return {v: alternatives(f"columns.{v}", value.get(v, v)) for v in variables}


def label(value: Any, shared: Sequence[str] | None) -> dict[str, dict[str, str] | None]:
    """Return ``{column: {raw value: option} or None}``; None reads the options' own names."""
    given = {value: None} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"field 'label': expected column: {{value: option}}, found {value!r}")
    return {
        str(column): None if meaning is None else _meaning(f"label.{column}", meaning, shared)
        for column, meaning in given.items()
    }


def _meaning(field: str, value: Any, shared: Sequence[str] | None) -> dict[str, str]:
    if shared is None:
        raise ValueError(f"field '{field}': with 'choices', name the column only")
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"field '{field}': expected value: option, found {value!r}")
    result: dict[str, str] = {}
    for raw, option in value.items():
        key = label_key(raw)
        if option not in shared or isinstance(option, bool):
            raise ValueError(
                f"field '{field}': {raw!r} stands for {option!r}, which is none of the options "
                f"{list(shared)}"
            )
        if result.setdefault(key, option) != option:
            raise ValueError(f"field '{field}': {key!r} stands for two options")
    unused = [option for option in shared if option not in result.values()]
    if unused:
        raise ValueError(f"field '{field}': no value stands for {unused}")
    return result


def headerless(value: Any) -> dict[str, tuple[str, ...]]:
    """Return the column names of each part; parts are told apart by how many they have."""
    if not isinstance(value, Mapping):
        raise ValueError(f"field 'headerless': expected part: column names, found {value!r}")
    parts = {str(p): column_names(f"headerless.{p}", names) for p, names in value.items()}
    if len({len(names) for names in parts.values()}) < len(parts):
        raise ValueError("field 'headerless': parts must differ in their number of columns")
    return parts
