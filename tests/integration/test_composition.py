"""The numbers of other TransformerLens analyses, from its public API, agree with ours."""

import pytest
import torch
from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution
from transformer_lens.tools.analysis.logit_lens import logit_lens
from transformer_lens.tools.analysis.sparse_probing import fit_sparse_probe

import lens_diversity as ld
from tests.families import build

TOKENS = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(1))
ANSWER, WRONG = 9, 31


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    model = build(request.param)
    model.enable_compatibility_mode()
    return model


@pytest.fixture(scope="module")
def cache(model):
    with torch.no_grad():
        return model.run_with_cache(TOKENS)[1]


def test_decompose_resid_is_the_stack(cache):
    stack = ld.component_stack(cache, None)
    values, labels = cache.decompose_resid(return_labels=True)
    kept = [i for i, label in enumerate(labels) if label != "bias"]
    assert [labels[i] for i in kept] == stack.labels
    torch.testing.assert_close(values[kept], stack.values)


@pytest.mark.parametrize(("unit", "ours"), [("component", "sublayer"), ("head", "head")])
def test_direct_logit_attribution_is_our_logit_difference(model, cache, unit, ours):
    found = direct_logit_attribution(
        model, answer_tokens=ANSWER, incorrect_tokens=WRONG, unit=unit, cache=cache
    )
    logits = ld.component_logits(
        ld.component_stack(cache, unit=ours), [ANSWER, WRONG], constant="drop"
    )
    differences = dict(
        zip(
            ld.component_stack(cache, unit=ours).labels,
            logits[..., 0] - logits[..., 1],
            strict=True,
        )
    )
    shared = [(i, label) for i, label in enumerate(found.labels) if label in differences]
    assert len(shared) >= model.cfg.n_layers * 2
    for i, label in shared:
        torch.testing.assert_close(found.attribution[i], differences[label], rtol=1e-4, atol=1e-5)


def test_the_last_logit_lens_is_our_sum_and_the_others_our_junctions(model, cache):
    found = logit_lens(cache, positions=-1, incl_mid=True, return_type="logits")
    options = [5, ANSWER, WRONG]
    stack = ld.component_stack(cache)
    along = ld.junctions(stack, [0, 1, 2], options, scale="junction").logits
    last = ld.component_logits(stack, options).sum(0)
    whole = found.values[-1][..., options]
    # In compatibility mode the readout gives log-probabilities: a shift for each row.
    shift = (whole - last).mean(-1, keepdim=True)
    torch.testing.assert_close(whole - shift, last, rtol=1e-4, atol=1e-5)
    stream = found.values.shape[0]
    for k in range(1, stream + 1):
        theirs = found.values[-k][..., options]
        ours = along[-k]
        shift = (theirs - ours).mean(-1, keepdim=True)
        torch.testing.assert_close(theirs - shift, ours, rtol=1e-4, atol=1e-4)


def test_sparse_probes_read_component_logits(model):
    """Component logits are features like any other: a probe finds the one that tells the label."""
    tokens = torch.randint(3, 60, (40, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
    logits = ld.component_logits(ld.component_stack(cache), [5, ANSWER])
    features = (logits[..., 1] - logits[..., 0]).T
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-3)
    for told in (features.shape[1] - 1, 2):
        labels = features[:, told] > features[:, told].median()
        assert fit_sparse_probe(features, labels, k=1).selected_features.tolist() == [told]
