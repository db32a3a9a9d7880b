"""One run per folder: a lock that the operating system releases when its owners die."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK_NAME = ".lock"


class RunLockedError(ValueError):
    """Another process is writing to the folder."""


class FolderLock:
    """A lock that is held. The processes of one run can hold it together."""

    def __init__(self, folder: Path, file: IO[str]) -> None:
        self._folder = folder
        self._file = file

    def acquire(self, *, shared: bool, wait: bool) -> None:
        """Take the lock, or change how it is held; see `locked`."""
        try:
            import fcntl
        except ImportError:
            warnings.warn(
                f"files cannot be locked here: let nothing else write to {self._folder}",
                stacklevel=7,
            )
            return
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._file, mode if wait else mode | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            raise RunLockedError(
                f"{self._folder} is being written by process {self._file.read().strip() or '?'}; "
                "wait until it ends, or give another folder"
            ) from error
        if not shared:
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = False) -> Iterator[FolderLock]:
    """Hold a folder for this process.

    The lock file stays behind: removing it would let a process that waits on the old file and one
    that creates a new file both believe that they hold the lock.

    Args:
        folder: An existing folder.
        shared: Hold it together with others that ask for a shared lock.
        wait: Wait until it is free.

    Raises:
        RunLockedError: If another process holds it; the message has its process id.
    """
    with open(folder / LOCK_NAME, "a+", encoding="ascii") as file:
        lock = FolderLock(folder, file)
        lock.acquire(shared=shared, wait=wait)
        yield lock
