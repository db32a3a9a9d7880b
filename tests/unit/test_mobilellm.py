"""MobileLLM checkpoints, against a forward pass written here from the published description."""

import io
import json

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import lens_diversity as ld
from lens_diversity import mobilellm
from lens_diversity.models import describe_model, load_model
from tests import families

IDS = torch.tensor([[1, 5, 9, 20, 7, 30, 11], [1, 8, 3, 17, 40, 41, 6]])

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": families.VOCAB,
    "max_position_embeddings": 64,
}
SIZES_125M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
VARIANTS = {
    "plain": {"share_embedding": True, "layer_sharing": False},
    "layer-share": {"share_embedding": True, "layer_sharing": True},
    "untied": {"share_embedding": False, "layer_sharing": True},
}


def published_config(sizes, **variant):
    """A config.json as the repositories on the Hub have it."""
    return {
        "architectures": ["MobileLLMForCausalLM"],
        "attention_bias": False,
        "auto_map": {
            "AutoConfig": "configuration_mobilellm.MobileLLMConfig",
            "AutoModelForCausalLM": "modeling_mobilellm.MobileLLMForCausalLM",
        },
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": "mobilellm",
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-3,
        "rope_scaling": None,
        "rope_theta": 500.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.34.1",
        "use_cache": True,
        **sizes,
        **variant,
    }


def random_weights(config):
    """Weights under the checkpoint's names, the head only where the embedding is not shared."""
    d, inner = config["hidden_size"], config["intermediate_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (config["vocab_size"], d), "model.norm": (d,)}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.input_layernorm": (d,), f"{block}.post_attention_layernorm": (d,)}
        shapes |= {f"{block}.self_attn.{name}_proj": (d, d) for name in "qo"}
        shapes |= {f"{block}.self_attn.{name}_proj": (kv, d) for name in "kv"}
        shapes |= {f"{block}.mlp.{name}_proj": (inner, d) for name in ("gate", "up")}
        shapes[f"{block}.mlp.down_proj"] = (d, inner)
    if not config["share_embedding"]:
        shapes["lm_head"] = (config["vocab_size"], d)
    generator = torch.Generator().manual_seed(0)
    return {
        f"{name}.weight": (len(shape) == 1) + 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def forward(config, weights, ids):
    """Logits of the model as the paper and its configs describe it."""
    d, heads = config["hidden_size"], config["num_attention_heads"]
    size = d // heads
    count = ids.shape[1]
    half = torch.arange(size // 2, dtype=torch.float64)
    turns = torch.arange(count)[:, None] * config["rope_theta"] ** (-2 * half / size)
    turn = torch.polar(torch.ones_like(turns), turns)
    causal = torch.ones(count, count).tril() == 0

    def norm(x, name):
        scale = (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt()
        return x / scale * weights[f"{name}.weight"].double()

    def project(x, name):
        return x @ weights[f"{name}.weight"].double().T

    def split(x):
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    def rotate(x):
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def attention(x, name):
        q, k, v = (split(project(x, f"{name}.{kind}_proj")) for kind in "qkv")
        groups = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(groups, 1) for each in (rotate(k), v))
        scores = rotate(q) @ k.transpose(-1, -2) / size**0.5
        weighted = scores.masked_fill(causal, -torch.inf).softmax(-1) @ v
        return project(weighted.transpose(1, 2).flatten(2), f"{name}.o_proj")

    def mlp(x, name):
        gate = torch.nn.functional.silu(project(x, f"{name}.gate_proj"))
        return project(gate * project(x, f"{name}.up_proj"), f"{name}.down_proj")

    x = weights["model.embed_tokens.weight"].double()[ids]
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        for _ in range(1 + config["layer_sharing"]):
            x = x + attention(norm(x, f"{block}.input_layernorm"), f"{block}.self_attn")
            x = x + mlp(norm(x, f"{block}.post_attention_layernorm"), f"{block}.mlp")
    head = "model.embed_tokens" if config["share_embedding"] else "lm_head"
    return project(norm(x, "model.norm"), head)


def write_checkpoint(folder, config, weights):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    # Importing these would end the test: no code of the checkpoint may run.
    for name in ("configuration_mobilellm.py", "modeling_mobilellm.py"):
        (folder / name).write_text("raise SystemExit('remote code was run')\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    families.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """``checkpoint(variant)``: its folder, config and weights."""

    def write(variant):
        config = published_config(SIZES, **VARIANTS[variant])
        weights = random_weights(config)
        return write_checkpoint(tmp_path / variant, config, weights), config, weights

    return write


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_description(checkpoint, variant):
    folder, config, weights = checkpoint(variant)
    model = load_model(folder, device="cpu")
    expected = forward(config, weights, IDS)
    with torch.no_grad():
        error = (model(IDS) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_application_is_a_component_and_they_add_up(checkpoint, variant):
    folder, config, _ = checkpoint(variant)
    model = load_model(folder, device="cpu")
    applications = config["num_hidden_layers"] * (1 + config["layer_sharing"])
    _, cache = model.run_with_cache(IDS, names_filter=ld.names_filter)
    assert len(ld.component_stack(cache)) == 1 + 2 * applications
    for check in ld.verify(model, IDS):
        assert check.passed, check


def test_shared_weights_are_counted_and_stored_once(checkpoint):
    for variant in VARIANTS:
        folder, config, weights = checkpoint(variant)
        found = describe_model(load_model(folder, device="cpu", dtype="bfloat16"))
        assert found == {
            "name": str(folder),
            "revision": None,
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "n_layers": 3 * (1 + config["layer_sharing"]),
            "d_model": 24,
            "d_vocab": families.VOCAB,
            "n_parameters": sum(weight.numel() for weight in weights.values()),
        }


@pytest.mark.parametrize(("sharing", "n_components"), [(False, 61), (True, 121)])
def test_the_components_of_the_125m_models(sharing, n_components):
    """Table 4's counts, and the 124.6M weights of either variant."""
    config = LlamaConfig(**SIZES_125M, tie_word_embeddings=True)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    if sharing:
        mobilellm.unroll(model, times=2)
    assert 1 + 2 * len(model.model.layers) == 1 + 2 * model.config.num_hidden_layers == n_components
    assert [block.self_attn.layer_idx for block in model.model.layers] == list(
        range(len(model.model.layers))
    )
    model.set_attn_implementation("eager")
    configs = [block.self_attn.config for block in model.model.layers]
    assert {config._attn_implementation for config in configs} == {"eager"}
    assert model.num_parameters() == sum(weight.numel() for weight in model.parameters())
    assert round(model.num_parameters() / 1e6, 1) == 124.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "missing_keys.*1.mlp.up_proj"),
        (lambda w: w.pop("model.norm.weight"), "missing_keys.*model.norm"),
        (lambda w: w.update({"model.extra.weight": torch.ones(2)}), "unexpected_keys.*extra"),
        (lambda w: w.update({"model.norm.weight": torch.ones(5)}), "not laid out as a MobileLLM"),
        (
            lambda w: w.update({"lm_head.weight": torch.ones(families.VOCAB, 24)}),
            "another lm_head.weight",
        ),
    ],
)
def test_other_weights_are_refused(checkpoint, change, message):
    folder, config, weights = checkpoint("layer-share")
    change(weights)
    write_checkpoint(folder, config, weights)
    with pytest.raises(ValueError, match=message):
        load_model(folder, device="cpu")


def test_tables_of_old_checkpoints_are_ignored(checkpoint):
    """Up to 2023 a Llama's files held the frequencies of its rotary embedding, too."""
    folder, config, weights = checkpoint("plain")
    stale = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    write_checkpoint(folder, config, weights | stale)
    expected = forward(config, weights, IDS)
    with torch.no_grad():
        error = (load_model(folder, device="cpu")(IDS) - expected).abs().max()
    assert error < 1e-5 * expected.abs().max()


def test_pickled_weights_are_not_read(checkpoint):
    folder, _, weights = checkpoint("plain")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickle .* can run code.*convert it.*save_file"):
        load_model(folder, device="cpu")


def test_a_device_map_is_for_blocks_with_weights_of_their_own(checkpoint):
    folder, config, weights = checkpoint("plain")
    with torch.no_grad():
        logits = load_model(folder, device_map={"": "cpu"})(IDS)
    torch.testing.assert_close(logits.double(), forward(config, weights, IDS), rtol=1e-5, atol=1e-3)
    shared, *_ = checkpoint("layer-share")
    with pytest.raises(ValueError, match=r"one set of weights.*give device= instead"):
        load_model(shared, device_map="auto")


@pytest.mark.parametrize("bos", [True, False])
def test_a_sentencepiece_tokenizer_is_read_as_a_llamas(checkpoint, bos):
    folder, *_ = checkpoint("plain")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over a lazy dog, a fine film"] * 9),
        model_writer=proto,
        vocab_size=60,
        model_type="bpe",
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(proto.getvalue())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": bos, "legacy": True})
    )
    own = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    tokenizer = load_model(folder, device="cpu").tokenizer
    for text in ("a fine fox", " the lazy film,"):
        assert tokenizer(text).input_ids == [1] * bos + own.encode(text)
    assert tokenizer.pad_token is not None
