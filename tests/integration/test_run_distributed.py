"""Several processes compute one run: the same numbers, whoever is killed and whoever goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lens_diversity as ld
from tests import families
from tests.unit.evaluation import toy

ROOT = Path(__file__).parents[2]
ROWS, SAVE_EVERY = 48, 2

# One process that loads the model once and forks the processes of every attempt; one thread,
# because a child cannot use its parent's thread pools.
DRIVER = """
import json, os, random, shutil, signal, socket, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
torch.set_num_threads(1)
import lens_diversity as ld
from pathlib import Path
from tests import families
from tests.unit.evaluation import toy

root, rows, save_every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model, task = families.build("llama"), toy.task(rows)
evaluate_module = sys.modules["lens_diversity.evaluation.evaluate"]
option_rows = evaluate_module.option_rows
random.seed(0)


def evaluate(folder, rank=0, **changes):
    settings = {"batch_size": 2, "save_every": save_every, "progress": False} | changes
    return ld.evaluate(model, task, out=folder, **settings)


def start(size, folder, work=evaluate):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            if size > 1:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            code = 1
            try:
                found = work(folder, rank)
                torch.save(found.option_logits, root / f"{folder.name}-{rank}.pt")
                code = 0
            except ValueError as error:
                (root / f"{folder.name}-{rank}.txt").write_text(f"{type(error).__name__} {error}")
            finally:
                os._exit(code)
        pids.append(pid)
    return pids


def ended(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return ended(pids)


def listed(folder):
    path = folder / "run.json"
    return sorted(json.loads(path.read_text())["shards"]) if path.exists() else []


def noted(folder):
    return sorted(path.name for path in folder.glob("*.parquet.json"))


def stall(folder, rank):
    # The second process writes one shard, and then nothing happens any more.
    calls = []

    def slow(*arguments):
        calls.append(rank)
        if rank == 0 or len(calls) > 1:
            time.sleep(600)
        return option_rows(*arguments)

    evaluate_module.option_rows = slow
    return evaluate(folder)


def fail(folder, rank):
    def failing(*arguments):
        if rank == 1:
            raise ValueError("out of luck")
        return option_rows(*arguments)

    evaluate_module.option_rows = failing
    return evaluate(folder)


def blocked(folder):
    try:
        evaluate(folder)
    except ValueError as error:
        return f"{type(error).__name__} {error}"
    return "open"


found = {"whole": ended(start(2, root / "whole")), "kills": []}

folder = root / "killed"
for size in (2, 3, 1):
    before = len(listed(folder))
    pids = start(size, folder)
    while (len(listed(folder)) < before + 2) if size == 1 else (len(noted(folder)) < 2):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.01))
    codes = kill(pids)
    found["kills"].append([codes, listed(folder), noted(folder)])
found["resumed"] = ended(start(2, folder))

folder = root / "held"
first, second = start(2, folder, stall)
while not noted(folder):
    time.sleep(0.001)
found["blocked"] = [blocked(folder)]
kill([first])
found["blocked"].append(blocked(folder))
kill([second])
evaluate(folder)
found["first"] = first

found["failed"] = ended(start(2, root / "failed", fail))
evaluate(root / "failed")
shutil.copytree(root / "failed", root / "other")
found["refused"] = ended(start(2, root / "other", lambda *given: evaluate(*given, save_every=3)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def undisturbed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return ld.evaluate(
            families.build("llama"), toy.task(ROWS), batch_size=2, save_every=SAVE_EVERY
        )
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, (folder, ROWS, SAVE_EVERY))],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_two_processes_both_return_what_one_computes(driven, undisturbed):
    folder, found = driven
    assert found["whole"] == [0, 0]
    run = ld.load_run(folder / "whole")
    assert torch.equal(run.option_logits, undisturbed.option_logits)
    assert torch.equal(run.constant, undisturbed.constant)
    assert torch.equal(run.n_tokens, undisturbed.n_tokens)
    assert run.gold.tolist() == undisturbed.gold.tolist()
    assert run.summary() == undisturbed.summary()
    for rank in range(2):
        assert torch.equal(torch.load(folder / f"whole-{rank}.pt"), undisturbed.option_logits)
    names = {path.name for path in (folder / "whole").iterdir()}
    shards = {f"shard-{index:05d}.parquet" for index in range(ROWS // SAVE_EVERY)}
    assert names == {".lock", "run.json"} | shards


def test_killed_processes_are_resumed_by_any_number_of_others(driven, undisturbed):
    folder, found = driven
    known: set[str] = set()
    for codes, listed, noted in found["kills"]:
        assert set(codes) == {-9}
        there = {*listed, *(name.removesuffix(".json") for name in noted)}
        assert known <= there
        known = there
    assert 0 < len(known) < ROWS // SAVE_EVERY
    # What two and three processes left behind were notes; the single one has listed them.
    assert [bool(noted) for _, _, noted in found["kills"]] == [True, True, False]
    assert found["resumed"] == [0, 0]
    assert torch.equal(ld.load_run(folder / "killed").option_logits, undisturbed.option_logits)
    leftovers = [*(folder / "killed").glob("*.tmp"), *(folder / "killed").glob("*.parquet.json")]
    assert leftovers == []


def test_the_folder_is_locked_until_the_last_process_has_ended(driven, undisturbed):
    folder, found = driven
    message = f"RunLockedError {folder / 'held'} is being written by process {found['first']};"
    assert len(found["blocked"]) == 2
    assert all(text.startswith(message) for text in found["blocked"])
    assert torch.equal(ld.load_run(folder / "held").option_logits, undisturbed.option_logits)


def test_a_failure_of_one_ends_all_and_says_where_to_look(driven, undisturbed):
    folder, found = driven
    assert found["failed"] == [1, 1]
    assert (folder / "failed-1.txt").read_text() == "ValueError out of luck"
    assert (folder / "failed-0.txt").read_text().startswith("LostProcessError another process")
    run = ld.load_run(folder / "failed")
    assert torch.equal(run.option_logits, undisturbed.option_logits)


def test_the_first_process_refuses_for_all(driven):
    folder, found = driven
    assert found["refused"] == [1, 1]
    assert "settings.save_every" in (folder / "other-0.txt").read_text()
    assert (folder / "other-1.txt").read_text().startswith("LostProcessError another process")


def test_accelerate_launches_the_command_line(tmp_path):
    checkpoint, data, out = tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "out"
    config = LlamaConfig(
        vocab_size=families.VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    LlamaForCausalLM(config).save_pretrained(checkpoint)
    families.tokenizer().save_pretrained(checkpoint)
    rows = [{"sentence": f"film {'x' * (i % 37)} {i}", "label": i % 2} for i in range(300)]
    data.write_text("\n".join(map(json.dumps, rows)))

    # --multi_gpu: otherwise a machine without GPUs gets one process.
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    arguments = ["run", "--model", checkpoint, "--task", "sst2", "--data", data, "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "--main_process_port", "0", "-m", "lens_diversity"]
        + [str(argument) for argument in arguments],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("share of diversity") == 1  # the first process speaks for both
    assert (out / "summary.json").exists()

    alone = ld.evaluate(ld.load_model(checkpoint), ld.tasks.load("sst2", data_files=data))
    together = ld.load_run(out)
    assert len(list(out.glob("shard-*.parquet"))) == 3
    torch.testing.assert_close(together.option_logits, alone.option_logits, rtol=0, atol=1e-6)
    assert together.predictions.tolist() == alone.predictions.tolist()
    assert together.gold.tolist() == alone.gold.tolist()
