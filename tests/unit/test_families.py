from __future__ import annotations

import pytest
import torch

from tests import families, stories
from tests.families import FAMILIES, UNSUPPORTED

TOKENS = torch.randint(4, families.VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))


# Relative to the residual stream's norm; bfloat16 rounds the stream after every sublayer.
TOLERANCES = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_components_sum_to_what_the_final_norm_reads(bridge, name, dtype):
    model = bridge(name, dtype)
    if dtype == torch.bfloat16 and name in families.NO_HALF_PRECISION:
        with pytest.raises(RuntimeError, match="same dtype"):
            model(TOKENS)
        return
    _, cache = model.run_with_cache(TOKENS)

    hooks = ["hook_embed"] + (["hook_pos_embed"] if hasattr(model, "pos_embed") else [])
    for layer in range(model.cfg.n_layers):
        hooks += [f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"]
    total = sum(cache[hook].double() for hook in hooks)

    residual = cache["ln_final.hook_in"].double()
    for hook in hooks:  # each must matter, or the sum would not miss it
        assert cache[hook].double().norm() > 0.01 * residual.norm(), hook
    error = (total - residual).norm(dim=-1) / residual.norm(dim=-1)
    assert error.max() < TOLERANCES[dtype]


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_in_eval_mode_with_norms_and_biases_that_matter(bridge, name):
    model = bridge(name)
    assert not any(module.training for module in model.original_model.modules())
    vectors = {
        key: value for key, value in model.original_model.named_parameters() if value.ndim == 1
    }
    assert vectors or name == "olmo", "only OLMo's norms have no weights"
    for key, vector in vectors.items():
        assert vector.std() > 0.05, f"{key} is constant"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_families_boot(name):
    model = families.build_unsupported(name)
    assert "unembed" in dict(model.named_children())
    assert not any(module.training for module in model.original_model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_oss"])
def test_a_seed_gives_the_same_model_and_leaves_the_global_generator_alone(name):
    state = torch.random.get_rng_state()
    first, second = families.build(name)(TOKENS), families.build(name)(TOKENS)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, second)
    other = families.build(name, seed=1)(TOKENS)
    assert (first - other).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_rounds_the_same_weights(bridge, dtype):
    reference = bridge("llama")
    model = families.build("llama", dtype)
    assert model.W_U.dtype == dtype
    torch.testing.assert_close(model.W_U.float(), reference.W_U, rtol=8e-3, atol=0)


@pytest.mark.parametrize("name", ["cohere", "gemma2", "granite", "granitemoe"])
def test_output_transforms_change_the_logits(bridge, name):
    model = bridge(name)
    logits, cache = model.run_with_cache(TOKENS)
    assert (logits - cache["unembed.hook_out"]).abs().max() > 0.1 * logits.abs().max()


def test_the_character_tokenizer_keeps_text_and_prepends_one_bos():
    tokenizer = families.tokenizer()
    text = "Is it True?\nA) yes  B) no: 100%"
    ids = tokenizer(text)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    first = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in "AB"]
    assert first[0] != first[1]


def test_stories_model_tells_its_story(stories260k):
    tokens = torch.tensor([[stories260k.tokenizer.bos_token_id]])
    for _ in range(45):
        tokens = torch.cat([tokens, stories260k(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
    text = stories260k.tokenizer.decode(tokens[0], skip_special_tokens=True)
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. "
        "She loved to play outside in the park."
    )


def test_stories_tokenizer_encodes_what_the_model_writes_and_any_bytes(stories260k):
    tokenizer = stories260k.tokenizer
    ids = tokenizer("Once upon a time, there was a little girl named Lily.")["input_ids"]
    pieces = "<s> ▁Once ▁upon ▁a ▁time , ▁there ▁was ▁a ▁little ▁g ir l ▁named ▁Lily ."
    assert tokenizer.convert_ids_to_tokens(ids) == pieces.split()
    text = "Grüße, 世界\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_absent_data_skips_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("LENS_DIVERSITY_DATA", str(tmp_path / "data"))
    with pytest.raises(pytest.skip.Exception, match="set LENS_DIVERSITY_DATA"):
        stories.load()
    (tmp_path / "data").mkdir()
    with pytest.raises(pytest.skip.Exception, match="no stories260K model"):
        stories.load()
