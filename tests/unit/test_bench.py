"""The benchmark command measures what it says, on a size that takes no time."""

import mmap

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from lens_diversity.bench import SHAPES, TABLES, Meter, Shape
from lens_diversity.cli import app
from lens_diversity.cli.bench import BenchShape, BenchTable

TINY = Shape(components=4, d_model=64, d_vocab=500, positions=3)


def test_ratios_are_of_medians_to_the_first_case():
    meter = Meter("cpu", repeats=3)
    taken = {"one": [1.0, 1.0, 4.0], "three": [3.0, 3.0, 0.5]}
    meter.seconds = lambda run: taken[run()].pop(0)
    meter.peak = lambda run: None
    one, three = meter.measure({"one": lambda: "one", "three": lambda: "three"})
    assert (one.seconds, one.fastest, one.ratio) == (1.0, 1.0, 1.0)
    assert (three.seconds, three.fastest, three.ratio) == (3.0, 0.5, 3.0)


def test_peak_memory_is_that_of_the_call():
    def touch_64_mib():
        # Memory of the system's own, since an allocator may have some left from earlier tests.
        with mmap.mmap(-1, 64 * 2**20) as pages:
            for start in range(0, len(pages), mmap.PAGESIZE):
                pages[start] = 1

    peak = Meter("cpu").peak(touch_64_mib)
    assert peak is None or 60 < peak < 80


@pytest.mark.parametrize("name", ["squared", "softmax", "growth"])
def test_every_table_runs(name):
    with torch.inference_mode():
        for title, measured in TABLES[name](Meter("cpu", repeats=1), TINY):
            assert title
            assert measured[0].ratio == 1.0
            assert all(row.seconds > 0 for row in measured)


def test_the_command_line_names_every_table_and_shape():
    assert [table.value for table in BenchTable] == list(TABLES)
    assert [shape.value for shape in BenchShape] == list(SHAPES)


def test_the_command_prints_and_writes(monkeypatch, tmp_path):
    monkeypatch.setitem(SHAPES, "smollm2", TINY)
    file = tmp_path / "bench.csv"
    arguments = ["bench", "squared", "--repeats", "1", "--positions", "2", "--csv", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "squared loss over the vocabulary" in result.output
    written = pd.read_csv(file)
    assert written["ratio"].iloc[0] == 1.0
    assert {"case", "seconds", "fastest", "peak"} <= set(written.columns)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named():
    result = CliRunner().invoke(app, ["bench", "squared", "--device", "cuda"])
    assert result.exit_code == 2
    assert "no CUDA device" in result.output
