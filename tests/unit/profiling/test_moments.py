"""Ratios over documents and their intervals, against the textbook's sums and by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lens_diversity.profiling.moments import RatioMoments

documents = st.lists(
    st.tuples(st.floats(-50, 50), st.integers(0, 30)), min_size=2, max_size=40
).filter(lambda rows: sum(tokens > 0 for _, tokens in rows) > 1)


def textbook(y, x, level):
    """Cochran's linearised variance, document by document."""
    kept = [(a, b) for a, b in zip(y, x, strict=True) if b > 0]
    ratio = sum(a for a, _ in kept) / sum(b for _, b in kept)
    count = len(kept)
    squares = sum((a - ratio * b) ** 2 for a, b in kept)
    mean_x = sum(b for _, b in kept) / count
    error = (squares / (count - 1) / count) ** 0.5 / mean_x
    return ratio, stats.t.ppf((1 + level) / 2, count - 1) * error


@given(documents, st.sampled_from([0.5, 0.9, 0.95]))
def test_interval_is_the_textbooks(rows, level):
    x = np.array([tokens for _, tokens in rows], dtype=float)
    y = np.array([value * tokens for value, tokens in rows])
    ratio, half = textbook(y, x, level)
    found = RatioMoments.of(y, x).interval(level)
    scale = np.abs(y).sum() / x.sum()
    assert found.mean == pytest.approx(ratio, abs=1e-12 * scale)
    assert found.high - found.mean == pytest.approx(half, rel=1e-5, abs=1e-5 * scale)
    assert found.mean - found.low == pytest.approx(half, rel=1e-5, abs=1e-5 * scale)


@given(documents, st.integers(0, 40))
def test_moments_of_parts_add_up(rows, cut):
    y, x = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    y[x == 0] = 0
    whole = RatioMoments.of(y, x)
    joined = RatioMoments.of(y[:cut], x[:cut]) + RatioMoments.of(y[cut:], x[cut:])
    for name in ("documents", "y", "x", "yy", "xy", "xx"):
        assert getattr(joined, name) == pytest.approx(getattr(whole, name), rel=1e-12, abs=1e-9)


def test_one_document_has_a_mean_and_no_interval():
    found = RatioMoments.of(np.array([6.0]), np.array([3.0])).interval()
    assert found.mean == 2
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_nothing_to_divide_by_is_missing():
    found = RatioMoments.of(np.zeros(3), np.zeros(3)).interval()
    assert np.isnan(found.mean)


def test_equal_documents_have_an_interval_of_width_zero():
    found = RatioMoments.of(np.full(9, 0.3), np.full(9, 3.0)).interval()
    assert found.low == found.mean == found.high


def test_interval_covers_the_mean_of_clustered_tokens():
    """Tokens of a document share its level: treating them as independent would cover 45%."""
    generator = np.random.default_rng(0)
    repeats, count = 2000, 30
    tokens = generator.integers(1, 40, (count, repeats))
    levels = generator.normal(2.0, 1.0, (count, repeats))
    noise = generator.normal(0.0, 1.0, (count, repeats)) * np.sqrt(tokens)
    found = RatioMoments.of(levels * tokens + noise, tokens.astype(float)).interval(0.95)
    covered = np.mean((found.low <= 2.0) & (found.high >= 2.0))
    assert 0.92 <= covered <= 0.97
