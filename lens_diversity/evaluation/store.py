"""Results on disk: Parquet shards and a header, complete or resumable at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lens_diversity.evaluation._lock import locked
from lens_diversity.evaluation.header import FORMAT, RUN, Kind, kind_of

_NOTE = ".json"


class DamagedRunError(ValueError):
    """Files of a run are missing or are not what was written."""


class UnfinishedRunError(ValueError):
    """A run that was stopped before its last example."""


class Store(Protocol):
    """Where shards go."""

    def done(self) -> set[int]:
        """Which shards are there."""

    def write(self, index: int, table: pa.Table) -> None:
        """Keep a shard."""

    def read(self) -> tuple[pa.Table, dict[str, Any]]:
        """Return all rows and the run's header."""


class MemoryStore:
    """Shards in memory, for runs without a folder."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self._header = dict(header)
        self._tables: dict[int, pa.Table] = {}

    def done(self) -> set[int]:
        """Which shards are there."""
        return set(self._tables)

    def write(self, index: int, table: pa.Table) -> None:
        """Keep a shard."""
        self._tables[index] = table

    def read(self) -> tuple[pa.Table, dict[str, Any]]:
        """Return all rows and the run's header."""
        return pa.concat_tables(self._tables.values()), self._header


class FolderStore:
    """Shards in a folder, each written whole or not at all, and listed with its checksum.

    A shard counts only once the header lists it, so a process can be killed at any moment. Several
    processes can work on one run: the one that holds the header lists what the others noted beside
    their shards (`write_shard` and `note_shard`).
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.folder = folder
        self.header = header
        self.kind = kind_of(header)
        self.shards: dict[str, dict[str, Any]] = header.setdefault("shards", {})

    @classmethod
    def resume(cls, folder: Path, header: Mapping[str, Any]) -> FolderStore:
        """Open a folder for writing: a new one, or one that holds part of the same run.

        Raises:
            ValueError: If the folder holds another run (the message lists the differences), or
                shards without their header.
        """
        header, kind = _as_read_back(header), kind_of(header)
        if not (folder / kind.file).exists():
            strangers = sorted(path.name for path in folder.glob("*.parquet"))
            if strangers:
                raise ValueError(
                    f"{folder} has no {kind.file} but holds {strangers[0]}, which would be "
                    "overwritten; give an empty folder"
                )
            store = cls(folder, header)
            store._write_header()
            return store
        stored = _read_header(folder, kind)
        _require_same_run(folder, stored, header)
        _warn_of_versions(folder, stored, header)
        store = cls(folder, stored)
        for leftover in folder.glob("shard-*.tmp"):
            leftover.unlink()
        store.list_noted()
        store._drop_damaged()
        return store

    @classmethod
    def finished(cls, folder: Path, kind: Kind = RUN) -> FolderStore:
        """Open a folder for reading.

        Raises:
            UnfinishedRunError: If examples are missing.
            DamagedRunError: If a file is not what was written.
            ValueError: If the folder holds no run.
        """
        store = cls(folder, _read_header(folder, kind))
        written = sum(shard["examples"] for shard in store.shards.values())
        expected = store.header["n_examples"]
        if written != expected:
            whole = "" if expected is None else f"of {expected} "
            raise UnfinishedRunError(
                f"the {kind.noun} in {folder} is unfinished: it has {written} {whole}examples. "
                f"{kind.again} to finish it."
            )
        damaged = store._damaged()
        if damaged:
            raise DamagedRunError(
                f"{folder} is damaged: {_listed(damaged)}. {kind.again} to compute the missing "
                "rows."
            )
        return store

    def done(self) -> set[int]:
        """Which shards are there."""
        return {int(shard["index"]) for shard in self.shards.values()}

    def write(self, index: int, table: pa.Table) -> None:
        """Write a shard to a temporary name, rename it, and list it in the header."""
        name, entry = write_shard(self.folder, index, table)
        self.shards[name] = entry
        self._write_header()

    def list_noted(self) -> None:
        """List the shards that other processes of this run wrote, and remove their notes."""
        notes = sorted(self.folder.glob(f"*.parquet{_NOTE}"))
        for path in notes:
            self.shards[path.name.removesuffix(_NOTE)] = json.loads(path.read_text())
        if notes:
            self._write_header()
        for path in notes:
            path.unlink()

    def finish(self, n_examples: int) -> None:
        """Say how many examples there were, where that shows only in the end."""
        self.header["n_examples"] = n_examples
        self._write_header()

    def shard(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one shard's rows."""
        name = _shard_name(index)
        return pq.read_table(self.folder / name, columns=columns, partitioning=None)

    def read(self) -> tuple[pa.Table, dict[str, Any]]:
        """Return all rows and the run's header."""
        return pa.concat_tables([self.shard(index) for index in sorted(self.done())]), self.header

    def _write_header(self) -> None:
        self.header["shards"] = dict(sorted(self.shards.items()))
        text = json.dumps(self.header, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.folder / self.kind.file, text.encode())

    def _damaged(self) -> dict[str, str]:
        found = {}
        for name, shard in self.shards.items():
            path = self.folder / name
            if not path.exists():
                found[name] = "is missing"
            elif hashlib.sha256(path.read_bytes()).hexdigest() != shard["sha256"]:
                found[name] = "does not match its checksum"
        return found

    def _drop_damaged(self) -> None:
        damaged = self._damaged()
        if damaged:
            warnings.warn(
                f"{self.folder} is damaged and these rows are computed again: {_listed(damaged)}",
                stacklevel=6,
            )
        for name in damaged:
            del self.shards[name]


@contextmanager
def open_store(out: str | os.PathLike[str] | None, header: Mapping[str, Any]) -> Iterator[Store]:
    """Open memory (``out=None``) or a folder, locked while it is written.

    Raises:
        RunLockedError: If another process writes to the folder.
        ValueError: If the path is a file, or the folder holds another run.
    """
    if out is None:
        yield MemoryStore(header)
        return
    folder = run_folder(out)
    with locked(folder):
        yield FolderStore.resume(folder, header)


def run_folder(out: str | os.PathLike[str]) -> Path:
    """Make the folder of a run, if it is not there.

    Raises:
        ValueError: If the path is a file.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a run is a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def require_same_run(folder: Path, header: Mapping[str, Any]) -> None:
    """Check that a folder holds the run that a header describes.

    Raises:
        ValueError: If it holds none or another one; the message lists the differences.
    """
    _require_same_run(folder, _read_header(folder, kind_of(header)), _as_read_back(header))


def write_shard(folder: Path, index: int, table: pa.Table) -> tuple[str, dict[str, Any]]:
    """Write a shard to a temporary name and rename it.

    Returns:
        Its name, and what the header says of it.
    """
    name = _shard_name(index)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    write_atomically(folder / name, data)
    digest = hashlib.sha256(data).hexdigest()
    return name, {"index": index, "examples": table.num_rows, "sha256": digest}


def note_shard(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Leave what the header will say of a shard beside it, for the process that holds that."""
    write_atomically(folder / f"{name}{_NOTE}", json.dumps(entry).encode())


def shard_plan(n_tokens: Sequence[int], save_every: int) -> list[list[int]]:
    """Split examples into shards of similar lengths.

    The longest come first, so that a batch too large for the memory fails at once.

    Args:
        n_tokens: Length of each example's prompt.
        save_every: Examples a shard.

    Returns:
        Example indices, a list a shard.

    Example:
        >>> shard_plan([5, 9, 7, 9], save_every=3)
        [[1, 3, 2], [0]]
    """
    order = sorted(range(len(n_tokens)), key=lambda example: -n_tokens[example])
    return [order[start : start + save_every] for start in range(0, len(order), save_every)]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: to a temporary name, which is then renamed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _shard_name(index: int) -> str:
    return f"shard-{index:05d}.parquet"


def _read_header(folder: Path, kind: Kind) -> dict[str, Any]:
    path = folder / kind.file
    if not path.is_file():
        raise ValueError(f"{folder} holds no {kind.noun}: it has no {kind.file}")
    try:
        header: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {header['format']}, this version reads format {FORMAT}"
            )
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise DamagedRunError(f"{path} is not the header of a {kind.noun}: {error!r}") from error
    return header


def _as_read_back(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header as JSON keeps it, so that what is compared is what was stored."""
    result: dict[str, Any] = json.loads(json.dumps(header))
    return result


def _require_same_run(folder: Path, stored: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    kind = kind_of(header)
    ours = dict(_leaves({key: header[key] for key in kind.identity}))
    theirs = dict(_leaves({key: stored.get(key) for key in kind.identity}))
    absent = "nothing"
    differences = [
        f"  {key}: the folder has {theirs.get(key, absent)!r}, this call {ours.get(key, absent)!r}"
        for key in dict.fromkeys([*theirs, *ours])
        if theirs.get(key, absent) != ours.get(key, absent)
    ]
    if differences:
        raise ValueError(
            f"{folder} holds another {kind.noun}; give another folder. They differ in:\n"
            + "\n".join(differences)
        )


def _warn_of_versions(folder: Path, stored: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    theirs, ours = stored.get("versions", {}), header["versions"]
    changed = [
        f"{name} {theirs.get(name)} -> {ours[name]}"
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    if changed:
        noun = kind_of(header).noun
        warnings.warn(
            f"the {noun} in {folder} was begun with other versions: {', '.join(changed)}",
            stacklevel=6,
        )


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested mappings to dotted names."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _listed(damaged: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {what}" for name, what in damaged.items())
