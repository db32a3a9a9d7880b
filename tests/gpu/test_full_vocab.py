"""The full-vocabulary engines on a CUDA device: the same numbers, in bounded memory, unwatched."""

import pytest
import torch

import lens_diversity as ld
from lens_diversity.full_vocab import member_readout
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import compact_vocabulary
from lens_diversity.full_vocab.softmax import gold_statistics

pytestmark = pytest.mark.gpu

LOSSES = ("squared", "paper", "brier", "cross_entropy")
TERMS = ("error", "bias", "diversity", "component_bias", "component_diversity")


def make(device, components=20, rows=64, d_model=128, d_vocab=30_000):
    generator = torch.Generator().manual_seed(0)
    readout = ld.Readout(
        W_U=torch.randn(d_vocab, d_model, generator=generator).T.to(device),
        b_U=torch.randn(d_vocab, generator=generator).to(device),
        norm_weight=torch.randn(d_model, generator=generator).to(device),
        norm_bias=torch.randn(d_model, generator=generator).to(device),
        centred=True,
        normalised=True,
    )
    values = torch.randn(components, rows, d_model, generator=generator).to(device)
    gold = torch.randint(0, d_vocab, (rows,), generator=generator).to(device)
    return ld.ComponentStack.from_values(values, readout), gold


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_device_gives_what_the_processor_gives(loss, combine):
    found = {
        device: ld.decompose(*make(device), loss=loss, combine=combine)
        for device in ("cpu", "cuda")
    }
    for name in TERMS:
        own, expected = (getattr(found[device], name) for device in ("cuda", "cpu"))
        assert own.device.type == "cuda"
        torch.testing.assert_close(own.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_readouts_agree():
    found = {device: member_readout(*make(device)) for device in ("cpu", "cuda")}
    for name in ("top_log_probs", "entropy", "gold_log_prob"):
        own, expected = (getattr(found[device], name) for device in ("cuda", "cpu"))
        torch.testing.assert_close(own.cpu(), expected, rtol=1e-4, atol=1e-4)
    same = found["cuda"].top_ids.cpu() == found["cpu"].top_ids
    assert float(same.float().mean()) > 0.999


def test_float32_products_are_not_rounded_to_tf32():
    stack, gold = make("cuda")
    exact = ld.decompose(stack, gold, loss="cross_entropy", dtype=torch.float64)
    found = ld.decompose(stack, gold, loss="cross_entropy")
    assert float((found.error.double() / exact.error - 1).abs().max()) < 1e-5


def test_the_moments_are_on_the_models_device():
    stack, _ = make("cuda")
    tokens = compact_vocabulary(VocabularyBasis.of(stack.readout)).tokens(like=stack.values)
    assert tokens.device == stack.readout.W_U.device


def test_nothing_waits_for_the_device_inside_the_loop_over_the_vocabulary():
    stack, gold = make("cuda")
    basis = VocabularyBasis.of(stack.readout)
    vectors, _ = basis.components(stack, torch.float32)
    gold_statistics(basis, vectors, gold, 2**24, squares=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gold_statistics(basis, vectors, gold, 2**24, squares=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("loss", LOSSES)
def test_the_budget_bounds_the_device_memory(loss):
    """The full logits would be 920 MB."""
    stack, gold = make("cuda", components=30, rows=256)
    budget = 64 * 2**20
    ld.decompose(stack, gold, loss=loss, memory_budget=budget)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ld.decompose(stack, gold, loss=loss, memory_budget=budget)
    assert torch.cuda.max_memory_allocated() - before < budget
