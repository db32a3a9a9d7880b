"""Tells when a TransformerLens name that the readout depends on has moved."""

import pytest
import torch
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import NormalizationBridge

from lens_diversity import _bridge
from tests.families import build


def test_names_the_readout_depends_on_exist():
    assert isinstance(NormalizationBridge.uses_rms_norm, property)
    assert isinstance(NormalizationBridge.uses_weight_offset, property)
    assert callable(ArchitectureAdapter.apply_output_logits_transform)
    assert callable(TransformerBridge.layer_types)
    model = build("llama")
    assert model.blocks[0].hook_out_is_single_residual_stream
    assert isinstance(ActivationCache({}, model).cache_dict, dict)
    assert model.ln_final.original_component.variance_epsilon == 1e-6


def test_final_norm_hooks_fire_under_their_names():
    model = build("gpt2")
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([[3, 4]]))
    for name in (
        _bridge.EMBED,
        _bridge.POS_EMBED,
        _bridge.FINAL_NORM_INPUT,
        _bridge.FINAL_NORM_SCALE,
        _bridge.FINAL_NORM_OUTPUT,
        _bridge.UNEMBED_INPUT,
        _bridge.UNEMBED_OUTPUT,
        "blocks.0.hook_attn_out",
        "blocks.0.hook_mlp_out",
    ):
        assert name in cache


def test_the_filter_takes_sublayers_and_the_final_stream_only():
    wanted = ["hook_embed", "hook_pos_embed", "blocks.12.hook_attn_out", "ln_final.hook_scale"]
    others = [
        "blocks.1.attn.hook_out",
        "blocks.1.hook_resid_post",
        "unembed.hook_out",
        "hook_embeds",
    ]
    assert all(map(_bridge.names_filter, wanted))
    assert not any(map(_bridge.names_filter, others))


def test_an_unknown_output_transform_is_refused(monkeypatch):
    model = build("llama")
    monkeypatch.setattr(model.adapter, "apply_output_logits_transform", lambda x: x + 1)
    with pytest.raises(_bridge.UnsupportedModelError, match="more than a positive scale"):
        _bridge.read_readout(model)


def test_an_unknown_norm_is_refused(monkeypatch):
    model = build("llama")
    monkeypatch.setattr(model.cfg, "normalization_type", "BatchNorm")
    with pytest.raises(_bridge.UnsupportedModelError, match="normalization_type 'BatchNorm'"):
        _bridge.require_supported(model)
