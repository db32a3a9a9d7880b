"""Translated components: against TransformerLens' own Jacobian lens and logit lens."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from transformer_lens.tools.analysis.jacobian_lens import JacobianLens
from transformer_lens.tools.analysis.logit_lens import logit_lens

import lens_diversity as ld
from lens_diversity.lenses import TunedLens, jacobian_lens, through_lens
from tests.families import build

TOKENS = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model():
    return build("llama")


@pytest.fixture(scope="module")
def cache(model):
    with torch.no_grad():
        return model.run_with_cache(TOKENS)[1]


@pytest.fixture(scope="module")
def fitted(model):
    generator = torch.Generator().manual_seed(0)
    maps = {0: torch.eye(model.cfg.d_model) + 0.3 * torch.randn(32, 32, generator=generator)}
    return JacobianLens(maps, n_prompts=1, d_model=int(model.cfg.d_model))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    held = {}
    for layer in range(2):
        held[f"{layer}.weight"] = 0.3 * torch.randn(32, 32, generator=generator)
        held[f"{layer}.bias"] = torch.randn(32, generator=generator)
    path = tmp_path_factory.mktemp("lens") / "params.safetensors"
    save_file(held, path)
    return TunedLens.load(path), held


@pytest.mark.parametrize("unit", ["sublayer", "block", "head"])
def test_the_identity_is_the_logit_lens(cache, unit):
    plain = ld.component_stack(cache, None, unit)
    found = ld.component_stack(cache, None, unit, lens=lambda vectors, layer: vectors)
    torch.testing.assert_close(ld.component_logits(found), ld.component_logits(plain))
    assert (found.labels, found.axes) == (plain.labels, plain.axes)


def test_components_of_a_jacobian_lens_sum_to_its_readout(model, cache, fitted):
    """Everything that is in block 0's output, read with its map, is what TransformerLens reads."""
    stack = ld.component_stack(cache, None)
    early = [i for i, label in enumerate(stack.labels) if not label.startswith("1_")]
    first = ld.ComponentStack.from_values(
        stack.values[early], stack.readout, [stack.labels[i] for i in early]
    )
    found = ld.component_logits(through_lens(first, jacobian_lens(fitted, 2))).sum(0)
    expected = fitted.readout(model, TOKENS, return_full_logits=True).lens_logits[0]
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


def test_every_layer_has_its_own_map(cache, fitted):
    stack = ld.component_stack(cache)
    found = through_lens(stack, jacobian_lens(fitted, 2))
    for label, own, translated in zip(stack.labels, stack.values, found.values, strict=True):
        expected = own if label.startswith("1_") else own @ fitted.jacobians[0].T
        torch.testing.assert_close(translated, expected)


@pytest.mark.parametrize("loss", ["squared", "brier", "cross_entropy"])
def test_identities_hold_for_what_a_lens_made(cache, tuned, loss):
    stack = ld.component_stack(cache, lens=tuned[0])
    found = ld.decompose(stack, [5], loss=loss, dtype=torch.float64)
    torch.testing.assert_close(
        found.residual, torch.zeros(1, dtype=torch.float64), atol=1e-9, rtol=0
    )


def test_tuned_lens_of_the_stream_is_that_of_transformer_lens(cache, tuned):
    lens, held = tuned
    found = logit_lens(cache, lens=lens.stream, positions=None).values
    for blocks, name in ((0, "blocks.0.hook_resid_pre"), (1, "blocks.1.hook_resid_pre")):
        stream = cache[name]
        stream = stream + stream @ held[f"{blocks}.weight"].T + held[f"{blocks}.bias"]
        readout = ld.component_stack(cache).readout
        alone = ld.ComponentStack.from_values(stream.unsqueeze(0), readout)
        torch.testing.assert_close(
            found[blocks], ld.component_logits(alone)[0], rtol=1e-4, atol=1e-5
        )


def test_tuned_lens_of_components_is_the_linear_part(cache, tuned):
    lens, held = tuned
    stack = ld.component_stack(cache)
    found = ld.component_stack(cache, lens=lens)
    weight = {"embed": "0.weight", "0_attn_out": "1.weight", "0_mlp_out": "1.weight"}
    for label, own, translated in zip(stack.labels, stack.values, found.values, strict=True):
        expected = own + own @ held[weight[label]].T if label in weight else own
        torch.testing.assert_close(translated, expected)


def test_bad_lenses_are_refused(cache, tuned, fitted, tmp_path):
    stack = ld.component_stack(cache)
    with pytest.raises(ValueError, match="the lens made shape"):
        through_lens(stack, lambda vectors, layer: vectors[..., :3])
    with pytest.raises(ValueError, match="adds an offset"):
        through_lens(stack, lambda vectors, layer: tuned[0].stream(vectors, layer + 1))
    with pytest.raises(ValueError, match="NaN or infinite"):
        through_lens(stack, lambda vectors, layer: vectors / 0)
    with pytest.raises(ValueError, match="no map for layers"):
        jacobian_lens(fitted, 5)
    with pytest.raises(ValueError, match="belongs to no layer"):
        through_lens(dataclasses.replace(stack, modules=["remainder"] * len(stack)), tuned[0])
    with pytest.raises(TypeError, match="does not hold"):
        ld.component_stack(cache, unit="neuron", lens=tuned[0])
    for held in ({"x": torch.ones(2)}, {"1.weight": torch.eye(2), "1.bias": torch.ones(2)}):
        save_file(held, tmp_path / "wrong.safetensors")
        with pytest.raises(ValueError, match="holds no translators"):
            TunedLens.load(tmp_path / "wrong.safetensors")
    save_file({"0.weight": torch.eye(2)}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"lacks \['0.bias'\]"):
        TunedLens.load(tmp_path / "half.safetensors")
