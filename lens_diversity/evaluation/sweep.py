"""A grid of models and tasks: independent runs, each resumable, one model in memory at a time."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from lens_diversity.evaluation._lock import locked
from lens_diversity.evaluation.distributed import is_launched
from lens_diversity.evaluation.evaluate import evaluate
from lens_diversity.evaluation.run import Run, load_run
from lens_diversity.evaluation.store import run_folder, write_atomically
from lens_diversity.evaluation.sweep_file import Cell, ModelEntry, Sweep
from lens_diversity.models import load_model
from lens_diversity.tasks import load

RECORD_NAME = "sweep.json"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    cell: Cell
    status: str
    """``finished``, ``skipped`` (it was finished before) or ``failed``."""
    seconds: float
    """Time it took, with that of loading the model in the first cell that needed it."""
    run: Run | None = None
    error: str | None = None
    traceback: str | None = None


def run_sweep(sweep: Sweep, cells: Sequence[Cell], *, progress: bool = True) -> Iterator[Outcome]:
    """Run cells one after the other; one that fails is recorded and the others go on.

    A cell is a run in a folder of its own, so a stopped sweep goes on where it was, and several
    processes can work on different cells. `sweep.json` keeps status, duration and error of each.

    Args:
        sweep: The grid, from `load_sweep`.
        cells: Which of its cells to run, from ``sweep.select``.
        progress: Show progress bars on a terminal.

    Yields:
        Each cell's outcome when it ends.

    Raises:
        ValueError: If a launcher started several processes, or ``out`` is a file.
    """
    if is_launched():
        raise ValueError(
            "a sweep is one process: give each of several its own --cells, or launch 'run' for a "
            "single cell over all of them"
        )
    run_folder(sweep.out)
    for (model, revision), group in groupby(cells, key=lambda cell: (cell.model, cell.revision)):
        loaded = _Loaded(model, revision)
        for cell in group:
            outcome = _run_cell(sweep, cell, loaded, progress=progress)
            _record(sweep.out, outcome)
            yield outcome
        loaded.free()


class _Loaded:
    """A model that is loaded when the first cell needs it, and once."""

    def __init__(self, entry: ModelEntry, revision: str | None) -> None:
        self._entry = entry
        self._revision = revision
        self._model: Any = None
        self._error: Exception | None = None

    def model(self) -> Any:
        """Load it, or fail again as the first time."""
        if self._error is not None:
            raise self._error
        if self._model is None:
            entry = self._entry
            try:
                self._model = load_model(
                    entry.ref,
                    device=entry.device,
                    dtype=entry.dtype,
                    revision=self._revision,
                    device_map=entry.device_map,  # type: ignore[arg-type]
                )
            except Exception as error:
                self._error = error
                raise
        return self._model

    def free(self) -> None:
        """Make room for the next one."""
        self._model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _run_cell(sweep: Sweep, cell: Cell, loaded: _Loaded, *, progress: bool) -> Outcome:
    started = time.perf_counter()
    try:
        run = _finished(sweep, cell)
        if run is not None:
            return Outcome(cell, "skipped", time.perf_counter() - started, run)
        task = load(
            cell.task.name,
            limit=cell.task.limit,
            data_files=cell.task.data,
            n_shots=cell.task.shots,
            seed=cell.task.seed,
        )
        run = evaluate(
            loaded.model(),
            task,
            cell.model.batch_size,
            cell.folder,
            overlong=cell.model.overlong,
            progress=progress,
        )
    # Whatever stops one cell, a lack of memory for example, must not stop the others.
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        # An error that is kept must not keep a half-loaded model.
        traceback.clear_frames(error.__traceback__)
        seconds = time.perf_counter() - started
        return Outcome(cell, "failed", seconds, error=_describe(error), traceback=text)
    return Outcome(cell, "finished", time.perf_counter() - started, run)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _finished(sweep: Sweep, cell: Cell) -> Run | None:
    """The run of a cell that was finished with the same settings, without loading its model."""
    record = read_record(sweep.out).get(cell.name, {})
    if record.get("status") != "finished" or record.get("settings") != cell.settings:
        return None
    try:
        return load_run(cell.folder)
    except ValueError:  # Damaged or gone: it is evaluated again.
        return None


def read_record(out: Path) -> dict[str, Any]:
    """Read `sweep.json`: what became of each cell, by the name of its folder.

    Raises:
        ValueError: If the file is damaged.
    """
    path = out / RECORD_NAME
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no record of a sweep ({error!r}); remove it: finished runs are found again"
        ) from error
    return dict(record)


def _record(out: Path, outcome: Outcome) -> None:
    if outcome.status == "skipped":
        return
    entry: Mapping[str, Any] = {
        "status": outcome.status,
        "settings": outcome.cell.settings,
        "seconds": round(outcome.seconds, 3),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "error": outcome.error,
        "traceback": outcome.traceback,
    }
    # Jobs of an array write to one record.
    with locked(out, wait=True):
        cells = dict(sorted({**read_record(out), outcome.cell.name: entry}.items()))
        text = json.dumps({"cells": cells}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(out / RECORD_NAME, text.encode())
