"""Diversity by level: exact sums, the sublayers' own diversity, and naive references."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity import functional
from tests.families import build

TOKENS = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(1))


@st.composite
def groupings(draw):
    """Members with weights, in groups, in groups of groups."""
    groups = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    finest = [group for group, size in enumerate(groups) for _ in range(size)]
    order = draw(st.permutations(range(len(finest))))
    coarse = [draw(st.integers(0, group)) for group in range(len(groups))]
    numbers = sorted(set(coarse))
    coarse = [numbers.index(number) for number in coarse]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = (len(finest), *draw(st.lists(st.integers(1, 3), max_size=2)), draw(st.integers(1, 6)))
    members = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    weights = torch.rand(len(finest), generator=generator, dtype=torch.float64) + 0.05
    return members, [[finest[i] for i in order], coarse], weights / weights.sum()


def divergence(loss, point, member):
    """``D(point, member)`` in NumPy."""
    if loss == "squared":
        return ((point - member) ** 2).mean(-1)
    log_q = point - np.log(np.exp(point).sum(-1, keepdims=True))
    log_p = member - np.log(np.exp(member).sum(-1, keepdims=True))
    return (np.exp(log_q) * (log_q - log_p)).sum(-1)


@given(groupings(), st.sampled_from(["squared", "cross_entropy"]))
def test_levels_sum_to_the_diversity(grouping, loss):
    members, levels, weights = grouping
    terms = functional.nested_diversity(members, levels, weights, loss)
    ambiguity = {
        "squared": functional.krogh_vedelsby,
        "cross_entropy": functional.cross_entropy_ambiguity,
    }[loss]
    label = torch.zeros(members.shape[1:-1], dtype=torch.long)
    whole = ambiguity(members, label, weights).diversity
    total = sum(level.sum(0) for level in terms)
    torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-11)


@given(groupings(), st.sampled_from(["squared", "cross_entropy"]))
def test_every_node_by_a_loop(grouping, loss):
    members, levels, weights = grouping
    terms = functional.nested_diversity(members, levels, weights, loss)
    logits, share = members.numpy(), weights.numpy()
    top = np.array(levels[1])[levels[0]]

    def mean_of(chosen):
        return np.tensordot(share[chosen] / share[chosen].sum(), logits[chosen], 1)

    for leaf, group in enumerate(levels[0]):
        point = mean_of(np.array(levels[0]) == group)
        expected = share[leaf] * divergence(loss, point, logits[leaf])
        np.testing.assert_allclose(terms[0][leaf], expected, rtol=1e-8, atol=1e-11)
    for group, parent in enumerate(levels[1]):
        own = np.array(levels[0]) == group
        expected = share[own].sum() * divergence(loss, mean_of(top == parent), mean_of(own))
        np.testing.assert_allclose(terms[1][group], expected, rtol=1e-8, atol=1e-11)
    for group in set(levels[1]):
        expected = share[top == group].sum() * divergence(
            loss, mean_of(share >= 0), mean_of(top == group)
        )
        np.testing.assert_allclose(terms[2][group], expected, rtol=1e-8, atol=1e-11)


def cached(model, unit):
    with torch.no_grad():
        return model.run_with_cache(TOKENS, names_filter=ld.unit_hooks(unit))[1]


CASES = [
    ("head", None, "squared"),
    ("head", None, "cross_entropy"),
    ("head", [5, 9, 40], "squared"),
    ("head", [5, 9, 40], "cross_entropy"),
    ("neuron", None, "squared"),
    ("neuron", [5, 9, 40], "squared"),
    ("neuron", [5, 9, 40], "cross_entropy"),
    ("sublayer", None, "squared"),
    ("block", [5, 9, 40], "squared"),
]


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("gauge", ["model", "centred"])
@pytest.mark.parametrize(("unit", "vocab", "loss"), CASES)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_of_a_model(family, unit, vocab, loss, combine, gauge):
    model = build(family, torch.float64)
    cache = cached(model, unit)
    given_ = {"vocab": vocab, "loss": loss, "combine": combine, "gauge": gauge, "pos": None}
    tree = ld.hierarchy(cache, unit=unit, **given_)
    levels = tree.by_level()["diversity"]
    coarse = "block" if unit == "block" else "sublayer"
    coarser = ld.decompose(cache, torch.zeros_like(TOKENS), unit=coarse, **given_)
    between = levels.sum() - levels.get("within sublayers", 0.0)
    # Gemma computes its norms in float32, so its heads sum to their sublayer to that precision.
    close = 1e-6 if family == "gemma2" else 1e-9
    assert between == pytest.approx(float(coarser.diversity.mean()), rel=close)
    assert (unit in ("head", "neuron")) == ("within sublayers" in levels.index)
    whole = leaves(ld.component_stack(cache, None, unit), tree, vocab)
    torch.testing.assert_close(tree.diversity, whole, rtol=1e-8, atol=1e-12)
    assert tree.contributions.shape[1:] == TOKENS.shape


def leaves(stack, tree, vocab):
    """The diversity of all leaves as one flat ensemble."""
    stack = stack.materialise() if isinstance(stack, ld.NeuronStack) else stack
    logits = ld.component_logits(stack, vocab, constant="drop")
    kappa = ld.component_logits(stack, vocab).sum(0) - logits.sum(0)
    nodes = list(zip(tree.names, tree.parents, tree.levels, strict=True))
    parts = [parent for _, parent, level in nodes if level == "within sublayers"]
    count = sum(level == "between sublayers" for _, _, level in nodes)
    sizes = {name: parts.count(parent) for name, parent, level in nodes if parent in parts}
    size = torch.tensor([sizes.get(label, 1) for label in stack.labels], dtype=torch.float64)
    members = size.reshape(-1, *[1] * (logits.ndim - 1)) * logits + kappa / count
    members = members * (count if tree.combine == "sum" else 1)
    if tree.gauge == "centred":
        members = members - members.mean(-1, keepdim=True)
    ambiguity = {
        "squared": functional.krogh_vedelsby,
        "cross_entropy": functional.cross_entropy_ambiguity,
    }[tree.loss]
    return ambiguity(members, torch.zeros_like(TOKENS), 1 / (count * size)).diversity


def test_tables():
    cache = cached(build("llama"), "head")
    tree = ld.hierarchy(cache)
    nodes = tree.by_node()
    assert list(nodes.columns[:4]) == ["name", "parent", "level", "weight"]
    modules = nodes[nodes["level"] == "between modules"]
    assert modules["share"].sum() == pytest.approx(1)
    assert modules["weight"].sum() == pytest.approx(1)
    assert modules["parent"].eq("").all()
    heads = nodes[nodes["parent"] == "1_attn_out"]
    assert heads["name"].tolist() == [f"L1H{head}" for head in range(4)]
    owner = nodes[nodes["name"] == "1_attn_out"]
    assert owner["within"].item() == pytest.approx(heads["diversity"].sum())
    assert tree.by_level()["share"].sum() == pytest.approx(1)
    assert "within sublayers" in repr(tree)
    assert repr(tree).startswith("Hierarchy(squared, 16 nodes; in logits squared)")


@pytest.mark.parametrize(("vocab", "loss"), [([5, 9, 40], "cross_entropy"), (None, "squared")])
def test_gradients_reach_the_components(vocab, loss):
    stack = ld.component_stack(cached(build("llama", torch.float64), "head"), unit="head")
    values = stack.values.clone().requires_grad_()
    tree = ld.hierarchy(dataclasses.replace(stack, values=values), vocab, loss=loss)
    (gradient,) = torch.autograd.grad(tree.diversity.sum(), values)
    assert (gradient.abs().sum((1, 2)) > 0).all()


def test_bad_input_is_refused():
    members = torch.randn(3, 2)
    nested = functional.nested_diversity
    with pytest.raises(ValueError, match="at least one grouping"):
        nested(members, [])
    with pytest.raises(ValueError, match="level 0 must give a group to each of 3 nodes"):
        nested(members, [[0, 1]])
    with pytest.raises(ValueError, match="level 1 must number its groups from 0 without a gap"):
        nested(members, [[0, 1, 1], [0, 2]])
    with pytest.raises(TypeError, match="level 0 must hold group numbers"):
        nested(members, [torch.tensor([0.0, 1.0, 1.0])])
    with pytest.raises(ValueError, match=r"groups \[1\] of the finest level have no weight"):
        nested(members, [[0, 1, 1]], weights=[1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="loss must be one of"):
        nested(members, [[0, 1, 1]], loss="brier")
    cache = cached(build("llama"), "head")
    for wrong in ({"loss": "paper"}, {"combine": "max"}, {"gauge": "free"}, {"unit": "layer"}):
        with pytest.raises(ValueError, match="must be one of"):
            ld.hierarchy(cache, **wrong)
    with pytest.raises(ValueError, match="has its positions and units already"):
        ld.hierarchy(ld.component_stack(cache), unit="head")
