"""Killed at any moment, a run goes on and ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch

import lens_diversity as ld
from tests import families
from tests.unit.evaluation import toy

ROWS, SAVE_EVERY = 48, 2

# One process that loads the model once and forks a child for every attempt, which it kills with
# SIGKILL at a random moment, a few shards later; one thread, because a child cannot use its
# parent's thread pools.
DRIVER = """
import json, os, random, signal, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
torch.set_num_threads(1)
import lens_diversity as ld
from tests import families
from tests.unit.evaluation import toy

folder, rows, save_every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model, task = families.build("llama"), toy.task(rows)
random.seed(int(sys.argv[4]))


def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def evaluate(out=folder):
    ld.evaluate(model, task, batch_size=2, save_every=save_every, out=out, progress=False)


def shards():
    path = os.path.join(folder, "run.json")
    return sorted(json.load(open(path))["shards"]) if os.path.exists(path) else []


started = time.perf_counter()
os.waitpid(child(lambda: evaluate(None)), 0)
one_shard = (time.perf_counter() - started) * save_every / rows
found = {"kills": 0, "shards": [], "blocked": ""}
for attempt in range(6):
    enough = len(shards()) + random.randint(0, 2)
    pid = child(evaluate)
    while len(shards()) < enough:
        time.sleep(one_shard / 20)
    time.sleep(random.uniform(0.0, 2.0) * one_shard)
    found["kills"] += end(pid)
    found["shards"].append(shards())

from lens_diversity.evaluation._lock import locked
from pathlib import Path

reader, writer = os.pipe()


def hold():
    with locked(Path(folder)):
        os.write(writer, b"held")
        time.sleep(60)


holder = child(hold)
os.read(reader, 4)
found["holder"] = holder
try:
    evaluate()
except ValueError as error:
    found["blocked"] = str(error)
end(holder)
evaluate()
print(json.dumps(found))
"""


def test_killed_runs_lose_and_double_nothing(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, (tmp_path, ROWS, SAVE_EVERY, 0))],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])

    counts = [len(shards) for shards in found["shards"]]
    assert found["kills"] >= 3
    assert any(0 < count < ROWS // SAVE_EVERY for count in counts), counts
    for earlier, later in zip(found["shards"], found["shards"][1:], strict=False):
        assert set(earlier) <= set(later)
    assert f"is being written by process {found['holder']}" in found["blocked"]

    tables = [pq.read_table(path) for path in tmp_path.glob("*.parquet")]
    examples = [example for table in tables for example in table["example"].to_pylist()]
    assert sorted(examples) == list(range(ROWS))
    assert not list(tmp_path.glob("*.tmp"))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        undisturbed = ld.evaluate(
            families.build("llama"), toy.task(ROWS), batch_size=2, save_every=SAVE_EVERY
        )
    finally:
        torch.set_num_threads(threads)
    resumed = ld.load_run(tmp_path)
    assert torch.equal(resumed.option_logits, undisturbed.option_logits)
    assert torch.equal(resumed.constant, undisturbed.constant)
    assert resumed.gold.tolist() == undisturbed.gold.tolist()
    assert resumed.summary() == undisturbed.summary()
