"""Decompositions of real (tiny) models agree with naive ones made from their component logits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity.stack import ComponentStack
from tests.families import build

EXACT = ("squared", "brier", "cross_entropy")
LOSSES = (*EXACT, "paper")
VOCAB = [5, 9, 31]
GOLD = torch.tensor([0, 2, 1])


@pytest.fixture(scope="module")
def cache():
    tokens = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return build("gpt2").run_with_cache(tokens)[1]


@pytest.fixture(scope="module")
def stack(cache):
    return ld.component_stack(cache)


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def naive(members, gold, loss, weights):
    """Error, bias and diversity of one row by the definitions, in plain NumPy."""
    onehot = np.eye(members.shape[-1])[gold]
    mean = np.einsum("l,lv->v", weights, members)
    p, mean_p = softmax(members), np.einsum("l,lv->v", weights, softmax(members))
    logit_diversity = weights @ ((members - mean) ** 2).mean(-1)
    if loss == "squared":
        return (
            ((onehot - mean) ** 2).mean(),
            weights @ ((onehot - members) ** 2).mean(-1),
            logit_diversity,
        )
    if loss == "paper":
        return (
            ((onehot - softmax(mean)) ** 2).mean(),
            weights @ ((onehot - p) ** 2).mean(-1),
            logit_diversity,
        )
    if loss == "brier":
        return (
            ((onehot - mean_p) ** 2).mean(),
            weights @ ((onehot - p) ** 2).mean(-1),
            weights @ ((p - mean_p) ** 2).mean(-1),
        )
    q = softmax(mean)
    return (
        -np.log(q[gold]),
        weights @ -np.log(p[:, gold]),
        weights @ (q * (np.log(q) - np.log(p))).sum(-1),
    )


@pytest.mark.parametrize("constant", ["spread", "component", "drop"])
@pytest.mark.parametrize("gauge", ["model", "centred"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_definitions(stack, loss, combine, gauge, constant):
    members = ld.component_logits(stack, VOCAB, constant=constant, dtype=torch.float64).numpy()
    count = len(members)
    weights = np.arange(1.0, count + 1)
    weights /= weights.sum()
    if gauge == "centred":
        members = members - members.mean(-1, keepdims=True)
    if combine == "sum":
        members = members / weights[:, None, None]
    result = ld.decompose(
        stack, GOLD, VOCAB, loss, combine, gauge, weights.tolist(),
        constant=constant, dtype=torch.float64,
    )  # fmt: skip
    for row, gold in enumerate(GOLD.tolist()):
        expected = naive(members[:, row], gold, loss, weights)
        found = [float(getattr(result, name)[row]) for name in ("error", "bias", "diversity")]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("vocab", [None, VOCAB])
@pytest.mark.parametrize("loss", EXACT)
def test_the_identity_holds_and_components_average_to_the_whole(stack, loss, vocab):
    result = ld.decompose(stack, GOLD, vocab, loss, dtype=torch.float64)
    size = result.error.abs() + result.bias.abs() + result.diversity.abs()
    assert float((result.residual.abs() / size).max()) < 1e-12
    for name in ("bias", "diversity"):
        whole = torch.einsum("l,lb->b", result.weights, getattr(result, f"component_{name}"))
        torch.testing.assert_close(whole, getattr(result, name), rtol=1e-12, atol=1e-14)


def test_combine_sum_is_the_models_own_loss(cache):
    logits = cache["unembed.hook_out"]
    stack = ld.component_stack(cache, pos=None)
    gold = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    result = ld.decompose(stack, gold, loss="cross_entropy", combine="sum")
    own = torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), reduction="none")
    torch.testing.assert_close(result.error.flatten(), own, rtol=1e-4, atol=1e-4)


def test_a_dense_target_is_the_target_itself(stack, cache):
    target = cache["unembed.hook_out"][:, -1] / len(stack)
    result = ld.decompose(stack, target, loss="squared", dtype=torch.float64)
    assert float(result.error.max()) < 1e-10
    torch.testing.assert_close(result.bias, result.diversity, rtol=1e-6, atol=1e-12)


def test_a_cache_is_as_good_as_a_stack(cache, stack):
    from_cache = ld.decompose(cache, GOLD, VOCAB, pos=-1)
    torch.testing.assert_close(from_cache.error, ld.decompose(stack, GOLD, VOCAB).error)
    every = ld.decompose(cache, GOLD[:, None].expand(3, 6), VOCAB, pos=None)
    assert every.error.shape == (3, 6)
    assert every.component_bias.shape == (6, 3, 6)
    torch.testing.assert_close(every.error[:, -1], from_cache.error)


def test_rows_are_read_out_in_chunks_of_bounded_size(stack, monkeypatch):
    whole = ld.decompose(stack, GOLD, VOCAB, "cross_entropy")
    sizes = []
    project = ld.Readout.project

    def spy(self, normalised, ids):
        sizes.append(normalised.shape)
        return project(self, normalised, ids)

    monkeypatch.setattr(ld.Readout, "project", spy)
    rows = ld.decompose(stack, GOLD, VOCAB, "cross_entropy", memory_budget=1)
    assert [shape for shape in sizes if len(shape) == 3] == [(6, 1, 32)] * 3
    torch.testing.assert_close(rows.error, whole.error)
    torch.testing.assert_close(rows.component_diversity, whole.component_diversity)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_leave_one_out_is_the_error_of_the_ensemble_without(stack, loss, combine):
    found = ld.leave_one_out(stack, GOLD, VOCAB, loss, combine, dtype=torch.float64)
    assert found.shape == (6, 3)
    place = "drop" if combine == "sum" else "spread"
    members = ld.component_logits(stack, VOCAB, place, dtype=torch.float64).numpy()
    kappa = stack.readout.constant(torch.tensor(VOCAB), like=torch.zeros(0, dtype=torch.float64))
    for left_out in range(6):
        rest = np.delete(members, left_out, 0)
        if combine == "sum":
            rest = rest * 5 + kappa.numpy()
        for row, gold in enumerate(GOLD.tolist()):
            expected = naive(rest[:, row], gold, loss, np.full(5, 0.2))[0]
            assert float(found[left_out, row]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", ["final", "junction"])
def test_junctions_are_the_ensembles_of_the_first_components(stack, loss, combine, scale):
    found = ld.junctions(stack, GOLD, VOCAB, loss, combine, scale=scale, dtype=torch.float64)
    members = ld.component_logits(stack, VOCAB, "drop", dtype=torch.float64)
    kappa = stack.readout.constant(torch.tensor(VOCAB), like=members)
    partial = stack.values.double().cumsum(0)
    for k in range(1, 7):
        first = members[:k]
        if scale == "junction":
            own = stack.readout.statistic(partial[k - 1])
            first = first * (stack.stream.scale.double() / own)
        torch.testing.assert_close(found.logits[k - 1], first.sum(0) + kappa)
        first = (first + kappa / k) * (k if combine == "sum" else 1)
        for row, gold in enumerate(GOLD.tolist()):
            expected = naive(first[:, row].numpy(), gold, loss, np.full(k, 1 / k))
            got = [float(getattr(found, n)[k - 1, row]) for n in ("error", "bias", "diversity")]
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)


def test_the_last_junction_is_the_whole(stack):
    whole = ld.decompose(stack, GOLD, VOCAB, "paper")
    last = ld.junctions(stack, GOLD, VOCAB, "paper")
    torch.testing.assert_close(last.error[-1], whole.error)
    torch.testing.assert_close(last.diversity[-1], whole.diversity)


def test_accuracy_along_the_junctions_does_not_depend_on_the_scale_without_constants():
    tokens = torch.randint(3, 60, (8, 6), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        _, cache = build("llama").run_with_cache(tokens)
    gold = torch.zeros(8, dtype=torch.long)
    predictions = [
        ld.junctions(cache, gold, VOCAB, scale=scale).logits.argmax(-1)
        for scale in ("final", "junction")
    ]
    assert torch.equal(*predictions)


@pytest.mark.parametrize(
    "quantity", ["squared error", "squared diversity", "paper diversity", "brier", "cross_entropy"]
)
def test_gauge_free_quantities_agree_between_raw_and_compatibility_mode(quantity):
    """``center_unembed`` shifts every member's logits, which softmax does not see."""
    loss = quantity.split()[0]
    tokens = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(4))
    results = {"model": [], "centred": []}
    for compatible in (False, True):
        model = build("llama")
        if compatible:
            model.enable_compatibility_mode()
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens)
        for gauge, found in results.items():
            found.append(ld.decompose(cache, GOLD, VOCAB, loss, gauge=gauge))
    name = quantity.split()[-1] if " " in quantity else "diversity"
    raw, compatible = (getattr(result, name) for result in results["centred"])
    torch.testing.assert_close(raw, compatible, rtol=1e-4, atol=1e-6)
    raw, compatible = (getattr(result, name) for result in results["model"])
    if loss in ("squared", "paper"):
        assert float((raw - compatible).abs().max() / raw.abs().max()) > 0.01
    else:
        torch.testing.assert_close(raw, compatible, rtol=1e-4, atol=1e-6)


def test_spreading_the_constant_changes_no_squared_diversity_but_softmax_losses(stack):
    place = {"squared": [], "cross_entropy": []}
    for loss, found in place.items():
        for constant in ("spread", "drop"):
            result = ld.decompose(stack, GOLD, VOCAB, loss, constant=constant)
            found.append(result.diversity)
    torch.testing.assert_close(*place["squared"])
    first, second = place["cross_entropy"]
    assert float((first - second).abs().max() / first.abs().max()) > 0.01


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"targets": [0, 1]}, ValueError, r"expected shape \(3,\), got \(2,\)"),
        ({"targets": [0, 1, 3]}, ValueError, r"\[3\] are out of range \[0, 3\)"),
        ({"targets": [0, -1, 1]}, ValueError, r"\[-1\] are out of range"),
        ({"targets": torch.rand(3, 3)}, TypeError, "integer gold labels"),
        ({"targets": torch.rand(3), "loss": "squared"}, ValueError, r"shape \(3, 3\)"),
        ({"targets": torch.ones(3, dtype=torch.bool)}, TypeError, "integer labels"),
        ({"loss": "hinge"}, ValueError, "squared"),
        ({"combine": "max"}, ValueError, "combine must be one of"),
        ({"gauge": "raw"}, ValueError, "gauge must be one of"),
        ({"constant": "keep"}, ValueError, "constant must be one of"),
        ({"weights": [0.5, 0.5]}, ValueError, "weights"),
        ({"weights": [0.3] * 6}, ValueError, "weights"),
        ({"weights": [1.5, -0.5, 0.0, 0.0, 0.0, 0.0]}, ValueError, "weights"),
        ({"weights": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "combine": "sum"}, ValueError, "weight"),
        ({"vocab": [5, 5, 9]}, ValueError, "repeats"),
        ({"dtype": torch.float16}, TypeError, "dtype must be"),
    ],
)
def test_bad_input_is_refused_with_a_reason(stack, options, error, message):
    with pytest.raises(error, match=message):
        ld.decompose(stack, **({"targets": GOLD, "vocab": VOCAB} | options))


def test_targets_are_token_ids_without_a_vocab(stack):
    d_vocab = stack.readout.d_vocab
    ld.decompose(stack, [d_vocab - 1, 0, 1])
    with pytest.raises(ValueError, match=rf"out of range \[0, {d_vocab}\).*token ids"):
        ld.decompose(stack, [d_vocab, 0, 1])


@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 3), max_size=2),
    st.sampled_from(EXACT),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["model", "centred"]),
    st.integers(0, 1000),
)
def test_identity_over_shapes(components, shape, loss, combine, gauge, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(components, *shape, 5, generator=generator, dtype=torch.float64)
    readout = ld.Readout(
        W_U=torch.randn(5, 7, generator=generator, dtype=torch.float64),
        b_U=torch.randn(7, generator=generator, dtype=torch.float64),
    )
    gold = torch.randint(0, 7, shape, generator=generator)
    stack = ComponentStack.from_values(values, readout)
    result = ld.decompose(stack, gold, loss=loss, combine=combine, gauge=gauge)
    assert result.error.shape == tuple(shape)
    assert result.component_bias.shape == (components, *shape)
    size = result.error.abs() + result.bias.abs() + result.diversity.abs()
    assert float((result.residual.abs() / size).max()) < 1e-12
