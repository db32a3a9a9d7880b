"""A run's option logits are the model's own, whatever shares a batch with them."""

import json
from dataclasses import replace

import pytest
import torch

import lens_diversity as ld
from lens_diversity.evaluation import RunLockedError, prompts
from lens_diversity.evaluation._lock import locked
from tests import families
from tests.unit.evaluation import toy


def own_logits(model, task):
    """The model's logits of each row's options, one unpadded prompt at a time."""
    encoded = prompts.encode(model.tokenizer, task, int(model.cfg.n_ctx), "error")
    with torch.no_grad():
        return [
            model(torch.tensor([prompt]))[0, -1, options]
            for prompt, options in zip(encoded.prompts, encoded.options, strict=True)
        ]


@pytest.mark.parametrize("name", families.FAMILIES)
def test_members_sum_to_the_models_own_logits_in_any_batch(bridge, name):
    model, task = bridge(name), toy.mixed_task(8)
    run = ld.evaluate(model, task, batch_size=3)
    own = own_logits(model, task)
    cap = run.metadata["soft_cap"]
    for row, expected in enumerate(own):
        found = run.option_logits[row, :, : len(expected)].sum(0)
        found = found if cap is None else cap * torch.tanh(found / cap)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert int(run.predictions[row]) == int(expected.argmax())
    assert len(run.labels) == run.option_logits.shape[1]
    assert float(run.reconstruction_error.max()) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt", "bloom"])
def test_a_row_is_the_same_alone_and_in_any_batch(bridge, name):
    task = toy.task(9)
    alone = ld.evaluate(bridge(name), task, batch_size=1)
    size = alone.option_logits.abs().max()
    for batch_size in (4, 9):
        batched = ld.evaluate(bridge(name), task, batch_size=batch_size)
        assert float((batched.option_logits - alone.option_logits).abs().max() / size) < 1e-5
    assert len(set(alone.n_tokens.tolist())) > 3  # there was something to pad


def test_the_decomposition_is_that_of_the_models_cache(bridge):
    model, task = bridge("gpt2"), toy.task(3)
    encoded = prompts.encode(model.tokenizer, task, 500, "error")
    result = ld.evaluate(model, task).decomposition()
    for row in range(3):
        _, cache = model.run_with_cache(torch.tensor([encoded.prompts[row]]))
        expected = ld.decompose(cache, [task.gold[row]], vocab=encoded.options[row])
        for name in ("error", "bias", "diversity", "component_bias", "component_diversity"):
            found = getattr(result, name)[..., row]
            wanted = getattr(expected, name)[..., 0].double()
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6), name


def test_options_may_differ_in_number_and_token_from_row_to_row(bridge):
    run = ld.evaluate(bridge("llama"), toy.mixed_task(9), batch_size=4)
    assert run.n_options.tolist() == [2, 3, 4, 5, 2, 3, 4, 5, 2]
    assert run.option_logits.shape == (9, 5, 5)
    real = torch.arange(5) < run.n_options.unsqueeze(1)
    assert torch.equal(~run.option_logits.isnan().any(1), real)
    assert torch.equal(~run.constant.isnan(), real)
    assert run.summary()["n_examples"] == 9


def test_memory_and_folder_give_the_same_run(bridge, tmp_path):
    model, task = bridge("llama"), toy.mixed_task(9)
    in_memory = ld.evaluate(model, task, batch_size=2, save_every=4)
    on_disk = ld.evaluate(model, task, batch_size=2, save_every=4, out=tmp_path / "run")
    read = ld.load_run(tmp_path / "run")
    for run in (on_disk, read):
        assert torch.equal(run.option_logits.nan_to_num(), in_memory.option_logits.nan_to_num())
        assert torch.equal(run.reconstruction_error, in_memory.reconstruction_error)
        assert run.summary() == in_memory.summary()
    in_memory.save(tmp_path / "saved")
    assert ld.load_run(tmp_path / "saved").metadata == in_memory.metadata


def test_a_finished_folder_is_read_without_a_forward_pass(bridge, tmp_path, monkeypatch):
    model, task = bridge("llama"), toy.task(6)
    first = ld.evaluate(model, task, out=tmp_path)
    monkeypatch.setattr(model, "run_with_hooks", None)
    again = ld.evaluate(model, task, out=tmp_path)
    assert torch.equal(again.option_logits, first.option_logits)


def test_damaged_and_missing_shards_are_computed_again(bridge, tmp_path):
    model, task = bridge("llama"), toy.task(9)
    first = ld.evaluate(model, task, batch_size=2, save_every=3, out=tmp_path)
    (tmp_path / "shard-00001.parquet").write_bytes(b"damage")
    (tmp_path / "shard-00002.parquet").unlink()
    with pytest.raises(ValueError, match="shard-00001"):
        ld.load_run(tmp_path)
    with pytest.warns(UserWarning, match=r"shard-00001.*shard-00002"):
        again = ld.evaluate(model, task, batch_size=2, save_every=3, out=tmp_path)
    assert torch.equal(again.option_logits, first.option_logits)
    assert torch.equal(ld.load_run(tmp_path).option_logits, first.option_logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "mistral"}, "model.architecture"),
        ({"seed": 1}, "model.weights"),
        ({"dtype": torch.float64}, "model.dtype"),
        ({"rows": 5}, "n_examples"),
        ({"task": {"gold": [1] * 6}}, "task.fingerprint"),
        ({"task": {"version": "2"}}, "task.version"),
        ({"evaluate": {"dtype": torch.float64}}, "settings.readout_dtype"),
        ({"evaluate": {"overlong": "truncate"}}, "settings.overlong"),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path, change, named):
    def call(model="llama", seed=0, dtype=torch.float32, rows=6, task=None, evaluate=None):
        bridge = families.build(model, dtype=dtype, seed=seed)
        return ld.evaluate(
            bridge, replace(toy.task(rows), **task or {}), out=tmp_path, **evaluate or {}
        )

    call()
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match="holds another run") as error:
        call(**change)
    assert f"  {named}: the folder has " in str(error.value)
    assert (tmp_path / "run.json").read_bytes() == before


def test_compatibility_mode_is_another_model(tmp_path):
    model = families.build("llama")
    ld.evaluate(model, toy.task(4), out=tmp_path)
    model.enable_compatibility_mode()
    with pytest.raises(ValueError, match=r"model\.compatibility_mode: the folder has False"):
        ld.evaluate(model, toy.task(4), out=tmp_path)


def test_batch_size_may_change_between_calls(bridge, tmp_path):
    first = ld.evaluate(bridge("llama"), toy.task(6), batch_size=2, out=tmp_path)
    again = ld.evaluate(bridge("llama"), toy.task(6), batch_size=3, out=tmp_path)
    assert torch.equal(again.option_logits, first.option_logits)


def test_a_folder_in_use_is_refused(bridge, tmp_path):
    with locked(tmp_path), pytest.raises(RunLockedError, match="is being written by process"):
        ld.evaluate(bridge("llama"), toy.task(4), out=tmp_path)


def test_overlong_prompts_are_refused_or_cut(bridge):
    model = bridge("gpt2")
    task = replace(toy.task(3), prompts=["short", "x" * 600, "also short"])
    with pytest.raises(ValueError, match=r"1 of 3 prompts .* 512 tokens .*prompts 1\."):
        ld.evaluate(model, task)
    run = ld.evaluate(model, task, overlong="truncate")
    assert run.metadata["n_truncated"] == 1
    assert run.n_tokens.tolist() == [6, 512, 10]


def test_the_header_says_what_was_run(bridge, tmp_path):
    task = replace(toy.task(4), template="{{ text }}", source={"kind": "home-made"})
    ld.evaluate(bridge("gpt2"), task, batch_size=3, out=tmp_path)
    header = json.loads((tmp_path / "run.json").read_text())
    assert header["model"]["name"] == "tiny-gpt2"
    assert header["model"]["dtype"] == "float32"
    assert header["task"]["fingerprint"] == task.fingerprint
    assert header["task"]["template"] == "{{ text }}"
    assert header["task"]["options"] == [["Bad", "Good", "Mixed"]]
    assert header["task"]["multi_token_options"]["Bad"] == ["▁B", "a", "d"]
    assert header["data"]["source"] == {"kind": "home-made"}
    assert header["labels"][:3] == ["embed", "pos_embed", "0_attn_out"]
    assert header["modules"][:3] == ["embed", "embed", "attn"]
    assert set(header["versions"]) == {
        "lens-diversity",
        "torch",
        "transformers",
        "transformer-lens",
    }
    assert header["batch_size"] == 3
    assert header["shards"]["shard-00000.parquet"]["examples"] == 4


def test_half_precision_is_read_out_in_float32(bridge):
    model = families.build("llama", dtype=torch.bfloat16)
    run = ld.evaluate(model, toy.task(4))
    exact = ld.evaluate(bridge("llama"), toy.task(4))
    assert run.metadata["settings"]["readout_dtype"] == "float32"
    assert 1e-5 < float(run.reconstruction_error.max()) < 5e-2
    assert torch.allclose(run.option_logits, exact.option_logits, atol=0.2)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda model, task: {"model": object()}, TypeError, "expected a TransformerLens bridge"),
        (lambda model, task: {"task": "sst2"}, TypeError, "expected a Task, got str"),
        (lambda model, task: {"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        (lambda model, task: {"batch_size": True}, TypeError, "batch_size must be an integer"),
        (lambda model, task: {"save_every": 0}, ValueError, "save_every must be at least 1"),
        (lambda model, task: {"dtype": torch.float16}, TypeError, "dtype must be"),
        (
            lambda model, task: {"task": replace(task, options=["Bad", "Big", "Good"])},
            ValueError,
            "'Bad' and 'Big'",
        ),
    ],
)
def test_bad_input_is_refused_before_the_model_runs(bridge, monkeypatch, spoil, error, message):
    model, task = bridge("llama"), toy.task(3)
    monkeypatch.setattr(model, "run_with_hooks", None)
    with pytest.raises(error, match=message):
        ld.evaluate(**{"model": model, "task": task} | spoil(model, task))


def test_training_mode_and_a_missing_tokenizer_are_refused(monkeypatch):
    model = families.build("llama")
    monkeypatch.setattr(model, "tokenizer", None)
    with pytest.raises(ValueError, match="has no tokenizer"):
        ld.evaluate(model, toy.task(3))
    model.train()
    with pytest.raises(ValueError, match="training mode"):
        ld.evaluate(model, toy.task(3))


def test_progress_is_silent_without_a_terminal(bridge, capfd):
    ld.evaluate(bridge("llama"), toy.task(3))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "examples/s" not in captured.err


def test_progress_shows_speed_and_time_on_a_terminal(bridge, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    ld.evaluate(bridge("llama"), toy.task(6), batch_size=2)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "6/6" in captured.err
    ld.evaluate(bridge("llama"), toy.task(6), progress=False)
    assert "6/6" not in capfd.readouterr().err
