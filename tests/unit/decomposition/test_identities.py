"""The exact identities, on members of every scale, to the rounding of their own terms."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lens_diversity.functional import (
    bias_diversity,
    brier_ambiguity,
    brown_covariance,
    combine_members,
    cross_entropy_ambiguity,
    krogh_vedelsby,
    pairwise_diversity,
)
from tests.unit.decomposition.cases import assert_small, cases

EXACT = {
    "squared": lambda case: krogh_vedelsby(case.members, case.labels, case.weights),
    "squared, dense": lambda case: krogh_vedelsby(case.members, case.dense, case.weights),
    "brier": lambda case: brier_ambiguity(case.members, case.labels, case.weights),
    "cross_entropy": lambda case: cross_entropy_ambiguity(case.members, case.labels, case.weights),
}
ALL = EXACT | {"paper": lambda case: bias_diversity(case.members, case.labels, case.weights)}


def weight_tensor(case):
    weights = torch.tensor(case.weight_list, dtype=case.dtype)
    return weights / weights.sum()


@pytest.mark.parametrize("loss", EXACT)
@given(case=cases())
def test_error_is_bias_minus_diversity(loss, case):
    terms = EXACT[loss](case)
    scale = terms.error.abs() + terms.bias.abs() + terms.diversity.abs()
    assert terms.error.shape == case.batch
    assert terms.error.dtype == case.dtype
    assert_small(terms.residual, scale, case)


@pytest.mark.parametrize("loss", ALL)
@settings(max_examples=40)
@given(case=cases())
def test_bias_and_diversity_are_means_of_the_member_terms(loss, case):
    terms = ALL[loss](case)
    weights = weight_tensor(case)
    for mean, members in (
        (terms.bias, terms.component_bias),
        (terms.diversity, terms.component_diversity),
    ):
        assert members.shape == (case.components, *case.batch)
        weighted = torch.einsum("i,i...->...", weights, members)
        spread = torch.einsum("i,i...->...", weights, members.abs())
        assert_small(mean - weighted, spread, case)


@pytest.mark.parametrize("loss", ["squared", "squared, dense", "brier", "paper"])
@settings(max_examples=40)
@given(case=cases())
def test_squared_terms_are_not_negative(loss, case):
    terms = ALL[loss](case)
    for value in (terms.error, terms.bias, terms.diversity, terms.component_diversity):
        assert bool((value >= 0).all())


@pytest.mark.parametrize("loss", ["squared", "squared, dense", "brier", "paper"])
@settings(max_examples=40)
@given(case=cases(), copies=st.integers(1, 8))
def test_copies_of_a_member_have_exactly_no_diversity(loss, case, copies):
    same = replace(case, components=1, copies=copies)
    terms = ALL[loss](same)
    # Two equal rows may leave a vectorised softmax with different last digits.
    rounding = torch.finfo(case.dtype).eps ** 2 if loss == "brier" else 0.0
    assert bool((terms.component_diversity <= rounding).all())
    assert bool((terms.diversity <= rounding).all())


@given(case=cases())
def test_theorem_3_exact_form_is_krogh_vedelsby(case):
    """Relative to the sum of the absolute terms: the differences lose digits where they are small.

    Printed uniform-weight bracket included: ``Var_j m = var_bar / L + (1 - 1/L) cov_bar``.
    """
    for target in (case.dense, case.labels):
        brown = brown_covariance(case.members, target, case.weights)
        exact = krogh_vedelsby(case.members, target, case.weights)
        assert_small(
            brown.diversity - exact.diversity,
            brown.omega + brown.ensemble_variance,
            case,
        )
        assert_small(
            brown.bias - exact.bias,
            brown.bias_bar.square() + brown.omega + brown.target_var + 2 * brown.target_cov.abs(),
            case,
        )
        pairs = weight_tensor(case).square().sum()
        bracket = [pairs * brown.var_bar, (1 - pairs) * brown.cov_bar]
        if case.weights is None:
            assert_small(
                sum(bracket) - brown.ensemble_variance,
                sum(term.abs() for term in bracket),
                case,
            )


@given(case=cases())
def test_half_the_weighted_pairs_are_the_diversity(case):
    pairs = pairwise_diversity(case.members)
    weights = weight_tensor(case)
    diversity = torch.einsum("i,k,ik...->...", weights, weights, pairs) / 2
    exact = krogh_vedelsby(case.members, case.labels, case.weights).diversity
    assert pairs.shape == (case.components, case.components, *case.batch)
    assert torch.equal(pairs, pairs.transpose(0, 1))
    assert bool((pairs.diagonal() == 0).all())
    assert_small(diversity - exact, diversity + exact, case)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@given(case=cases(weighting=("uniform", "random")))
def test_combined_members_average_to_their_mean_or_sum(combine, case):
    weights = weight_tensor(case)
    combined = combine_members(case.members, case.weights, combine)
    mean = torch.einsum("i,i...->...", weights, combined)
    plain = (
        case.members if combine == "sum" else torch.einsum("i,i...->i...", weights, case.members)
    )
    assert_small(mean - plain.sum(0), plain.abs().sum(0), case)
