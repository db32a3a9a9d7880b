"""Leaving a member out is deleting it: against the definition, for every loss and combination."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import combine_members, leave_one_out
from tests.unit.decomposition import references
from tests.unit.decomposition.cases import NUMBERS, as_seen_by, assert_small, cases, in_double
from tests.unit.decomposition.test_values import assert_close, by_row

# A weight of zero leaves the other members whole with "mean"; "sum" refuses it.
WEIGHTING = {"mean": ("uniform", "random", "sparse"), "sum": ("uniform", "random")}


def without(case, loss, index, combine, constant):
    """Members and weights of the ensemble that has lost one member."""
    kept = [i for i in range(case.components) if i != index]
    weights = torch.tensor(case.weight_list, dtype=torch.float64)[kept]
    weights = weights / weights.sum()
    members = combine_members(as_seen_by(loss, case.members[kept]), weights, combine)
    return (members if constant is None else members + constant.double()), weights


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=20)
@given(data=st.data())
def test_equals_the_error_without_the_member(loss, combine, data):
    case = data.draw(cases(NUMBERS[loss], WEIGHTING[combine], min_components=2))
    assume(sum(w > 0 for w in case.weight_list) > 1)
    constant = case.constant if combine == "sum" and data.draw(st.booleans()) else None
    targets = [case.labels, case.dense] if loss == "squared" else [case.labels]
    for target in targets:
        found = leave_one_out(case.members, target, loss, combine, case.weights, constant)
        assert found.shape == (case.components, *case.batch)
        assert found.dtype == case.dtype
        for index in range(case.components):
            rest, weights = without(case, loss, index, combine, constant)
            terms = LOSSES[loss](rest, in_double(target), weights)
            assert_small(found[index] - terms.error, terms.error + terms.bias, case, slack=3)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=20)
@given(data=st.data())
def test_equals_the_loops(loss, combine, data):
    case = data.draw(cases(("plain",), ("uniform", "random"), min_components=2))
    constant = case.constant if combine == "sum" else None
    added = [0.0] * case.vocab if constant is None else constant.tolist()

    def row(u, t):
        errors = [
            references.error_without(u, t, case.weight_list, loss, combine, added, index)
            for index in range(case.components)
        ]
        return (errors,)

    (expected,) = by_row(row, case, case.one_hot)
    found = leave_one_out(case.members, case.labels, loss, combine, case.weights, constant)
    assert_close(found, expected, case.dtype)


@settings(max_examples=10)
@given(case=cases(weighting=("uniform", "random"), min_components=2))
def test_a_constant_of_each_row_is_the_constant_of_all_where_they_agree(case):
    of_each = case.constant.expand(*case.batch, case.vocab)
    for loss in LOSSES:
        once, each = (
            leave_one_out(case.members, case.labels, loss, "sum", case.weights, constant)
            for constant in (case.constant, of_each)
        )
        assert torch.equal(once, each)


def test_a_member_without_weight_changes_nothing():
    members = torch.tensor([[1e4, -1e4], [2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    weights = [0.0, 0.25, 0.75]
    for loss, decompose in LOSSES.items():
        found = leave_one_out(members, torch.tensor(0), loss, weights=weights)
        whole = decompose(members, torch.tensor(0), weights).error
        np.testing.assert_allclose(found[0], whole, rtol=1e-14)
