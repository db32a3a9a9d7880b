"""Correlations, corrections and intervals against plain formulas and enumeration."""

import itertools
import math

import numpy as np
import pytest

from lens_diversity.statistics import adjust_p_values, bootstrap_interval, correlation

X = [0.1, 0.5, 0.2, 0.9, 0.4, 0.4]
Y = [1.0, 2.0, 0.5, 2.5, 2.5, 1.5]


def plain_pearson(x, y):
    x, y = np.array(x), np.array(y)
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())


def plain_ranks(values):
    """Average rank of each value: those below it, and half of those equal to it."""
    return [sum(v < x for v in values) + sum(v == x for v in values) / 2 for x in values]


def test_pearson_is_the_plain_formula_with_its_t_test():
    from scipy.stats import t

    found = correlation(X, Y)
    r = plain_pearson(X, Y)
    assert found.value == pytest.approx(r, rel=1e-12)
    statistic = r * math.sqrt(4 / (1 - r * r))
    assert found.p == pytest.approx(2 * t.sf(abs(statistic), 4), rel=1e-9)
    assert (found.n, found.reason) == (6, "")


def test_spearman_is_pearson_of_average_ranks():
    found = correlation(X, Y, "spearman")
    assert found.value == pytest.approx(plain_pearson(plain_ranks(X), plain_ranks(Y)), rel=1e-12)


def test_the_sign_follows_the_direction():
    assert correlation([1, 2, 3, 4], [4, 3, 2, 1]).value == pytest.approx(-1)
    assert correlation([1, 2, 3, 4], [1, 8, 27, 64], "spearman").value == pytest.approx(1)


@pytest.mark.parametrize("method", ["pearson", "spearman"])
@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([0.5] * 4, [1, 2, 3, 4], "accuracy does not vary"),
        ([1, 2, 3, 4], [0.25, 0.25 + 1e-15, 0.25, 0.25], "MSE does not vary"),
        ([0.0] * 3, [2.0] * 3, "accuracy and MSE do not vary"),
        ([1, 2], [3, 4], "2 points are too few, three are the least"),
    ],
)
def test_what_is_undefined_says_why_and_is_no_number(method, x, y, reason, recwarn):
    found = correlation(x, y, method, ("accuracy", "MSE"))
    assert (found.value, found.p, found.reason) == (None, None, reason)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3], [1, 2, 3], "kendall"), "method must be one of"),
        (([1, 2, 3], [1, 2]), "two sequences of one length"),
        (([1, 2, math.nan], [1, 2, 3]), "x has numbers that are not finite"),
    ],
)
def test_bad_correlations(arguments, message):
    with pytest.raises(ValueError, match=message):
        correlation(*arguments)


def test_holm_steps_down_and_never_falls():
    found = adjust_p_values([0.04, 0.01, 0.03, 0.5], "holm")
    assert found == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert adjust_p_values([0.9, 0.8], "holm") == pytest.approx([1.0, 1.0])


def test_holm_rejects_what_the_closed_test_of_bonferroni_rejects():
    p = np.array([0.001, 0.012, 0.03, 0.04, 0.3])
    found = adjust_p_values(p, "holm")
    for i in range(len(p)):
        groups = [
            group
            for size in range(1, len(p) + 1)
            for group in itertools.combinations(range(len(p)), size)
            if i in group
        ]
        closed = max(min(1, len(group) * p[list(group)].min()) for group in groups)
        assert found[i] == pytest.approx(closed)


def test_benjamini_hochberg_steps_up():
    found = adjust_p_values([0.01, 0.04, 0.03, 0.5], "benjamini-hochberg")
    assert found == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg"])
def test_no_tests_need_no_correction(correction):
    assert adjust_p_values([], correction).shape == (0,)
    assert adjust_p_values([0.02], correction) == pytest.approx([0.02])


def test_bad_corrections():
    with pytest.raises(ValueError, match="correction must be one of"):
        adjust_p_values([0.1], "bonferroni")
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        adjust_p_values([0.1, 1.5], "holm")
    with pytest.raises(ValueError, match="between 0 and 1, got nan"):
        adjust_p_values([math.nan], "holm")


def test_interval_is_that_of_the_normal_approximation_for_many_rows():
    values = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap_interval(values, resamples=4000)
    half = 1.96 * values.std() / 20
    assert float(low) == pytest.approx(values.mean() - half, abs=0.012)
    assert float(high) == pytest.approx(values.mean() + half, abs=0.012)


def test_interval_covers_the_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(2)
    covered = 0
    for trial in range(300):
        low, high = bootstrap_interval(generator.exponential(size=60), 0.8, 300, seed=trial)
        covered += low <= 1 <= high
    assert 0.7 < covered / 300 < 0.87


def test_columns_share_the_resampled_rows_and_a_seed_repeats_them():
    rows = np.random.default_rng(0).normal(size=(50, 2))
    low, high = bootstrap_interval(np.column_stack([rows, rows.sum(1)]), seed=5)
    again, _ = bootstrap_interval(rows, seed=5)
    assert low[:2] == pytest.approx(again)
    assert low.shape == high.shape == (3,)
    # Sums of independent columns vary less than the sums of their extremes.
    assert high[2] - low[2] < (high[0] - low[0]) + (high[1] - low[1])


def test_large_samples_are_resampled_in_parts():
    values = np.random.default_rng(3).normal(size=400_000)
    low, high = bootstrap_interval(values, resamples=20)
    assert low < values.mean() < high


def test_equal_rows_leave_no_width():
    low, high = bootstrap_interval([0.25] * 7)
    assert float(low) == float(high) == 0.25


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([], {}, "at least one row"),
        (1.0, {}, "at least one row"),
        ([1.0, math.inf], {}, "not finite"),
        ([1.0], {"level": 1.0}, "level must lie between"),
        ([1.0], {"resamples": 0}, "resamples must be at least 1"),
    ],
)
def test_bad_intervals(values, settings, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(values, **settings)
