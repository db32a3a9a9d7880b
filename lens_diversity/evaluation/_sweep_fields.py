"""The fields of a sweep file: each check returns the normal form or says what it expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lens_diversity.evaluation.prompts import OVERLONG
from lens_diversity.models import DTYPES
from lens_diversity.tasks._checks import did_you_mean

Check = Callable[[Any], Any]


def check(
    where: str, data: Any, checks: Mapping[str, Check], required: Sequence[str]
) -> dict[str, Any]:
    """Check a mapping field by field and return the normal forms.

    Raises:
        ValueError: If it is no mapping, or a field is unknown, missing or invalid; the message
            names the field.
    """
    prefix = f"{where}." if where else ""
    if not isinstance(data, Mapping):
        place = f"field '{where}'" if where else "the file"
        raise ValueError(f"{place}: expected a mapping with {list(checks)}, found {data!r}")
    for key in data:
        if key not in checks:
            hint = did_you_mean(str(key), checks)
            raise ValueError(f"field '{prefix}{key}': unknown{hint}; known are {list(checks)}")
    for key in required:
        if key not in data:
            raise ValueError(f"field '{prefix}{key}': missing")
    result = {}
    for key, value in data.items():
        try:
            result[str(key)] = checks[key](value)
        except _UnexpectedError as error:
            raise ValueError(f"field '{prefix}{key}': expected {error}, found {value!r}") from error
    return result


class _UnexpectedError(Exception):
    """What a field should hold."""


def safe_name(text: str) -> str:
    """Turn a Hub name or a branch into one folder's name.

    Example:
        >>> safe_name("facebook/MobileLLM-125M")
        'facebook--MobileLLM-125M'
    """
    return re.sub(r"[^\w.-]+", "--", text)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _UnexpectedError("a text (numbers in quotes)")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise _UnexpectedError("a text or a list of texts (numbers in quotes)")
    return tuple(_text(item) for item in given)


def _folder(value: Any) -> str:
    if not isinstance(value, str) or safe_name(value) != value or value.strip(".") == "":
        raise _UnexpectedError("a folder name of letters, digits, '_', '-' and '.'")
    return value


def _entries(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _UnexpectedError("a list of one or more")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _UnexpectedError("a mapping")
    return value


def _device_map(value: Any) -> str | Mapping[str, Any]:
    return _text(value) if isinstance(value, str) else _mapping(value)


def _one_of(choices: Sequence[str]) -> Check:
    def checked(value: Any) -> str:
        if value not in choices:
            raise _UnexpectedError(f"one of {list(choices)}")
        return str(value)

    return checked


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise _UnexpectedError("an integer")
    return value


def _count(at_least: int) -> Check:
    def checked(value: Any) -> int:
        if _integer(value) < at_least:
            raise _UnexpectedError(f"{at_least} or more")
        return int(value)

    return checked


def _size(value: Any) -> int:
    """``125M``, ``3.8B`` or the number itself."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", value) if isinstance(value, str) else None
    if found is None:
        return int(_count(1)(value))
    return round(float(found[1]) * {"M": 10**6, "B": 10**9}[found[2]])


MODEL_DEFAULTS: dict[str, Check] = {
    "dtype": _one_of(list(DTYPES)),
    "device": _text,
    "device_map": _device_map,
    "batch_size": _count(1),
    "overlong": _one_of(OVERLONG),
}
TASK_DEFAULTS: dict[str, Check] = {"limit": _count(1), "shots": _count(0), "seed": _integer}
MODEL: dict[str, Check] = MODEL_DEFAULTS | {
    "ref": _text,
    "folder": _folder,
    "revisions": _texts,
    "parameters": _size,
    "layers": _count(1),
    "applications": _count(1),
}
TASK: dict[str, Check] = TASK_DEFAULTS | {"name": _text, "folder": _folder, "data": _texts}
SWEEP: dict[str, Check] = {
    "out": _text,
    "models": _entries,
    "tasks": _entries,
    "defaults": _mapping,
}
