"""Every member's prediction, read in one pass, is that of its full softmax."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity.full_vocab import member_readout
from tests.families import build
from tests.unit.full_vocab.cases import cases
from tests.unit.full_vocab.test_streaming import smallest_budget

TOKENS = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(2))


@settings(max_examples=100)
@given(
    cases(dtypes=(torch.float64,)),
    st.sampled_from(["spread", "component", "drop", "cumulative"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_readouts_are_those_of_the_full_softmax(case, constant, k, small):
    cumulative = constant == "cumulative"
    logits = case.logits("drop").cumsum(0) + case.kappa if cumulative else case.logits(constant)
    options = {"cumulative": True} if cumulative else {"constant": constant}
    if small:
        options["memory_budget"] = smallest_budget(case)
    found = member_readout(case.stack, case.labels, k, **options)
    log_p = logits.log_softmax(-1)
    gold = case.labels.expand(log_p.shape[:-1]).unsqueeze(-1)

    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found.top_log_probs, log_p.topk(k).values, **close)
    torch.testing.assert_close(found.top_log_probs, log_p.gather(-1, found.top_ids), **close)
    assert all(len(set(row)) == k for row in found.top_ids.reshape(-1, k).tolist())
    torch.testing.assert_close(found.entropy, -(log_p.exp() * log_p).sum(-1), **close)
    torch.testing.assert_close(found.log_normaliser, logits.logsumexp(-1), **close)
    own = log_p.gather(-1, gold)
    torch.testing.assert_close(found.gold_log_prob, own.squeeze(-1), **close)
    # Tied tokens (padding, copies) may be rounded to either side.
    assert bool((found.gold_rank >= (log_p > own + 1e-9).sum(-1)).all())
    assert bool((found.gold_rank <= (log_p > own - 1e-9).sum(-1) - 1).all())


def test_the_last_junction_is_the_models_own_prediction():
    with torch.no_grad():
        logits, cache = build("gpt2").run_with_cache(TOKENS)
    found = member_readout(ld.component_stack(cache, pos=None), k=3, cumulative=True)
    assert torch.equal(found.top_ids[-1], logits.topk(3).indices)
    assert found.gold_rank is None


@pytest.mark.parametrize("k", [0, 301])
def test_k_must_fit_the_vocabulary(k):
    readout = ld.Readout(W_U=torch.randn(4, 300), b_U=torch.zeros(300))
    stack = ld.ComponentStack.from_values(torch.randn(3, 2, 4), readout)
    with pytest.raises(ValueError, match="between 1 and the vocabulary's 300"):
        member_readout(stack, k=k)


def test_targets_are_checked():
    readout = ld.Readout(W_U=torch.randn(4, 30), b_U=torch.zeros(30))
    stack = ld.ComponentStack.from_values(torch.randn(3, 2, 4), readout)
    with pytest.raises(ValueError, match="out of range"):
        member_readout(stack, [1, 30])
    with pytest.raises(TypeError, match="integer gold labels"):
        member_readout(stack, torch.rand(2, 30))
