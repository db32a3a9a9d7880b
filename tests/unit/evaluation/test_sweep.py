"""A sweep is its cells: independent, resumable, each failure recorded and none in another's way."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import lens_diversity as ld
from lens_diversity import models
from lens_diversity.cli import app
from lens_diversity.evaluation import sweep as sweep_module
from lens_diversity.evaluation.sweep import Outcome, run_sweep
from lens_diversity.evaluation.sweep_file import load_sweep
from tests import families

ROWS = 6


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders "small" with 2 blocks and "deep" with 3."""
    base = tmp_path_factory.mktemp("checkpoints")
    for name, n_layers in (("small", 2), ("deep", 3)):
        torch.manual_seed(n_layers)
        config = LlamaConfig(
            vocab_size=families.VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=n_layers,
            num_attention_heads=4,
        )
        LlamaForCausalLM(config).save_pretrained(base / name)
        families.tokenizer().save_pretrained(base / name)
    return base


@pytest.fixture
def write(tmp_path, checkpoints, monkeypatch):
    """Write a sweep over both checkpoints and two tasks, with other top-level fields if given."""
    monkeypatch.setenv("TEST_CHECKPOINTS", str(checkpoints))
    for name in ("rows.jsonl", "other.jsonl"):
        rows = [{"sentence": f"{name} {i}", "label": i % 2} for i in range(ROWS)]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))

    def write(**changes):
        content = {
            "out": "results",
            "defaults": {"batch_size": 2, "limit": 4},
            "models": ["${TEST_CHECKPOINTS}/small", {"ref": "${TEST_CHECKPOINTS}/deep"}],
            "tasks": [
                {"name": "sst2", "data": "rows.jsonl"},
                {"name": "sst2", "folder": "other", "data": ["other.jsonl"], "limit": 3},
            ],
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        return path

    return write


@pytest.fixture
def loads(monkeypatch):
    """Which models the sweep loads."""
    seen = []

    def load_model(ref, **settings):
        seen.append(ref.rsplit("/", 1)[-1])
        return models.load_model(ref, **settings)

    monkeypatch.setattr(sweep_module, "load_model", load_model)
    return seen


def invoke(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)], env={"COLUMNS": "250"})


def record(path):
    return json.loads((path.parent / "results" / "sweep.json").read_text())["cells"]


def test_every_cell_is_the_run_that_evaluate_makes(write, loads, tmp_path, checkpoints):
    path = write()
    result = invoke(path)
    assert result.exit_code == 0, result.output
    assert loads == ["small", "deep"]
    names = ["small/sst2", "small/other", "deep/sst2", "deep/other"]
    for number, name in enumerate(names, start=1):
        assert f"[{number}/4] {name}: finished" in result.output
    assert set(record(path)) == set(names)
    assert all(entry["status"] == "finished" for entry in record(path).values())
    assert all(entry["seconds"] > 0 for entry in record(path).values())

    task = ld.tasks.load("sst2", limit=3, data_files=tmp_path / "other.jsonl")
    alone = ld.evaluate(ld.load_model(checkpoints / "deep"), task, batch_size=2)
    cell = ld.load_run(tmp_path / "results" / "deep" / "other")
    assert torch.equal(cell.option_logits, alone.option_logits)
    assert f"diversity {alone.summary()['diversity']:.4g}" in result.output


def test_a_failed_cell_is_recorded_and_only_it_is_run_again(write, loads, tmp_path):
    path = write()
    hidden = (tmp_path / "other.jsonl").rename(tmp_path / "hidden.jsonl")
    failed = invoke(path)
    assert failed.exit_code == 1
    assert "2 of 4 cells failed" in failed.output
    entries = record(path)
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "small/sst2": "finished",
        "small/other": "failed",
        "deep/sst2": "finished",
        "deep/other": "failed",
    }
    assert "other.jsonl" in entries["deep/other"]["error"]
    assert "Traceback" in entries["deep/other"]["traceback"]
    assert entries["deep/sst2"]["error"] is None

    hidden.rename(tmp_path / "other.jsonl")
    loads.clear()
    repaired = invoke(path, "--cells", "0-1")
    assert repaired.exit_code == 0, repaired.output
    assert "small/sst2: skipped" in repaired.output
    assert "small/other: finished" in repaired.output
    assert loads == ["small"]
    assert record(path)["small/sst2"] == entries["small/sst2"]
    assert record(path)["deep/other"]["status"] == "failed"


def test_nothing_is_loaded_for_what_is_finished(write, loads):
    path = write()
    assert invoke(path).exit_code == 0
    loads.clear()
    again = invoke(path)
    assert (again.exit_code, again.output.count("skipped")) == (0, 4)
    assert loads == []


def test_a_damaged_cell_is_repaired(write, loads, tmp_path):
    path = write()
    assert invoke(path, "--cell", 0).exit_code == 0
    shard = tmp_path / "results" / "small" / "sst2" / "shard-00000.parquet"
    before = shard.read_bytes()
    shard.write_bytes(before[:-9])
    with pytest.warns(UserWarning, match="shard-00000.parquet does not match its checksum"):
        again = invoke(path, "--cell", 0)
    assert (again.exit_code, loads) == (0, ["small", "small"])
    assert shard.read_bytes() == before


def test_changed_settings_are_another_run_and_refused(write, loads):
    assert invoke(write(), "--cell", 0).exit_code == 0
    path = write(defaults={"limit": 5})
    result = invoke(path, "--cell", 0)
    assert result.exit_code == 1
    assert "n_examples: the folder has 4, this call 5" in record(path)["small/sst2"]["error"]


def test_a_model_that_does_not_load_fails_its_own_cells_and_once(write, loads, tmp_path):
    (tmp_path / "empty").mkdir()
    path = write(models=["./empty", "${TEST_CHECKPOINTS}/small"])
    result = invoke(path)
    assert result.exit_code == 1
    assert loads == ["empty", "small"]
    assert [entry["status"] for entry in record(path).values()] == [
        *["failed"] * 2,
        *["finished"] * 2,
    ]
    assert "holds no config.json" in record(path)["empty/sst2"]["error"]


def test_each_revision_is_a_model_of_its_own(write, monkeypatch):
    asked = []

    def load_model(ref, **settings):
        asked.append((ref, settings["revision"], settings["dtype"], settings["device_map"]))
        raise ValueError("not here")

    monkeypatch.setattr(sweep_module, "load_model", load_model)
    model = {"ref": "EleutherAI/pythia-70m", "revisions": ["step1", "a/b"], "device_map": "auto"}
    path = write(models=[model], defaults={"dtype": "bfloat16", "device": "cpu"})
    assert invoke(path).exit_code == 1
    ref = "EleutherAI/pythia-70m"
    assert asked == [(ref, "step1", "bfloat16", "auto"), (ref, "a/b", "bfloat16", "auto")]
    assert list(record(path)) == [
        f"EleutherAI--pythia-70m@{revision}/{task}"
        for revision in ("a--b", "step1")
        for task in ("other", "sst2")
    ]


def test_cells_are_listed_and_chosen_by_number(write, loads):
    path = write()
    assert invoke(path, "--cell", 2).exit_code == 0
    assert loads == ["deep"]
    lines = [line.split() for line in invoke(path, "--list").output.splitlines()]
    listed = {line[0]: line[1:] for line in lines if line and line[0].isdigit()}
    assert {number: row[-1] for number, row in listed.items()} == {
        "0": "sst2",
        "1": "other",
        "2": "finished",
        "3": "other",
    }
    grid = load_sweep(path)
    assert [cell.index for cell in grid.select("3,0-1")] == [0, 1, 3]
    for wrong, message in (("4", "has 0 to 3"), ("2-1", "no cells 2-1"), ("x", "0-3,9, got 'x'")):
        result = invoke(path, "--cells", wrong)
        assert result.exit_code == 2
        assert message in result.stderr


def test_a_dry_run_reads_configurations_and_no_weights(write, loads, tmp_path, checkpoints):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((checkpoints / "deep" / "config.json").read_text())
    parameters = sum(
        weight.numel()
        for weight in LlamaForCausalLM.from_pretrained(checkpoints / "deep").parameters()
    )
    path = write(
        models=[
            {"ref": "./bare", "dtype": "bfloat16", "parameters": "1B"},
            {"ref": "owner/looped", "layers": 30, "applications": 2, "parameters": "3.8B"},
            "./absent",
        ]
    )
    result = invoke(path, "--dry-run")
    assert result.exit_code == 0, result.output
    assert loads == []
    rows = {
        line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line.split()
    }
    assert rows[str(bare)][:3] == ["3", "7", str(parameters)]
    assert rows[str(bare)][3:] == [
        f"{2 * parameters / 2**30:.2f}",
        "GiB",
        "bfloat16",
        "config.json",
    ]
    size = f"{3.8e9 * 4 / 2**30:.2f}"
    assert rows["owner/looped"][:6] == ["60", "121", "3.8B", size, "GiB", "float32"]
    assert rows[str(tmp_path / "absent")][:4] == ["unknown"] * 4
    assert "6 cells" in result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modles": []}, "field 'modles': unknown; did you mean 'models'?"),
        ({"tasks": []}, "field 'tasks': expected a list of one or more, found []"),
        ({"models": "gpt2"}, "field 'models': expected a list"),
        ({"defaults": {"limt": 1}}, "field 'defaults.limt': unknown; did you mean 'limit'?"),
        ({"models": ["a", {"ref": "b", "revision": "x"}]}, "field 'models[1].revision': unknown"),
        ({"models": [{"dtype": "float32"}]}, "field 'models[0].ref': missing"),
        ({"models": [{"ref": "a", "dtype": "half"}]}, "field 'models[0].dtype': expected one of"),
        ({"models": [{"ref": "a", "revisions": [1]}]}, "'models[0].revisions': expected a text"),
        (
            {"models": [{"ref": "a", "parameters": "big"}]},
            "'models[0].parameters': expected an int",
        ),
        ({"models": [{"ref": "a", "folder": "x/y"}]}, "'models[0].folder': expected a folder name"),
        (
            {"models": [{"ref": "a", "device": "cpu", "device_map": "auto"}]},
            "'models[0]': give either 'device' or 'device_map'",
        ),
        ({"models": ["a/b", "A/b"]}, "cells 0 and 2 would both be written to A--b/sst2"),
        ({"models": [3]}, "field 'models[0]': expected a mapping"),
        ({"tasks": ["sst3"]}, "field 'tasks[0].name': unknown task 'sst3'; did you mean 'sst2'?"),
        (
            {"tasks": [{"name": "sst2", "limit": 0}]},
            "'tasks[0].limit': expected 1 or more, found 0",
        ),
        ({"tasks": [{"name": "sst2", "seed": True}]}, "'tasks[0].seed': expected an integer"),
        ({"tasks": [{"name": "rte", "shots": 2}], "defaults": {}}, "'tasks[0].shots': demonstr"),
        ({"out": "${TEST_UNSET}/x"}, "field 'out': the environment variable TEST_UNSET is not set"),
    ],
)
def test_mistakes_in_the_file_name_file_and_field(write, changes, message):
    path = write(**changes)
    result = invoke(path)
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("text", ["[", "- a", "text"])
def test_files_that_are_no_sweep_are_refused(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"sweep\.yaml: (cannot be read|the file: expected)"):
        load_sweep(path)
    with pytest.raises(ValueError, match=r"none\.yaml: cannot be read as a sweep"):
        load_sweep(tmp_path / "none.yaml")


def test_a_task_file_lies_beside_the_sweep(write, tmp_path):
    task = {
        "name": "mine",
        "prompt": "{{ sentence }} Good?",
        "options": ["No", "Yes"],
        "label": {"label": {0: "No", 1: "Yes"}},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(task))
    path = write(tasks=[{"name": "mine.yaml", "data": "rows.jsonl"}])
    assert invoke(path, "--cell", 0).exit_code == 0
    run = ld.load_run(tmp_path / "results" / "small" / "mine")
    assert run.metadata["task"]["name"] == "mine"


def test_jobs_of_an_array_share_one_record(write):
    grid = load_sweep(write())
    grid.out.mkdir()
    outcomes = [Outcome(cell, "failed", 1.0, error=cell.name) for cell in grid.cells] * 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda outcome: sweep_module._record(grid.out, outcome), outcomes))
    assert set(record(grid.path)) == {cell.name for cell in grid.cells}


def test_a_damaged_record_is_named(write):
    path = write()
    (path.parent / "results").mkdir()
    (path.parent / "results" / "sweep.json").write_text("{")
    result = invoke(path)
    assert result.exit_code == 2
    assert "sweep.json is no record of a sweep" in result.stderr


def test_a_launcher_is_for_single_runs(write, monkeypatch):
    grid = load_sweep(write())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a sweep is one process"):
        next(run_sweep(grid, grid.cells))
