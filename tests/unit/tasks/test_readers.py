"""Files come out as they are, or with a message that names file and place."""

import hashlib

import pytest

from lens_diversity.tasks._readers import read_file
from tests.unit.tasks.files import write


def test_csv_has_quotes_commas_line_ends_and_backslashes(tmp_path):
    path = write(tmp_path / "a.csv", '"1","say ""hi"", twice","back\\slash"\r\n2, "x\ny",\\\n')
    assert read_file(path).lines == [["1", 'say "hi", twice', "back\\slash"], ["2", "x\ny", "\\"]]


def test_tsv_has_no_quotes(tmp_path):
    path = write(tmp_path / "a.tsv", 'a\t"b\n"c""\td"\n')
    assert read_file(path).lines == [["a", '"b'], ['"c""', 'd"']]


def test_unicode_line_separators_do_not_end_a_row(tmp_path):
    assert read_file(write(tmp_path / "a.tsv", "a\u2028b\tc\x0bd\n")).lines == [
        ["a\u2028b", "c\x0bd"]
    ]
    path = write(tmp_path / "a.jsonl", '{"a": "x\u2028y\u0085z"}\n')
    assert read_file(path).records == [{"a": "x\u2028y\u0085z"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.jsonl", '{"a": 1}\n\n{"a": 2}\n'),
        ("lines.json", '{"a": 1}\n{"a": 2}\n'),
        ("list.json", '[{"a": 1}, {"a": 2}]'),
        ("keyed.json", '{"7": {"a": 1}, "3": {"a": 2}}'),
        ("mark.json", '\ufeff[{"a": 1}, {"a": 2}]'),
    ],
)
def test_json_layouts(tmp_path, name, text):
    path = write(tmp_path / name, text)
    read = read_file(path)
    assert read.records == [{"a": 1}, {"a": 2}]
    assert read.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.xlsx", "x", r"unknown kind of file '\.xlsx'; known are \['\.csv'"),
        ("a.csv", "", "has no rows"),
        ("a.tsv", "", "has no rows"),
        ("a.json", "[]", "has no rows"),
        ("a.jsonl", "\n", "has no rows"),
        ("a.csv", '"a","b"c\n', "malformed"),
        ("a.csv", "a,b\nc\n", r"row 2 of the file has 1 columns, the first has 2"),
        ("a.tsv", "a\tb\n\nc\td\n", r"row 2 of the file has 1 columns, the first has 2"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "line 2: "),
        ("a.json", '{"a": ', "malformed: Expecting value"),
        ("a.json", "[1, 2]", "row 1 is not an object but int"),
        ("a.parquet", "PAR", "malformed"),
    ],
)
def test_unusable_files(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_file(write(tmp_path / name, text))
    assert str(tmp_path / name) in str(caught.value)


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"caf\xe9\t1\n")
    with pytest.raises(ValueError, match=r"a\.tsv: malformed: 'utf-8' codec"):
        read_file(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"a\.tsv: cannot be read: No such file"):
        read_file(tmp_path / "a.tsv")
