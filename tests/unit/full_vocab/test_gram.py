"""Squared quantities over the whole vocabulary, from moments, are those of the full logits."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity.full_vocab import ResidualTarget, whitened_logits, whitened_target
from lens_diversity.full_vocab import gram as gram_module
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import compact_vocabulary, factored
from tests.families import build
from tests.unit.full_vocab.cases import assert_close, cases
from tests.unit.full_vocab.memory import TensorMemory

TERMS = ("error", "bias", "diversity", "component_bias", "component_diversity")
TOKENS = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))


def targets_of(case, kind):
    """A target and the same over the vocabulary, in float64."""
    if kind == "labels":
        return case.labels, torch.nn.functional.one_hot(case.labels, case.d_vocab).double()
    if kind == "dense":
        return case.dense, case.dense.double()
    if kind == "own stream":
        own = ResidualTarget.from_stack(case.stack, scale=0.5)
        return own, 0.5 * (case.logits("drop").sum(0) + case.kappa)
    return case.other_target, case.other_logits


@settings(max_examples=150)
@given(
    cases(),
    st.sampled_from(["labels", "dense", "own stream", "other model"]),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["model", "centred"]),
    st.sampled_from(["spread", "component", "drop"]),
)
def test_decompositions_are_those_of_the_full_logits(case, kind, combine, gauge, constant):
    targets, dense = targets_of(case, kind)
    members = case.logits(constant)
    weights = case.weights(len(members))
    if gauge == "centred":
        members = members - members.mean(-1, keepdim=True)
    members = ld.functional.combine_members(members, weights, combine)
    expected = ld.functional.krogh_vedelsby(members, dense, weights)
    found = ld.decompose(
        case.stack, targets, loss="squared", combine=combine, gauge=gauge, weights=weights,
        constant=constant,
    )  # fmt: skip
    assert found.n_vocab == case.d_vocab
    size = expected.error + expected.bias + expected.diversity
    for name in TERMS:
        reference = getattr(expected, name)
        assert_close(getattr(found, name), reference, size + reference, 10 * case.tolerance)


@settings(max_examples=60)
@given(cases(dtypes=(torch.float64,)), st.sampled_from(["labels", "dense", "other model"]))
def test_brown_terms_and_pairs_are_those_of_the_full_logits(case, kind):
    targets, dense = targets_of(case, kind)
    short = whitened_logits(case.stack)
    goal = whitened_target(targets, case.stack)
    assert goal.shape == short.shape[1:]
    logits, weights = case.logits(), case.weights(case.components)
    pairs = ld.functional.pairwise_diversity(logits)
    assert_close(ld.functional.pairwise_diversity(short), pairs, pairs.amax(), 1e-9)
    expected = ld.functional.brown_covariance(logits, dense, weights)
    found = ld.functional.brown_covariance(short, goal, weights)
    size = logits.square().mean(-1).amax(0) + dense.square().mean(-1)
    for name in ("var_bar", "cov_bar", "omega", "ensemble_variance", "target_var", "target_cov"):
        assert_close(getattr(found, name), getattr(expected, name), size, 1e-9)
    assert_close(found.bias_bar, expected.bias_bar, size.sqrt(), 1e-9)


@settings(max_examples=60)
@given(cases(min_components=2), st.sampled_from(["mean", "sum"]))
def test_leave_one_out_is_that_of_the_full_logits(case, combine):
    spread, own = case.logits(), case.logits("drop")
    expected = ld.functional.leave_one_out(
        spread if combine == "mean" else own,
        case.dense.double(),
        combine=combine,
        constant=case.kappa if combine == "sum" else None,
    )
    found = ld.leave_one_out(case.stack, case.dense, loss="squared", combine=combine)
    assert_close(found, expected, expected.sum(0) + spread.square().sum((0, -1)), case.tolerance)


@settings(max_examples=60)
@given(cases(), st.sampled_from(["mean", "sum"]), st.sampled_from(["final", "junction"]))
def test_junctions_are_those_of_the_full_logits(case, combine, scale):
    stack = case.stack
    statistic = stack.readout.statistic(stack.values.double().cumsum(0))
    rescale = (stack.stream.scale.double() / statistic).squeeze(-1)
    expected = ld.functional.junctions(
        case.logits("drop"),
        case.labels,
        "squared",
        combine,
        constant=case.kappa,
        rescale=rescale if scale == "junction" else None,
    )
    found = ld.junctions(stack, case.labels, loss="squared", combine=combine, scale=scale)
    assert found.logits is None
    size = expected.error + expected.bias + expected.diversity
    for name in ("error", "bias", "diversity"):
        assert_close(getattr(found, name), getattr(expected, name), size, 10 * case.tolerance)


@pytest.mark.parametrize("family", ["gpt2", "gptj", "phi", "gemma", "cohere", "granite", "llama"])
@pytest.mark.parametrize("compatible", [False, True], ids=["raw", "compatibility"])
def test_models_with_biases_scales_and_offsets(family, compatible):
    model = build(family)
    if compatible:
        model.enable_compatibility_mode()
    with torch.no_grad():
        _, cache = model.run_with_cache(TOKENS)
    stack = ld.component_stack(cache, pos=None)
    expected = ld.functional.krogh_vedelsby(ld.component_logits(stack, dtype=torch.float64), TOKENS)
    found = ld.decompose(stack, TOKENS, loss="squared")
    for name in TERMS:
        torch.testing.assert_close(
            getattr(found, name).double(), getattr(expected, name), rtol=1e-5, atol=1e-9
        )
    assert found.reconstruction_reference in ("logits", "normalised stream")
    assert found.reconstruction_error < 2e-6


def test_close_members_keep_their_digits():
    """A quadratic form in float32 gives differences of 1e-4 with no digit right."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 4, 32, generator=generator)
    values = shared + 1e-4 * torch.randn(5, 4, 32, generator=generator)
    W_U = torch.randn(32, 500, generator=generator)
    stack = ld.ComponentStack.from_values(values, ld.Readout(W_U=W_U, b_U=torch.zeros(500)))
    exact = ld.functional.krogh_vedelsby(
        ld.component_logits(stack, dtype=torch.float64), torch.zeros(4, 500).double()
    )
    found = ld.decompose(stack, torch.zeros(4, dtype=torch.long), loss="squared").diversity
    assert float((found.double() / exact.diversity - 1).abs().max()) < 1e-3
    vectors = values.flatten(0, 1)
    quadratic = ((vectors @ (W_U @ W_U.T)) * vectors).sum(-1).reshape(5, 4) / 500
    mean = values.mean(0)
    of_mean = ((mean @ (W_U @ W_U.T)) * mean).sum(-1) / 500
    assert float(((quadratic.mean(0) - of_mean) / exact.diversity - 1).abs().max()) > 0.1


@pytest.mark.parametrize("deficient", [False, True])
def test_factors_reproduce_the_gram_matrix(deficient):
    rows = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[0] *= 1e-6
    if deficient:
        rows = torch.cat([rows, rows[:2].sum(0, keepdim=True), torch.zeros(1, 40)])
    gram = rows @ rows.T
    factor, dual = factored(gram)
    assert len(factor) == 5
    scale = gram.diagonal().sqrt().clamp_min(1e-300)
    error = (factor.T @ factor - gram) / scale / scale.unsqueeze(1)
    assert float(error.nan_to_num().abs().max()) < 1e-12
    torch.testing.assert_close(
        dual @ factor.T, torch.eye(5, dtype=torch.float64), rtol=1e-8, atol=1e-8
    )


@pytest.fixture
def stack():
    generator = torch.Generator().manual_seed(0)
    readout = ld.Readout(
        W_U=torch.randn(8, 300, generator=generator), b_U=torch.randn(300, generator=generator)
    )
    return ld.ComponentStack.from_values(torch.randn(4, 3, 8, generator=generator), readout)


@pytest.fixture
def builds(monkeypatch):
    made = []
    init = gram_module.CompactVocabulary.__init__

    def counted(self, basis):
        made.append(basis)
        init(self, basis)

    monkeypatch.setattr(gram_module.CompactVocabulary, "__init__", counted)
    return made


def test_moments_are_taken_once_per_unembedding(stack, builds):
    again = replace(stack, readout=replace(stack.readout, W_U=stack.readout.W_U.view(8, 300)))
    for _ in range(2):
        ld.decompose(stack, [0, 1, 2], loss="squared")
        ld.leave_one_out(again, [0, 1, 2], loss="squared")
    assert len(builds) == 1


@pytest.mark.parametrize("change", ["version", "data", "inference", "bias"])
def test_changed_weights_are_noticed(stack, builds, change):
    ld.decompose(stack, [0, 1, 2], loss="squared")
    W_U, b_U = stack.readout.W_U, stack.readout.b_U
    if change == "version":
        W_U[:, 1] += 1.0
    elif change == "data":
        W_U.data.mul_(1.5)
    elif change == "inference":
        with torch.inference_mode():
            W_U.mul_(1.5)
    else:
        b_U.data[5] += 1.0
    found = ld.decompose(stack, [0, 1, 2], loss="squared")
    assert len(builds) == 2
    expected = ld.functional.krogh_vedelsby(ld.component_logits(stack), torch.tensor([0, 1, 2]))
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-5, atol=0)


def test_moments_go_with_the_weights():
    readout = ld.Readout(W_U=torch.randn(4, 50), b_U=torch.zeros(50))
    kept = weakref.ref(compact_vocabulary(VocabularyBasis.of(readout)))
    assert kept() is not None
    del readout
    gc.collect()
    assert kept() is None


def test_gradients_reach_the_components_through_moments_made_in_inference_mode(stack):
    gold = torch.tensor([0, 1, 2])
    with torch.inference_mode():
        ld.decompose(stack, gold, loss="squared")
    values = stack.values.clone().requires_grad_()
    tracked = ld.ComponentStack.from_values(values, stack.readout)
    ld.decompose(tracked, gold, loss="squared").error.sum().backward()
    found, values.grad = values.grad, None
    members = ld.component_logits(tracked)
    ld.functional.krogh_vedelsby(members, gold).error.sum().backward()
    torch.testing.assert_close(found, values.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_gradients_reach_the_unembedding(stack, loss):
    W_U = stack.readout.W_U.clone().requires_grad_()
    tracked = replace(stack, readout=replace(stack.readout, W_U=W_U))
    ld.decompose(tracked, [0, 1, 2], loss=loss).error.sum().backward()
    assert float(W_U.grad.abs().sum()) > 0


@pytest.mark.parametrize("loss", ["squared", "paper", "brier", "cross_entropy"])
def test_gradients_reach_the_member_weights(stack, loss):
    count, gold = len(stack), torch.tensor([0, 1, 2])
    weights = torch.full((count,), 1 / count).requires_grad_()
    ld.decompose(stack, gold, loss=loss, weights=weights).diversity.sum().backward()
    found, weights.grad = weights.grad, None
    members = ld.component_logits(stack)
    terms = {
        "squared": ld.functional.krogh_vedelsby,
        "paper": ld.functional.bias_diversity,
        "brier": ld.functional.brier_ambiguity,
        "cross_entropy": ld.functional.cross_entropy_ambiguity,
    }[loss](members, gold, weights)
    terms.diversity.sum().backward()
    torch.testing.assert_close(found, weights.grad, rtol=1e-4, atol=1e-6)


def test_no_tensor_over_the_vocabulary_is_made(stack):
    readout = ld.Readout(W_U=torch.randn(16, 20_000), b_U=torch.zeros(20_000))
    big = ld.ComponentStack.from_values(torch.randn(9, 200, 16), readout)
    gold = torch.randint(0, 20_000, (200,))
    ld.decompose(big, gold, loss="squared")
    with TensorMemory() as memory:
        ld.decompose(big, gold, loss="squared")
        ld.junctions(big, gold, loss="squared")
    assert memory.largest < 4 * 9 * 200 * 20
    assert memory.peak < 12 * 4 * 9 * 200 * 20


def test_a_wrong_sum_is_refused():
    with torch.no_grad():
        _, cache = build("gpt2").run_with_cache(TOKENS)
    stack = ld.component_stack(cache)
    broken = replace(stack, readout=replace(stack.readout, logit_scale=1.5))
    broken = replace(broken, values=1.1 * broken.values)
    with pytest.raises(ValueError, match="do not add up"):
        ld.decompose(broken, [0, 1, 2], loss="squared")


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        ({}, {"loss": "brier"}, TypeError, "integer gold labels"),
        ({"stream": torch.zeros(2, 8)}, {}, ValueError, r"batch shape \(3,\), got \(2,\)"),
        (
            {"readout": ld.Readout(W_U=torch.zeros(8, 9), b_U=torch.zeros(9))},
            {},
            ValueError,
            "9 tokens and the stack's 300",
        ),
    ],
)
def test_targets_that_do_not_fit_are_refused(stack, change, options, error, message):
    target = replace(ResidualTarget.from_stack(stack), **change)
    with pytest.raises(error, match=message):
        ld.decompose(stack, target, **({"loss": "squared"} | options))


def test_the_target_of_a_wider_model():
    generator = torch.Generator().manual_seed(0)
    tokens, narrow, wide = 30_000, 3, 200
    W_U = torch.randn(narrow, tokens, generator=generator, dtype=torch.float64)
    theirs = torch.randn(wide, tokens, generator=generator, dtype=torch.float64)
    zeros = torch.zeros(tokens, dtype=torch.float64)
    values = torch.randn(4, 2, narrow, generator=generator, dtype=torch.float64)
    stack = ld.ComponentStack.from_values(values, ld.Readout(W_U=W_U, b_U=zeros))
    residual = torch.randn(2, wide, generator=generator, dtype=torch.float64)
    other = ResidualTarget.from_residual(residual, ld.Readout(W_U=theirs, b_U=zeros))
    found = ld.decompose(stack, other, loss="squared")
    expected = ld.decompose(stack, residual @ theirs, loss="squared")
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-10, atol=0)


def test_a_residual_of_other_dimensions_is_refused(stack):
    with pytest.raises(ValueError, match="7 dimensions and the readout 8"):
        ResidualTarget.from_residual(torch.zeros(3, 7), stack.readout)


def test_a_residual_target_on_chosen_tokens(stack):
    other = ResidualTarget.from_residual(torch.ones(3, 8), stack.readout)
    chosen = [3, 5, 250]
    dense = (torch.ones(3, 8) @ stack.readout.W_U + stack.readout.b_U)[:, chosen]
    found = ld.decompose(stack, other, chosen, "squared")
    expected = ld.decompose(stack, dense, chosen, "squared")
    torch.testing.assert_close(found.error, expected.error)
