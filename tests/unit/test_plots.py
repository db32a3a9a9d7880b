"""Figures show the numbers of the result, with the names they belong to."""

import dataclasses

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import lens_diversity as ld
from tests.families import build


@pytest.fixture(scope="module")
def cache():
    tokens = torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        return build("gpt2").run_with_cache(tokens)[1]


@pytest.fixture(scope="module")
def result(cache):
    gold = torch.zeros(3, 5, dtype=torch.long)
    return ld.decompose(cache, gold, [5, 9, 31], pos=None)


@pytest.mark.parametrize("quantity", ["bias", "diversity"])
def test_layers_against_modules(result, quantity):
    figure = ld.plots.layer_module_heatmap(result, quantity)
    assert isinstance(figure, go.Figure)
    trace = figure.data[0]
    assert list(trace.y) == ["other", "0", "1"]
    assert list(trace.x) == ["embed", "pos_embed", "attn", "mlp"]
    terms = getattr(result, f"component_{quantity}").mean((1, 2)).tolist()
    expected = [[*terms[:2], None, None], [None, None, *terms[2:4]], [None, None, *terms[4:]]]
    np.testing.assert_allclose(np.array(trace.z, float), np.array(expected, float), rtol=1e-6)


def test_components_against_positions_with_tokens(result):
    tokens = ["<b>", "a", "a", "\n", "z"]
    figure = ld.plots.component_heatmap(result, tokens=tokens, row=1)
    trace = figure.data[0]
    np.testing.assert_allclose(trace.z, result.component_diversity[:, 1].numpy(), rtol=1e-6)
    assert list(trace.y) == result.labels
    assert list(figure.layout.xaxis.ticktext) == ["&lt;b&gt;", "a", "a", "\\n", "z"]


def test_components_against_examples(cache):
    result = ld.decompose(cache, [0, 0, 0], [5, 9])
    figure = ld.plots.component_heatmap(result, "bias")
    assert figure.data[0].z.shape == (6, 3)
    assert figure.layout.xaxis.title.text == "example"


def test_pairs(cache, result):
    members = ld.component_logits(ld.component_stack(cache), [5, 9])
    distances = ld.functional.pairwise_diversity(members)
    figure = ld.plots.pairwise_heatmap(distances, result.labels)
    z = np.array(figure.data[0].z)
    assert z.shape == (6, 6)
    diversity = ld.decompose(cache, [0, 0, 0], [5, 9], "squared").diversity.mean()
    assert z.sum() / 72 == pytest.approx(float(diversity), rel=1e-5)


def test_figures_become_self_contained_pages(result, tmp_path):
    path = tmp_path / "figure.html"
    ld.plots.layer_module_heatmap(result).write_html(path, include_plotlyjs=True)
    assert path.stat().st_size > 1e6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: ld.plots.layer_module_heatmap(r, "variance"), "quantity must be one of"),
        (lambda r: ld.plots.component_heatmap(r, "error"), "quantity must be one of"),
        (lambda r: ld.plots.component_heatmap(r, row=3), "row 3 is out of range"),
        (lambda r: ld.plots.component_heatmap(r, tokens=["a"]), "1 tokens for 5 entries"),
        (lambda r: ld.plots.pairwise_heatmap(torch.zeros(2, 3), ["a", "b"]), r"got \(2, 3\)"),
        (lambda r: ld.plots.pairwise_heatmap(torch.zeros(2, 2), ["a"]), "1 labels for 2"),
    ],
)
def test_bad_input(result, call, message):
    with pytest.raises(ValueError, match=message):
        call(result)


def test_a_single_row_points_to_the_other_figure():
    readout = ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3))
    stack = ld.ComponentStack.from_values(torch.eye(3)[:2], readout)
    with pytest.raises(ValueError, match="layer_module_heatmap"):
        ld.plots.component_heatmap(ld.decompose(stack, 0, loss="squared"))


@pytest.mark.parametrize("kind", ["sunburst", "treemap"])
def test_areas_of_a_hierarchy(cache, kind):
    tree = ld.hierarchy(cache, [5, 9, 31], pos=None)
    figure = ld.plots.hierarchy_areas(tree, kind)
    trace = figure.data[0]
    assert trace.type == kind
    nodes = tree.by_node()
    np.testing.assert_allclose(trace.values[1:], nodes["diversity"])
    assert trace.labels[:5] == ("all", "embedding", "attention", "MLP", "embed")
    names = dict(zip(trace.ids, trace.labels, strict=True))
    above = [names[parent] for parent in trace.parents[1:]]
    heads = [above[i] for i, name in enumerate(tree.names) if name.startswith("L1H")]
    assert set(heads) == {"1_attn_out"}
    assert "between modules" in figure.layout.title.subtitle.text


def test_areas_of_many_neurons_end_at_sublayers(cache, monkeypatch):
    tree = ld.hierarchy(cache, [5, 9, 31], unit="neuron")
    whole = ld.plots.hierarchy_areas(tree).data[0]
    monkeypatch.setattr("lens_diversity.plots.hierarchies._MOST_AREAS", 50)
    few = ld.plots.hierarchy_areas(tree).data[0]
    assert len(whole.ids) == len(tree.names) + 1
    assert len(few.ids) == 1 + sum(level != "within sublayers" for level in tree.levels)
    assert sum(few.values) == pytest.approx(sum(whole.values))


def test_areas_need_diversity(cache):
    tree = ld.hierarchy(cache, [5, 9, 31])
    empty = dataclasses.replace(tree, contributions=torch.zeros_like(tree.contributions))
    with pytest.raises(ValueError, match="the diversity is zero"):
        ld.plots.hierarchy_areas(empty)
    with pytest.raises(ValueError, match="kind must be one of"):
        ld.plots.hierarchy_areas(tree, "pie")
