"""Load a task: its rows from the Hub or from local files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lens_diversity.tasks import _demonstrations
from lens_diversity.tasks._files import read_files
from lens_diversity.tasks._hub import read_hub
from lens_diversity.tasks._rows import Row, to_rows
from lens_diversity.tasks.registry import get_spec
from lens_diversity.tasks.spec import TaskSpec
from lens_diversity.tasks.task import Task


def load(
    name: str | Path | TaskSpec,
    limit: int | None = None,
    data_files: str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    n_shots: int = 0,
    seed: int = 0,
    split: str | None = None,
    revision: str | None = None,
) -> Task:
    r"""Load a classification task (Appendix C of the paper), zero-shot unless asked otherwise.

    Args:
        name: A known task (see [`names`][lens_diversity.tasks.names]), the path of a YAML file, or
            a [`TaskSpec`][lens_diversity.tasks.TaskSpec].
        limit: Evaluate at most this many rows, the first ones; None takes all. The paper evaluates
            the first 2000: pass ``limit=2000`` for that.
        data_files: Local csv, tsv, txt, jsonl, json or parquet files instead of the Hub: a path, or
            a list of shards. Layouts that spread a row over files (WiC's ``data`` and ``gold``)
            take both, as a list or a mapping. A folder does if it holds nothing else.
        n_shots: Demonstrations before each prompt, the same for all rows: drawn from the rows
            after ``limit``, balanced over the classes.
        seed: Seed of that draw.
        split: Split on the Hub instead of the task's own.
        revision: Branch, tag or commit on the Hub.

    Returns:
        The task, with what was read in ``source`` and counts of special rows in ``notes``.

    Raises:
        ValueError: If the task is unknown, the data cannot be read, a column is missing, a row has
            no text or no valid gold label, or too few rows are left for demonstrations.
        TypeError: If ``limit``, ``n_shots`` or ``seed`` is not an integer.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> rows = [{"sentence": "a gripping film", "label": 1}, {"sentence": "dull", "label": 0}]
        >>> _ = path.write_text("\n".join(json.dumps(row) for row in rows))
        >>> task = load("sst2", data_files=path)
        >>> task.prompts[1], task.options, task.gold
        ('dull\nQuestion: Was that sentence positive or negative? Answer:',
         ['negative', 'positive'], [1, 0])
    """
    _check_integer("limit", limit if limit is not None else 1, at_least=1)
    _check_integer("n_shots", n_shots, at_least=0)
    _check_integer("seed", seed, at_least=None)
    if data_files is not None and (split is not None or revision is not None):
        raise ValueError("split and revision belong to the Hub; with data_files, name the file")
    if n_shots and limit is None:
        raise ValueError("demonstrations are drawn from the rows after 'limit': give limit")
    spec = name if isinstance(name, TaskSpec) else get_spec(name)
    if data_files is None:
        records, source = read_hub(spec, split, revision)
    else:
        records, source = read_files(spec, data_files)
    source["rows"] = len(records)
    rows, notes = to_rows(spec, records if n_shots else records[:limit])
    prompts = [row.prompt for row in rows[:limit]]
    if n_shots:
        prompts = _with_demonstrations(spec, rows, len(prompts), n_shots, seed, notes)
    rows = rows[: len(prompts)]
    return Task(
        name=spec.name,
        prompts=prompts,
        options=[row.options for row in rows] if spec.options is None else list(spec.options),
        gold=[row.gold for row in rows],
        version=spec.version,
        answer_prefix=spec.answer_prefix,
        template=spec.prompt,
        source=source,
        notes=notes,
    )


def _with_demonstrations(
    spec: TaskSpec, rows: list[Row], n_rows: int, n_shots: int, seed: int, notes: dict[str, Any]
) -> list[str]:
    pool = rows[n_rows:]
    picked = _demonstrations.draw(pool, n_shots, seed)
    notes["n_shots"] = n_shots
    notes["seed"] = seed
    notes["demonstration_rows"] = [n_rows + 1 + i for i in picked]
    shown = [pool[i] for i in picked]
    return [_demonstrations.prepend(shown, row.prompt, spec.answer_prefix) for row in rows[:n_rows]]


def _check_integer(name: str, value: Any, *, at_least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, found {value!r}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, found {value}")
