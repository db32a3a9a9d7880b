"""Softmax losses streamed over the vocabulary are those of the full logits, in bounded memory."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.softmax import RunningSoftmax, rows_within
from tests.families import build
from tests.unit.full_vocab.cases import assert_close, cases
from tests.unit.full_vocab.memory import TensorMemory

LOSSES = ("cross_entropy", "paper", "brier")
FUNCTIONS = {
    "cross_entropy": ld.functional.cross_entropy_ambiguity,
    "paper": ld.functional.bias_diversity,
    "brier": ld.functional.brier_ambiguity,
}
TERMS = ("error", "bias", "diversity", "component_bias", "component_diversity")
TOKENS = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))


def smallest_budget(case):
    """One row at a time, and tiles of a few tokens."""
    basis = VocabularyBasis.of(case.stack.readout)
    for budget in range(1, 10**6, 64):
        try:
            rows_within(budget, case.components + 2, basis, case.dtype)
        except ValueError:
            continue
        return budget
    raise AssertionError


@settings(max_examples=150)
@given(
    cases(),
    st.sampled_from(LOSSES),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["model", "centred"]),
    st.sampled_from(["spread", "component", "drop"]),
    st.booleans(),
)
def test_decompositions_are_those_of_the_full_logits(case, loss, combine, gauge, constant, small):
    members = case.logits(constant)
    weights = case.weights(len(members))
    if gauge == "centred":
        members = members - members.mean(-1, keepdim=True)
    members = ld.functional.combine_members(members, weights, combine)
    expected = FUNCTIONS[loss](members, case.labels, weights)
    found = ld.decompose(
        case.stack, case.labels, None, loss, combine, gauge, weights, constant=constant,
        **({"memory_budget": smallest_budget(case)} if small else {}),
    )  # fmt: skip
    scale = members.abs().amax((0, -1))
    size = expected.error + expected.bias + expected.diversity + scale
    # The logits themselves are rounded in float32, to an absolute error of their own size, and a
    # member of little weight can have terms far above the averages.
    for name in TERMS:
        reference = getattr(expected, name)
        assert_close(getattr(found, name), reference, size + reference.abs(), case.tolerance)


@settings(max_examples=60)
@given(
    cases(min_components=2),
    st.sampled_from(LOSSES),
    st.sampled_from(["mean", "sum"]),
    st.booleans(),
)
def test_leave_one_out_is_that_of_the_full_logits(case, loss, combine, small):
    expected = ld.functional.leave_one_out(
        case.logits("spread" if combine == "mean" else "drop"),
        case.labels,
        loss,
        combine,
        constant=case.kappa if combine == "sum" else None,
    )
    budget = {"memory_budget": smallest_budget(case)} if small else {}
    found = ld.leave_one_out(case.stack, case.labels, None, loss, combine, **budget)
    scale = case.components * case.logits().abs().amax((0, -1)) + 1
    assert_close(found, expected, scale.expand_as(expected), 2 * case.tolerance)


@settings(max_examples=60)
@given(
    cases(),
    st.sampled_from(LOSSES),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["final", "junction"]),
)
def test_junctions_are_those_of_the_full_logits(case, loss, combine, scale):
    stack = case.stack
    statistic = stack.readout.statistic(stack.values.double().cumsum(0))
    rescale = (stack.stream.scale.double() / statistic).squeeze(-1)
    expected = ld.functional.junctions(
        case.logits("drop"),
        case.labels,
        loss,
        combine,
        constant=case.kappa,
        rescale=rescale if scale == "junction" else None,
    )
    found = ld.junctions(stack, case.labels, None, loss, combine, scale=scale)
    assert found.logits is None
    size = expected.error + expected.bias + expected.diversity
    size = size + expected.logits.abs().amax(-1) + case.logits().abs().amax((0, -1))
    size = size * (1 if scale == "final" else 1 + rescale.abs().square())
    for name in ("error", "bias", "diversity"):
        assert_close(getattr(found, name), getattr(expected, name), size, 10 * case.tolerance)


@pytest.mark.parametrize("family", ["gpt2", "gptj", "cohere", "llama"])
def test_combine_sum_is_the_models_own_loss(family):
    model = build(family)
    with torch.no_grad():
        logits, cache = model.run_with_cache(TOKENS)
    gold = TOKENS.roll(1, 1)
    found = ld.decompose(cache, gold, loss="cross_entropy", combine="sum", pos=None)
    own = torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), reduction="none")
    torch.testing.assert_close(found.error.flatten(), own, rtol=1e-4, atol=1e-4)
    size = found.error.abs() + found.bias.abs() + found.diversity.abs()
    assert float((found.residual.abs() / size).max()) < 1e-5


def test_a_confident_member_keeps_its_digits():
    """``-log p_y`` of 2e-9 is lost in ``log sum exp - u_y`` in float32."""
    values = torch.tensor([[[20.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    stack = ld.ComponentStack.from_values(values, ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3)))
    found = ld.decompose(stack, [0], loss="cross_entropy").component_bias[0, 0]
    assert float(found) == pytest.approx(math.log1p(2 * math.exp(-20)), rel=1e-5)


@pytest.mark.parametrize("width", [1, 3, 50])
def test_merged_tiles_are_the_softmax_of_the_whole(width):
    logits = 300 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    logits[0, 0] = -torch.inf
    merged, lengths = RunningSoftmax(logits), torch.zeros(4, dtype=torch.float64)
    for start in range(0, 50, width):
        own, share = merged.update(logits[:, start : start + width].clone())
        squares = own.exp().square().sum(1).nan_to_num(0.0)
        lengths = (1 - share).square() * lengths + share.square() * squares
    expected = logits.double().logsumexp(1)
    torch.testing.assert_close(merged.log_sum, expected, rtol=1e-6, atol=0)
    p = (logits.double() - expected.unsqueeze(1)).exp()
    torch.testing.assert_close(lengths, p.square().sum(1), rtol=1e-5, atol=0)


def test_a_single_token_is_certain():
    stack = ld.ComponentStack.from_values(
        torch.ones(2, 1, 3), ld.Readout(W_U=torch.ones(3, 1), b_U=torch.zeros(1))
    )
    for loss in LOSSES:
        found = ld.decompose(stack, [0], loss=loss)
        assert found.error.tolist() == found.bias.tolist() == [0.0]


@pytest.fixture(scope="module")
def big():
    generator = torch.Generator().manual_seed(0)
    readout = ld.Readout(
        W_U=torch.randn(32, 20_000, generator=generator),
        b_U=torch.randn(20_000, generator=generator),
    )
    values = torch.randn(12, 50, 32, generator=generator)
    gold = torch.randint(0, 20_000, (50,), generator=generator)
    return ld.ComponentStack.from_values(values, readout), gold


@pytest.mark.parametrize("budget", [2**20, 2**22])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_budget_bounds_memory_and_changes_no_result(big, loss, budget):
    """The full logits would be 46 MiB."""
    stack, gold = big
    whole = ld.decompose(stack, gold, loss=loss)
    with TensorMemory() as memory:
        found = ld.decompose(stack, gold, loss=loss, memory_budget=budget)
    for name in TERMS:
        torch.testing.assert_close(getattr(found, name), getattr(whole, name), rtol=1e-5, atol=1e-5)
    result = 8 * (12 + 2) * 50 * 4
    compact = 4 * 8 * 33 * 35
    assert memory.peak < budget + result + compact


@pytest.mark.parametrize("loss", LOSSES)
def test_a_budget_for_no_row_is_refused(big, loss):
    stack, gold = big
    with pytest.raises(ValueError, match=r"memory_budget=1000 .* at least \d+ bytes"):
        ld.decompose(stack, gold, loss=loss, memory_budget=1000)


@pytest.mark.parametrize("loss", ["squared", *LOSSES])
@pytest.mark.parametrize(
    ("budget", "error"), [(0, ValueError), (True, TypeError), (1e6, TypeError)]
)
def test_a_budget_that_is_no_number_of_bytes_is_refused(big, loss, budget, error):
    stack, gold = big
    with pytest.raises(error, match="memory_budget"):
        ld.decompose(stack, gold, loss=loss, memory_budget=budget)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_softmax_losses_are_those_of_the_full_logits(loss):
    generator = torch.Generator().manual_seed(0)
    readout = ld.Readout(W_U=torch.randn(4, 30, generator=generator), b_U=torch.zeros(30))
    values = torch.randn(3, 2, 4, generator=generator).requires_grad_()
    stack = ld.ComponentStack.from_values(values, readout)
    gold = torch.tensor([3, 20])
    ld.decompose(stack, gold, loss=loss).bias.sum().backward()
    found, values.grad = values.grad, None
    FUNCTIONS[loss](ld.component_logits(stack), gold).bias.sum().backward()
    torch.testing.assert_close(found, values.grad)


@pytest.mark.parametrize("loss", LOSSES)
def test_not_a_number_is_refused(big, loss):
    stack, gold = big
    values = stack.values.clone()
    values[1, 5, 0] = torch.nan
    broken = dataclasses.replace(stack, values=values)
    with pytest.raises(ValueError, match=r"NaN|do not add up"):
        ld.decompose(broken, gold, loss=loss)
