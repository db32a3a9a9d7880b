"""``verify`` measures the identities of a model, and sees when they fail."""

import pytest
import torch

import lens_diversity as ld
from tests.families import build


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "granite", "bloom"])
def test_supported_models_pass(family):
    checks = ld.verify(build(family))
    assert len(checks) == 4
    assert all(check.passed for check in checks), checks
    assert max(check.value for check in checks) < 1e-5


def test_bfloat16_passes_with_its_own_tolerance():
    checks = {check.name: check for check in ld.verify(build("llama", dtype=torch.bfloat16))}
    stream = checks["components sum to the residual stream"]
    assert 1e-4 < stream.value <= stream.tolerance


def test_an_edited_stream_fails():
    model = build("llama")
    model.add_hook("blocks.1.hook_resid_pre", lambda tensor, hook: 1.5 * tensor)
    failed = [check.name for check in ld.verify(model) if not check.passed]
    assert failed[:2] == [
        "components sum to the residual stream",
        "component logits sum to the model's logits",
    ]


def test_something_else_than_a_bridge_is_refused():
    with pytest.raises(TypeError, match=r"lens_diversity\.load_model"):
        ld.verify(torch.nn.Linear(2, 2))
