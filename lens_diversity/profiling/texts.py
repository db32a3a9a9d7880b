"""Where texts come from: a list, a data set, local files, or the Hub, one document at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

_FORMATS = {
    ".txt": "text",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class TextSource:
    """Documents that can be read more than once, and what identifies them."""

    read: Callable[[], Iterable[Any]]
    """Begins at the first row every time."""
    identity: dict[str, Any]
    """Plain values that tell one source from another."""
    length: int | None
    """Number of documents, where it is known before they are read."""
    column: str | None = None
    """Where a row has its text; None for rows that are the texts themselves."""
    limit: int | None = field(default=None)
    """Documents to take at most."""

    def __iter__(self) -> Iterator[str]:
        """Read the texts.

        Raises:
            TypeError: If a row holds no text, naming it.
        """
        for index, row in enumerate(islice(self.read(), self.limit)):
            text = row if self.column is None else _cell(row, self.column, index)
            if not isinstance(text, str):
                where = "" if self.column is None else f" in column {self.column!r}"
                raise TypeError(
                    f"document {index} has {type(text).__name__} {text!r:.40} instead of a "
                    f"text{where}"
                )
            yield text

    @property
    def total(self) -> int | None:
        """Number of documents that will be read, where it is known."""
        if self.length is None or self.limit is None:
            return self.length
        return min(self.length, self.limit)


def open_texts(
    texts: Any,
    *,
    column: str = "text",
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    limit: int | None = None,
) -> TextSource:
    """Find out what was given, and open it without reading it.

    Args:
        texts: A list of texts; a data set of ``datasets``; a path or a list of paths (``.txt``, a
            document a file; ``.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``, a document a
            row); or a string: a path if there is such a file, else a name on the Hub.
        column: Where rows have their text.
        config: Configuration on the Hub.
        split: Split on the Hub.
        revision: Branch, tag or commit on the Hub.
        limit: Documents to take at most.

    Returns:
        The source. Data sets of the Hub are streamed, from the commit that was found.

    Raises:
        TypeError: If ``texts`` is none of these.
        ValueError: If there is nothing to read, a file has an unknown format, rows lack the
            column, or the Hub does not give the data set.
    """
    if isinstance(texts, str | Path):
        return _of_name(texts, column, config, split, revision, limit)
    if hasattr(texts, "column_names") and hasattr(texts, "features"):
        return _of_dataset(texts, column, limit)
    if isinstance(texts, Mapping):
        raise TypeError(f"expected one split of a data set, choose one of {list(texts)}")
    if not isinstance(texts, Sequence):
        raise TypeError(
            "expected a list of texts, a data set, a path or a name on the Hub, got "
            f"{type(texts).__name__}"
        )
    if not texts:
        raise ValueError("the list of texts is empty")
    if all(isinstance(item, Path) for item in texts):
        return _of_files(list(texts), column, limit)
    return _of_list(texts, limit)


def digest(text: str) -> str:
    """SHA-256 of a text, which tells whether a resumed call reads the same documents."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _of_list(texts: Sequence[Any], limit: int | None) -> TextSource:
    if all(isinstance(text, str) and _is_file(text) for text in texts[:8]):
        raise ValueError(
            f"the texts are names of files ({texts[0]!r}); give pathlib.Path objects to read them"
        )
    source = TextSource(lambda: texts, {}, len(texts), limit=limit)
    together = hashlib.sha256("".join(digest(text) for text in source).encode())
    return TextSource(
        lambda: texts,
        {"kind": "texts", "fingerprint": together.hexdigest(), "limit": limit},
        len(texts),
        limit=limit,
    )


def _of_dataset(data: Any, column: str, limit: int | None) -> TextSource:
    _require_column(data.column_names, column)
    length = len(data) if hasattr(data, "__len__") else None
    # What the rows are is checked document by document when a stopped call goes on.
    identity = {"kind": "dataset", "rows": length, "column": column, "limit": limit}
    return TextSource(lambda: data, identity, length, column, limit)


def _of_name(
    name: str | Path,
    column: str,
    config: str | None,
    split: str,
    revision: str | None,
    limit: int | None,
) -> TextSource:
    if isinstance(name, Path) or _is_file(name):
        return _of_files([Path(name)], column, limit)
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r:.60} is neither a file nor a name on the Hub; give texts as a list, "
            "even a single one"
        )
    return _of_hub(name, column, config, split, revision, limit)


def _of_files(paths: list[Path], column: str, limit: int | None) -> TextSource:
    import datasets

    paths = [path.expanduser() for path in paths]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ValueError(f"there is no file {missing[0]}")
    formats = {_FORMATS.get(path.suffix.lower(), path.suffix) for path in paths}
    if len(formats) > 1 or not formats <= set(_FORMATS.values()):
        raise ValueError(
            f"cannot read files of the formats {sorted(formats)} together; known are "
            f"{sorted(_FORMATS)}, one kind at a time"
        )
    (format_,) = formats
    options: dict[str, Any] = {}
    if format_ == "text":
        options["sample_by"], column = "document", "text"
    if paths[0].suffix.lower() == ".tsv":
        options["sep"] = "\t"
    files = [str(path) for path in paths]
    try:
        data = datasets.load_dataset(
            format_, data_files=files, split="train", streaming=True, **options
        )
        first = next(iter(data), None)
    # datasets, pyarrow and pandas each raise errors of their own here.
    except Exception as error:
        raise ValueError(f"cannot read {files[0]}: {_one_line(error)}") from error
    if first is None:
        raise ValueError(f"{files[0]} holds no document")
    _require_column(list(first), column)
    identity = {
        "kind": "files",
        "files": [{"name": path.name, "sha256": _file_digest(path)} for path in paths],
        "column": column,
        "limit": limit,
    }
    return TextSource(lambda: data, identity, None, column, limit)


def _of_hub(
    name: str,
    column: str,
    config: str | None,
    split: str,
    revision: str | None,
    limit: int | None,
) -> TextSource:
    import datasets
    from huggingface_hub import HfApi

    try:
        # Pinned, so that a call that goes on tomorrow reads the same rows.
        commit = HfApi().dataset_info(name, revision=revision).sha
        data = datasets.load_dataset(name, config, split=split, revision=commit, streaming=True)
        columns = data.column_names or list(next(iter(data)))
    # datasets, huggingface_hub, httpx and pyarrow each raise errors of their own here.
    except Exception as error:
        raise ValueError(
            f"the data set '{name}' (configuration {config!r}, split {split!r}, revision "
            f"{revision or 'main'!r}) could not be streamed from the Hub: {_one_line(error)}. "
            "Check the names and the network; for a gated data set accept its terms and log in "
            "with `hf auth login`; or give local files"
        ) from error
    _require_column(columns, column)
    identity = {
        "kind": "hub",
        "path": name,
        "config": config,
        "split": split,
        "commit": commit,
        "column": column,
        "limit": limit,
    }
    return TextSource(lambda: data, identity, None, column, limit)


def _require_column(columns: Sequence[str] | None, column: str) -> None:
    if columns is not None and column not in columns:
        raise ValueError(f"there is no column {column!r}; choose one with column=: {list(columns)}")


def _cell(row: Mapping[str, Any], column: str, index: int) -> Any:
    if column not in row:
        raise ValueError(f"document {index} has no column {column!r}, it has {list(row)}")
    return row[column]


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long, or with a NUL, for a path
        return False


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".")
