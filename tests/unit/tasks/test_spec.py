"""A task of one's own, in YAML or in Python, and what is said where it is wrong."""

import re
from dataclasses import replace

import pytest

from lens_diversity import tasks
from lens_diversity.tasks import registry
from tests.unit.tasks.files import write, write_jsonl

YAML = """
name: acceptable
prompt: "{{ sentence }}\\nIs this sentence acceptable? No or Yes?"
options: ["No", "Yes"]
label:
  label: {0: "No", 1: "Yes"}
"""


@pytest.fixture(autouse=True)
def forget_registered_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})


def spec(**changes):
    given = {
        "name": "acceptable",
        "prompt": "{{ sentence }}\nAcceptable?",
        "options": ["No", "Yes"],
        "label": {"label": {0: "No", 1: "Yes"}},
    }
    return tasks.TaskSpec(**{**given, **changes})


def test_a_yaml_file_is_a_task(tmp_path):
    path = write(tmp_path / "acceptable.yaml", YAML + "version: 2\n")
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"sentence": "He go.", "label": 0}])
    task = tasks.load(path, data_files=rows)
    assert task.prompts == ["He go.\nIs this sentence acceptable? No or Yes?"]
    assert (task.name, task.version, task.gold) == ("acceptable", "2", [0])
    assert tasks.load(str(path), data_files=rows).fingerprint == task.fingerprint
    assert "acceptable" not in tasks.names()


def test_a_registered_task_is_known_by_name(tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"sentence": "He goes.", "label": 1}])
    tasks.register(spec())
    assert "acceptable" in tasks.names()
    assert tasks.load("acceptable", data_files=rows).prompts == ["He goes.\nAcceptable?"]
    tasks.register(spec(prompt="Is this fine? {{ sentence }}"))
    assert tasks.load("acceptable", data_files=rows).prompts == ["Is this fine? He goes."]


def test_a_specification_loads_without_being_registered(tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "He goes.", "label": 1}])
    own = spec(columns={"sentence": ["missing", "text"]})
    assert tasks.load(own, data_files=rows).gold == [1]


def test_the_papers_tasks_cannot_be_replaced():
    with pytest.raises(ValueError, match="'sst2' is one of the paper's tasks"):
        tasks.register(replace(tasks.get_spec("sst2"), version="2"))


def test_an_unknown_name_has_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown task 'sst-2'; did you mean 'sst2'\?"):
        tasks.load("sst-2")


def test_replacing_a_field_keeps_the_others():
    for name in tasks.names():
        original = tasks.get_spec(name)
        assert replace(original, version="1") == original


def test_choices_as_a_list_with_an_index(tmp_path):
    own = tasks.TaskSpec(
        name="mmlu",
        prompt="{{ question }}\n{% for c in choices %}{{ c.letter }}. {{ c.text }}\n{% endfor %}A:",
        choices="choices",
        label="answer",
    )
    rows = [{"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}]
    task = tasks.load(own, data_files=write_jsonl(tmp_path / "rows.jsonl", rows))
    assert task.prompts == ["2 + 2?\nA. 3\nB. 4\nA:"]
    assert task.options == [["A", "B"]]
    assert task.gold == [1]


def test_a_bare_label_column_holds_the_options_themselves(tmp_path):
    rows = [{"sentence": "x", "verdict": "yes"}, {"sentence": "y", "verdict": "NO "}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert tasks.load(spec(label="verdict"), data_files=path).gold == [1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "field 'name': expected letters"),
        ({"version": ""}, "field 'version': expected a non-empty string"),
        ({"answer_prefix": " Answer: "}, "field 'answer_prefix': expected white space"),
        ({"options": None}, "give either 'options' or 'choices'"),
        ({"choices": "choices"}, "give either 'options' or 'choices'"),
        ({"options": ["Yes"]}, "field 'options': expected a list of two or more"),
        ({"options": [False, True]}, "found the boolean False; YAML reads a bare"),
        ({"options": ["No", " Yes"]}, "without space around them, found ' Yes'"),
        ({"options": ["No", "No"]}, "has equal options"),
        ({"prompt": "{{ sentence"}, "field 'prompt': not a Jinja2 template"),
        ({"prompt": "{{ choices }} {{ x }}"}, "uses {{ choices }}, but no column"),
        ({"prompt": "Acceptable?"}, "field 'prompt': uses no field of the data"),
        ({"columns": {"sentense": "x"}}, "no {{ sentense }}; did you mean 'sentence'?"),
        ({"columns": {"sentence": []}}, "field 'columns.sentence': expected a column name"),
        ({"columns": ["sentence"]}, "field 'columns': expected field: column names"),
        ({"label": {"label": {0: "No", 1: "yes"}}}, "1 stands for 'yes', which is none of"),
        ({"label": {"label": {0: "No", 1: True}}}, "1 stands for True, which is none of"),
        ({"label": {"label": {0: "No"}}}, r"field 'label.label': no value stands for ['Yes']"),
        ({"label": {"label": {0: "No", "0": "Yes"}}}, "'0' stands for two options"),
        ({"label": {"label": 1}}, "field 'label.label': expected value: option"),
        ({"label": {}}, "field 'label': expected column"),
        ({"headerless": {"data": ""}}, "field 'headerless.data': expected a column name"),
        ({"headerless": {"a": ["x"], "b": ["y"]}}, "must differ in their number of columns"),
        ({"hub": "nyu-mll/glue"}, "field 'hub': expected a HubSource"),
    ],
)
def test_an_invalid_field_is_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        spec(**changes)


def test_choices_take_no_meaning_of_labels():
    with pytest.raises(ValueError, match=r"field 'label\.label': with 'choices', name the column"):
        spec(options=None, choices="choices")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (YAML.replace("prompt:", "promt:"), "field 'promt': unknown; did you mean 'prompt'?"),
        (YAML.replace("name: acceptable", ""), "field 'name': missing"),
        (YAML.replace('["No", "Yes"]', "[No, Yes]"), "field 'options': found the boolean False"),
        (YAML + "hub: {path: a/b, config: 3}", "field 'hub.config': expected a non-empty string"),
        (YAML + "hub: {pat: a/b}", "field 'hub.pat': unknown; did you mean 'path'?"),
        (YAML + "hub: {config: x}", "field 'hub.path': missing"),
        (YAML + "hub: a/b", "field 'hub': expected a mapping"),
        ("- a\n", "the file: expected a mapping"),
        ("a: [", "cannot be read as a task"),
    ],
)
def test_an_invalid_file_is_named_with_its_field(tmp_path, text, message):
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is checked below)
        tasks.load_spec(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_missing_file():
    with pytest.raises(ValueError, match=r"nowhere\.yaml: cannot be read as a task"):
        tasks.load("nowhere.yaml")


@pytest.mark.parametrize("what", ["sentence.__class__.__mro__", "sentence.subject"])
def test_templates_reach_nothing_but_the_row(tmp_path, what):
    own = spec(prompt=f"{{{{ sentence }}}} {{{{ {what} }}}}")
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"sentence": "x", "label": 0}])
    with pytest.raises(ValueError, match="row 1: the template cannot be filled"):
        tasks.load(own, data_files=rows)
