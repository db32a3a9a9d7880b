"""The known tasks: those of the paper, and those a user adds."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lens_diversity.tasks._checks import did_you_mean
from lens_diversity.tasks.spec import TaskSpec, load_spec

_added: dict[str, TaskSpec] = {}


def names() -> list[str]:
    """Return the names of all tasks: the paper's eight and the registered ones, sorted."""
    return sorted({*_built_in(), *_added})


def register(spec: TaskSpec) -> TaskSpec:
    """Make a task known by its name, so that ``load`` and the command line find it.

    A task registered earlier under the same name is replaced; the paper's tasks are fixed.

    Returns:
        The specification, as given.

    Raises:
        ValueError: If the name is one of the paper's tasks.
    """
    if spec.name in _built_in():
        raise ValueError(f"'{spec.name}' is one of the paper's tasks: register under another name")
    _added[spec.name] = spec
    return spec


def get_spec(name: str | Path) -> TaskSpec:
    """Return a task's specification, by name or from the path of a YAML file.

    Example:
        Another configuration of a known task:

        >>> from dataclasses import replace
        >>> arc = get_spec("arc")
        >>> easy = replace(arc, name="arc_easy", hub=replace(arc.hub, config="ARC-Easy"))
        >>> easy.hub.config
        'ARC-Easy'

    Raises:
        ValueError: If there is no such task, or the file is not a valid one.
    """
    if str(name) in _added:
        return _added[str(name)]
    if str(name) in _built_in():
        return _built_in()[str(name)]
    if Path(name).suffix in (".yaml", ".yml"):
        return load_spec(name)
    hint = did_you_mean(str(name), names())
    raise ValueError(
        f"unknown task '{name}'{hint}; known are {names()}, or give the path of a .yaml file"
    )


def describe(name: str | Path) -> dict[str, Any]:
    """Return what a task is, as plain values: template, options, data and its licence.

    Raises:
        ValueError: If there is no such task.
    """
    spec = get_spec(name)
    hub = spec.hub
    return {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "licence": spec.licence,
        "prompt": spec.prompt,
        "options": "A, B, C, ... (one letter a choice)"
        if spec.options is None
        else [*spec.options],
        "answer_prefix": spec.answer_prefix,
        "hub": None
        if hub is None
        else {"path": hub.path, "config": hub.config, "split": hub.split},
        "columns": {field: [" + ".join(c) for c in ways] for field, ways in spec.columns.items()},
        "label": list(spec.label),
    }


@cache
def _built_in() -> dict[str, TaskSpec]:
    found = {}
    for entry in (resources.files("lens_diversity.tasks") / "templates").iterdir():
        with resources.as_file(entry) as path:
            if path.suffix == ".yaml":
                found[path.stem] = load_spec(path)
    return found
