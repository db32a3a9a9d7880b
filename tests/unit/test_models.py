"""Loading from folders, .gguf files, the Hub and the package that carries SmolLM2."""

import shutil
from pathlib import Path

import gguf
import pytest
import torch
from huggingface_hub import constants as hub_constants
from huggingface_hub import errors as hub_errors
from tokenizers import processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from lens_diversity import _weights, models
from lens_diversity.models import describe_model, load_model
from tests import families

IDS = torch.tensor([[1, 5, 9, 20, 7, 30]])


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=families.VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(path)
    families.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_file(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny-llama.gguf"
    write_gguf(llama, path)
    return path


def write_gguf(llama, path):
    """Write a Llama in float32, with the heads of queries and keys in GGUF's order."""
    config = llama.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    letters = [chr(256 + index) for index in range(config.vocab_size - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "c", "ab", *letters[4:]])
    writer.add_token_types([3, 3, 3, *[1] * (config.vocab_size - 3)])
    writer.add_token_merges(["a b"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in llama.state_dict().items():
        parts = name.split(".")
        if parts[-2] in heads:
            halves = weight.view(heads[parts[-2]], 2, -1, weight.shape[-1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        new_name = f"{names.get_name('.'.join(parts[:-1]))}.weight"
        writer.add_tensor(new_name, weight.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_loaded(model, llama, dtype=torch.float32):
    assert not any(module.training for module in model.modules())
    assert model.cfg.device == "cpu"
    assert {weight.dtype for weight in model.original_model.parameters()} == {dtype}
    assert model.cfg.dtype == dtype
    assert model.tokenizer.pad_token is not None
    with torch.no_grad():
        expected = llama(IDS).logits
        scale = float(expected.abs().max())
        atol = scale * {torch.bfloat16: 5e-2, torch.float16: 5e-3}.get(dtype, 1e-5)
        torch.testing.assert_close(model(IDS).float(), expected, rtol=0, atol=atol)


@pytest.fixture
def cpu_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", torch.float32),
        ("float64", torch.float64),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        (torch.float64, torch.float64),
        ("torch.bfloat16", torch.bfloat16),
    ],
)
def test_a_folder_and_a_gguf_file_load_in_any_dtype(folder, gguf_file, llama, dtype, expected):
    for ref in (folder, gguf_file):
        assert_loaded(load_model(ref, dtype=dtype, device="cpu"), llama, expected)


@pytest.mark.parametrize("dtype", ["int8", "float", torch.int64, "fp32"])
def test_other_dtypes_are_refused_with_the_choices(dtype):
    with pytest.raises(ValueError, match=r"float64.*float32.*bfloat16.*float16.*, got"):
        load_model("gpt2", dtype=dtype)


def test_a_string_and_a_path_mean_the_same(folder, llama, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for ref in (str(folder), f"./{folder.name}", folder.name):
        model = load_model(ref, device="cpu")
        assert_loaded(model, llama)
        assert describe_model(model)["name"] == str(Path(ref))


def test_a_device_map_reaches_folders_and_gguf_files(folder, gguf_file, llama, cpu_only):
    for ref in (folder, gguf_file):
        for placed in ("auto", {"model": "cpu", "lm_head": "cpu"}):
            assert_loaded(load_model(ref, device_map=placed), llama)
    with pytest.raises(ValueError, match="meta"):
        load_model(folder, device_map={"": "meta"})
    elsewhere = load_model(gguf_file, device_map={"": "meta"}).original_model
    assert all(weight.device.type == "meta" for weight in elsewhere.parameters())


def test_device_and_device_map_exclude_each_other():
    with pytest.raises(ValueError, match="either device= or device_map="):
        load_model("gpt2", device="cpu", device_map="auto")


def test_mps_is_not_chosen_by_itself(folder, cpu_only, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setenv("TRANSFORMERLENS_ALLOW_MPS", "1")
    assert load_model(folder).cfg.device == "cpu"


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
        load_model("gpt2", device=device)


@pytest.mark.parametrize("ref", ["./none", "/none/here", "../none", "~/none", "runs/a/none"])
def test_a_missing_folder_is_named(ref):
    with pytest.raises(ValueError, match=r"no folder .*none.* \(looked for /.*none.*\)"):
        load_model(ref)


def test_a_missing_file_is_named(tmp_path):
    for ref in ("none.gguf", tmp_path / "none.gguf"):
        with pytest.raises(ValueError, match=r"no file .*none\.gguf \(looked for /.*none\.gguf\)"):
            load_model(ref)


def test_a_path_named_as_the_built_in_model_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no folder smollm2"):
        load_model((tmp_path / "smollm2").relative_to(tmp_path))


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_model(tmp_path)
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(ValueError, match=r"give the file itself \(weights\.gguf\)"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="but no weights"):
        load_model(tmp_path)


def test_a_checkpoint_that_cannot_be_read_is_named(folder, tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=f"checkpoint in {tmp_path} could not be read"):
        load_model(tmp_path)


def test_other_files_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"is no \.gguf file"):
        load_model(folder / "model.safetensors")
    (tmp_path / "fake.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="does not begin as a GGUF file"):
        load_model(tmp_path / "fake.gguf")


def test_a_revision_is_for_the_hub_only(folder, gguf_file):
    for ref in (folder, gguf_file, "smollm2"):
        with pytest.raises(ValueError, match="revision='v1' is for models of the Hub"):
            load_model(ref, revision="v1")


def test_a_model_of_the_hub_records_its_commit(folder, llama, tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--owner--tiny"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    for name in ("main", "v1"):
        (repository / "refs" / name).write_text(commit)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path))
    for revision in (None, "v1", commit):
        model = load_model("owner/tiny", revision=revision, device="cpu")
        assert_loaded(model, llama)
        found = describe_model(model)
        assert (found["name"], found["revision"]) == ("owner/tiny", commit)
    with pytest.raises(ValueError, match="revision 'v2' of owner/tiny is neither"):
        load_model("owner/tiny", revision="v2")


def test_offline_the_message_says_what_to_do():
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE.*a folder with a checkpoint"):
        load_model("nobody/nothing")


class _Response:
    headers: dict[str, str] = {}  # noqa: RUF012
    request = None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (hub_errors.GatedRepoError, "is gated: .* `hf auth login`"),
        (hub_errors.RevisionNotFoundError, "has no revision 'v9'"),
        (hub_errors.RepositoryNotFoundError, "shows no model owner/name: check the name"),
        (hub_errors.HfHubHTTPError, "could not be loaded from the Hub: not for you"),
    ],
)
def test_refusals_of_the_hub_are_explained(monkeypatch, kind, message):
    def refuse(name, file, **_):
        raise OSError("not for you") from kind("refused", response=_Response())

    monkeypatch.setattr(models, "cached_file", refuse)
    with pytest.raises(ValueError, match=message):
        load_model("owner/name", revision="v9")


def test_the_tokenizer_puts_bos_only_where_its_files_say_so(llama, folder, tmp_path):
    llama.save_pretrained(tmp_path)
    plain = families.tokenizer()
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing("$A")
    plain.init_kwargs.pop("add_bos_token", None)
    plain.save_pretrained(tmp_path)
    for path, expected in ((folder, True), (tmp_path, False)):
        model = load_model(path, device="cpu")
        own = AutoTokenizer.from_pretrained(path)
        text = "a b"
        assert model.tokenizer(text).input_ids == own(text).input_ids
        assert (model.tokenizer(text).input_ids[0] == own.bos_token_id) is expected
        assert model.cfg.tokenizer_prepends_bos is expected
        assert "add_bos_token" not in model.tokenizer.init_kwargs or expected
        assert model.to_tokens(text)[0, 0] == own.bos_token_id
        assert model.to_tokens(text, prepend_bos=False)[0, 0] != own.bos_token_id


def test_a_missing_padding_token_is_the_eos_token(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    tokenizer = families.tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu").tokenizer.pad_token == families.EOS


def test_a_gguf_file_becomes_an_ordinary_model(gguf_file, llama, tmp_path):
    model = load_model(gguf_file, device="cpu")
    assert describe_model(model)["name"] == "tiny-llama"
    assert model.tokenizer("abc").input_ids == [6, 5]
    assert not hasattr(model.original_model.config, "quantization_config")
    for weight in model.original_model.state_dict().values():
        assert weight.device.type == "cpu"


def test_local_files_load_without_progress_bars(folder, gguf_file, capfd):
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()
    try:
        for ref in (folder, gguf_file):
            load_model(ref, device="cpu")
        assert transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        load_model(folder, device="cpu")
        assert not transformers_logging.is_progress_bar_enabled()
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_model_describes_itself(folder, llama):
    assert describe_model(load_model(folder, dtype="bfloat16", device="cpu")) == {
        "name": str(folder),
        "revision": None,
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "n_layers": 2,
        "d_model": 32,
        "d_vocab": families.VOCAB,
        "n_parameters": llama.num_parameters(),
    }


@pytest.mark.smollm2
def test_the_built_in_model(smollm2):
    assert describe_model(smollm2) == {
        "name": "SmolLM2-135M-Instruct.Q4_1",
        "revision": None,
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "n_layers": 30,
        "d_model": 576,
        "d_vocab": 49152,
        "n_parameters": 134_515_008,
    }
    assert not smollm2.training
    assert smollm2.tokenizer.pad_token == "<|im_end|>"
    assert smollm2.tokenizer(" negative positive").input_ids == [3524, 2731]
    text = smollm2.to_tokens("The capital of France is", prepend_bos=False)
    with torch.no_grad():
        assert smollm2.to_string(smollm2(text)[0, -1].argmax()) == " Paris"


@pytest.mark.smollm2
def test_the_built_in_model_is_its_gguf_file(smollm2):
    direct = load_model(_weights.smollm2_gguf(), dtype="bfloat16", device="cpu")
    expected = smollm2.original_model.state_dict()
    for name, weight in direct.original_model.state_dict().items():
        assert torch.equal(weight, expected[name].to("cpu", torch.bfloat16)), name
    for text in ("The 12 films of 2024,\n\twere (mostly) fine!", "naïve café"):
        assert direct.tokenizer(text) == smollm2.tokenizer(text)
