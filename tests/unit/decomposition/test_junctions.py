"""Junction k is the decomposition of the first k members, in every mode."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import combine_members, junctions
from tests.unit.decomposition import references
from tests.unit.decomposition.cases import NUMBERS, as_seen_by, assert_small, cases, in_double
from tests.unit.decomposition.test_values import assert_close, by_row

MODES = st.fixed_dictionaries(
    {
        "combine": st.sampled_from(["mean", "sum"]),
        "constant": st.booleans(),
        "rescale": st.booleans(),
    }
)


def options(case, mode):
    return {
        "combine": mode["combine"],
        "constant": case.constant if mode["constant"] else None,
        "rescale": case.rescale if mode["rescale"] else None,
    }


def members_at(members, count, chosen):
    """The members of the junction as they are defined, the constant shared among them."""
    members = members[:count]
    if chosen["rescale"] is not None:
        members = chosen["rescale"][count - 1].double().unsqueeze(-1) * members
    if chosen["constant"] is not None:
        members = members + chosen["constant"].double() / count
    return members


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=20)
@given(data=st.data(), mode=MODES)
def test_equals_the_decomposition_of_the_first_members(loss, data, mode):
    case = data.draw(cases(NUMBERS[loss], ("uniform",)))
    chosen = options(case, mode)
    for target in (case.labels, case.dense) if loss == "squared" else (case.labels,):
        found = junctions(case.members, target, loss, **chosen)
        assert found.error.shape == (case.components, *case.batch)
        assert found.logits.shape == case.members.shape
        for at in range(case.components):
            first = members_at(as_seen_by(loss, case.members), at + 1, chosen)
            combined = combine_members(first, combine=mode["combine"])
            expected = LOSSES[loss](combined, in_double(target))
            scale = expected.error + expected.bias
            assert_small(found.error[at] - expected.error, scale, case, slack=3)
            assert_small(found.bias[at] - expected.bias, scale, case, slack=3)
            if loss != "paper":
                scale = scale + expected.diversity
                assert_small(found.diversity[at] - expected.diversity, scale, case, slack=3)


@settings(max_examples=40)
@given(case=cases(weighting=("uniform",)), mode=MODES)
def test_logits_and_the_diversity_of_logits_are_those_of_the_first_members(case, mode):
    chosen = options(case, mode)
    found = junctions(case.members, case.labels, "paper", **chosen)
    for at in range(case.components):
        first = members_at(case.members.double(), at + 1, chosen)
        summands = first.abs().sum(0) + case.constant.abs()
        assert_small(found.logits[at] - first.sum(0), summands, case, slack=3)
        combined = combine_members(first, combine=mode["combine"])
        expected = LOSSES["squared"](combined, case.labels).diversity
        size = combined.square().mean((0, -1))
        assert_small(found.diversity[at] - expected, size, case, slack=3)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=20)
@given(case=cases(("plain",), ("uniform",)), mode=MODES)
def test_equals_the_loops(loss, case, mode):
    chosen = options(case, mode)
    added = case.constant.tolist() if mode["constant"] else [0.0] * case.vocab
    factors = case.rescale if mode["rescale"] else torch.ones_like(case.rescale)
    factors = factors.reshape(case.components, -1).T.tolist()
    rows = iter(factors)

    def row(u, t):
        factor = next(rows)
        terms = [
            references.junction_terms(u, t, loss, mode["combine"], added, factor[k - 1], k)
            for k in range(1, case.components + 1)
        ]
        return tuple(map(list, zip(*terms, strict=True)))

    error, bias, diversity, logits = by_row(row, case, case.one_hot)
    found = junctions(case.members, case.labels, loss, **chosen)
    rounding = error + bias if loss == "cross_entropy" else 0.0
    assert_close(found.error, error, case.dtype)
    assert_close(found.bias, bias, case.dtype)
    assert_close(found.diversity, diversity, case.dtype, diversity + rounding)
    batch_last = found.logits.movedim(-1, 1)
    assert_close(batch_last, logits, case.dtype, np.abs(logits) + case.components)


@pytest.mark.parametrize("loss", ["squared", "brier", "cross_entropy"])
@settings(max_examples=40)
@given(case=cases(weighting=("uniform",)), mode=MODES)
def test_exact_losses_keep_their_identity_at_every_junction(loss, case, mode):
    found = junctions(case.members, case.labels, loss, **options(case, mode))
    scale = found.error.abs() + found.bias.abs() + found.diversity.abs()
    assert_small(found.error - (found.bias - found.diversity), scale, case, slack=3)


@settings(max_examples=30)
@given(case=cases(weighting=("uniform",)))
def test_the_first_junction_has_no_diversity_and_the_last_is_the_whole(case):
    for loss in ("squared", "paper", "brier"):
        found = junctions(case.members, case.labels, loss)
        assert bool((found.diversity[0] == 0).all())
        assert bool((found.diversity >= 0).all())
    whole = LOSSES["squared"](case.members, case.labels)
    last = junctions(case.members, case.labels, "squared")
    assert_small(last.diversity[-1] - whole.diversity, whole.diversity, case, slack=3)


@settings(max_examples=10)
@given(case=cases(weighting=("uniform",)))
def test_a_constant_of_each_row_is_the_constant_of_all_where_they_agree(case):
    of_each = case.constant.expand(*case.batch, case.vocab).contiguous()
    for loss in LOSSES:
        once = junctions(case.members, case.labels, loss, constant=case.constant)
        each = junctions(case.members, case.labels, loss, constant=of_each)
        assert torch.equal(once.error, each.error)
        assert torch.equal(once.logits, each.logits)
