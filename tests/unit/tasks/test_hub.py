"""What is asked of ``datasets``, and what is said when it cannot give it."""

import datasets
import pytest

from lens_diversity import tasks

ROWS = [{"sentence": "fine", "label": 1, "idx": 0}, {"sentence": "bad", "label": 0, "idx": 1}]
WIC = [{"word": "bank", "sentence1": "a bank", "sentence2": "b", "idx": 0, "label": 1}]
SCRIPT = RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")
CACHE = ValueError("Couldn't find cache for aps/super_glue for config 'wic'")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch):
    """Answer the next calls of ``load_dataset`` in order, and record them."""
    calls = []

    def answer(*answers):
        queue = list(answers)

        def load_dataset(*args, **kwargs):
            calls.append((args, kwargs))
            result = queue.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return answer


def test_a_task_is_read_from_its_configuration_and_split(hub):
    calls = hub(datasets.Dataset.from_list(ROWS))
    task = tasks.load("sst2")
    assert calls == [(("nyu-mll/glue", "sst2"), {"split": "validation", "revision": None})]
    assert task.gold == [1, 0]
    assert task.source == {
        "kind": "hub",
        "path": "nyu-mll/glue",
        "config": "sst2",
        "split": "validation",
        "revision": "main",
        "commit": None,
        "rows": 2,
    }


def test_split_and_revision_are_passed_on(hub):
    calls = hub(datasets.Dataset.from_list(ROWS))
    task = tasks.load("sst2", split="train[:2]", revision="v1")
    assert calls == [(("nyu-mll/glue", "sst2"), {"split": "train[:2]", "revision": "v1"})]
    assert (task.source["split"], task.source["revision"]) == ("train[:2]", "v1")


def test_the_commit_is_found_in_the_cache(hub, tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / COMMIT / "sst2")
    hub(datasets.load_from_disk(tmp_path / COMMIT / "sst2"))
    assert tasks.load("sst2").source["commit"] == COMMIT


@pytest.mark.parametrize("refusal", [SCRIPT, CACHE])
def test_a_loading_script_is_replaced_by_the_parquet_export(hub, refusal):
    calls = hub(refusal, datasets.Dataset.from_list(WIC))
    task = tasks.load("wic")
    assert calls[1] == (
        ("aps/super_glue",),
        {
            "data_files": {"validation": "wic/validation/*.parquet"},
            "split": "validation",
            "revision": "refs/convert/parquet",
        },
    )
    assert task.source["revision"] == "refs/convert/parquet"
    assert task.gold == [1]


def test_the_export_can_be_asked_for(hub):
    calls = hub(datasets.Dataset.from_list(WIC))
    tasks.load("wic", split="train[:1]", revision="refs/convert/parquet")
    assert calls[0][1]["data_files"] == {"train": "wic/train/*.parquet"}
    assert calls[0][1]["split"] == "train[:1]"


def test_a_pinned_revision_is_not_replaced(hub):
    calls = hub(SCRIPT)
    with pytest.raises(ValueError, match="scripts are no longer supported"):
        tasks.load("wic", revision="abc")
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub (OfflineModeIsEnabled)"),
        datasets.exceptions.DatasetNotFoundError("Dataset 'nyu-mll/glue' is a gated dataset."),
        ValueError("BuilderConfig 'sst2' not found."),
        RuntimeError("something else"),
    ],
)
def test_a_failure_says_what_and_what_to_do(hub, error):
    calls = hub(error)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is checked below)
        tasks.load("sst2")
    message = str(caught.value)
    assert len(calls) == 1
    assert caught.value.__cause__ is error
    for part in (
        "'nyu-mll/glue' (configuration 'sst2', split 'validation')",
        f"{type(error).__name__}: {str(error).rstrip('.')}",
        "hf auth login",
        "tasks.load('sst2', data_files=...)",
    ):
        assert part in message


def test_both_failures_are_told(hub):
    hub(SCRIPT, FileNotFoundError("no such file"))
    with pytest.raises(
        ValueError,
        match=r"revision 'main': RuntimeError: .*'refs/convert/parquet': FileNotFoundError",
    ):
        tasks.load("wic")


def test_missing_columns_and_rows(hub):
    hub(datasets.Dataset.from_list([{"a": 1}]), datasets.Dataset.from_list([]))
    with pytest.raises(ValueError, match=r"does not find its columns; .* found \['a'\]"):
        tasks.load("sst2")
    with pytest.raises(ValueError, match="has no rows in split 'validation'"):
        tasks.load("sst2")


def test_a_task_without_a_source():
    spec = tasks.TaskSpec("bare", "{{ x }}", label="y", options=["a", "b"])
    with pytest.raises(ValueError, match="'bare' has no source on the Hub: give data_files="):
        tasks.load(spec)
