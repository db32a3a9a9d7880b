"""The same numbers on a CUDA device, computed where the cache is."""

import pytest
import torch

import lens_diversity as ld
from tests.families import build

pytestmark = pytest.mark.gpu

LOSSES = ("squared", "paper", "brier", "cross_entropy")


@pytest.fixture(scope="module")
def caches():
    tokens = torch.randint(3, 60, (3, 6), generator=torch.Generator().manual_seed(0))
    found = {}
    for device in ("cpu", "cuda"):
        model = build("gpt2").to(device)
        with torch.no_grad():
            _, found[device] = model.run_with_cache(tokens.to(device))
    return found


@pytest.mark.parametrize("vocab", [None, [5, 9, 31]])
@pytest.mark.parametrize("loss", LOSSES)
def test_decompositions_agree_and_stay_on_the_device(caches, loss, vocab):
    results = {
        device: ld.decompose(cache, [0, 2, 1], vocab, loss) for device, cache in caches.items()
    }
    assert results["cuda"].component_diversity.device.type == "cuda"
    for name in ("error", "bias", "diversity", "component_bias", "component_diversity"):
        torch.testing.assert_close(
            getattr(results["cuda"], name).cpu(),
            getattr(results["cpu"], name),
            rtol=1e-4,
            atol=1e-5,
        )


def test_chosen_tokens_are_read_where_a_moved_cache_is(caches):
    stack = ld.component_stack(caches["cuda"]).to("cpu")
    assert ld.component_logits(stack, [5, 9]).device.type == "cpu"
    with pytest.raises(ValueError, match=r"components are on cpu.*unembedding on cuda"):
        ld.component_logits(stack)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_device(dtype):
    model = build("llama", dtype=dtype).to("cuda")
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.randint(3, 60, (2, 5), device="cuda"))
    result = ld.decompose(cache, [0, 1], [5, 9])
    assert result.error.dtype == torch.float32
    assert result.reconstruction_error < 5e-2


def test_peak_memory_of_the_full_vocabulary_is_bounded(caches):
    stack = ld.component_stack(caches["cuda"], pos=None)
    gold = torch.zeros(3, 6, dtype=torch.long, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ld.decompose(stack, gold, loss="cross_entropy")
    assert torch.cuda.max_memory_allocated() - before < 2**30
