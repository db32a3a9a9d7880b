"""The paper's eight tasks: prompts and options of Table 3, letter by letter."""

import json
from pathlib import Path

import pytest

from lens_diversity import tasks
from tests.unit.tasks.files import write_jsonl

RECORDS = {
    "ag_news": {"text": "TITLE BODY", "label": 2},
    "arc": {
        "question": "STEM",
        "choices": {"text": ["one", "two", "three"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
    "boolq": {"passage": "PASSAGE", "question": "is it so", "answer": True},
    "mnli": {"premise": "PREMISE.", "hypothesis": "HYPOTHESIS.", "label": 2},
    "qqp": {"question1": "ONE?", "question2": "TWO?", "label": 1},
    "rte": {"sentence1": "PREMISE.", "sentence2": "HYPOTHESIS", "label": 0},
    "sst2": {"sentence": "SENTENCE ", "label": 1},
    "wic": {"word": "WORD", "sentence1": "ONE.", "sentence2": "TWO.", "label": 1},
}
PROMPTS = {
    "ag_news": "What label best describes this news article?\n TITLE BODY",
    "arc": (
        "Pick the most correct option to answer the following question.\n\n"
        "STEM \n\nOptions:\n- A: one\n- B: two\n- C: three"
    ),
    "boolq": ("PASSAGE\n\nAfter reading this passage, I have a question: is it so True or False?"),
    "mnli": (
        'Suppose it\'s true that PREMISE. Then, is "HYPOTHESIS." always, sometimes, or never true?'
    ),
    "qqp": (
        'I\'m an administrator on the website Quora. There are two posts, one that asks "ONE?" and '
        'another that asks "TWO?" I can merge questions if they are asking the same thing. Can I '
        "merge these two questions?"
    ),
    "rte": (
        "PREMISE. Using only the above description and what you know about the world, is "
        "HYPOTHESIS definitely correct? Yes or No?"
    ),
    "sst2": "SENTENCE \nQuestion: Was that sentence positive or negative? Answer:",
    "wic": (
        'Does the word "WORD" have the same meaning in these two sentences? Yes, No?\n ONE.\nTWO.'
    ),
}
OPTIONS = {
    "ag_news": (["World", "Sports", "Business", "Science"], "Business"),
    "arc": (["A", "B", "C"], "C"),
    "boolq": (["False", "True"], "True"),
    "mnli": (["Always", "Sometimes", "Never"], "Never"),
    "qqp": (["no", "yes"], "yes"),
    "rte": (["Yes", "No"], "Yes"),
    "sst2": (["negative", "positive"], "positive"),
    "wic": (["No", "Yes"], "Yes"),
}


def test_the_tasks_are_the_papers():
    assert sorted(PROMPTS) == [name for name in tasks.names() if name in RECORDS]
    assert set(RECORDS) <= set(tasks.names())


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_prompt_and_options_are_those_of_table_3(name, tmp_path):
    task = tasks.load(name, data_files=write_jsonl(tmp_path / "rows.jsonl", [RECORDS[name]]))
    options, answer = OPTIONS[name]
    assert task.prompts == [PROMPTS[name]]
    assert task.row_options(0) == options
    assert options[task.gold[0]] == answer
    assert (task.name, task.version, task.answer_prefix) == (name, "1", " ")


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_the_documentation_has_the_exact_template(name):
    page = Path(__file__).resolve().parents[3] / "docs" / "tasks.md"
    described = tasks.describe(name)
    text = page.read_text(encoding="utf-8")
    assert json.dumps(described["prompt"]) in text
    assert f"`{described['hub']['path']}`" in text
    assert described["licence"] in text


def test_describe_is_plain_values():
    described = tasks.describe("arc")
    assert described["hub"] == {
        "path": "allenai/ai2_arc",
        "config": "ARC-Challenge",
        "split": "validation",
    }
    assert described["columns"] == {"question": ["question.stem", "question"]}
    assert json.loads(json.dumps(described)) == described
    assert tasks.describe("ag_news")["columns"]["text"][1] == "title + description"
