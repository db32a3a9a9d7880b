"""A loaded task: what a model is asked, what it may answer, and what is right."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, repr=False)
class Task:
    """Prompts with their options and gold labels, and where they came from.

    [`load`][lens_diversity.tasks.load] makes one from a template and data; rows that are already
    in Python make one directly.

    Example:
        >>> task = Task("capitals", ["Paris is in", "Rome is in"], ["France", "Italy"], [0, 1])
        >>> len(task), task.row_options(1)[task.gold[1]]
        (2, 'Italy')

    Raises:
        TypeError: If prompts or options are one string, or a gold label is not an integer.
        ValueError: If there are no rows, lengths differ, a row has fewer than two options or two
            equal ones, or a gold label is out of range.
    """

    name: str
    prompts: list[str]
    """One text a row, without white space at its end: that belongs to the answer."""
    options: Sequence[Any]
    """The options of every row, or one list of options a row where rows differ."""
    gold: list[int]
    """Index of the right option, in its row's options."""
    version: str = "1"
    """Version of the template: a changed text is a new version."""
    answer_prefix: str = " "
    """What stands between prompt and option."""
    template: str = ""
    """The Jinja2 template of the prompts."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """What was read: Hub repository, configuration, split and revision, or files with SHA-256."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Counts of special rows, and the rows that serve as demonstrations."""

    def __post_init__(self) -> None:
        if isinstance(self.prompts, str) or isinstance(self.options, str):
            raise TypeError("prompts and options must be lists of strings, found a single string")
        # Whatever counts as a list or an integer becomes one, so that JSON can write it.
        self._set("prompts", list(self.prompts))
        self._set("gold", [operator.index(gold) for gold in self.gold])
        self._set("options", [o if isinstance(o, str) else list(o) for o in self.options])
        self._check_lengths()
        for row, gold in enumerate(self.gold):
            options = self.row_options(row)
            if len(options) < 2 or len(set(options)) < len(options):
                raise ValueError(
                    f"task '{self.name}': the options of prompts[{row}], {options}, must be two or "
                    "more, and differ"
                )
            if not 0 <= gold < len(options):
                raise ValueError(
                    f"task '{self.name}': gold[{row}] = {gold} is out of range for the "
                    f"{len(options)} options {options} (labels count from 0)"
                )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_lengths(self) -> None:
        if not self.prompts:
            raise ValueError(f"task '{self.name}' has no rows")
        if len(self.prompts) != len(self.gold):
            raise ValueError(
                f"task '{self.name}' has {len(self.prompts)} prompts but {len(self.gold)} gold "
                "labels; give one label a prompt"
            )
        if self._options_differ and len(self.options) != len(self.prompts):
            raise ValueError(
                f"task '{self.name}' has {len(self.prompts)} prompts but {len(self.options)} "
                "lists of options; give one list a prompt, or one list of strings for all"
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        options = "options by row" if self._options_differ else f"options={list(self.options)}"
        return f"Task({self.name!r}, version={self.version!r}, {len(self)} rows, {options})"

    @property
    def _options_differ(self) -> bool:
        return bool(self.options) and not isinstance(self.options[0], str)

    def row_options(self, i: int) -> list[str]:
        """Return the options of row ``i``.

        Raises:
            IndexError: If there is no such row.
        """
        row = range(len(self))[i]
        return [*(self.options[row] if self._options_differ else self.options)]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over prompts, options and gold labels: equal exactly when the rows are."""
        content = [self.prompts, self.options, self.gold]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()
