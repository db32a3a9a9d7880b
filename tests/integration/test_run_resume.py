"""Killed at any moment, a run goes on and ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
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

folder, rows, save_every, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
model, task = families.build("llama"), toy.task(rows)
settings = dict(batch_size=2, save_every=save_every, progress=False)
random.seed(0)


def child(function):
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def work(out=folder):
    if kind == "run":
        ld.evaluate(model, task, out=out, **settings)
    else:
        ld.profile(model, task.prompts, out=out, **settings)


def shards():
    path = os.path.join(folder, f"{kind}.json")
    return sorted(json.load(open(path))["shards"]) if os.path.exists(path) else []


started = time.perf_counter()
os.waitpid(child(lambda: work(None)), 0)
one_shard = (time.perf_counter() - started) * save_every / rows
found = {"kills": 0, "shards": [], "blocked": ""}
for attempt in range(6):
    enough = len(shards()) + random.randint(0, 2)
    pid = child(work)
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
    work()
except ValueError as error:
    found["blocked"] = str(error)
end(holder)
work()
print(json.dumps(found))
"""


def disturbed(folder, kind):
    """Kill the work again and again, finish it, and say what happened in between."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, *map(str, (folder, ROWS, SAVE_EVERY, kind))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_nothing_lost_or_doubled(found, folder, row):
    counts = [len(shards) for shards in found["shards"]]
    assert found["kills"] >= 3
    assert any(0 < count < ROWS // SAVE_EVERY for count in counts), counts
    for earlier, later in zip(found["shards"], found["shards"][1:], strict=False):
        assert set(earlier) <= set(later)
    assert f"is being written by process {found['holder']}" in found["blocked"]

    tables = [pq.read_table(path) for path in folder.glob("*.parquet")]
    rows = [index for table in tables for index in table[row].to_pylist()]
    assert sorted(rows) == list(range(ROWS))
    assert not list(folder.glob("*.tmp"))


@pytest.mark.usefixtures("one_thread")
def test_killed_runs_lose_and_double_nothing(tmp_path):
    assert_nothing_lost_or_doubled(disturbed(tmp_path, "run"), tmp_path, "example")
    undisturbed = ld.evaluate(
        families.build("llama"), toy.task(ROWS), batch_size=2, save_every=SAVE_EVERY
    )
    resumed = ld.load_run(tmp_path)
    assert torch.equal(resumed.option_logits, undisturbed.option_logits)
    assert torch.equal(resumed.constant, undisturbed.constant)
    assert resumed.gold.tolist() == undisturbed.gold.tolist()
    assert resumed.summary() == undisturbed.summary()


@pytest.mark.usefixtures("one_thread")
def test_killed_profiles_lose_and_double_nothing(tmp_path):
    assert_nothing_lost_or_doubled(disturbed(tmp_path, "profile"), tmp_path, "document")
    undisturbed = ld.profile(
        families.build("llama"), toy.task(ROWS).prompts, batch_size=2, save_every=SAVE_EVERY
    )
    resumed = ld.load_profile(tmp_path)
    assert resumed.summary().equals(undisturbed.summary())
    assert resumed.by_component().equals(undisturbed.by_component())
    assert resumed.by_position().equals(undisturbed.by_position())
