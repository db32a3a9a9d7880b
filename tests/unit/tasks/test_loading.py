"""Which rows are evaluated, which are shown before them, and what was read."""

import hashlib

import pytest

from lens_diversity import tasks
from tests.unit.tasks.files import sentiment, write, write_jsonl

QUESTION = "\nQuestion: Was that sentence positive or negative? Answer:"


@pytest.fixture
def path(tmp_path):
    return sentiment(tmp_path / "rows.jsonl", [0, 1, 1, 0, 1, 0, 1, 1])


def test_limit_takes_the_first_rows(path):
    everything = tasks.load("sst2", data_files=path)
    assert len(everything) == 8
    for limit in (1, 3, 8, 100):
        task = tasks.load("sst2", limit=limit, data_files=path)
        assert task.prompts == everything.prompts[:limit]
        assert task.gold == everything.gold[:limit]


def test_rows_beyond_the_limit_are_not_judged(tmp_path):
    path = sentiment(tmp_path / "rows.jsonl", [1, 0, -1])
    assert tasks.load("sst2", limit=2, data_files=path).gold == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": -3}, ValueError),
        ({"limit": True}, TypeError),
        ({"limit": 2.0}, TypeError),
        ({"n_shots": -1}, ValueError),
        ({"limit": 4, "n_shots": 1, "seed": "x"}, TypeError),
        ({"n_shots": 2}, ValueError),
        ({"split": "test"}, ValueError),
        ({"revision": "main"}, ValueError),
    ],
)
def test_arguments_that_make_no_sense(path, arguments, error):
    with pytest.raises(error):
        tasks.load("sst2", data_files=path, **arguments)


def test_source_names_the_file_and_its_contents(path):
    task = tasks.load("sst2", limit=2, data_files=path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert task.source == {
        "kind": "files",
        "files": [{"name": "rows.jsonl", "sha256": digest}],
        "rows": 8,
    }


def test_shards_follow_each_other(tmp_path, path):
    more = write(tmp_path / "more.tsv", "label\tsentence\n1\tfilm 8\n")
    task = tasks.load("sst2", data_files=[path, more])
    assert task.prompts == [f"film {i}{QUESTION}" for i in range(9)]
    assert task.source["rows"] == 9


def test_a_folder_must_hold_one_file(tmp_path, path):
    assert len(tasks.load("sst2", data_files=tmp_path)) == 8
    sentiment(tmp_path / "train.jsonl", [1])
    with pytest.raises(
        ValueError, match=r"2 files, \['rows.jsonl', 'train.jsonl'\]; name the file"
    ):
        tasks.load("sst2", data_files=tmp_path)


def test_data_files_that_name_nothing(path):
    with pytest.raises(ValueError, match="the list is empty"):
        tasks.load("sst2", data_files=[])
    with pytest.raises(ValueError, match="takes a path or a list of paths, found"):
        tasks.load("sst2", data_files={"validation": path})


def test_a_header_without_rows(tmp_path):
    with pytest.raises(ValueError, match=r"dev\.tsv: has a header but no rows"):
        tasks.load("sst2", data_files=write(tmp_path / "dev.tsv", "sentence\tlabel\n"))


def test_demonstrations_come_from_the_other_rows(path):
    task = tasks.load("sst2", limit=4, data_files=path, n_shots=3, seed=5)
    zero = tasks.load("sst2", limit=4, data_files=path)
    rows = task.notes["demonstration_rows"]
    assert len(set(rows)) == 3
    assert all(5 <= row <= 8 for row in rows)
    words = {4: "positive", 5: "negative", 6: "positive", 7: "positive"}
    shown = "".join(f"film {row - 1}{QUESTION} {words[row - 1]}\n\n" for row in rows)
    assert task.prompts == [shown + prompt for prompt in zero.prompts]
    assert (task.gold, task.options) == (zero.gold, zero.options)
    assert task.fingerprint != zero.fingerprint


def test_demonstrations_are_balanced_and_reproducible(tmp_path):
    path = sentiment(tmp_path / "rows.jsonl", [0, 1, *[1] * 20, *[0] * 4])
    drawn, orders = set(), set()
    for seed in range(6):
        first, second = (
            tasks.load("sst2", limit=2, data_files=path, n_shots=4, seed=seed) for _ in range(2)
        )
        assert first.fingerprint == second.fingerprint
        rows = first.notes["demonstration_rows"]
        # Rows 23 to 26 are the negative ones.
        assert sum(row >= 23 for row in rows) == 2
        drawn.add(tuple(rows))
        orders.add(tuple(row >= 23 for row in rows))
    assert len(drawn) == 6
    # The last class that is shown must not always be the same.
    assert len({order[-1] for order in orders}) == 2


def test_a_class_that_runs_out_is_passed_over(tmp_path):
    path = sentiment(tmp_path / "rows.jsonl", [0, 1, 0, 1, 1, 1])
    task = tasks.load("sst2", limit=2, data_files=path, n_shots=4)
    assert sorted(task.notes["demonstration_rows"]) == [3, 4, 5, 6]


def test_too_few_rows_for_demonstrations(path):
    with pytest.raises(ValueError, match=r"n_shots=3 .* where 2 are left; lower limit or n_shots"):
        tasks.load("sst2", limit=6, data_files=path, n_shots=3)


def test_demonstrations_of_a_task_with_choices(tmp_path):
    rows = [
        {
            "question": f"Q{i}?",
            "choices": {"text": ["x", "y"], "label": ["1", "2"]},
            "answerKey": key,
        }
        for i, key in enumerate("12")
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    task = tasks.load("arc", limit=1, data_files=path, n_shots=1)
    assert "Q1? \n\nOptions:\n- A: x\n- B: y B\n\nPick" in task.prompts[0]
    assert task.options == [["A", "B"]]
