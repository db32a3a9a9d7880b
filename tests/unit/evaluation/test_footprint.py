"""Sizes come from configurations, and are those of the model that will be loaded."""

import json

import pytest
import torch

from lens_diversity import _bridge
from lens_diversity.evaluation.footprint import declared, from_config
from tests import families

MOBILELLM = {
    "model_type": "mobilellm",
    "auto_map": {"AutoConfig": "configuration_mobilellm.MobileLLMConfig"},
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "share_embedding": True,
}


def write(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_mobilellm_is_counted_by_application_and_shares_its_weights(tmp_path):
    width, hidden, keys = 576, 1536, 3 * 64
    block = 2 * width * width + 2 * width * keys + 3 * width * hidden + 2 * width
    parameters = 32000 * width + 30 * block + width
    for sharing, layers, components in ((False, 30, 61), (True, 60, 121)):
        config = MOBILELLM | {"layer_sharing": sharing}
        found = from_config(write(tmp_path / str(sharing), config))
        assert (found.layers, found.components, found.parameters) == (
            layers,
            components,
            parameters,
        )
        assert found.weight_bytes(torch.bfloat16) == 2 * parameters


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_config_tells_what_the_loaded_model_has(tmp_path, bridge, family):
    model = bridge(family)
    model.original_model.config.save_pretrained(tmp_path)
    found = from_config(str(tmp_path))
    assert found.source == "config.json"
    assert found.components == len(_bridge.component_hooks(model))
    assert found.layers == families.N_LAYERS
    # The bridge of a model with fused query, key and value weights holds a second copy of them.
    assert found.parameters == families._FAMILIES[family].hf_model().num_parameters()


def test_what_cannot_be_read_is_unknown_with_the_reason(tmp_path):
    found = from_config(write(tmp_path / "strange", {"model_type": "strange"}))
    assert (found.layers, found.components, found.parameters) == (None, None, None)
    assert found.source.startswith("unknown: ")
    assert "strange" in found.source
    encoder_decoder = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    assert from_config(write(tmp_path / "t5", encoder_decoder)).components is None
    assert declared(None, layers=None).weight_bytes(torch.float32) is None
