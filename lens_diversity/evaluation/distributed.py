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

from lens_diversity.evaluation._lock import FolderLock, locked
from lens_diversity.evaluation.store import (
    FolderStore,
    Store,
    join_store,
    note_shard,
    open_store,
    write_shard,
)

# Processes wait for the slowest one. Of one that died the others hear at once.
_PATIENCE = timedelta(days=7)


class LostProcessError(ValueError):
    """Another process of the same run has ended early."""


class Team:
    """The processes that `accelerate launch` or `torchrun` started, or this one alone."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def launched(cls) -> Team:
        """Join the other processes, if there are any.

        They exchange a few small objects, so it is the CPU's backend whatever computes: NCCL gives
        up on a slow process after ten minutes and does not notice a dead one.
        """
        if not is_launched():
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=True, backend="gloo", timeout=_PATIENCE)
        return cls(state.process_index, state.num_processes)

    def part(self, items: Sequence[int]) -> Sequence[int]:
        """This process' share, dealt out in turn.

        Example:
            >>> Team(rank=1, size=3).part([0, 1, 2, 3, 4])
            [1, 4]
        """
        return items[self.rank :: self.size]

    def open(
        self, out: str | os.PathLike[str] | None, header: Mapping[str, Any]
    ) -> AbstractContextManager[Store]:
        """Open the run's folder (see `open_store`) for all processes.

        Raises:
            LostProcessError: If another process ends before the run does.
            ValueError: As `open_store` does.
        """
        if self.size == 1 or out is None:
            return open_store(out, header)
        return self._lead(Path(out), header) if self.rank == 0 else self._join(Path(out), header)

    @contextmanager
    def _lead(self, folder: Path, header: Mapping[str, Any]) -> Iterator[Store]:
        with open_store(folder, header) as store:
            assert isinstance(store, FolderStore)
            self.tell(sorted(store.done()))
            yield _SharedStore(self, store.folder, store.done(), store.write, store.list_noted)

    @contextmanager
    def _join(self, folder: Path, header: Mapping[str, Any]) -> Iterator[Store]:
        done = self.tell(None)
        with locked(folder, shared=True):
            join_store(folder, header)

            def write(index: int, table: pa.Table) -> None:
                note_shard(folder, *write_shard(folder, index, table))

            yield _SharedStore(self, folder, set(done), write, lambda: None)

    def tell(self, value: Any) -> Any:
        """Give the first process' value to all."""
        from accelerate.utils import broadcast_object_list
        values = [value]
        with _lost_process_named():
            broadcast_object_list(values)
        return values[0]
