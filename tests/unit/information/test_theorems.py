"""Theorems 4-8 on exact distributions: what holds, what the paper prints, and where it fails."""

from itertools import pairwise

import numpy as np
import pytest

from lens_diversity import information
from lens_diversity.information import exact_information, exact_terms
from tests.unit.information.distributions import copies, symmetric, xor


def random_table(rng, members, levels=2):
    table = rng.dirichlet(np.full(levels**members * 2, 0.5))
    return table.reshape((levels,) * members + (2,))


def prefixes(table):
    """Marginals over the first 1, 2, ... members and the label."""
    members = table.ndim - 1
    return [table.sum(axis=tuple(range(k, members))) for k in range(1, members + 1)]


@pytest.fixture(params=range(20))
def table(request):
    rng = np.random.default_rng(request.param)
    return random_table(rng, members=2 + request.param % 4)


def test_brown_sums_are_the_correlations(table):
    """Eqs. 13, 17 and 18."""
    terms = exact_terms(table)
    assert terms.redundancy == pytest.approx(terms.total_correlation, abs=1e-12)
    assert terms.conditional_redundancy == pytest.approx(
        terms.conditional_total_correlation, abs=1e-12
    )
    difference = terms.conditional_redundancy - terms.redundancy
    assert terms.joint == pytest.approx(terms.relevancy + difference, abs=1e-12)
    assert terms.diversity == pytest.approx(difference, abs=1e-12)


def test_printed_sign_fails_from_three_members_on():
    """Eqs. 15-16 as printed: right for two members, wrong for three."""
    misses = {}
    for members in (2, 3):
        table = random_table(np.random.default_rng(3), members)
        terms = exact_terms(table, sign="printed")
        total = terms.relevancy + terms.conditional_redundancy - terms.redundancy
        misses[members] = abs(terms.joint - total)
        if members == 2:
            # With two members both signs give the same: (-1)^2 = 1.
            assert terms.redundancy == exact_terms(table).redundancy
    assert misses[2] < 1e-12
    assert misses[3] > 0.01


def test_theorem_5_only_the_difference_is_not_monotone():
    """The paper: none of I, redundancy, conditional redundancy is monotone. In truth all are."""
    rises = falls = 0
    for seed in range(100):
        found = [exact_terms(t) for t in prefixes(random_table(np.random.default_rng(seed), 4))]
        for before, after in pairwise(found):
            assert after.joint >= before.joint - 1e-12
            assert after.relevancy >= before.relevancy - 1e-12
            assert after.total_correlation >= before.total_correlation - 1e-12
            assert (
                after.conditional_total_correlation >= before.conditional_total_correlation - 1e-12
            )
            rises += after.diversity > before.diversity + 1e-6
            falls += after.diversity < before.diversity - 1e-6
    assert rises > 0
    assert falls > 0


def test_xor_raises_the_diversity_and_a_copy_lowers_it():
    assert exact_terms(xor()).diversity == pytest.approx(1.0)
    assert exact_terms(copies(2, 0.4)).diversity < -0.1


def test_theorem_6_the_true_bounds_never_rise():
    for seed in range(50):
        found = [exact_terms(t) for t in prefixes(random_table(np.random.default_rng(seed), 4))]
        bounds = [information.error_bounds(t.entropy, t.joint, 2) for t in found]
        for before, after in pairwise(bounds):
            assert after.upper <= before.upper + 1e-12
            assert after.lower <= before.lower + 1e-12


def gap(table, base, first, second):
    one = exact_information(table, [*base, first]) - exact_information(table, base)
    other = [*base, second]
    return one - (exact_information(table, [*other, first]) - exact_information(table, other))


def independent_given_label(rng, members):
    table = rng.dirichlet(np.ones(3))
    for _ in range(members):
        table = table[..., None, :] * rng.dirichlet(np.full(3, 0.5), size=3).T
    return table


def test_theorem_7_gains_diminish_under_independence_given_the_label():
    for seed in range(30):
        table = independent_given_label(np.random.default_rng(seed), 3)
        terms = exact_terms(table)
        assert terms.conditional_total_correlation == pytest.approx(0, abs=1e-12)
        assert terms.diversity <= 1e-12
        for base in ([], [2]):
            assert gap(table, base, 0, 1) >= -1e-12


def test_theorem_7_needs_its_condition():
    assert gap(xor(), [], 0, 1) == pytest.approx(-1.0)
    assert exact_terms(xor()).conditional_total_correlation == pytest.approx(1.0)


def test_theorem_8_bounds_are_supermodular_under_the_same_condition():
    for seed in range(30):
        table = independent_given_label(np.random.default_rng(seed), 3)
        entropy = exact_terms(table).entropy

        def upper(members, table=table, entropy=entropy):
            return information.error_bounds(entropy, exact_information(table, members), 3).upper

        assert upper([0]) - upper([]) <= upper([0, 1]) - upper([1]) + 1e-12
        assert upper([0, 1, 2]) <= upper([0, 1]) + 1e-12


def bayes_error(table):
    return 1 - table.max(-1).sum()


def test_theorem_4_the_upper_bound_is_the_bayes_rules_alone():
    """Eq. 12 says any predictor g; an arbitrary one exceeds the upper bound."""
    exceeded = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        table = rng.dirichlet(np.full(12, 0.5)).reshape(4, 3)
        terms = exact_terms(table)
        lower, upper = information.error_bounds(terms.entropy, terms.joint, 3)
        tight = information.tight_fano(terms.entropy, terms.joint, 3)
        assert lower <= tight + 1e-12
        assert tight <= bayes_error(table) + 1e-9
        assert bayes_error(table) <= upper + 1e-12
        arbitrary = 1 - table[np.arange(4), rng.integers(3, size=4)].sum()
        assert arbitrary >= tight - 1e-9
        exceeded += arbitrary > upper
    assert exceeded > 100


def test_tight_fano_is_met_by_a_symmetric_channel():
    terms = exact_terms(symmetric(4, 0.4))
    error = information.tight_fano(terms.entropy, terms.joint, 4)
    assert error == pytest.approx(0.3, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((0.0, 0.0, 1), (0, 0)), ((1.0, 1.2, 2), (0, 0)), ((1.0, 0.4, 2), (0, 0.3))],
)
def test_degenerate_bounds(arguments, expected):
    assert information.error_bounds(*arguments) == pytest.approx(expected)


def test_tight_fano_says_something_about_two_classes():
    assert information.tight_fano(1.0, 0.4, 2) == pytest.approx(0.1461, abs=1e-4)
    assert information.tight_fano(2.0, 0.0, 4) == 0.75
    assert information.tight_fano(0.0, 0.0, 1) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: information.error_bounds(1.0, 0.1, 0), "whole number"),
        (lambda: information.error_bounds(2.0, 0.1, 2), "lies between 0 and log2"),
        (lambda: information.error_bounds(float("nan"), 0.1, 2), "finite"),
        (lambda: exact_terms(np.ones((2, 2))), "sum to 1"),
        (lambda: exact_terms(np.ones(2) / 2), "at least two axes"),
        (lambda: exact_terms(xor(), sign="plus"), "sign must be one of"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
