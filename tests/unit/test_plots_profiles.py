"""Figures of a profile show its tables."""

import numpy as np
import pytest

import lens_diversity as ld
from tests.families import build

TEXTS = ["Once upon a time there was a Cat.", "It sat.", "dull, dull, dull", "a fine film"]


@pytest.fixture(scope="module")
def found():
    return ld.profile(build("gpt2"), TEXTS, context=12)


@pytest.mark.parametrize("quantity", ["bias", "diversity"])
def test_components_with_their_intervals(found, quantity):
    figure = ld.plots.profile_components(found, quantity)
    table = found.by_component()
    assert [trace.name for trace in figure.data] == ["embedding", "attention", "MLP"]
    for trace in figure.data:
        rows = table.loc[list(trace.x)]
        assert list(trace.customdata) == rows["label"].tolist()
        np.testing.assert_allclose(trace.y, rows[quantity])
        top = np.array(trace.y) + np.array(trace.error_y.array, float)
        bottom = np.array(trace.y) - np.array(trace.error_y.arrayminus, float)
        np.testing.assert_allclose(top, rows[f"{quantity}_high"])
        np.testing.assert_allclose(bottom, rows[f"{quantity}_low"])
    assert sum(len(trace.x) for trace in figure.data) == len(table)
    assert "tiny-gpt2, 4 documents" in figure.layout.title.subtitle.text


def test_positions_with_their_bands(found):
    figure = ld.plots.profile_positions(found)
    table = found.by_position()
    lines = {trace.name: trace for trace in figure.data if trace.name}
    assert list(lines) == ["error", "bias", "diversity"]
    for quantity, trace in lines.items():
        np.testing.assert_allclose(trace.y, table[quantity])
        assert list(trace.x) == table["position"].tolist()
    band = figure.data[0]
    known = table[table["error_low"].notna()]
    np.testing.assert_allclose(band.y[: len(known)], known["error_high"])
    np.testing.assert_allclose(band.y[len(known) :], known["error_low"][::-1])


def test_one_document_has_no_error_bars():
    figure = ld.plots.profile_components(ld.profile(build("gpt2"), TEXTS[:1]))
    assert set(figure.data[0].error_y.array) == {None}


def test_what_cannot_be_drawn_is_refused(found):
    with pytest.raises(ValueError, match="quantity must be one of"):
        ld.plots.profile_components(found, "error")
    nothing = ld.profile(build("gpt2"), [" "])
    for draw in (ld.plots.profile_components, ld.plots.profile_positions):
        with pytest.raises(ValueError, match="no token of the profile's texts was predicted"):
            draw(nothing)
