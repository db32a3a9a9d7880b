"""Every function against loops over plain Python floats, on well-scaled members."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from lens_diversity.functional import (
    bias_diversity,
    brier_ambiguity,
    brown_covariance,
    cross_entropy_ambiguity,
    krogh_vedelsby,
    pairwise_diversity,
)
from tests.unit.decomposition import references
from tests.unit.decomposition.cases import cases

LOSSES = {
    "squared": krogh_vedelsby,
    "paper": bias_diversity,
    "brier": brier_ambiguity,
    "cross_entropy": cross_entropy_ambiguity,
}
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-4}
PLAIN = cases(numbers=("plain",))


def assert_close(found, expected, dtype, scale=None):
    """Relative to a scale: the expected numbers, unless they are small differences."""
    assert found.dtype == dtype
    assert tuple(found.shape) == np.shape(expected)
    scale = np.abs(expected) if scale is None else scale
    assert np.all(np.abs(found.double().numpy() - expected) <= RELATIVE[dtype] * (scale + 1e-3))


def by_row(function, case, target):
    return references.over_batch(function, case.members.double(), target.double())


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=40)
@given(case=PLAIN)
def test_terms(loss, case):
    for target in (case.labels, case.dense) if loss == "squared" else (case.labels,):
        terms = LOSSES[loss](case.members, target, case.weights)
        dense = target if target.is_floating_point() else case.one_hot
        error, own_bias, own_diversity = by_row(
            lambda u, t: references.TERMS[loss](u, t, case.weight_list), case, dense
        )
        weights = np.asarray(case.weight_list)
        bias = np.tensordot(weights, own_bias, 1)
        diversity = np.tensordot(weights, own_diversity, 1)
        assert_close(terms.error, error, case.dtype)
        assert_close(terms.bias, bias, case.dtype)
        assert_close(terms.component_bias, own_bias, case.dtype)
        # A divergence is a difference of logarithms in the reference, which rounds at their size.
        rounding = error + bias if loss == "cross_entropy" else 0.0
        assert_close(terms.diversity, diversity, case.dtype, diversity + rounding)
        scale = own_diversity + diversity + rounding
        assert_close(terms.component_diversity, own_diversity, case.dtype, scale)


@settings(max_examples=40)
@given(case=PLAIN)
def test_trade_off_terms(case):
    for target, dense in ((case.labels, case.one_hot), (case.dense, case.dense)):
        terms = brown_covariance(case.members, target, case.weights)

        expected = by_row(lambda u, t: references.brown_terms(u, t, case.weight_list), case, dense)
        by_name = dict(zip(references.BROWN, expected, strict=True))
        size = by_name["omega"] + by_name["target_var"] + by_name["bias_bar"] ** 2
        for name, value in by_name.items():
            scale = np.sqrt(size) if name == "bias_bar" else size
            mass = 1 - np.square(case.weight_list).sum() if name == "cov_bar" else 1.0
            assert_close(getattr(terms, name), value, case.dtype, scale / max(mass, 1e-3))


@settings(max_examples=40)
@given(case=PLAIN)
def test_pairs(case):
    rows = range(case.components)

    def row(u, _):
        return ([[references.squared_distance(u[i], u[k]) for k in rows] for i in rows],)

    (expected,) = by_row(row, case, case.one_hot)
    assert_close(pairwise_diversity(case.members), expected, case.dtype)
