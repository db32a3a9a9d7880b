"""A grid of models and tasks as a YAML file: its fields, checked, and the cells that they span."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lens_diversity.evaluation import _sweep_fields as fields
from lens_diversity.tasks import get_spec


@dataclass(frozen=True)
class ModelEntry:
    """A model of the grid."""

    ref: str
    """What `load_model` takes; paths are absolute."""
    folder: str
    """Its name among the results."""
    revisions: tuple[str | None, ...] = (None,)
    dtype: str = "float32"
    device: str | None = None
    device_map: str | Mapping[str, Any] | None = None
    batch_size: int = 16
    overlong: str = "error"
    parameters: int | None = None
    """What a dry run shows where no config.json can be read."""
    layers: int | None = None
    applications: int = 1
    """How often each block runs."""


@dataclass(frozen=True)
class TaskEntry:
    """A task of the grid."""

    name: str
    """A known task, or the absolute path of a YAML file."""
    folder: str
    """Its name among the results."""
    data: tuple[str, ...] | None = None
    limit: int | None = None
    shots: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Cell:
    """One model at one revision on one task: a run of its own."""

    index: int
    model: ModelEntry
    revision: str | None
    task: TaskEntry
    folder: Path

    @property
    def name(self) -> str:
        """Its folder below the sweep's."""
        return "/".join(self.folder.parts[-2:])

    @property
    def settings(self) -> dict[str, Any]:
        """What its numbers depend on, as the sweep file gives it."""
        return {
            "model": self.model.ref,
            "revision": self.revision,
            "dtype": self.model.dtype,
            "overlong": self.model.overlong,
            "task": self.task.name,
            "data": None if self.task.data is None else list(self.task.data),
            "limit": self.task.limit,
            "shots": self.task.shots,
            "seed": self.task.seed,
        }


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file."""

    path: Path
    out: Path
    models: tuple[ModelEntry, ...]
    tasks: tuple[TaskEntry, ...]

    @property
    def cells(self) -> list[Cell]:
        """All cells, those of one model and revision together, counted from 0."""
        places = [
            (model, revision, task)
            for model in self.models
            for revision in model.revisions
            for task in self.tasks
        ]
        return [
            Cell(index, model, revision, task, self.out / _at(model, revision) / task.folder)
            for index, (model, revision, task) in enumerate(places)
        ]

    def select(self, text: str | None) -> list[Cell]:
        """Choose cells by number: ``"3"``, ``"0-7"``, ``"0-3,9"``; None chooses all.

        Raises:
            ValueError: If the text is of another form or there is no such cell.
        """
        cells = self.cells
        if text is None:
            return cells
        chosen: set[int] = set()
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if found is None:
                raise ValueError(f"cells are given as 3, 0-7 or 0-3,9, got {text!r}")
            first, last = int(found[1]), int(found[2] or found[1])
            if not first <= last < len(cells):
                raise ValueError(
                    f"there are no cells {part.strip()}: {self.path} has 0 to {len(cells) - 1}"
                )
            chosen.update(range(first, last + 1))
        return [cells[index] for index in sorted(chosen)]


def load_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Read a sweep file and check all of it.

    ``${NAME}`` stands for an environment variable in paths, and paths are relative to the file.

    Args:
        path: A YAML file with ``out``, ``models``, ``tasks`` and ``defaults``.

    Returns:
        The grid.

    Raises:
        ValueError: If the file cannot be read, or a field is unknown, missing or invalid, or two
            cells would share a folder; the message names the file and the field.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as a sweep: {error}") from error
    try:
        sweep = _sweep(path, data)
        _require_own_folders(sweep)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return sweep


def _sweep(path: Path, data: Any) -> Sweep:
    base = path.absolute().parent
    given = fields.check("", data, fields.SWEEP, required=("out", "models", "tasks"))
    shared = fields.MODEL_DEFAULTS | fields.TASK_DEFAULTS
    defaults = fields.check("defaults", given.get("defaults", {}), shared, required=())
    _require_one_placement("defaults", defaults)
    return Sweep(
        path=path,
        out=_path(base, "out", given["out"]),
        models=tuple(
            _model(base, f"models[{i}]", entry, defaults) for i, entry in enumerate(given["models"])
        ),
        tasks=tuple(
            _task(base, f"tasks[{i}]", entry, defaults) for i, entry in enumerate(given["tasks"])
        ),
    )


def _model(base: Path, where: str, entry: Any, defaults: Mapping[str, Any]) -> ModelEntry:
    entry = {"ref": entry} if isinstance(entry, str) else entry
    own = fields.check(where, entry, fields.MODEL, required=("ref",))
    _require_one_placement(where, own)
    placed = {"device", "device_map"}
    inherited = {
        key: value
        for key, value in defaults.items()
        # A model's own placement replaces the shared one, of either kind.
        if key in fields.MODEL_DEFAULTS and not (key in placed and placed & set(own))
    }
    name = _expanded(f"{where}.ref", own["ref"])
    path = _path(base, f"{where}.ref", own["ref"])
    if _is_local(name, path):
        plain = path.stem if path.suffix == ".gguf" else path.name
        settings = {"folder": fields.safe_name(plain), **own, "ref": str(path)}
    else:
        settings = {"folder": fields.safe_name(name), **own, "ref": name}
    return ModelEntry(**inherited | settings)


def _is_local(name: str, path: Path) -> bool:
    """As `load_model` reads it: a Hub name is "model" or "owner/model"."""
    spelled_as_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return name != "smollm2" and (spelled_as_path or path.suffix == ".gguf" or path.exists())


def _task(base: Path, where: str, entry: Any, defaults: Mapping[str, Any]) -> TaskEntry:
    entry = {"name": entry} if isinstance(entry, str) else entry
    own = fields.check(where, entry, fields.TASK, required=("name",))
    inherited = {key: value for key, value in defaults.items() if key in fields.TASK_DEFAULTS}
    name = _expanded(f"{where}.name", own["name"])
    if name.endswith((".yaml", ".yml")):
        name = str(_path(base, f"{where}.name", own["name"]))
    try:
        own.setdefault("folder", get_spec(name).name)
    except ValueError as error:
        raise ValueError(f"field '{where}.name': {error}") from error
    own["name"] = name
    if "data" in own:
        own["data"] = tuple(str(_path(base, f"{where}.data", file)) for file in own["data"])
    task = TaskEntry(**inherited | own)
    if task.shots and task.limit is None:
        raise ValueError(
            f"field '{where}.shots': demonstrations are drawn from the rows after 'limit': give it"
        )
    return task


def _require_own_folders(sweep: Sweep) -> None:
    owners: dict[str, Cell] = {}
    for cell in sweep.cells:
        # Some file systems do not tell capitals apart.
        other = owners.setdefault(cell.name.casefold(), cell)
        if other is not cell:
            raise ValueError(
                f"cells {other.index} and {cell.index} would both be written to {cell.name}; tell "
                "their models or tasks apart with 'folder'"
            )


def _require_one_placement(where: str, given: Mapping[str, Any]) -> None:
    if {"device", "device_map"} <= set(given):
        raise ValueError(f"field '{where}': give either 'device' or 'device_map', not both")


def _at(model: ModelEntry, revision: str | None) -> str:
    return model.folder if revision is None else f"{model.folder}@{fields.safe_name(revision)}"


def _path(base: Path, field: str, text: str) -> Path:
    return Path(os.path.normpath(base / Path(_expanded(field, text)).expanduser()))


def _expanded(field: str, text: str) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ValueError(f"field '{field}': the environment variable {found[1]} is not set")
        return os.environ[found[1]]

    return re.sub(r"\$\{(\w+)\}", value, text)
