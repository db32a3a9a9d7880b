"""The eight real data sets load whole, each in the layout of its folder."""

from collections import Counter

import pytest

from lens_diversity import tasks

FILES = {
    "ag_news": ["ag_news/test.csv"],
    "arc": ["arc/ARC-Challenge-Dev.jsonl"],
    "boolq": ["boolq/val.jsonl"],
    "mnli": ["mnli/dev_matched.jsonl"],
    "qqp": ["qqp/train_1000.json"],
    "rte": ["rte/val.jsonl"],
    "sst2": ["sst2/dev.tsv"],
    "wic": ["wic/dev.data.txt", "wic/dev.gold.txt"],
}
CLASSES = {
    "ag_news": [511, 526, 449, 514],
    "arc": [64, 73, 78, 83, 1],
    "boolq": [744, 1256],
    "mnli": [697, 607, 696],
    "qqp": [623, 377],
    "rte": [146, 131],
    "sst2": [428, 444],
    "wic": [319, 319],
}
FIRST = {
    "ag_news": "What label best describes this news article?\n Fears for T N pension after",
    "arc": "Pick the most correct option to answer the following question.\n\nJuan and",
    "boolq": "Ethanol fuel -- All biomass goes through at least some of these steps: it",
    "mnli": (
        "Suppose it's true that The new rights are nice enough Then, is \"Everyone really likes "
        'the newest benefits " always, sometimes, or never true?'
    ),
    "qqp": (
        "I'm an administrator on the website Quora. There are two posts, one that asks \"Who is "
        'the stupidest character in Game of Thrones?" and another that asks'
    ),
    "rte": "Dana Reeve, the widow of the actor Christopher Reeve, has died of lung cancer",
    "sst2": (
        "it 's a charming and often affecting journey . \n"
        "Question: Was that sentence positive or negative? Answer:"
    ),
    "wic": (
        'Does the word "board" have the same meaning in these two sentences? Yes, No?\n'
        " Room and board .\nHe nailed boards across the windows ."
    ),
}


@pytest.fixture(params=sorted(FILES))
def loaded(request, data_dir):
    files = [data_dir / file for file in FILES[request.param]]
    return request.param, tasks.load(request.param, data_files=files)


def test_every_row_is_there(loaded):
    name, task = loaded
    counts = Counter(task.gold)
    assert [counts[i] for i in range(len(counts))] == CLASSES[name]
    assert len(task) == sum(CLASSES[name])
    assert task.prompts[0].startswith(FIRST[name])
    assert all(prompt == prompt.strip() for prompt in task.prompts)


def test_special_rows_are_counted(loaded):
    name, task = loaded
    if name == "arc":
        by_choices = {"3": 3, "4": 295, "5": 1}
        assert task.notes == {"relabelled_choices": 4, "rows_by_choices": by_choices}
        assert Counter(len(options) for options in task.options) == {4: 295, 3: 3, 5: 1}
    else:
        assert task.notes == {}


def test_backslashes_and_quotes_are_kept(data_dir):
    news = tasks.load("ag_news", data_files=data_dir / "ag_news" / "test.csv")
    assert "A second\\team of rocketeers" in news.prompts[1]
    assert sum("\\" in prompt for prompt in news.prompts) >= 194
    assert not any('""' in prompt for prompt in news.prompts)


@pytest.mark.smollm2
def test_options_are_single_tokens_of_smollm2(loaded, smollm2):
    _, task = loaded
    found = tasks.option_token_ids(smollm2.tokenizer, task)
    assert found.multi_token == {}
    assert found.n_unique == max(len(task.row_options(row)) for row in range(len(task)))
    assert len(found.ids) == len(task)
