"""Metrics of logits and of recorded components inside TransformerLens' own patching tools."""

import pytest
import torch
from transformer_lens import patching
from transformer_lens.tools.analysis.attribution_patching import (
    Node,
    attribution_patch,
    cache_activation_and_gradient,
)

import lens_diversity as ld
from tests.families import FAMILIES, build

CLEAN = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(1))
CORRUPTED = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(2))
GOLD, OPTIONS = [0, 2], [5, 9, 31]
COMPONENTS = [("bias", "sum"), ("diversity", "sum"), ("diversity", "mean"), ("error", "mean")]


def hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def trainable(family):
    model = build(family, torch.float64)
    model.original_model.requires_grad_(True)
    return model


def decomposed(model, tokens, hooks=(), pos=-1, gold=GOLD, **given):
    with torch.no_grad(), model.hooks(fwd_hooks=list(hooks)):
        _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
    return ld.decompose(cache, gold, OPTIONS, pos=pos, **given)


@pytest.mark.parametrize("loss", ["cross_entropy", "paper", "brier", "squared"])
def test_error_is_that_of_the_logits(loss):
    model = build("llama", torch.float64)
    measure = ld.metric(GOLD, OPTIONS, loss=loss, reduce=False)
    with torch.no_grad():
        found = measure(model(CLEAN))
    logits = model(CLEAN)[:, -1, OPTIONS].detach()
    target = torch.nn.functional.one_hot(torch.tensor(GOLD), 3).double()
    expected = {
        "cross_entropy": -logits.log_softmax(-1)[range(2), GOLD],
        "squared": (logits - target).square().mean(-1),
    }.get(loss, (logits.softmax(-1) - target).square().mean(-1))
    torch.testing.assert_close(found, expected)
    assert found.mean() == ld.metric(GOLD, OPTIONS, loss=loss)(model(CLEAN))


def test_error_over_the_vocabulary_at_all_positions():
    model = build("gpt2", torch.float64)
    logits = model(CLEAN)
    found = ld.metric(CLEAN, pos=None)(logits)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), CLEAN.flatten())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("quantity", "combine"), COMPONENTS)
def test_components_of_the_forward_pass(quantity, combine):
    model = build("gpt2", torch.float64)
    given = {"loss": "cross_entropy", "combine": combine}
    with (
        ld.metric(GOLD, OPTIONS, quantity, **given, model=model, reduce=False) as measure,
        torch.no_grad(),
    ):
        found = [measure(model(tokens)) for tokens in (CLEAN, CORRUPTED)]
    for value, tokens in zip(found, (CLEAN, CORRUPTED), strict=True):
        expected = getattr(decomposed(model, tokens, **given), quantity)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_or_a_refusal_by_name(family):
    model = build(family)
    if family.startswith("granite"):
        with pytest.raises(ld.UnsupportedModelError, match="inside the block"):
            ld.metric(GOLD, OPTIONS, "diversity", model=model).__enter__()
        return
    before = hooks(model)
    with ld.metric(GOLD, OPTIONS, "diversity", model=model) as measure, torch.no_grad():
        found = measure(model(CLEAN))
    assert hooks(model) == before
    given = {"loss": "cross_entropy", "combine": "sum"}
    expected = decomposed(model, CLEAN, **given).diversity.mean()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("quantity", ["error", "diversity"])
def test_activation_patching(quantity):
    model = build("llama", torch.float64)
    with torch.no_grad():
        _, clean = model.run_with_cache(CLEAN)
    with ld.metric(GOLD, OPTIONS, quantity, model=model) as measure, torch.no_grad():
        found = patching.get_act_patch_mlp_out(model, CORRUPTED, clean, measure)
    assert found.shape == (2, 5)
    for layer in range(2):
        for pos in range(5):
            name = f"blocks.{layer}.hook_mlp_out"

            def patch(value, hook, pos=pos, name=name):
                value = value.clone()
                value[:, pos] = clean[name][:, pos]
                return value

            given = {"loss": "cross_entropy", "combine": "sum"}
            expected = decomposed(model, CORRUPTED, [(name, patch)], **given)
            expected = getattr(expected, quantity).mean()
            torch.testing.assert_close(found[layer, pos].double(), expected, rtol=1e-6, atol=1e-9)


def test_a_value_for_each_example():
    model = build("llama")
    with torch.no_grad():
        _, clean = model.run_with_cache(CLEAN)
        measure = ld.metric(GOLD, OPTIONS, reduce=False)
        found = patching.get_act_patch_attn_out(
            model, CORRUPTED, clean, measure, reduce="none", baseline=True
        )
    assert found.values.shape == (2, 5, 2)
    torch.testing.assert_close(found.baseline, measure(model(CORRUPTED).detach()))


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "phi", "gpt_neox"])
@pytest.mark.parametrize("quantity", ["error", "bias", "diversity"])
def test_gradients_at_each_component_are_those_of_small_changes(family, quantity):
    """The part of a gradient that goes straight from a component to the metric is there, too."""
    model = trainable(family)
    names = ["blocks.0.hook_mlp_out", "blocks.1.hook_mlp_out", "blocks.1.hook_attn_out"]
    with ld.metric(GOLD, OPTIONS, quantity, model=model) as measure:
        found = cache_activation_and_gradient(model, CLEAN, measure, names)
        for name in names:
            step = torch.randn(
                found.activations[name].shape, generator=torch.Generator().manual_seed(3)
            ).double()

            def moved(size, name=name, step=step):
                with torch.no_grad(), model.hooks([(name, lambda v, hook: v + size * step)]):
                    return measure(model(CLEAN))

            # Norms and rotations in float32 make noise of small differences in all but GPT-2.
            size, close = (1e-4, 1e-5) if family == "gpt2" else (1e-2, 5e-3)
            slope = (moved(size) - moved(-size)) / (2 * size)
            found_slope = (found.gradients[name] * step).sum()
            torch.testing.assert_close(found_slope, slope, rtol=close, atol=close / 10)


def test_attribution_patching_predicts_a_small_patch():
    model = trainable("gpt2")
    with ld.metric(GOLD[:1], OPTIONS, "diversity", model=model) as measure:
        scores = attribution_patch(model, CLEAN[:1], CORRUPTED[:1], measure).node_scores
        with torch.no_grad():
            _, clean = model.run_with_cache(CLEAN[:1])
        for layer, pos in ((0, 2), (1, 4)):
            name = f"blocks.{layer}.hook_mlp_out"

            def towards(share, name=name, pos=pos):
                def patch(value, hook):
                    value = value.clone()
                    value[:, pos] += share * (clean[name][:, pos] - value[:, pos])
                    return value

                with torch.no_grad(), model.hooks([(name, patch)]):
                    return float(measure(model(CORRUPTED[:1])))

            slope = (towards(1e-4) - towards(-1e-4)) / 2e-4
            assert scores[Node("mlp_out", pos, layer)] == pytest.approx(slope, rel=1e-4)


def test_bad_use_is_refused():
    model = build("llama")
    logits = model(CLEAN)
    for wrong in ({"quantity": "variance"}, {"loss": "hinge"}, {"combine": "max"}, {"gauge": "x"}):
        with pytest.raises(ValueError, match="must be one of"):
            ld.metric(GOLD, OPTIONS, **wrong)
    with pytest.raises(ValueError, match="diversity with combine='sum' needs the components"):
        ld.metric(GOLD, OPTIONS, "diversity")
    with pytest.raises(TypeError, match="targets must be integer labels"):
        ld.metric(torch.tensor([0.5]), OPTIONS)
    with pytest.raises(ValueError, match=r"logits must be \[batch, pos, d_vocab\]"):
        ld.metric(GOLD, OPTIONS)(logits[0])
    with pytest.raises(ValueError, match="out of range"):
        ld.metric([0, 3], OPTIONS)(logits)
    measure = ld.metric(GOLD, OPTIONS, "diversity", model=model)
    with pytest.raises(RuntimeError, match="needs the components of the forward pass"):
        measure(logits)
    with measure:
        with pytest.raises(RuntimeError, match="no forward pass of the model was recorded"):
            measure(logits)
        with pytest.raises(RuntimeError, match="recording already"):
            measure.__enter__()
        measure(model(CLEAN))
    with pytest.raises(RuntimeError, match="needs the components"):
        measure(logits)
