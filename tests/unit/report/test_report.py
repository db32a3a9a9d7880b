"""The page: complete, self-contained, and nothing in it is taken for markup."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

import lens_diversity as ld
from lens_diversity import paper
from lens_diversity.report import build_report, find_runs, write_report
from tests.unit.evaluation import toy
from tests.unit.report import runs as home

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&amp;\"'"
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts = [], [], []
        self._open = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        (self.scripts if inside in ("script", "style") else self.text).append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    def csv(self, name):
        for tag, attributes in self.tags:
            if tag == "a" and attributes.get("download") == name:
                data = attributes["href"].split("base64,")[1]
                return pd.read_csv(io.BytesIO(base64.b64decode(data)))
        raise AssertionError(f"no download of {name}")


@pytest.fixture(scope="module")
def grid():
    return [
        home.make("large", "sst2", n_layers=3, parameters=5000, seed=1),
        home.make("small", "zoo", seed=2),
        home.make("small", "sst2", seed=3),
        home.make("small", "arc", widths=[3, 2, 4, 2, 3, 5], seed=4),
        home.constant_accuracy(model="small", task="rte"),
    ]


@pytest.fixture(scope="module")
def page(grid, tmp_path_factory):
    path = build_report(grid, tmp_path_factory.mktemp("report") / "new" / "report.html")
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_has_every_table_and_figure(page):
    figures = [a["id"] for tag, a in page.tags if tag == "div" and "plotly" in a.get("class", "")]
    assert figures == [
        "figure-3-pearson",
        "figure-3-spearman",
        "figure-4",
        "figure-5-0",
        "figure-5-1",
        "figure-6",
    ]
    targets = {a["id"] for _, a in page.tags if "id" in a}
    contents = [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("#")]
    assert len(contents) == 7
    assert {link[1:] for link in contents} <= targets


def test_the_page_loads_nothing(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "srcset", "action", "formaction", "background"):
            assert name not in attributes
        if "href" in attributes:
            assert attributes["href"].startswith(("#", "data:text/csv"))
    policy = next(a["content"] for tag, a in page.tags if "content" in a and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    styles = "".join(text for text in page.scripts if "@media print" in text)
    assert "url(" not in styles
    assert "@import" not in styles


def test_plotly_is_embedded_once(page):
    assert sum(len(text) > 1_000_000 for text in page.scripts) == 1


def test_downloads_hold_the_tables_in_full(page, grid):
    pd.testing.assert_frame_equal(page.csv("table1.csv"), paper.table1(grid))
    found = page.csv("figure3-spearman.csv")
    expected = paper.junction_correlations(grid, "spearman")
    pd.testing.assert_frame_equal(found.fillna({"reason": ""}), expected, check_dtype=False)
    pd.testing.assert_frame_equal(page.csv("figure4.csv"), paper.module_shares(grid))
    pd.testing.assert_frame_equal(page.csv("figures5and7.csv"), paper.junction_curves(grid))
    pd.testing.assert_frame_equal(page.csv("figure6.csv"), paper.scaling(grid))
    pd.testing.assert_frame_equal(page.csv("table4.csv"), paper.table4(grid))


def test_numbers_are_printed_times_100_and_raw(page, grid):
    for run in grid:
        summary = run.summary()
        for metric in ("accuracy", "mse", "bias", "diversity"):
            assert f"{100 * summary[metric]:.2f}" in page.words
        assert f"{summary['diversity']:.4f}" in page.words


def test_no_number_is_missing_by_name(page):
    assert not re.search(r"\b(nan|NaN|None|inf)\b", page.words)
    figures = [text for text in page.scripts if "Plotly.newPlot" in text and len(text) < 1_000_000]
    assert figures
    assert not any("NaN" in text for text in figures)


def test_what_is_missing_or_undefined_is_said(page):
    assert (
        "large was not run on ARC, RTE, zoo; its averages are over the other tasks." in page.words
    )
    assert "(1 of 4)" in page.words
    assert "small, RTE: accuracy does not vary." in page.words


def test_the_configuration_of_every_run_is_there(page, grid):
    details = [tag for tag, _ in page.tags if tag == "details"]
    assert len(details) == len(grid) + 5
    for text in ("2.5e-07", "rows of arc", "0123456789abcdef", torch.__version__, "float32"):
        assert text in page.words
    assert "{{ text }} Answer:" in page.words


def test_text_is_escaped_everywhere(tmp_path):
    run = home.constant_accuracy(model=EVIL, task=EVIL, revision=EVIL)
    run.metadata["task"] |= {"template": EVIL, "options": [[EVIL, "yes"]]}
    run.metadata["labels"][1] = EVIL
    run.metadata["data"]["notes"][EVIL] = EVIL
    path = build_report([run], tmp_path / "report.html", correction="holm")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    for opened in ("<script>alert", "<img src=x", "</script><"):
        assert opened not in text
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any("onerror" in a for _, a in page.tags)
    assert EVIL in "".join(page.text)


def test_a_correction_is_named(grid, tmp_path):
    path = build_report(grid, tmp_path / "report.html", correction="benjamini-hochberg")
    page = Page(path.read_text(encoding="utf-8"))
    assert "correction for the number of defined cells" in page.words
    assert "p, adjusted" in page.words


def test_notes_name_what_limits_a_comparison(tmp_path):
    other = home.make("other", seed=5)
    other.metadata["task"]["fingerprint"] = "other rows"
    other.metadata["n_truncated"] = 3
    other.metadata["soft_cap"] = 30.0
    path = build_report([home.make(), other], tmp_path / "report.html")
    words = Page(path.read_text(encoding="utf-8")).words
    assert "The models saw different examples of SST-2" in words
    assert "other, SST-2: 3 prompts were cut" in words
    assert "other caps its logits" in words


def test_a_single_run_of_one_layer(tmp_path):
    path = build_report([home.make(n_layers=1)], tmp_path / "report.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert "1 model, 1 task, 1 run, 12 examples" in page.words
    assert not any(attributes.get("role") == "note" for _, attributes in page.tags)


def test_models_without_a_common_task(tmp_path):
    runs = [home.make("a", "sst2"), home.make("b", "rte")]
    page = Page(build_report(runs, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Means over the tasks that every model was run on" not in page.words


def test_reports_from_folders_of_evaluated_models(bridge, tmp_path):
    for name in ("llama", "gpt2"):
        ld.evaluate(bridge(name), toy.task(), out=tmp_path / "sweep" / name / "toy")
    ld.evaluate(bridge("llama"), toy.mixed_task(), out=tmp_path / "mixed", progress=False)
    runs = find_runs([tmp_path / "sweep", tmp_path / "sweep" / "llama"])
    assert list(runs) == [tmp_path / "sweep" / name / "toy" for name in ("gpt2", "llama")]
    path = write_report([tmp_path / "sweep"], tmp_path / "report.html", "holm")
    assert path == tmp_path / "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert "2 models, 1 task, 2 runs, 24 examples" in page.words


def test_two_folders_of_one_cell_are_named(tmp_path):
    for name in ("first", "second"):
        home.make(seed=len(name)).save(tmp_path / name)
    with pytest.raises(ValueError, match=r"first and .*second are both runs of small on sst2"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_unfinished_runs_are_left_out_unless_named(tmp_path):
    home.make().save(tmp_path / "done")
    home.make(task="rte").save(tmp_path / "begun")
    header = tmp_path / "begun" / "run.json"
    record = json.loads(header.read_text())
    header.write_text(json.dumps({**record, "shards": {}}))
    with pytest.warns(UserWarning, match=r"left out of the report: .*begun is unfinished"):
        assert list(find_runs([tmp_path])) == [tmp_path / "done"]
    with pytest.raises(ValueError, match="begun is unfinished"):
        find_runs([tmp_path / "begun"])
    (tmp_path / "done" / "run.json").unlink()
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match="is finished"),
    ):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    ("folder", "out", "correction", "message"),
    [
        ("nowhere", "report.html", None, "nowhere is not a folder"),
        ("empty", "report.html", None, "empty holds no run"),
        ("run", "empty", None, "is a folder; give the HTML file"),
        ("run", "report.html", "bonferroni", "correction must be None or one of"),
    ],
)
def test_bad_requests(tmp_path, folder, out, correction, message):
    (tmp_path / "empty").mkdir()
    home.make().save(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        write_report([tmp_path / folder], tmp_path / out, correction)
