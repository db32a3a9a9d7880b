"""The command line: what it prints, what it writes, and how it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import lens_diversity as ld
import lens_diversity.models
import lens_diversity.verification
from lens_diversity.cli import app
from lens_diversity.verification import Check
from tests import families

ROWS = [("a fine film", 1), ("dull [very] dull", 0), ("it has its moments and more", 1)] * 2


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"sentence": f"{text} {i}", "label": label} for i, (text, label) in enumerate(ROWS)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def loaded(bridge, monkeypatch):
    """Every model name loads the tiny gpt2; what it was asked for is kept."""
    calls = []

    def load_model(ref, **options):
        calls.append({"ref": ref, **options})
        return bridge("gpt2")

    monkeypatch.setattr(lens_diversity.models, "load_model", load_model)
    return calls


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_arguments(data, out, *more):
    return ("run", "--model", "tiny", "--task", "sst2", "--data", data, "--out", out, *more)


def test_run_prints_and_writes_the_decomposition(loaded, data, tmp_path):
    out = tmp_path / "out"
    more = ("--limit", 4, "--batch-size", 3, "--device", "cpu", "--revision", "main")
    result = invoke(*run_arguments(data, out, *more))
    assert result.exit_code == 0, result.output
    assert loaded == [
        {"ref": "tiny", "device": "cpu", "dtype": "float32", "revision": "main"},
    ]

    run = ld.load_run(out)
    summary = run.summary()
    assert len(run) == 4
    assert run.metadata["batch_size"] == 3
    assert json.loads((out / "summary.json").read_text()) == summary
    for name in ("accuracy", "mse", "bias", "diversity"):
        (line,) = [line for line in result.output.splitlines() if f"│ {name} " in line]
        assert f"{summary[name]:.6g}" in line
        assert f"{100 * summary[name]:.4g}" in line
    for module in ("embed", "attn", "mlp"):
        (line,) = [line for line in result.output.splitlines() if f"│ {module} " in line]
        assert f"{summary['bias_share'][module]:.2%}" in line
        assert f"{summary['diversity_share'][module]:.2%}" in line

    components = pd.read_csv(out / "components.csv")
    assert components["label"].tolist() == run.labels
    weighted = components["weight"] * components["diversity"]
    assert weighted.sum() == pytest.approx(summary["diversity"])
    page = (out / "heatmap.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page
    assert "<script src=" not in page  # self-contained
    for name in ("run.json", "summary.json", "components.csv", "heatmap.html"):
        assert str(out / name) in result.output


def test_run_takes_demonstrations(loaded, data, tmp_path):
    arguments = run_arguments(data, tmp_path / "out", "--limit", 2, "--shots", 2, "--seed", 3)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    notes = ld.load_run(tmp_path / "out").metadata["data"]["notes"]
    assert (notes["n_shots"], notes["seed"]) == (2, 3)


def test_run_cuts_overlong_prompts_on_request_and_says_so(loaded, tmp_path):
    data = tmp_path / "rows.jsonl"
    rows = [{"sentence": "word " * 200, "label": 0}, {"sentence": "short", "label": 1}]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    refused = invoke(*run_arguments(data, tmp_path / "a"))
    assert refused.exit_code == 2
    assert "1 of 2 prompts are longer" in refused.stderr
    assert not (tmp_path / "a").exists()
    cut = invoke(*run_arguments(data, tmp_path / "b", "--overlong", "truncate"))
    assert cut.exit_code == 0, cut.output
    assert "1 prompts were cut" in cut.output


def test_profile_prints_and_writes_its_tables(loaded, data, tmp_path):
    out = tmp_path / "out"
    arguments = ("profile", "--model", "tiny", "--texts", data, "--out", out, "--limit", 4)
    more = ("--column", "sentence", "--context", 16, "--combine", "sum", "--batch-size", 2)
    result = invoke(*arguments, *more)
    assert result.exit_code == 0, result.output
    found = ld.load_profile(out)
    assert found.n_documents == 4
    assert found.metadata["settings"]["context"] == 16
    summary = found.summary()
    for name in ("error", "bias", "diversity"):
        (line,) = [line for line in result.output.splitlines() if f"│ {name} " in line]
        assert f"{summary['mean'][name]:.6g}" in line
        assert f"{summary['low'][name]:.6g} to {summary['high'][name]:.6g}" in line
    modules = pd.read_csv(out / "modules.csv").set_index("module")
    for module, row in modules.iterrows():
        (line,) = [line for line in result.output.splitlines() if f"│ {module} " in line]
        assert f"{row['diversity_share']:.2%}" in line
    components = pd.read_csv(out / "components.csv")
    weighted = components["weight"] * components["bias"]
    assert weighted.sum() == pytest.approx(summary["mean"]["bias"])
    for name in ("components.html", "positions.html"):
        assert "Plotly.newPlot" in (out / name).read_text(encoding="utf-8")
        assert str(out / name) in result.output
    again = invoke(*arguments, *more[:-2], "--batch-size", 1)
    assert again.exit_code == 0, again.output
    other = invoke(*arguments, *more, "--loss", "brier")
    assert other.exit_code == 2
    assert "settings.loss: the folder has 'cross_entropy', this call 'brier'" in other.stderr


def test_units_finer_and_coarser_than_sublayers(loaded, data, tmp_path):
    result = invoke(*run_arguments(data, tmp_path / "run", "--unit", "head"))
    assert result.exit_code == 0, result.output
    labels = pd.read_csv(tmp_path / "run" / "components.csv")["label"].tolist()
    assert {"L0H0", "0_attn_bias", "0_mlp_out"} <= set(labels)
    texts = ("--texts", data, "--column", "sentence", "--unit", "block")
    result = invoke("profile", "--model", "tiny", *texts, "--out", tmp_path / "profile")
    assert result.exit_code == 0, result.output
    labels = pd.read_csv(tmp_path / "profile" / "components.csv")["label"].tolist()
    assert labels == ["embed", "pos_embed", "0_block", "1_block"]
    assert invoke(*run_arguments(data, tmp_path / "x", "--unit", "layer")).exit_code == 2


def test_profile_says_what_there_is_instead_of_the_column(loaded, data, tmp_path):
    result = invoke("profile", "--model", "tiny", "--texts", data, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "no column 'text'; choose one with column=: ['sentence', 'label']" in result.stderr
    assert not (tmp_path / "out").exists()


def test_own_errors_are_one_message_without_traceback(loaded, data, tmp_path):
    assert invoke(*run_arguments(data, tmp_path / "out", "--limit", 3)).exit_code == 0
    result = invoke(*run_arguments(data, tmp_path / "out", "--limit", 2))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "n_examples: the folder has 3, this call 2" in result.stderr
    assert "Traceback" not in result.stderr
    result = invoke(*run_arguments(tmp_path / "none.jsonl", tmp_path / "other"))
    assert (result.exit_code, "none.jsonl" in result.stderr) == (2, True)
    debugged = invoke("--debug", *run_arguments(data, tmp_path / "out", "--limit", 2))
    assert isinstance(debugged.exception, ValueError)


def test_errors_that_are_not_ours_keep_their_traceback(monkeypatch, data, tmp_path):
    monkeypatch.setattr(lens_diversity.models, "load_model", lambda ref, **_: json.loads("{"))
    result = invoke(*run_arguments(data, tmp_path / "out"))
    assert isinstance(result.exception, json.JSONDecodeError)
    assert "Error: " not in result.stderr


def test_tasks_are_listed_and_shown(data):
    listed = invoke("tasks", "list")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in ld.tasks.names())
    shown = invoke("tasks", "show", "sst2", "--row", 1, "--data", data)
    assert shown.output == (
        "dull [very] dull 1\n"
        "Question: Was that sentence positive or negative? Answer:\n\n"
        "options: ['negative', 'positive'] after ' '\n"
        "gold:    'negative' (index 0)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "unknown task 'nope'"),
        (("sst2", "--row", 6), "has 6 rows, so there is no --row 6"),
        (("sst2", "--row", -1), "--row counts from 0"),
    ],
)
def test_rows_that_are_not_there_are_refused(data, arguments, message):
    result = invoke("tasks", "show", *arguments, "--data", data)
    assert result.exit_code == 2
    assert message in result.stderr


def test_verify_prints_every_identity(loaded):
    result = invoke("verify", "tiny", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert result.output.count("passed") == 4
    assert "failed" not in result.output


def test_verify_fails_where_an_identity_does(loaded, monkeypatch):
    checks = [Check("sums", 1e-7, 1e-4, "relative"), Check("pads", 0.5, 1e-3, "relative")]
    monkeypatch.setattr(lens_diversity.verification, "verify", lambda model: checks)
    result = invoke("verify", "tiny")
    assert result.exit_code == 1
    assert (result.output.count("passed"), result.output.count("failed")) == (1, 1)


def test_version_is_the_packages():
    result = invoke("--version")
    assert result.output == f"lens-diversity {ld.__version__}\n"


def test_a_real_process_runs_a_checkpoint_from_a_folder(data, tmp_path):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    config = LlamaConfig(
        vocab_size=families.VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    LlamaForCausalLM(config).save_pretrained(checkpoint)
    families.tokenizer().save_pretrained(checkpoint)
    arguments = ["run", "--model", checkpoint, "--task", "sst2", "--data", data, "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "lens_diversity", *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "diversity" in done.stdout
    assert str(out / "heatmap.html") in done.stdout.replace("\n", "")
    assert len(ld.load_run(out)) == len(ROWS)
