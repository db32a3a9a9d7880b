"""Each data set loads from every layout in which it circulates, with the same rows."""

import json

import pytest

from lens_diversity import tasks
from tests.unit.tasks.files import write, write_jsonl, write_parquet

CHOICES = ["fog", "rain", "drought", "snow"]


def assert_same(*loaded):
    first, *others = loaded
    for other in others:
        assert other.prompts == first.prompts
        assert other.gold == first.gold
        assert other.options == first.options
        assert other.fingerprint == first.fingerprint


def test_ag_news(tmp_path):
    release = write(
        tmp_path / "test.csv",
        '"3","Oil","A ""new""\\high, again"\n"4","Sky","A comet"\n"1","A","B"\n',
    )
    titled = write(
        tmp_path / "kaggle.csv",
        'Class Index,Title,Description\n3,Oil,"A ""new""\\high, again"\n4,Sky,A comet\n1,A,B\n',
    )
    hub = write_parquet(
        tmp_path / "hub.parquet",
        [
            {"text": 'Oil A "new"\\high, again', "label": 2},
            {"text": "Sky A comet", "label": 3},
            {"text": "A B", "label": 0},
        ],
    )
    loaded = [tasks.load("ag_news", data_files=path) for path in (release, titled, hub)]
    assert_same(*loaded)
    assert loaded[0].gold == [2, 3, 0]
    assert loaded[0].prompts[0].endswith('\n Oil A "new"\\high, again')


def test_arc(tmp_path):
    release = write_jsonl(
        tmp_path / "dev.jsonl",
        [
            {
                "id": "x",
                "question": {
                    "stem": "What falls?",
                    "choices": [
                        {"text": text, "label": label}
                        for text, label in zip(CHOICES, names, strict=True)
                    ],
                },
                "answerKey": names[1],
            }
            for names in ("ABCD", "1234")
        ],
    )
    hub = [
        {
            "question": "What falls?",
            "choices": {"text": CHOICES, "label": list(names)},
            "answerKey": names[1],
        }
        for names in ("ABCD", "1234")
    ]
    loaded = [
        tasks.load("arc", data_files=release),
        tasks.load("arc", data_files=write_jsonl(tmp_path / "hub.jsonl", hub)),
        tasks.load("arc", data_files=write_parquet(tmp_path / "hub.parquet", hub)),
    ]
    assert_same(*loaded)
    for task in loaded:
        assert task.gold == [1, 1]
        assert task.prompts[0] == task.prompts[1]
        assert task.notes == {"relabelled_choices": 1, "rows_by_choices": {"4": 2}}


def test_boolq(tmp_path):
    texts = {"question": "is it so", "passage": "It is."}
    loaded = [
        tasks.load("boolq", data_files=write_jsonl(tmp_path / f"{i}.jsonl", records))
        for i, records in enumerate(
            [
                [{**texts, "label": "true"}, {**texts, "label": "false"}],
                [{**texts, "label": True}, {**texts, "label": False}],
                [{**texts, "answer": True}, {**texts, "answer": False}],
                [{**texts, "label": 1}, {**texts, "label": 0}],
            ]
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == [1, 0]


def test_mnli(tmp_path):
    words = ["neutral", "entailment", "contradiction"]
    numbers = [1, 0, 2]
    glue = "index\tsentence1\tsentence2\tlabel1\tgold_label\n" + "".join(
        f'{i}\tSo "it" is.\tIt is "so\t-\t{word}\n' for i, word in enumerate(words)
    )
    one, two = 'So "it" is.', 'It is "so'
    loaded = [
        tasks.load("mnli", data_files=path)
        for path in (
            write(tmp_path / "dev_matched.tsv", glue),
            write_jsonl(
                tmp_path / "release.jsonl",
                [{"sentence1": one, "sentence2": two, "gold_label": w} for w in words],
            ),
            write_jsonl(
                tmp_path / "words.jsonl",
                [{"premise": one, "hypothesis": two, "label": w} for w in words],
            ),
            write_parquet(
                tmp_path / "hub.parquet",
                [{"premise": one, "hypothesis": two, "label": n} for n in numbers],
            ),
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == numbers


def test_qqp(tmp_path):
    keyed = {str(i): {"text_a": "A?", "text_b": "B?", "label": x} for i, x in enumerate("10")}
    loaded = [
        tasks.load("qqp", data_files=path)
        for path in (
            write(tmp_path / "train.json", json.dumps(keyed, indent=1)),
            write(
                tmp_path / "dev.tsv",
                "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
                "0\t1\t2\tA?\tB?\t1\n1\t3\t4\tA?\tB?\t0\n",
            ),
            write_parquet(
                tmp_path / "hub.parquet",
                [{"question1": "A?", "question2": "B?", "label": n, "idx": 0} for n in (1, 0)],
            ),
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == [1, 0]


def test_rte(tmp_path):
    loaded = [
        tasks.load("rte", data_files=path)
        for path in (
            write(
                tmp_path / "dev.tsv",
                "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\tnot_entailment\n1\tP.\tH.\tentailment\n",
            ),
            write_jsonl(
                tmp_path / "val.jsonl",
                [
                    {"premise": "P.", "hypothesis": "H.", "label": "not_entailment", "idx": 0},
                    {"premise": "P.", "hypothesis": "H.", "label": "entailment", "idx": 1},
                ],
            ),
            write_parquet(
                tmp_path / "hub.parquet",
                [{"sentence1": "P.", "sentence2": "H.", "label": n} for n in (1, 0)],
            ),
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == [1, 0]


def test_sst2(tmp_path):
    loaded = [
        tasks.load("sst2", data_files=path)
        for path in (
            write(tmp_path / "dev.tsv", 'sentence\tlabel\na "fine film \t1\r\nawful\t0\r\n'),
            write_parquet(
                tmp_path / "hub.parquet",
                [
                    {"idx": 0, "sentence": 'a "fine film ', "label": 1},
                    {"idx": 1, "sentence": "awful", "label": 0},
                ],
            ),
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == [1, 0]


@pytest.fixture
def wic_release(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    data = write(folder / "dev.data.txt", "bank\tN\t1-1\tA bank .\tThe bank .\n" * 2)
    return data, write(folder / "dev.gold.txt", "T\nF\n")


def test_wic(tmp_path, wic_release):
    data, gold = wic_release
    texts = {"word": "bank", "sentence1": "A bank .", "sentence2": "The bank ."}
    loaded = [
        tasks.load("wic", data_files=files)
        for files in (
            [data, gold],
            [gold, data],
            {"data": data, "gold": gold},
            data.parent,
            write_jsonl(tmp_path / "val.jsonl", [{**texts, "label": x} for x in (True, False)]),
            write_parquet(tmp_path / "hub.parquet", [{**texts, "label": x} for x in (1, 0)]),
        )
    ]
    assert_same(*loaded)
    assert loaded[0].gold == [1, 0]
    assert [file["name"] for file in loaded[0].source["files"]] == ["dev.data.txt", "dev.gold.txt"]


def test_wic_needs_both_of_its_files(wic_release):
    data, gold = wic_release
    with pytest.raises(ValueError, match=r"dev\.data\.txt: .* all parts are needed"):
        tasks.load("wic", data_files=data)
    write(gold, "T\n")
    with pytest.raises(ValueError, match=r"same number of rows: .*'dev\.gold\.txt': 1"):
        tasks.load("wic", data_files=[data, gold])
    with pytest.raises(ValueError, match=r"takes the parts \['data', 'gold'\], found \['data'\]"):
        tasks.load("wic", data_files={"data": data})
