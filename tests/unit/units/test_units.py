"""Blocks, heads and neurons are parts or sums of sublayers, exactly, on every architecture."""

import pytest
import torch

import lens_diversity as ld
from lens_diversity.readout import RECONSTRUCTION_TOLERANCE
from lens_diversity.units import member_names
from tests import families
from tests.families import FAMILIES, build

TOKENS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(3))
IDS = [5, 9, 31]
EXPERTS = (
    "deepseek_v3",
    "gpt_oss",
    "granitemoe",
    "mixtral",
    "olmoe",
    "qwen3_moe",
)
SPLITTABLE = tuple(name for name in FAMILIES if name not in EXPERTS)


def cached(model, unit, **options):
    with torch.no_grad():
        return model.run_with_cache(TOKENS, names_filter=ld.unit_hooks(unit), **options)[1]


def group_sums(stack):
    """Sums of members by layer and module, from the labels alone."""
    sums = {}
    for label, module, value in zip(stack.labels, stack.modules, stack.values, strict=True):
        layer = label.removeprefix("L").split("_")[0].split("H")[0].split("N")[0]
        key = (layer, module) if layer.isdigit() else label
        sums[key] = sums.get(key, 0) + value
    return sums


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_heads_sum_to_their_attention(bridge, name, dtype):
    if dtype == torch.bfloat16 and name in families.NO_HALF_PRECISION:
        pytest.skip("TransformerLens does not run it in half precision")
    model = bridge(name, dtype)
    cache = cached(model, "head")
    whole, heads = ld.component_stack(cache, None), ld.component_stack(cache, None, "head")
    tolerance = RECONSTRUCTION_TOLERANCE[dtype]
    if dtype == torch.float64:
        tolerance = 1e-6  # Norms after a sublayer are in float32 in transformers itself.
    found, expected = group_sums(heads), group_sums(whole)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        miss = (found[key].double() - value.double()).norm(dim=-1)
        assert (miss <= tolerance * value.double().norm(dim=-1)).all(), key
    assert sum("H" in label for label in heads.labels) == 2 * model.cfg.n_heads
    assert (heads.labels, heads.modules) == member_names(model, "head")


@pytest.mark.parametrize("name", SPLITTABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neurons_sum_to_their_mlp(bridge, name, dtype):
    model = bridge(name, dtype)
    cache = cached(model, "neuron")
    whole, neurons = ld.component_stack(cache, None), ld.component_stack(cache, None, "neuron")
    assert isinstance(neurons, ld.NeuronStack)
    made = neurons.materialise()
    found, expected = group_sums(made), group_sums(whole)
    assert found.keys() == expected.keys()
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    for key, value in expected.items():
        miss = (found[key] - value).norm(dim=-1)
        assert (miss <= tolerance * value.norm(dim=-1)).all(), key
    torch.testing.assert_close(neurons.total(dtype), made.values.sum(0))
    assert (neurons.labels, neurons.modules) == member_names(model, "neuron")


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_are_the_sum_of_their_sublayers(bridge, name):
    model = bridge(name)
    cache = cached(model, "block")
    whole, blocks = ld.component_stack(cache, None), ld.component_stack(cache, None, "block")
    embeddings = [label for label in whole.labels if label.endswith("embed")]
    assert blocks.labels == [*embeddings, "0_block", "1_block"]
    assert blocks.modules == ["embed"] * len(embeddings) + ["block"] * 2
    torch.testing.assert_close(blocks.values.sum(0), whole.values.sum(0))
    attn, mlp = (whole.values[whole.labels.index(f"1_{kind}_out")] for kind in ("attn", "mlp"))
    torch.testing.assert_close(blocks.values[-1], attn + mlp)
    assert (blocks.labels, blocks.modules) == member_names(model, "block")


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_refused_by_name(bridge, name):
    model = bridge(name)
    cache = cached(model, "sublayer")
    with pytest.raises(ld.UnsupportedModelError, match=r"block . has a MoEBridge.*mixture"):
        ld.component_stack(cache, unit="neuron")


def test_heads_are_those_of_transformer_lens():
    """Its own stack_head_results, on a model whose heads it can split."""
    model = build("llama")
    model.set_use_attn_result(True)
    with torch.no_grad():
        _, cache = model.run_with_cache(TOKENS)
    theirs, labels = cache.stack_head_results(layer=-1, return_labels=True)
    ours = ld.component_stack(cache, None, "head")
    rows = [ours.labels.index(label) for label in labels if label in ours.labels]
    assert [ours.labels[row] for row in rows] == [x for x in labels if x in ours.labels]
    assert len(rows) == 2 * model.cfg.n_heads
    kept = [index for index, label in enumerate(labels) if label in ours.labels]
    torch.testing.assert_close(ours.values[rows], theirs[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", ["block", "head", "neuron"])
@pytest.mark.parametrize("pos", [-1, 2, [0, 3], slice(1, 4), None])
def test_positions_are_selected_alike(bridge, unit, pos):
    cache = cached(bridge("gpt2"), unit)
    whole = ld.component_logits(ld.component_stack(cache, None, unit), IDS)
    picked = ld.component_logits(ld.component_stack(cache, pos, unit), IDS)
    expected = whole if pos is None else whole[:, :, pos]
    # A row's numbers do not depend on the others.
    torch.testing.assert_close(picked, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_last_real_token_and_no_batch_axis(bridge, unit):
    model = bridge("llama")
    cache = cached(model, unit)
    mask = torch.ones_like(TOKENS)
    mask[0, 5:] = 0
    stack = ld.component_stack(cache, "last", unit, attention_mask=mask)
    whole = ld.component_logits(ld.component_stack(cache, None, unit), IDS)
    found = ld.component_logits(stack, IDS)
    torch.testing.assert_close(found[:, 0], whole[:, 0, 4], rtol=1e-5, atol=1e-6)
    single = model.run_with_cache(TOKENS[:1], names_filter=ld.unit_hooks(unit))[1]
    single.remove_batch_dim()
    alone = ld.component_stack(single, -1, unit)
    assert alone.axes == ()
    torch.testing.assert_close(
        ld.component_logits(alone, IDS), whole[:, 0, -1], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("unit", ["head", "neuron"])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "granite"])
@pytest.mark.parametrize("loss", ["squared", "paper", "brier", "cross_entropy"])
def test_decompositions_of_units_over_options(bridge, unit, name, loss):
    """The stack's functions see no difference to members that come from elsewhere."""
    model = bridge(name, torch.float64)
    cache = cached(model, unit)
    gold = torch.tensor([0, 2])
    found = ld.decompose(cache, gold, IDS, loss, "sum", unit=unit)
    stack = ld.component_stack(cache, unit=unit)
    members = ld.component_logits(stack, IDS)
    logits = model(TOKENS)[:, -1, IDS]
    if stack.readout.soft_cap is None:
        torch.testing.assert_close(members.sum(0), logits, rtol=1e-6, atol=1e-6)
    probabilities = (members.sum(0)).softmax(-1)
    one_hot = torch.nn.functional.one_hot(gold, 3)
    if loss == "paper":
        expected = (probabilities - one_hot).square().mean(-1)
        torch.testing.assert_close(found.error, expected)
    elif loss == "cross_entropy":
        torch.testing.assert_close(found.error, -probabilities.log()[range(2), gold])
    if loss != "paper":
        scale = found.bias.abs() + found.diversity.abs()
        assert (found.residual.abs() <= 1e-12 * scale).all()
    assert len(found.labels) == len(stack)


def test_an_edit_of_heads_is_decomposed_and_one_of_the_sublayer_refused():
    model = build("llama")

    def zero_head(z, hook):
        z = z.clone()
        z[:, :, 1] = 0
        return z

    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", zero_head)]):
        cache = cached(model, "head")
    stack = ld.component_stack(cache, None, "head")
    assert not stack.values[stack.labels.index("L1H1")].any()
    ld.decompose(stack, TOKENS, None, "squared")

    with model.hooks(fwd_hooks=[("blocks.1.hook_attn_out", lambda out, hook: 0 * out)]):
        edited = cached(model, "head")
    ld.component_stack(edited, None)
    with pytest.raises(ValueError, match=r"heads of 1_attn_out do not sum .* edits the sublayer's"):
        ld.component_stack(edited, None, "head")


@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_missing_hooks_are_named(bridge, unit):
    cache = cached(bridge("gemma2"), "sublayer")
    hook = "attn.hook_z" if unit == "head" else "mlp.hook_post"
    with pytest.raises(ValueError, match=rf"lacks blocks\.0\.{hook}.*unit_hooks\(\"{unit}\"\)"):
        ld.component_stack(cache, unit=unit)


def test_unknown_units_are_refused(bridge):
    cache = cached(bridge("llama"), "sublayer")
    for call in (
        lambda: ld.unit_hooks("layer"),
        lambda: ld.component_stack(cache, unit="expert"),
        lambda: ld.decompose(cache, [0, 0], IDS, unit="expert"),
    ):
        with pytest.raises(ValueError, match="unit must be one of"):
            call()
    with pytest.raises(ValueError, match="a stack has its positions and units already"):
        ld.decompose(ld.component_stack(cache), [0, 0], IDS, unit="head")


def test_compatibility_mode_keeps_heads_exact():
    model = build("gpt2")
    model.enable_compatibility_mode(disable_warnings=True)
    for unit in ("head", "neuron"):
        cache = cached(model, unit)
        ld.component_logits(ld.component_stack(cache, None, unit), IDS)


@pytest.mark.parametrize("unit", ["block", "head", "neuron"])
def test_runs_and_profiles_of_units(bridge, unit, tmp_path):
    from tests.unit.evaluation import toy

    model = bridge("gpt2")
    whole = ld.evaluate(model, toy.task(6), progress=False)
    run = ld.evaluate(model, toy.task(6), unit=unit, out=tmp_path / "run", progress=False)
    assert run.labels == member_names(model, unit)[0]
    torch.testing.assert_close(
        run.option_logits.sum(1), whole.option_logits.sum(1), rtol=1e-4, atol=1e-5
    )
    assert run.summary()["accuracy"] == whole.summary()["accuracy"]
    with pytest.raises(ValueError, match="labels"):
        ld.evaluate(model, toy.task(6), out=tmp_path / "run", progress=False)

    found = ld.profile(model, toy.TEXTS[:3], "squared", "sum", unit=unit, progress=False)
    plain = ld.profile(model, toy.TEXTS[:3], "squared", "sum", progress=False)
    assert found.labels == run.labels
    assert found.summary()["mean"]["error"] == pytest.approx(
        plain.summary()["mean"]["error"], rel=1e-5
    )
    ld.plots.layer_module_heatmap(run.decomposition())


def test_profiles_of_neurons_take_the_squared_loss(bridge):
    with pytest.raises(ValueError, match='unit="neuron" takes loss="squared"'):
        ld.profile(bridge("gpt2"), ["a text"], unit="neuron")
