"""Data sets from the Hugging Face Hub, through ``datasets``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lens_diversity.tasks.spec import HubSource, TaskSpec

# The Hub exports every data set to Parquet here; `datasets` 4 and later run no loading scripts.
PARQUET_EXPORT = "refs/convert/parquet"


def read_hub(
    spec: TaskSpec, split: str | None, revision: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read all rows of a split, and say which revision was read.

    Raises:
        ValueError: If the task has no Hub source, or the Hub did not give it.
    """
    if spec.hub is None:
        raise ValueError(f"task '{spec.name}' has no source on the Hub: give data_files=")
    hub = spec.hub if split is None else replace(spec.hub, split=split)
    failures: list[str] = []
    for tried in [None, PARQUET_EXPORT] if revision is None else [revision]:
        try:
            data = _load_dataset(hub, tried)
            rows = [dict(row) for row in data]
        # datasets, huggingface_hub, httpx and pyarrow each raise errors of their own here.
        except Exception as error:
            reason = " ".join(str(error).split()).rstrip(".")
            failures.append(f"revision '{tried or 'main'}': {type(error).__name__}: {reason}")
            if tried is None and _export_may_help(error):
                continue
            raise ValueError(_explain(spec, hub, failures)) from error
        break
    if not rows:
        raise ValueError(f"task '{spec.name}': '{hub.path}' has no rows in split '{hub.split}'")
    source = {
        "kind": "hub",
        "path": hub.path,
        "config": hub.config,
        "split": hub.split,
        "revision": tried or "main",
        "commit": _commit(data),
    }
    return rows, source


def _load_dataset(hub: HubSource, revision: str | None) -> Any:
    import datasets

    if revision != PARQUET_EXPORT:
        return datasets.load_dataset(hub.path, hub.config, split=hub.split, revision=revision)
    # The export has a folder for each configuration and split, but no configurations to name.
    split = hub.split.partition("[")[0]
    files = {split: f"{hub.config or 'default'}/{split}/*.parquet"}
    return datasets.load_dataset(hub.path, data_files=files, split=hub.split, revision=revision)


def _export_may_help(error: Exception) -> bool:
    """True where the repository has a loading script.

    Once its export is in the local cache, ``datasets`` looks there for the configuration by name
    instead of saying so, and does not find it.
    """
    text = str(error)
    return "scripts are no longer supported" in text or "Couldn't find cache for" in text


def _explain(spec: TaskSpec, hub: HubSource, failures: Sequence[str]) -> str:
    return (
        f"task '{spec.name}': '{hub.path}' (configuration {hub.config!r}, split '{hub.split}') "
        f"could not be read from the Hub. {'; '.join(failures)}. Check the names and the "
        "network; for a gated data set accept its terms and log in with `hf auth login`; or pass "
        f"local files, tasks.load('{spec.name}', data_files=...)"
    )


def _commit(data: Any) -> str | None:
    """Return the commit of the files, which ``datasets`` has as a folder of its cache."""
    for file in getattr(data, "cache_files", ()):
        for part in Path(file["filename"]).parts:
            if re.fullmatch(r"[0-9a-f]{40}", part):
                return part
    return None
