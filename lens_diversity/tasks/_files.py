"""Local files: one, several shards of one, or one row spread over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lens_diversity.tasks._columns import MissingColumnsError, find_layout
from lens_diversity.tasks._readers import RawFile, read_file
from lens_diversity.tasks.spec import TaskSpec

Record = dict[str, Any]
DataFiles = str | Path | Sequence[str | Path] | Mapping[str, str | Path]


def read_files(spec: TaskSpec, data_files: DataFiles) -> tuple[list[Record], dict[str, Any]]:
    """Read all rows of local files, and say what was read.

    Raises:
        ValueError: If a file cannot be read or lacks the task's columns.
    """
    files = [read_file(path) for path in _paths(spec, data_files)]
    source = {
        "kind": "files",
        "files": [{"name": file.name, "sha256": file.sha256} for file in files],
    }
    if _is_side_by_side(spec, files):
        return _join(spec, files), source
    records = [record for file in files for record in _records(spec, file)]
    return records, source


def _paths(spec: TaskSpec, data_files: DataFiles) -> list[Path]:
    if isinstance(data_files, Mapping):
        parts = list(spec.headerless)
        if len(parts) < 2 or set(data_files) != set(parts):
            expected = f"the parts {parts}" if len(parts) > 1 else "a path or a list of paths"
            raise ValueError(
                f"data_files: task '{spec.name}' takes {expected}, found {list(data_files)}"
            )
        return [Path(data_files[part]).expanduser() for part in parts]
    given = [data_files] if isinstance(data_files, str | Path) else list(data_files)
    if not given:
        raise ValueError("data_files: the list is empty; name at least one file")
    paths = [Path(item).expanduser() for item in given]
    return _in_folder(spec, paths[0]) if len(paths) == 1 and paths[0].is_dir() else paths


def _in_folder(spec: TaskSpec, folder: Path) -> list[Path]:
    paths = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    # Train, development and test files often lie together, and must not be run together.
    if len(paths) not in {1, len(spec.headerless)}:
        raise ValueError(
            f"data_files: the folder {folder} has {len(paths)} files, "
            f"{[p.name for p in paths]}; name the file to evaluate"
        )
    return paths


def _is_side_by_side(spec: TaskSpec, files: list[RawFile]) -> bool:
    """True if each row is spread over the files, False if each file has whole rows."""
    widths = {len(file.lines[0]) for file in files if file.lines}
    parts = {len(columns) for columns in spec.headerless.values()}
    return len(parts) > 1 and len(files) == len(parts) and widths == parts


def _join(spec: TaskSpec, files: list[RawFile]) -> list[Record]:
    by_width = {len(file.lines[0]): file for file in files if file.lines}
    records: list[Record] = [{} for _ in files[0].lines or ()]
    for columns in spec.headerless.values():
        file = by_width[len(columns)]
        lines = file.lines or []
        if len(lines) != len(records):
            counts = {f.name: len(f.lines or ()) for f in files}
            raise ValueError(f"the files do not have the same number of rows: {counts}")
        for record, cells in zip(records, lines, strict=True):
            record.update(zip(columns, cells, strict=True))
    return records


def _records(spec: TaskSpec, file: RawFile) -> list[Record]:
    """Name the cells of a delimited file, whose first line may or may not be a header."""
    if file.records is not None:
        _find(spec, file, file.records[0])
        return file.records
    lines = file.lines or []
    columns, body = lines[0], lines[1:]
    parts = list(spec.headerless.values())
    try:
        find_layout(spec, dict.fromkeys(columns))
    except MissingColumnsError:
        if len(parts) == 1 and len(parts[0]) == len(columns):
            columns, body = list(parts[0]), lines
    _find(spec, file, dict.fromkeys(columns))
    if not body:
        raise ValueError(f"{file.name}: has a header but no rows")
    return [dict(zip(columns, cells, strict=True)) for cells in body]


def _find(spec: TaskSpec, file: RawFile, record: Mapping[str, Any]) -> None:
    try:
        find_layout(spec, record)
    except MissingColumnsError as error:
        hint = ""
        if spec.headerless:
            parts = {part: list(columns) for part, columns in spec.headerless.items()}
            hint = f"; a file without a header has {parts}"
            hint += ", and all parts are needed" if len(parts) > 1 else ""
        raise ValueError(f"{file.name}: {error}{hint}") from error
