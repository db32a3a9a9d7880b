"""A folder holds one run: whole, unfinished, damaged or another one, and says which."""

import json
import os
import warnings

import pytest
import torch

from lens_diversity.evaluation import (
    DamagedRunError,
    RunLockedError,
    UnfinishedRunError,
    load_run,
)
from lens_diversity.evaluation._lock import locked
from lens_diversity.evaluation.store import open_store, shard_plan
from tests.unit.evaluation import toy


@pytest.fixture
def run():
    return toy.run([3, 2, 4, 2, 3, 5, 2, 2, 3, 4])


@pytest.fixture
def folder(run, tmp_path):
    run.save(tmp_path / "run")
    return tmp_path / "run"


def drop_shard(folder, name):
    header = json.loads((folder / "run.json").read_text())
    del header["shards"][name]
    (folder / "run.json").write_text(json.dumps(header))


def test_the_longest_prompts_come_first_and_none_is_lost():
    plan = shard_plan([3, 9, 4, 9, 1], save_every=2)
    assert plan == [[1, 3], [2, 0], [4]]


def test_shards_are_readable_without_the_library(folder, run):
    import pandas as pd

    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))])
    frame = frame.sort_values("example")
    assert frame["gold"].tolist() == run.gold.tolist()
    row = frame["option_logits"].iloc[2]
    assert row.reshape(5, 4) == pytest.approx(run.option_logits[2, :, :4].numpy())


def test_an_unfinished_run_says_how_far_it_came(folder):
    drop_shard(folder, "shard-00001.parquet")
    with pytest.raises(UnfinishedRunError, match="6 of 10 examples"):
        load_run(folder)


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_shard_is_an_error_to_read_and_dropped_to_write(folder, run, damage):
    path = folder / "shard-00001.parquet"
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedRunError, match=r"shard-00001\.parquet"):
        load_run(folder)
    with (
        pytest.warns(UserWarning, match=r"shard-00001\.parquet"),
        open_store(folder, run.metadata) as store,
    ):
        assert store.done() == {0, 2}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"labels": []}', '"text"'])
def test_a_damaged_header_is_named(folder, content):
    (folder / "run.json").write_text(content)
    with pytest.raises(DamagedRunError, match=r"run\.json is not the header of a run"):
        load_run(folder)


def test_a_header_of_another_format_is_refused(folder):
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(header | {"format": 99}))
    with pytest.raises(ValueError, match="format 99, this version reads format 1"):
        load_run(folder)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: it has no run\.json"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="holds no run"):
        load_run(tmp_path / "absent")


def test_another_run_is_refused_with_what_differs(folder, run):
    other = {
        **run.metadata,
        "model": {"name": "other"},
        "settings": {"save_every": 4, "overlong": "truncate"},
    }
    with pytest.raises(ValueError, match="holds another run") as error, open_store(folder, other):
        pass
    assert str(error.value).splitlines()[1:] == [
        "  model.name: the folder has 'random', this call 'other'",
        "  settings.overlong: the folder has 'nothing', this call 'truncate'",
    ]


def test_other_versions_are_a_warning(folder, run):
    newer = {**run.metadata, "versions": {"torch": "99.0"}}
    with pytest.warns(UserWarning, match=r"torch .* -> 99\.0"), open_store(folder, newer) as store:
        assert store.done() == {0, 1, 2}


def test_the_same_run_is_opened_without_a_word(folder, run):
    with warnings.catch_warnings(), open_store(folder, run.metadata):
        warnings.simplefilter("error")


def test_files_of_others_are_not_overwritten(tmp_path, run):
    (tmp_path / "shard-00000.parquet").write_text("precious")
    with pytest.raises(ValueError, match="would be overwritten"):
        run.save(tmp_path)
    assert (tmp_path / "shard-00000.parquet").read_text() == "precious"


def test_a_file_is_no_folder(tmp_path, run):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file; a run is a folder"):
        run.save(tmp_path / "run")


def test_folder_names_are_not_read_as_data(tmp_path, run):
    run.save(tmp_path / "gold=7" / "run")
    assert torch.equal(load_run(tmp_path / "gold=7" / "run").gold, run.gold)


def test_a_locked_folder_names_its_process(tmp_path, run):
    with locked(tmp_path), pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
        run.save(tmp_path)
    run.save(tmp_path)  # the lock is gone


def test_without_file_locks_a_warning_takes_their_place(tmp_path, run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fcntl", None)
    with pytest.warns(UserWarning, match="cannot be locked"):
        run.save(tmp_path)
    assert len(load_run(tmp_path)) == 10
