"""No row is dropped: it is used, counted, or an error with its number."""

import pytest

from lens_diversity import tasks
from tests.unit.tasks.files import sentiment, write, write_jsonl


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [1, -1, 0, -1],
            r"2 of 4 rows cannot be used: row 2: 'label' is -1 \(hidden or undecided\)",
        ),
        ([1, None], r"1 of 2 rows .* row 2: 'label' is None"),
        ([2], r"row 1: 'label' is 2, which is none of \['0', '1'"),
        (["good"], r"row 1: 'label' is 'good'"),
        ([0.5], r"row 1: 'label' is 0\.5"),
        ([9] * 7, r"7 of 7 rows .* row 5: 'label' is 9.*; \.\.\.$"),
    ],
)
def test_gold_labels_that_mean_nothing(tmp_path, labels, message):
    with pytest.raises(ValueError, match=message) as caught:
        tasks.load("sst2", data_files=sentiment(tmp_path / "rows.jsonl", labels))
    assert "row 6" not in str(caught.value)


def test_rows_are_counted_from_the_first_after_the_header(tmp_path):
    path = write(tmp_path / "dev.tsv", "sentence\tlabel\nfine\t1\nbad\t7\n")
    with pytest.raises(ValueError, match="1 of 2 rows cannot be used: row 2"):
        tasks.load("sst2", data_files=path)


def test_labels_have_many_spellings(tmp_path):
    path = sentiment(tmp_path / "rows.jsonl", [1, "1", 1.0, " Positive", 0, "NEGATIVE"])
    assert tasks.load("sst2", data_files=path).gold == [1, 1, 1, 1, 0, 0]


def test_an_empty_text_is_kept_and_counted(tmp_path):
    rows = [{"question1": "", "question2": "B?", "label": 1}] * 2
    task = tasks.load("qqp", data_files=write_jsonl(tmp_path / "rows.jsonl", rows))
    assert len(task) == 2
    assert 'asks ""' in task.prompts[0]
    assert task.notes == {"empty_question1": 2}


@pytest.mark.parametrize(("value", "found"), [(None, "nothing"), (["a"], "list"), (True, "bool")])
def test_a_missing_text_is_an_error(tmp_path, value, found):
    rows = [{"sentence": "fine", "label": 1}, {"sentence": value, "label": 1}]
    with pytest.raises(ValueError, match=f"row 2: 'sentence' holds {found}, not a text"):
        tasks.load("sst2", data_files=write_jsonl(tmp_path / "rows.jsonl", rows))


def test_an_empty_prompt_is_an_error(tmp_path):
    spec = tasks.TaskSpec("bare", "{{ x }}", label="y", options=["a", "b"])
    with pytest.raises(ValueError, match="row 1: the prompt is empty"):
        tasks.load(spec, data_files=write_jsonl(tmp_path / "r.jsonl", [{"x": " ", "y": "a"}]))


def test_braces_in_the_data_are_not_templates(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"sentence": "{{ 1 + 1 }} <b>&", "label": 1}])
    assert tasks.load("sst2", data_files=path).prompts[0].startswith("{{ 1 + 1 }} <b>&\n")


def question(choices, key="A"):
    return {"question": "Q?", "choices": choices, "answerKey": key}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (question("A or B"), "'choices' holds 'A or B', not a list of choices"),
        (question({"text": ["x"], "label": ["A"]}), "'choices' has 1 choices, not 2 to 26"),
        (question({"text": ["x", "y"], "label": ["A"]}), "choices without a text or a label"),
        (question([{"text": "x", "label": "A"}, {"label": "B"}]), "without a text or a label"),
        (
            question({"text": ["x", "y"], "label": ["A", "B"]}, "C"),
            r"'answerKey' is 'C', .*'a', 'b'",
        ),
        (question({"text": ["x", "y"], "label": ["A", "A"]}), "'answerKey' is 'A', which is none"),
    ],
)
def test_choices_that_cannot_be_used(tmp_path, record, message):
    path = write_jsonl(tmp_path / "rows.jsonl", [record])
    with pytest.raises(ValueError, match=f"row 1: .*{message}"):
        tasks.load("arc", data_files=path)


def test_missing_columns_name_what_is_there_and_what_is_not(tmp_path):
    path = write(tmp_path / "test.tsv", "index\tsentence\n0\tfine\n")
    with pytest.raises(
        ValueError,
        match=r"test\.tsv: task 'sst2' .* for label: 'label'; found \['index', 'sentence'\]",
    ):
        tasks.load("sst2", data_files=path)
    path = write_jsonl(tmp_path / "rows.jsonl", [{"title": "x", "label": 1}])
    with pytest.raises(ValueError, match="for text: 'text', or 'title' with 'description'"):
        tasks.load("ag_news", data_files=path)
