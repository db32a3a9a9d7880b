"""Read one file into records (with named fields) or lines of cells (whose header is not settled).

Nothing is guessed beyond the extension, and nothing is converted: labels and texts come out as the
file has them, so that the task's own mapping decides what they mean.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RawFile:
    """A file's rows: ``records`` are mappings, ``lines`` lists of cells; one of them is set."""

    name: str
    sha256: str
    records: list[dict[str, Any]] | None = None
    lines: list[list[str]] | None = None


def read_file(path: Path) -> RawFile:
    """Read a csv, tsv, txt, jsonl, json or parquet file.

    Raises:
        ValueError: If the file is missing, empty, of another kind or malformed.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: unknown kind of file '{path.suffix}'; known are {list(READERS)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        rows = reader(content)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: malformed: {error}") from error
    if not rows:
        raise ValueError(f"{path}: has no rows")
    digest = hashlib.sha256(content).hexdigest()
    if isinstance(rows[0], list):
        return RawFile(path.name, digest, lines=rows)
    return RawFile(path.name, digest, records=rows)


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig")


def _csv(content: bytes) -> list[list[str]]:
    """Cells may be quoted, a quote inside is doubled; a backslash is only a backslash."""
    # newline="" leaves line ends inside quotes as they are.
    reader = csv.reader(io.StringIO(_text(content), newline=""), strict=True, skipinitialspace=True)
    return _same_width([cells for cells in reader if cells])


def _tsv(content: bytes) -> list[list[str]]:
    """Cells are never quoted: GLUE's files have single quotation marks in their sentences."""
    lines = _text(content).split("\n")
    if lines[-1] == "":
        lines.pop()
    return _same_width([line.removesuffix("\r").split("\t") for line in lines])


def _same_width(lines: list[list[str]]) -> list[list[str]]:
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(lines[0]):
            raise ValueError(
                f"row {number} of the file has {len(cells)} columns, the first has {len(lines[0])}"
            )
    return lines


def _jsonl(content: bytes) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(_text(content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: {error}") from error
    return _objects(records)


def _json(content: bytes) -> list[dict[str, Any]]:
    """A list of objects, an object of objects (keyed by row), or JSON lines by another name."""
    try:
        data = json.loads(_text(content))
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        return _jsonl(content)
    if isinstance(data, dict) and all(isinstance(value, dict) for value in data.values()):
        data = list(data.values())
    return _objects(data if isinstance(data, list) else [data])


def _objects(records: list[Any]) -> list[dict[str, Any]]:
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise ValueError(f"row {number} is not an object but {type(record).__name__}")
    return records


def _parquet(content: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    return rows


READERS: dict[str, Callable[[bytes], list[Any]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".txt": _tsv,
    ".jsonl": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
}
