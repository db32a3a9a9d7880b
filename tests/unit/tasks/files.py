"""Write small data files for the tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    return write(path, "".join(json.dumps(record) + "\n" for record in records))


def write_parquet(path: Path, records: list[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def sentiment(path: Path, labels: Iterable[Any]) -> Path:
    """Rows of SST-2: ``film 0``, ``film 1`` and so on, with these labels."""
    return write_jsonl(
        path, [{"sentence": f"film {i}", "label": label} for i, label in enumerate(labels)]
    )
