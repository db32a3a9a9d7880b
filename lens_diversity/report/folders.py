"""From folders of runs to a report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from lens_diversity.evaluation import Run, UnfinishedRunError, load_run
from lens_diversity.paper._cells import cells
from lens_diversity.report.build import build_report, check_request


def write_report(folders: Sequence[Path], out: Path, correction: str | None = None) -> Path:
    """Read runs from folders and write the report of them.

    Args:
        folders: Folders of runs, or folders that hold such folders at any depth.
        out: The HTML file to write; an older one is replaced.
        correction: Correction of Figure 3's p-values for their number: None, ``"holm"`` or
            ``"benjamini-hochberg"``.

    Returns:
        The file.

    Raises:
        ValueError: If a folder does not exist or holds no run, a run named directly is unfinished
            or damaged, two runs are of one model and task (the message has both folders), the
            correction is unknown, or ``out`` is a folder.
    """
    check_request(out, correction)
    runs = find_runs(folders)
    cells(list(runs.values()), [str(folder) for folder in runs])
    return build_report(list(runs.values()), out, correction)


def find_runs(folders: Sequence[Path]) -> dict[Path, Run]:
    """Read every run in the folders and below.

    A run that is unfinished is left out with a warning, unless its folder was named itself.

    Args:
        folders: Folders of runs, or folders that hold such folders at any depth.

    Returns:
        The runs by folder, in the order given and by path below.

    Raises:
        ValueError: If a folder does not exist or holds no run, or a run cannot be read.
    """
    runs: dict[Path, Run] = {}
    seen: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; give folders that runs were written to")
        found = sorted(path.parent for path in folder.rglob("run.json"))
        if not found:
            raise ValueError(f"{folder} holds no run: there is no run.json in it or below it")
        for path in found:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                runs[path] = load_run(path)
            except UnfinishedRunError as error:
                if path == folder:
                    raise
                warnings.warn(f"left out of the report: {error}", stacklevel=3)
    if not runs:
        raise ValueError(f"no run in {', '.join(map(str, folders))} is finished")
    return runs
