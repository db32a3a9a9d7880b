"""What a task is made of: a prompt template, options, and the columns that fill them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from lens_diversity.tasks import _checks


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face Hub.

    Raises:
        ValueError: If ``path`` or ``split`` is not a non-empty string.
    """

    path: Any
    """Repository, for example ``nyu-mll/glue``."""
    config: Any = None
    """Configuration in it, for example ``sst2``."""
    split: Any = "validation"
    """Split that is evaluated unless ``load`` is given another."""
    note: str = ""
    """A remark for readers."""

    def __post_init__(self) -> None:
        for name in ("path", "split"):
            _checks.text(f"hub.{name}", getattr(self, name))
        if self.config is not None:
            _checks.text("hub.config", self.config)


@dataclass(frozen=True)
class TaskSpec:
    r"""A classification task as data.

    A prompt is the template filled from a row; what a model may answer is ``answer_prefix`` and an
    option. Either ``options`` is one list for all rows, or ``choices`` names the column with each
    row's own choices, whose options are then the letters A, B, C and so on.

    Example:
        >>> spec = TaskSpec(
        ...     name="acceptable",
        ...     prompt="{{ sentence }}\nIs this sentence acceptable? No or Yes?",
        ...     options=["No", "Yes"],
        ...     label={"label": {0: "No", 1: "Yes"}},
        ... )
        >>> spec.columns["sentence"]
        (('sentence',),)

    Raises:
        ValueError: If a field is invalid; the message names the field.
    """

    name: str
    prompt: str
    """Jinja2 template (sandboxed). Its variables are the row's fields, ``options`` and, with
    ``choices``, a list ``choices`` of ``letter`` and ``text``."""
    label: Any
    """Column of the gold label and what its values mean, ``{column: {value: option}}``; several
    columns are alternatives, the first present is read. A bare column name says that its values
    are the options' own names (for ``choices``: the labels that the row gives its choices)."""
    options: Any = None
    """The options of every row, in the order of the gold indices."""
    choices: Any = None
    """Column (or alternatives) that holds each row's choices."""
    columns: Any = field(default_factory=dict)
    """Field of the template to the column it is read from: a name, or alternatives of which the
    first present is read; an alternative that is a list of columns is joined with a space. Dots
    reach into nested records. A field that is not listed is the column of its own name."""
    headerless: Any = field(default_factory=dict)
    """Column names of delimited files without a header line, by part: one part is one file; with
    several, each row is spread over that many files, line by line."""
    hub: Any = None
    """Where on the Hub the data are: a [`HubSource`][lens_diversity.tasks.HubSource], or None."""
    version: str = "1"
    description: str = ""
    licence: str = ""
    """Licence of the data."""
    answer_prefix: str = " "
    """What stands between prompt and option, and is tokenised with the option."""

    def __post_init__(self) -> None:
        _checks.name(self.name)
        _checks.text("version", self.version)
        _checks.answer_prefix(self.answer_prefix)
        if (self.options is None) == (self.choices is None):
            raise ValueError("field 'options': give either 'options' or 'choices', not both")
        if self.hub is not None and not isinstance(self.hub, HubSource):
            raise ValueError(f"field 'hub': expected a HubSource, found {self.hub!r}")
        options = None if self.options is None else _checks.options(self.options)
        variables = _checks.template_variables(self.prompt, has_choices=options is None)
        self._set("options", options)
        if self.choices is not None:
            self._set("choices", _checks.column_names("choices", self.choices))
        self._set("columns", _checks.columns(self.columns, variables))
        self._set("label", _checks.label(self.label, options))
        self._set("headerless", _checks.headerless(self.headerless))

    def _set(self, field: str, normal: Any) -> None:
        object.__setattr__(self, field, normal)


def load_spec(path: str | Path) -> TaskSpec:
    """Read a task from a YAML file; its keys are the fields of ``TaskSpec``.

    Raises:
        ValueError: If the file cannot be read or a field is unknown, missing or invalid; the
            message names the file and the field.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as a task: {error}") from error
    try:
        return _from_mapping(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _from_mapping(data: Any) -> TaskSpec:
    _check_keys("", data, TaskSpec)
    hub = data.get("hub")
    if hub is not None:
        _check_keys("hub.", hub, HubSource)
        hub = HubSource(**hub)
    # A version such as 2 reads better in YAML than "2".
    version = data.get("version", "1")
    version = str(version) if type(version) is int else version
    return TaskSpec(**{**data, "hub": hub, "version": version})


def _check_keys(prefix: str, data: Any, target: type) -> None:
    known = {item.name: item for item in fields(target)}
    if not isinstance(data, Mapping):
        where = f"field '{prefix[:-1]}'" if prefix else "the file"
        raise ValueError(f"{where}: expected a mapping with {list(known)}, found {data!r}")
    for key in data:
        if key not in known:
            hint = _checks.did_you_mean(str(key), known)
            raise ValueError(f"field '{prefix}{key}': unknown{hint}; known are {list(known)}")
    for key, item in known.items():
        required = item.default is MISSING and item.default_factory is MISSING
        if required and key not in data:
            raise ValueError(f"field '{prefix}{key}': missing")
