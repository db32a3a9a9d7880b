"""Digits: double precision stays, and offsets, certainty and closeness cost none."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import (
    brown_covariance,
    combine_members,
    cross_entropy_ambiguity,
    junctions,
    krogh_vedelsby,
    leave_one_out,
    pairwise_diversity,
)
from tests.unit.decomposition.cases import cases

LABELS = torch.tensor([0, 3])

FUNCTIONS = {
    **{loss: lambda u, loss=loss: LOSSES[loss](u, LABELS).error for loss in LOSSES},
    **{f"{loss} bias": lambda u, loss=loss: LOSSES[loss](u, LABELS).bias for loss in LOSSES},
    "trade-off": lambda u: brown_covariance(u, LABELS).bias,
    "pairs": pairwise_diversity,
    "sum": lambda u: combine_members(u, combine="sum"),
    "mean": lambda u: combine_members(u, combine="mean"),
    "leave one out": lambda u: leave_one_out(u, LABELS),
    "junctions": lambda u: junctions(u, LABELS).diversity,
    "junction logits": lambda u: junctions(u, LABELS, constant=u[0]).logits,
    "dense target": lambda u: krogh_vedelsby(u, u[0]).error,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_and_double_precision_stay(name, dtype):
    assert FUNCTIONS[name](torch.randn(3, 2, 4, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_targets_constants_and_weights_take_the_dtype_of_the_members(dtype):
    members = torch.randn(2, 1, 4)
    other = torch.tensor([[0.5, -1.0, 0.25, 2.0]], dtype=dtype)
    weights = torch.tensor([0.25, 0.75], dtype=dtype)
    for found, expected in (
        (
            krogh_vedelsby(members, other, weights).error,
            krogh_vedelsby(members, other.float(), weights.float()).error,
        ),
        (
            junctions(members, LABELS[:1], constant=other).error,
            junctions(members, LABELS[:1], constant=other.float()).error,
        ),
        (
            leave_one_out(members, LABELS[:1], combine="sum", constant=other),
            leave_one_out(members, LABELS[:1], combine="sum", constant=other.float()),
        ),
    ):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def exact_diversity(members):
    """In rational arithmetic, of one row and with uniform weights."""
    rows = [[Fraction(x) for x in member] for member in members.double().tolist()]
    centroid = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    total = sum((x - m) ** 2 for row in rows for x, m in zip(row, centroid, strict=True))
    return float(total / (len(rows) * len(centroid)))


@pytest.mark.parametrize(
    ("dtype", "offset", "spread", "tolerance"),
    [
        (torch.float32, 1e3, 0.1, 1e-6),
        (torch.float32, 1e4, 0.1, 1e-6),
        (torch.float32, 1.0, 1e-5, 1e-6),
        (torch.float64, 1e4, 1e-6, 1e-14),
        (torch.float64, 1e8, 1e-3, 1e-14),
    ],
)
def test_an_offset_that_members_share_costs_diversity_no_digits(dtype, offset, spread, tolerance):
    members = (offset + spread * torch.randn(8, 16, dtype=torch.float64)).to(dtype)
    exact = exact_diversity(members)
    label = torch.tensor(0)
    last = junctions(members, label, "squared").diversity[-1]
    pairs = pairwise_diversity(members).sum() / (2 * 8**2)
    for found in (krogh_vedelsby(members, label).diversity, last, pairs):
        assert abs(float(found) - exact) <= 5 * tolerance * exact
    textbook = (members.square().mean(0) - members.mean(0).square()).mean()
    assert abs(float(textbook) - exact) > 100 * 5 * tolerance * exact


@settings(max_examples=30)
@given(case=cases(numbers=("offset of each", "shared offset"), dtypes=(torch.float32,)))
def test_offsets_cost_softmax_losses_no_digits(case):
    """The float64 value of the same float32 numbers is known to rounding there."""
    exact = {name: loss(case.members.double(), case.labels) for name, loss in LOSSES.items()}
    for name in ("paper", "brier", "cross_entropy"):
        found = LOSSES[name](case.members, case.labels)
        for part in ("error", "bias"):
            torch.testing.assert_close(
                getattr(found, part).double(), getattr(exact[name], part), rtol=2e-5, atol=1e-12
            )


@pytest.mark.parametrize("certainty", [5.0, 20.0, 40.0])
def test_confident_members_keep_the_digits_of_their_losses(certainty):
    """``1 - p_y`` and ``-log p_y`` are near ``exp(-certainty)``, below the last digit of 1."""
    single = torch.tensor([[certainty, 0.0], [certainty + 1, 0.0]], dtype=torch.float32)
    double = single.double()
    expected = torch.exp(-double[:, 0])
    terms = cross_entropy_ambiguity(single, torch.tensor(0))
    torch.testing.assert_close(
        terms.component_bias.double(), torch.log1p(expected), rtol=1e-5, atol=0.0
    )
    brier = LOSSES["brier"](single, torch.tensor(0))
    miss = expected / (1 + expected)
    torch.testing.assert_close(brier.component_bias.double(), miss.square(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_of_close_members_keeps_its_digits(dtype):
    """To second order in the spread it is the variance under ``softmax(m)`` over two."""
    spread = 1e-3 if dtype == torch.float32 else 1e-6
    base = torch.randn(6, dtype=torch.float64)
    members = (base + spread * torch.randn(8, 6, dtype=torch.float64)).to(dtype)
    terms = cross_entropy_ambiguity(members, torch.tensor(0))
    deviations = members.double() - members.double().mean(0)
    q = members.double().mean(0).softmax(-1)
    mean = (q * deviations).sum(-1, keepdim=True)
    expected = (q * (deviations - mean).square()).sum(-1) / 2
    torch.testing.assert_close(terms.component_diversity.double(), expected, rtol=1e-2, atol=0.0)
    assert bool((terms.component_diversity > 0).all())


def test_a_member_without_weight_may_be_anywhere():
    members = torch.tensor([[1e8, -1e8], [1.0, 0.0], [1.0 + 1e-6, 1e-6]], dtype=torch.float64)
    terms = krogh_vedelsby(members, torch.tensor(0), weights=[0.0, 0.5, 0.5])
    without = krogh_vedelsby(members[1:], torch.tensor(0))
    torch.testing.assert_close(terms.diversity, without.diversity, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(terms.error, without.error, rtol=1e-9, atol=0.0)
