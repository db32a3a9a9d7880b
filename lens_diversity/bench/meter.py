"""Time and peak memory of several ways to do the same thing, taken in turn in one process."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Measurement:
    """What one case of a table cost."""

    case: str
    seconds: float
    """Median over the repetitions."""
    fastest: float
    """Fewest seconds of all repetitions."""
    ratio: float
    """Median relative to that of the table's first case."""
    peak: float | None
    """MiB that a call adds at its highest, or None where the system does not say."""


class Meter:
    """Runs cases in turn, so that whatever else the machine does falls on all of them alike.

    Peak memory is what one call adds: on CUDA the allocator's, on Linux the resident set's
    high-water mark (which includes the result, and what the BLAS library asks for).

    Example:
        >>> found = Meter("cpu", repeats=3).measure({"sum": lambda: sum(range(1000))})
        >>> [(row.case, row.ratio) for row in found]
        [('sum', 1.0)]
    """

    def __init__(self, device: str, repeats: int = 5) -> None:
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        self.device = device
        self.repeats = repeats
        self._cuda = torch.device(device).type == "cuda"

    def measure(self, cases: Mapping[str, Callable[[], object]]) -> list[Measurement]:
        """Measure every case; ratios are to the first."""
        peaks = {name: self.peak(run) for name, run in cases.items()}
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(self.repeats):
            for name, run in cases.items():
                times[name].append(self.seconds(run))
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        base = next(iter(medians.values()))
        return [
            Measurement(name, median, min(times[name]), median / base, peaks[name])
            for name, median in medians.items()
        ]

    def seconds(self, run: Callable[[], object]) -> float:
        """Time one call."""
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - start

    def peak(self, run: Callable[[], object]) -> float | None:
        """MiB that one call adds at its highest, after a first call has warmed up."""
        run()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            return (torch.cuda.max_memory_allocated() - before) / 2**20
        if not _CLEAR.exists():
            return None
        _release_free_memory()
        try:
            _CLEAR.write_text("5")
            before = _status("VmRSS")
        except OSError:
            return None
        run()
        return (_status("VmHWM") - before) / 1024

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def _release_free_memory() -> None:
    # What the allocator keeps of earlier calls would be used again unseen: glibc hands it back.
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
