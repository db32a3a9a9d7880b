"""Models and data sets from the Hub, as a loopback server plays it to processes of their own."""

import json
import os
import shutil
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests import families, hub
from tests.hub import Repository

# Reads [kind, name, revision] lines and answers each with what came of it.
CLIENT = """
import json, sys
from dataclasses import replace
from lens_diversity import tasks
from lens_diversity.models import describe_model, load_model
from lens_diversity.profiling.texts import open_texts
from lens_diversity.tasks.spec import HubSource

def model(name, revision):
    loaded = load_model(name, revision=revision, device="cpu")
    return describe_model(loaded) | {"fingers": float(loaded.W_U.sum())}

def data(name, revision, task="sst2"):
    spec = replace(tasks.get_spec(task), hub=HubSource(name, task))
    loaded = tasks.load(spec, revision=revision)
    return {"prompt": loaded.prompts[0], **loaded.source}

def texts(name, revision, config="sst2", column="sentence"):
    source = open_texts(name, column=column, config=config, split="validation", revision=revision)
    return {"texts": list(source), **source.identity}

for line in sys.stdin:
    kind, *arguments = json.loads(line)
    try:
        found = {"model": model, "data": data, "texts": texts}[kind](*arguments)
    except ValueError as error:
        found = {"error": str(error)}
    print(json.dumps(found), flush=True)
"""


class Client:
    """A process that loads from the Hub; one for all tests, as importing takes most of its time."""

    def __init__(self, endpoint, home):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=clean
            | {
                "HF_ENDPOINT": endpoint,
                "HF_HOME": str(home),
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_DOWNLOAD_TIMEOUT": "5",
                "HF_HUB_ETAG_TIMEOUT": "5",
                "NO_PROXY": "127.0.0.1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(home / "stderr").open("w"),
            text=True,
        )

    def load(self, kind, name, revision=None, *more):
        self.process.stdin.write(json.dumps([kind, name, revision, *more]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A tiny Llama with a tied head, and the same weights as MobileLLM's repositories hold them."""
    plain, mobile, pickled = (tmp_path_factory.mktemp(name) for name in ("a", "mobile", "pickled"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=families.VOCAB,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(plain)
    families.tokenizer().save_pretrained(plain)
    shutil.copytree(plain, mobile, dirs_exist_ok=True)
    settings = json.loads((plain / "config.json").read_text())
    settings |= {
        "architectures": ["MobileLLMForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_mobilellm.MobileLLMConfig",
            "AutoModelForCausalLM": "modeling_mobilellm.MobileLLMForCausalLM",
        },
        "layer_sharing": True,
        "model_type": "mobilellm",
        "share_embedding": True,
        "tie_word_embeddings": False,
    }
    (mobile / "config.json").write_text(json.dumps(settings))
    for name in ("configuration_mobilellm.py", "modeling_mobilellm.py"):
        (mobile / name).write_text("raise SystemExit('remote code was run')\n")
    shutil.copytree(mobile, pickled, dirs_exist_ok=True)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    return {"plain": plain, "mobile": mobile, "pickled": pickled}


def data_folder(folder, config, rows):
    """A repository of Parquet files, with the configurations that its card names."""
    (folder / config).mkdir(parents=True)
    name = f"{config}/validation-00000-of-00001.parquet"
    datasets.Dataset.from_list(rows).to_parquet(folder / name)
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n"
        f"  - split: validation\n    path: {config}/validation-*\n---\n"
    )
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    sst2 = [{"sentence": f"a fine film {i}", "label": i % 2, "idx": i} for i in range(4)]
    word = {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "label": 1}
    script = root / "script"
    script.mkdir()
    (script / "super_glue.py").write_text("raise SystemExit('a loading script was run')\n")
    (script / "README.md").write_text("Words in context.\n")
    export = root / "export"
    (export / "wic" / "validation").mkdir(parents=True)
    datasets.Dataset.from_list([word]).to_parquet(export / "wic" / "validation" / "0000.parquet")
    return {
        "sst2": data_folder(root / "sst2", "sst2", sst2),
        "other": data_folder(root / "other", "sst2", sst2[1:]),
        "script": script,
        "export": export,
    }


SST2_FILE = "sst2/validation-00000-of-00001.parquet"


@pytest.fixture(scope="module")
def served(checkpoints, data, tmp_path_factory):
    plain, mobile = {"main": checkpoints["plain"]}, {"main": checkpoints["mobile"]}
    sst2 = {"main": data["sst2"]}
    repositories = {
        "tiny/llama": Repository(plain | {"v1": checkpoints["plain"]}),
        "tiny/mobile": Repository(mobile | {"plain": checkpoints["plain"]}),
        "tiny/pickled": Repository({"main": checkpoints["pickled"]}),
        "tiny/gated": Repository(plain, gated=HTTPStatus.UNAUTHORIZED),
        "tiny/cut": Repository(plain, cut="model.safetensors"),
        "tiny/cut-config": Repository(plain, cut="config.json"),
        "tiny/cut-tokenizer": Repository(plain, cut="tokenizer.json"),
        "tiny/interrupted": Repository(plain, cut="model.safetensors", recovers=True),
        "data/sst2": Repository(sst2 | {"old": data["other"]}, "datasets"),
        "data/gated": Repository(sst2, "datasets", gated=HTTPStatus.FORBIDDEN),
        "data/cut": Repository(sst2, "datasets", cut=SST2_FILE),
        "data/interrupted": Repository(sst2, "datasets", cut=SST2_FILE, recovers=True),
        "data/super_glue": Repository(
            {"main": data["script"], "refs/convert/parquet": data["export"]}, "datasets"
        ),
    }
    with hub.serve(repositories) as (endpoint, server):
        client = Client(endpoint, tmp_path_factory.mktemp("home"))
        try:
            yield client, server
        finally:
            client.process.stdin.close()
            client.process.wait(timeout=60)


@pytest.mark.parametrize("revision", [None, "main", "v1", "commit"])
def test_a_model_comes_with_its_commit(served, checkpoints, revision):
    client, _ = served
    folder = checkpoints["plain"]
    if revision == "commit":
        revision = hub.commit(folder)
    found = client.load("model", "tiny/llama", revision)
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    assert found.pop("fingers") == pytest.approx(float(embedding.sum()), abs=1e-4)
    assert found == {
        "name": "tiny/llama",
        "revision": hub.commit(folder),
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "n_layers": 2,
        "d_model": 24,
        "d_vocab": families.VOCAB,
        "n_parameters": sum(weight.numel() for weight in weights.values()),
    }


def test_a_mobilellm_comes_without_its_code(served, checkpoints):
    client, server = served
    found = client.load("model", "tiny/mobile")
    assert found["revision"] == hub.commit(checkpoints["mobile"])
    assert found["n_layers"] == 4
    plain = client.load("model", "tiny/mobile", "plain")
    assert plain["revision"] == hub.commit(checkpoints["plain"])
    assert plain["n_layers"] == 2
    assert found["n_parameters"] == plain["n_parameters"]
    message = client.load("model", "tiny/pickled")["error"]
    assert "tiny/pickled holds its weights in a pickle" in message
    fetched = [request for request in server.requests if request.startswith("GET")]
    assert not [request for request in fetched if request.endswith((".py", ".bin"))]


@pytest.mark.parametrize(
    ("name", "revision", "messages"),
    [
        ("tiny/gated", None, ["tiny/gated is gated: accept its licence", "hf auth login"]),
        ("tiny/none", None, ["the Hub shows no model tiny/none: check the name"]),
        ("data/sst2", None, ["the Hub shows no model data/sst2"]),
        ("tiny/llama", "v9", ["tiny/llama has no revision 'v9' on the Hub"]),
        ("tiny/mobile", "v9", ["tiny/mobile has no revision 'v9' on the Hub"]),
        ("tiny/cut-config", None, ["broke off in the middle of tiny/cut-config", "try again"]),
        ("tiny/cut-tokenizer", None, ["broke off in the middle of tiny/cut-tokenizer"]),
        ("tiny/cut", None, ["broke off in the middle of tiny/cut:"]),
    ],
)
def test_a_model_that_does_not_come_is_explained(served, name, revision, messages):
    client, _ = served
    error = client.load("model", name, revision)["error"]
    assert all(message in error for message in messages), error


def test_an_interrupted_download_goes_on(served):
    client, server = served
    assert client.load("model", "tiny/interrupted")["n_layers"] == 2
    assert client.load("data", "data/interrupted")["rows"] == 4
    for file in ("model.safetensors", SST2_FILE):
        fetched = [r for r in server.requests if r.startswith("GET") and "interrupted" in r]
        assert len([request for request in fetched if request.endswith(file)]) == 2


@pytest.mark.parametrize(("revision", "rows"), [(None, 4), ("old", 3), ("commit", 4)])
def test_a_data_set_comes_with_its_revision(served, data, revision, rows):
    client, _ = served
    folder = data["other" if revision == "old" else "sst2"]
    if revision == "commit":
        revision = hub.commit(folder)
    found = client.load("data", "data/sst2", revision)
    assert found.pop("prompt").startswith(f"a fine film {4 - rows}\nQuestion:")
    assert found == {
        "kind": "hub",
        "path": "data/sst2",
        "config": "sst2",
        "split": "validation",
        "revision": revision or "main",
        "commit": hub.commit(folder),
        "rows": rows,
    }


def test_a_loading_script_is_not_run_and_its_export_read(served, data):
    client, _ = served
    found = client.load("data", "data/super_glue", None, "wic")
    assert 'the word "bank"' in found["prompt"]
    assert found["revision"] == "refs/convert/parquet"
    assert found["commit"] == hub.commit(data["export"])


@pytest.mark.parametrize(
    ("name", "revision", "messages"),
    [
        ("data/gated", None, ["'data/gated' (configuration 'sst2'", "gated", "hf auth login"]),
        ("data/none", None, ["'data/none'", "doesn't exist on the Hub or cannot be accessed"]),
        ("tiny/llama", None, ["'tiny/llama'", "doesn't exist on the Hub"]),
        ("data/sst2", "v9", ["revision 'v9'", "data/sst2"]),
        ("data/cut", None, ["'data/cut'", "could not be read from the Hub", "network"]),
    ],
)
def test_a_data_set_that_does_not_come_is_explained(served, name, revision, messages):
    client, _ = served
    error = client.load("data", name, revision)["error"]
    assert all(message in error for message in messages), error
    assert "data_files=" in error


def test_texts_are_streamed_from_the_commit_that_was_found(served, data):
    client, _ = served
    found = client.load("texts", "data/sst2")
    assert found == {
        "texts": [f"a fine film {i}" for i in range(4)],
        "kind": "hub",
        "path": "data/sst2",
        "config": "sst2",
        "split": "validation",
        "commit": hub.commit(data["sst2"]),
        "column": "sentence",
        "limit": None,
    }
    old = client.load("texts", "data/sst2", "old")
    assert old["commit"] == hub.commit(data["other"])
    assert len(old["texts"]) == 3


@pytest.mark.parametrize(
    ("name", "more", "messages"),
    [
        ("data/none", [], ["'data/none'", "could not be streamed from the Hub", "local files"]),
        ("data/gated", [], ["'data/gated'", "hf auth login"]),
        ("data/sst2", ["mnli"], ["configuration 'mnli'", "sst2"]),
        ("data/sst2", ["sst2", "text"], ["no column 'text'", "column=", "sentence"]),
    ],
)
def test_texts_that_do_not_come_are_explained(served, name, more, messages):
    client, _ = served
    error = client.load("texts", name, None, *more)["error"]
    assert all(message in error for message in messages), error
