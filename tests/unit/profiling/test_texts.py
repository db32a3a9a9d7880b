"""Texts from lists, data sets and files: the same documents, or an error that helps."""

import json

import datasets
import pytest

from lens_diversity.profiling.texts import open_texts

TEXTS = ["Once upon a time", "", "The cat, it sat.\nThen it left.", "naïve 猫"]


def in_files(folder):
    """The texts in every layout."""
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    data = datasets.Dataset.from_list(rows)
    data.to_json(folder / "a.jsonl")
    (folder / "a.json").write_text(json.dumps(rows))
    data.to_csv(folder / "a.csv", index=False)
    data.to_csv(folder / "a.tsv", index=False, sep="\t")
    data.to_parquet(folder / "a.parquet")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_rows_of_files_are_documents(tmp_path, name):
    in_files(tmp_path)
    for source in (open_texts(tmp_path / name), open_texts(str(tmp_path / name))):
        assert list(source) == TEXTS
        assert list(source) == TEXTS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_tables_of_text_keep_commas_and_line_breaks(tmp_path, name):
    in_files(tmp_path)
    # An empty cell is a missing one in these formats.
    found = open_texts(tmp_path / name, limit=1)
    assert list(found) == TEXTS[:1]
    with pytest.raises(TypeError, match="document 1 has NoneType None instead of a text"):
        list(open_texts(tmp_path / name))


def test_text_files_are_a_document_each(tmp_path):
    paths = []
    for index, text in enumerate(TEXTS[2:]):
        paths.append(tmp_path / f"{index}.txt")
        paths[-1].write_text(text, encoding="utf-8")
    assert list(open_texts(paths)) == TEXTS[2:]


def test_lists_and_data_sets():
    data = datasets.Dataset.from_dict({"body": TEXTS})
    for texts in (data, data.to_iterable_dataset()):
        source = open_texts(texts, column="body")
        assert list(source) == TEXTS
    assert open_texts(data, column="body", limit=3).total == 3
    assert open_texts(data.to_iterable_dataset(), column="body").total is None
    assert list(open_texts(TEXTS, limit=2)) == TEXTS[:2]
    assert list(open_texts(tuple(TEXTS))) == TEXTS


def test_identity_tells_other_data(tmp_path):
    in_files(tmp_path)
    first = open_texts(tmp_path / "a.jsonl").identity
    assert open_texts(tmp_path / "a.jsonl").identity == first
    assert open_texts(tmp_path / "a.jsonl", limit=2).identity != first
    (tmp_path / "a.jsonl").write_text('{"text": "other"}\n')
    assert open_texts(tmp_path / "a.jsonl").identity != first
    assert open_texts(TEXTS).identity != open_texts(TEXTS[::-1]).identity


@pytest.mark.parametrize(
    ("texts", "kind", "message"),
    [
        ([], ValueError, "the list of texts is empty"),
        (["a text", 3], TypeError, "document 1 has int 3 instead of a text"),
        (["a text", None], TypeError, "document 1 has NoneType None"),
        ("Once upon a time, there was", ValueError, "neither a file nor a name on the Hub"),
        (3.5, TypeError, "expected a list of texts, a data set, a path or .* got float"),
        ({"train": TEXTS}, TypeError, r"choose one of \['train'\]"),
        (iter(TEXTS), TypeError, "expected a list of texts"),
    ],
)
def test_what_is_no_text_is_refused(texts, kind, message):
    with pytest.raises(kind, match=message):
        list(open_texts(texts))


def test_files_that_cannot_be_read_are_named(tmp_path):
    in_files(tmp_path)
    with pytest.raises(ValueError, match=r"there is no file .*missing\.jsonl"):
        open_texts(tmp_path / "missing.jsonl")
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(ValueError, match=r"formats \['\.docx'\].*known are"):
        open_texts(tmp_path / "a.docx")
    with pytest.raises(ValueError, match="one kind at a time"):
        open_texts([tmp_path / "a.csv", tmp_path / "a.jsonl"])
    with pytest.raises(ValueError, match="there is no column 'body'; choose one with column="):
        open_texts(tmp_path / "a.jsonl", column="body")
    (tmp_path / "broken.parquet").write_text("not parquet")
    with pytest.raises(ValueError, match=r"cannot read .*broken\.parquet"):
        open_texts(tmp_path / "broken.parquet")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl"):
        open_texts(tmp_path / "empty.jsonl")


def test_names_of_files_in_a_list_are_not_taken_for_texts(tmp_path):
    in_files(tmp_path)
    with pytest.raises(ValueError, match=r"names of files .*give pathlib\.Path objects"):
        open_texts([str(tmp_path / "a.jsonl")])


def test_a_data_set_with_splits_is_refused():
    data = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})
    with pytest.raises(TypeError, match=r"one split of a data set, choose one of \['train'\]"):
        open_texts(data)


def test_a_column_that_holds_no_text_is_refused():
    data = datasets.Dataset.from_dict({"text": [1, 2]})
    with pytest.raises(TypeError, match="document 0 has int 1 instead of a text in column 'text'"):
        list(open_texts(data))
    with pytest.raises(ValueError, match="there is no column 'body'"):
        open_texts(data, column="body")
