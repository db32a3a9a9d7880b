"""One process per folder: a lock that the operating system releases when its owner dies."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".lock"


class RunLockedError(ValueError):
    """Another process is writing to the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process.

    The lock file stays behind: removing it would let a process that waits on the old file and one
    that creates a new file both believe that they hold the lock.

    Raises:
        RunLockedError: If another process holds it; the message has its process id.
    """
    try:
        import fcntl
    except ImportError:
        warnings.warn(
            f"files cannot be locked on this platform: let nothing else write to {folder}",
            stacklevel=6,
        )
        yield
        return
    with open(folder / LOCK_NAME, "a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise RunLockedError(
                f"{folder} is being written by process {lock.read().strip() or 'unknown'}; wait "
                "until it ends, or give another folder"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
