"""The exact identities, on members of every scale, to the rounding of their own terms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lens_diversity.functional import (
    bias_diversity,
    brier_ambiguity,
    brown_covariance,
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
    assert_small(terms.residual, scale, case.tolerance)


@pytest.mark.parametrize("loss", ALL)
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
        assert_small(mean - weighted, spread, case.tolerance)


@pytest.mark.parametrize("loss", ["squared", "squared, dense", "brier", "paper"])
@given(case=cases())
def test_squared_terms_are_not_negative(loss, case):
    terms = ALL[loss](case)
    for value in (terms.error, terms.bias, terms.diversity, terms.component_diversity):
        assert bool((value >= 0).all())


@pytest.mark.parametrize("loss", ALL)
@given(case=cases(weighting=("uniform",)))
def test_equal_members_have_no_diversity(loss, case):
    object.__setattr__(case, "members", case.members[:1].expand(case.components, *[-1] * 0))
