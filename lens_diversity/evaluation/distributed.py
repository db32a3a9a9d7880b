"""Several processes on one run: each computes its part of the shards, the first keeps the list."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from lens_diversity.evaluation._lock import locked
from lens_diversity.evaluation.store import (
    FolderStore,
    Store,
    note_shard,
    open_store,
    require_same_run,
    run_folder,
    write_shard,
)

# They wait for the slowest; when one dies, gloo's connections to it break at once.
_PATIENCE = timedelta(days=1)


class LostProcessError(ValueError):
    """Another process of the same run ended early."""


class Team:
    """The processes that ``accelerate launch`` or ``torchrun`` started, or this one alone.

    The first process locks the folder, checks or writes its header and lets the others in. Each
    writes its share of the missing shards and a note of each; the first lists them in the end, and
    whoever opens the folder next does so after a kill. A process that fails ends the run.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def launched(cls) -> Team:
        """Join the other processes, if a launcher started any."""
        if not is_launched():
            return cls()
        from accelerate import PartialState

        # They exchange a few small objects, so gloo serves, whatever computes: NCCL gives up on
        # a slow process after ten minutes and does not notice a dead one.
        state = PartialState(cpu=True, backend="gloo", timeout=_PATIENCE)
        return cls(state.process_index, state.num_processes)

    def part(self, items: Sequence[int]) -> Sequence[int]:
        """Return this process' share, dealt out in turn.

        Example:
            >>> Team(rank=1, size=3).part([0, 1, 2, 3, 4])
            [1, 4]
        """
        return items[self.rank :: self.size]

    def open(
        self, out: str | os.PathLike[str] | None, header: Mapping[str, Any]
    ) -> AbstractContextManager[Store]:
        """Open a run for all processes together.

        Raises:
            LostProcessError: If another process ends before the run does.
            ValueError: As `open_store`, or if a process has another run or sees other files than
                the first.
        """
        if self.size == 1:
            return open_store(out, header)
        if out is None:
            raise ValueError("processes that share a run meet in its folder: give out=")
        return self._lead(out, header) if self.rank == 0 else self._join(Path(out), header)

    @contextmanager
    def _lead(self, out: str | os.PathLike[str], header: Mapping[str, Any]) -> Iterator[Store]:
        folder = run_folder(out)
        with locked(folder) as lock:
            store = FolderStore.resume(folder, header)
            # From here on the folder is free when the last process has ended.
            lock.acquire(shared=True, wait=False)
            done = self._tell(store.done())
            yield _SharedStore(self, folder, done, write=store.write, gather=store.list_noted)

    @contextmanager
    def _join(self, folder: Path, header: Mapping[str, Any]) -> Iterator[Store]:
        done = self._tell(None)
        with locked(folder, shared=True):
            require_same_run(folder, header)

            def write(index: int, table: pa.Table) -> None:
                note_shard(folder, *write_shard(folder, index, table))

            yield _SharedStore(self, folder, done, write=write, gather=lambda: None)

    def _tell(self, value: Any) -> Any:
        """Give the first process' value to all."""
        values = [value]
        with _lost_process_named():
            torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def meet(self) -> None:
        """Wait for the others."""
        with _lost_process_named():
            torch.distributed.barrier()


class _SharedStore:
    """A process' view of a folder that several write to."""

    def __init__(
        self,
        team: Team,
        folder: Path,
        done: set[int],
        *,
        write: Callable[[int, pa.Table], None],
        gather: Callable[[], None],
    ) -> None:
        self._team = team
        self._folder = folder
        self._done = done
        self._gather = gather
        self.write = write

    def done(self) -> set[int]:
        """Which shards were there at the start."""
        return self._done

    def read(self) -> tuple[pa.Table, dict[str, Any]]:
        """Wait until all parts are written and listed, and read the whole run."""
        self._team.meet()
        self._gather()
        self._team.meet()
        return FolderStore.finished(self._folder).read()


def is_launched() -> bool:
    """Whether a launcher started several processes of this program."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process speaks for all: it prints and writes what is not part of the run."""
    return not is_launched() or int(os.environ["RANK"]) == 0


def own_device() -> str | None:
    """The GPU of this process among those of its machine, or None without GPUs or alone."""
    if not (is_launched() and torch.cuda.is_available()):
        return None
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


@contextmanager
def _lost_process_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run ended early, see its own message; a second call goes on "
            "from what was written"
        ) from error
