"""Neurons by their activations give what vectors of the stream for each of them would give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity.full_vocab import neurons as full_vocab_neurons
from lens_diversity.neurons import NeuronLayer, NeuronStack
from tests.families import build

TERMS = ("error", "bias", "diversity", "component_bias", "component_diversity")


@st.composite
def stacks(draw):
    """Neurons and others in any order, with or without norm, biases, gains, centring."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    d_model, d_vocab, rows = draw(st.integers(2, 6)), draw(st.integers(12, 40)), 3

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    normalised = draw(st.booleans())
    readout = ld.Readout(
        W_U=normal(d_model, d_vocab),
        b_U=normal(d_vocab) * draw(st.sampled_from([0.0, 1.0])),
        norm_weight=1 + 0.3 * normal(d_model) if normalised else None,
        norm_bias=normal(d_model) if normalised and draw(st.booleans()) else None,
        centred=normalised and draw(st.booleans()),
        normalised=normalised,
        eps=1e-5,
        logit_scale=draw(st.sampled_from([1.0, 0.25])),
    )
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    labels, layers, slots = [], [], []
    for index, count in enumerate(counts):
        slots.append(len(labels))
        labels.append(f"{index}_attn_out")
        gain = 1 + 0.3 * normal(d_model) if draw(st.booleans()) else None
        layers.append(
            NeuronLayer.of(normal(rows, count), normal(count, d_model), gain, len(labels))
        )
        labels += [f"L{index}N{unit}" for unit in range(count)]
    others = ld.ComponentStack.from_values(normal(len(slots), rows, d_model), readout)
    total = others.values.sum(0) + sum(layer.written(torch.float64) for layer in layers)
    stream = type(others.stream)(scale=readout.statistic(total))
    others = type(others)(others.values, others.labels, others.modules, ("batch",), stream, readout)
    return NeuronStack(others, slots, layers, labels, ["mlp"] * len(labels))


@settings(max_examples=100)
@given(
    stacks(),
    st.sampled_from(["mean", "sum"]),
    st.sampled_from(["model", "centred"]),
    st.sampled_from(["spread", "component", "drop"]),
    st.booleans(),
    st.booleans(),
)
def test_full_vocabulary_terms(stack, combine, gauge, constant, weighted, dense):
    made = stack.materialise()
    count = len(stack) + (constant == "component")
    weights = None
    if weighted:
        weights = torch.rand(count, generator=torch.Generator().manual_seed(count)) + 0.1
        weights = weights / weights.sum()
    targets = torch.tensor([0, 7, 3])
    if dense:
        targets = torch.randn(3, stack.readout.d_vocab, dtype=torch.float64)
    given = (targets, None, "squared", combine, gauge, weights)
    found = ld.decompose(stack, *given, constant=constant)
    expected = ld.decompose(made, *given, constant=constant)
    scale = float(expected.component_bias.max() + expected.component_diversity.max())
    for name in TERMS:
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-11 * scale
        )
    assert (found.residual.abs() <= 1e-11 * scale).all()


@settings(max_examples=50)
@given(stacks(), st.sampled_from(["mean", "sum"]), st.sampled_from([None, [0, 5, 9, 2]]))
def test_leave_one_out(stack, combine, vocab):
    made = stack.materialise()
    loss = "squared" if vocab is None else "cross_entropy"
    found = ld.leave_one_out(stack, [0, 1, 3], vocab, loss, combine)
    expected = ld.leave_one_out(made, [0, 1, 3], vocab, loss, combine)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10 * float(expected.max()))


@settings(max_examples=50)
@given(stacks(), st.sampled_from(["squared", "paper", "brier", "cross_entropy"]))
def test_option_terms_and_junctions(stack, loss):
    made, ids = stack.materialise(), [0, 5, 9, 2]
    torch.testing.assert_close(ld.component_logits(stack, ids), ld.component_logits(made, ids))
    found, expected = (ld.decompose(part, [0, 1, 3], ids, loss) for part in (stack, made))
    for name in TERMS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    found, expected = (ld.junctions(part, [0, 1, 3], ids, loss) for part in (stack, made))
    torch.testing.assert_close(found.error, expected.error)
    torch.testing.assert_close(found.logits, expected.logits)


def cached(model, tokens):
    with torch.no_grad():
        return model.run_with_cache(tokens, names_filter=ld.unit_hooks("neuron"))[1]


TOKENS = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(1))


def test_gradients_reach_the_activations():
    model = build("gpt2", torch.float64)
    _, cache = model.run_with_cache(TOKENS, names_filter=ld.unit_hooks("neuron"))
    stack = ld.component_stack(cache, unit="neuron")
    layer = stack.layers[0]
    activations = layer.activations.detach().requires_grad_()
    layers = [
        NeuronLayer.of(activations, layer.directions, layer.gain, layer.first),
        stack.layers[1],
    ]
    stack = NeuronStack(stack.others, stack.slots, layers, stack.labels, stack.modules)
    by_activations = ld.decompose(stack, TOKENS[:, -1], None, "squared").diversity.sum()
    (found,) = torch.autograd.grad(by_activations, activations)
    by_vectors = ld.decompose(stack.materialise(), TOKENS[:, -1], None, "squared").diversity.sum()
    (expected,) = torch.autograd.grad(by_vectors, activations)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("change", ["mlp.out", "ln_final", "unembed"])
def test_changed_weights_are_noticed(change):
    model = build("llama", torch.float64)
    before = ld.decompose(cached(model, TOKENS), TOKENS[:, -1], None, "squared", unit="neuron")
    part = {
        "mlp.out": lambda: model.blocks[0].mlp.out.original_component.weight,
        "ln_final": lambda: model.ln_final.original_component.weight,
        "unembed": lambda: model.unembed.original_component.weight,
    }[change]()
    with torch.no_grad():
        part.mul_(1.5)
    stack = ld.component_stack(cached(model, TOKENS), unit="neuron")
    found = ld.decompose(stack, TOKENS[:, -1], None, "squared")
    expected = ld.decompose(stack.materialise(), TOKENS[:, -1], None, "squared")
    torch.testing.assert_close(found.component_diversity, expected.component_diversity)
    assert not torch.allclose(found.diversity, before.diversity)


def test_squares_are_made_once(monkeypatch):
    model = build("llama")
    cache = cached(model, TOKENS)
    made = []
    make = full_vocab_neurons._Squares.make
    monkeypatch.setattr(
        full_vocab_neurons._Squares, "make", lambda *given: made.append(1) or make(*given)
    )
    for _ in range(3):
        ld.decompose(cache, TOKENS[:, -1], None, "squared", unit="neuron")
    assert len(made) == model.cfg.n_layers


def test_memory_budget_changes_nothing():
    cache = cached(build("gpt2", torch.float64), TOKENS)
    stack = ld.component_stack(cache, None, "neuron")
    whole = ld.decompose(stack, TOKENS, None, "squared")
    pieces = ld.decompose(stack, TOKENS, None, "squared", memory_budget=1)
    torch.testing.assert_close(whole.component_bias, pieces.component_bias)
    assert whole.component_bias.shape == (262, 2, 5)


def test_the_remainder_is_a_member():
    model = build("gpt2")

    def push(stream, hook):
        return stream + torch.linspace(-1, 1, stream.shape[-1])

    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", push)]):
        cache = cached(model, TOKENS)
    stack = ld.component_stack(cache, unit="neuron")
    with pytest.raises(ValueError, match="do not add up"):
        ld.decompose(stack, TOKENS[:, -1], None, "squared")
    mended = stack.with_remainder()
    assert mended.labels[-1] == "remainder"
    found = ld.decompose(mended, TOKENS[:, -1], None, "squared")
    expected = ld.decompose(mended.materialise(), TOKENS[:, -1], None, "squared")
    torch.testing.assert_close(found.component_diversity, expected.component_diversity)


@pytest.mark.parametrize("loss", ["cross_entropy", "paper", "brier"])
def test_softmax_losses_over_the_vocabulary_are_refused(loss):
    stack = ld.component_stack(cached(build("llama"), TOKENS), unit="neuron")
    with pytest.raises(ValueError, match="with neurons give option tokens"):
        ld.decompose(stack, TOKENS[:, -1], None, loss)
    with pytest.raises(ValueError, match="junctions of 99 neurons over the whole vocabulary"):
        ld.junctions(stack, TOKENS[:, -1], None, "squared")
    with pytest.raises(ValueError, match="needs the stream after every neuron"):
        ld.junctions(stack, [0, 1], [5, 9], scale="junction")


def test_representation():
    stack = ld.component_stack(cached(build("llama"), TOKENS), unit="neuron")
    assert repr(stack) == "NeuronStack(99 members x batch 2: 96 neurons, 3 others)"
    assert stack.to("cpu").rows().select_rows(slice(1)).batch_shape == (1,)
