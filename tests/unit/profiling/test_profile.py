"""A profile is the mean of decompositions of ordinary forward passes, however it was batched."""

import random

import numpy as np
import pytest
import torch

import lens_diversity as ld
from lens_diversity.profiling.result import module_names
from tests import families

TEXTS = [
    "Once upon a time there was a Cat.",
    "",
    "It sat.",
    "x",
    "The Second Half redeems a slow and somewhat confused Beginning, or so they say.",
    "   ",
    "dull, dull, dull",
]
# Absolute positions, a centred norm with bias, a soft cap, multipliers, and rotary grouped queries.
NAMES = ("llama", "gpt2", "gemma2", "granite", "opt", "bloom")


def one_by_one(model, texts, context, **options):
    """Every window by itself: (document, position, decomposition of its scored positions)."""
    bos = model.tokenizer.bos_token_id
    for document, text in enumerate(texts):
        ids = model.tokenizer(text)["input_ids"] if text.strip() else []
        start = 0
        while start < len(ids) - 1:
            prefix = [bos] if start else []
            window = ids[start : start + context - len(prefix)]
            targets = ids[start + 1 : start + 1 + len(window)]
            window = (prefix + window)[: len(prefix) + len(targets)]
            _, cache = model.run_with_cache(torch.tensor([window]), names_filter=ld.names_filter)
            scored = list(range(len(prefix), len(window)))
            yield (
                document,
                scored,
                ld.decompose(cache, torch.tensor([targets]), pos=scored, **options),
            )
            start += len(targets)


def means(model, texts, context, **options):
    """Sums over tokens divided by their number, in plain loops."""
    total, count, by_position = {}, 0, {}
    for _, scored, found in one_by_one(model, texts, context, **options):
        count += len(scored)
        for name in ("error", "bias", "diversity", "component_bias", "component_diversity"):
            values = getattr(found, name).double()
            total[name] = total.get(name, 0) + values.flatten(values.ndim - 2).sum(-1)
        for place, error in zip(scored, found.error[0].tolist(), strict=True):
            by_position.setdefault(place, []).append(error)
    return (
        count,
        {name: (value / count).numpy() for name, value in total.items()},
        {place: np.mean(errors) for place, errors in sorted(by_position.items())},
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("loss", "combine", "gauge"),
    [
        ("cross_entropy", "sum", "model"),
        ("squared", "mean", "centred"),
        ("paper", "mean", "model"),
        ("brier", "sum", "model"),
    ],
)
def test_profile_is_the_mean_of_decompositions(bridge, name, loss, combine, gauge):
    model = bridge(name)
    options = {"loss": loss, "combine": combine, "gauge": gauge, "dtype": torch.float64}
    found = ld.profile(model, TEXTS, context=16, batch_size=3, save_every=3, **options)
    count, expected, by_position = means(model, TEXTS, 16, **options)

    assert found.n_tokens == count
    assert found.n_documents == len(TEXTS)
    assert found.n_without_targets == 2
    whole = found.summary()["mean"]
    for quantity in ("error", "bias", "diversity"):
        assert whole[quantity] == pytest.approx(expected[quantity].item(), rel=2e-4, abs=1e-6)
    components = found.by_component()
    for quantity in ("bias", "diversity"):
        reference = expected[f"component_{quantity}"].ravel()
        assert components[quantity].to_numpy() == pytest.approx(reference, rel=2e-3, abs=1e-5)
    positions = found.by_position()
    assert positions["position"].tolist() == list(by_position)
    assert positions["error"].to_numpy() == pytest.approx(
        list(by_position.values()), rel=2e-3, abs=1e-5
    )
    assert found.reconstruction_error < 1e-4


def test_identity_and_parts_add_up(bridge):
    found = ld.profile(bridge("llama"), TEXTS, context=16, combine="sum", dtype=torch.float64)
    whole = found.summary()["mean"]
    assert whole["error"] == pytest.approx(whole["bias"] - whole["diversity"], rel=1e-9)
    modules, components = found.by_module(), found.by_component()
    for name in ("bias", "diversity"):
        assert modules[name].sum() == pytest.approx(whole[name], rel=1e-12)
        assert (components[name] * components["weight"]).sum() == pytest.approx(whole[name])
        assert modules[f"{name}_share"].sum() == pytest.approx(1)
    assert modules["components"].to_dict() == {"embed": 1, "attn": 2, "mlp": 2}
    positions = found.by_position()
    for name in ("error", "bias", "diversity"):
        weighted = (positions[name] * positions["tokens"]).sum() / found.n_tokens
        assert weighted == pytest.approx(whole[name], rel=1e-6)
    parts = found.by_module_and_position().groupby("position")[["bias", "diversity"]].sum()
    for name in ("bias", "diversity"):
        assert parts[name].to_numpy() == pytest.approx(positions[name].to_numpy(), rel=1e-5)


def test_the_sums_error_is_the_models_own_loss(stories260k):
    texts = ["Once upon a time, there was a little girl.", "The cat sat on the mat and purred."]
    found = ld.profile(stories260k, texts, combine="sum")
    losses = []
    for text in texts:
        ids = torch.tensor([stories260k.tokenizer(text)["input_ids"]])
        logits = stories260k(ids)[0, :-1].log_softmax(-1)
        losses += (-logits[range(ids.shape[1] - 1), ids[0, 1:]]).tolist()
    assert found.summary()["mean"]["error"] == pytest.approx(np.mean(losses), abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_batches_and_shards_change_nothing(bridge, name):
    shuffled = [text * 3 for text in TEXTS]
    random.Random(0).shuffle(shuffled)
    alone = ld.profile(bridge(name), shuffled, context=24, batch_size=1, save_every=1)
    together = ld.profile(bridge(name), shuffled, context=24, batch_size=8, save_every=64)
    for table in ("summary", "by_component", "by_module", "by_position", "by_module_and_position"):
        first = getattr(alone, table)().select_dtypes("number").to_numpy(float)
        second = getattr(together, table)().select_dtypes("number").to_numpy(float)
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


def test_constant_may_be_a_member(bridge):
    found = ld.profile(bridge("gpt2"), TEXTS, context=32, constant="component", loss="squared")
    assert found.labels[-1] == "constant"
    assert module_names(found.modules) == ["embed", "attn", "mlp", "constant"]
    assert found.by_module()["bias"].sum() == pytest.approx(found.summary()["mean"]["bias"])


def test_a_folder_is_read_back_and_finished_is_not_run_again(bridge, tmp_path, monkeypatch):
    model = bridge("llama")
    made = ld.profile(model, TEXTS, out=tmp_path, save_every=3)
    monkeypatch.setattr("lens_diversity.profiling.measure.scored_stack", None)
    again = ld.profile(model, TEXTS, out=tmp_path, save_every=3)
    for found in (again, ld.load_profile(tmp_path)):
        assert found.summary().equals(made.summary())
        assert found.by_module_and_position().equals(made.by_module_and_position())
        assert found.metadata["model"]["name"] == "tiny-llama"
    in_memory = ld.load_profile(tmp_path)
    assert "tiny-llama" in repr(in_memory)
    assert "2 documents had nothing to predict" in repr(in_memory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "squared"}, "loss"),
        ({"combine": "sum"}, "combine"),
        ({"gauge": "centred"}, "gauge"),
        ({"context": 9}, "context"),
        ({"dtype": torch.float64}, "readout_dtype"),
        ({"texts": TEXTS[::-1]}, "fingerprint"),
        ({"limit": 3}, "limit"),
        ({"name": "gpt2"}, "tiny-llama"),
    ],
)
def test_another_profile_is_refused_with_the_difference(bridge, tmp_path, change, message):
    ld.profile(bridge("llama"), TEXTS, out=tmp_path)
    model = bridge(change.pop("name", "llama"))
    texts = change.pop("texts", TEXTS)
    with pytest.raises(ValueError, match=message):
        ld.profile(model, texts, out=tmp_path, **change)


def test_other_documents_behind_the_same_name_are_refused(bridge, tmp_path):
    import datasets

    model = bridge("llama")
    first = datasets.Dataset.from_dict({"text": TEXTS})
    ld.profile(model, first, out=tmp_path, save_every=2)
    changed = [*TEXTS[:4], "another text", *TEXTS[5:]]
    with pytest.raises(ValueError, match="other texts: they differ from document 4 on"):
        ld.profile(model, datasets.Dataset.from_dict({"text": changed}), out=tmp_path, save_every=2)


def test_a_stream_that_grew_or_shrank_is_told(bridge, tmp_path):
    import datasets

    model = bridge("llama")

    def stream(texts):
        return datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset()

    ld.profile(model, stream(TEXTS), out=tmp_path, save_every=4)
    with pytest.raises(ValueError, match="differ from document 7 on"):
        ld.profile(model, stream([*TEXTS, "more"]), out=tmp_path, save_every=4)
    with pytest.raises(ValueError, match="differ from document 6 on"):
        ld.profile(model, stream(TEXTS[:6]), out=tmp_path, save_every=4)
    with pytest.raises(ValueError, match="more documents than the 4 after which the texts now end"):
        ld.profile(model, stream(TEXTS[:4]), out=tmp_path, save_every=4)


def test_a_run_folder_and_a_profile_folder_are_not_mixed_up(bridge, tmp_path):
    ld.profile(bridge("llama"), TEXTS, out=tmp_path)
    with pytest.raises(ValueError, match=r"holds no run: it has no run\.json"):
        ld.load_run(tmp_path)
    with pytest.raises(ValueError, match=r"holds no profile: it has no profile\.json"):
        ld.load_profile(tmp_path / "elsewhere")


def test_damage_is_named_and_repaired(bridge, tmp_path):
    model = bridge("llama")
    made = ld.profile(model, TEXTS, out=tmp_path, save_every=3)
    (tmp_path / "shard-00001.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"shard-00001\.parquet does not match its checksum"):
        ld.load_profile(tmp_path)
    with pytest.warns(UserWarning, match=r"shard-00001\.parquet"):
        repaired = ld.profile(model, TEXTS, out=tmp_path, save_every=3)
    assert repaired.summary().equals(made.summary())


def test_parts_join_to_the_whole(bridge):
    model = bridge("llama")
    whole = ld.profile(model, TEXTS, context=16)
    parts = [ld.profile(model, part, context=16) for part in (TEXTS[:3], TEXTS[3:])]
    joined = ld.Profile.concatenate(parts)
    np.testing.assert_allclose(joined.summary(), whole.summary(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        joined.by_position().to_numpy(), whole.by_position().to_numpy(), rtol=1e-3, atol=1e-4
    )
    assert joined.metadata["data"]["kind"] == "joined"
    other = ld.profile(model, TEXTS, context=16, loss="squared")
    with pytest.raises(ValueError, match="differ in their settings"):
        ld.Profile.concatenate([whole, other])
    with pytest.raises(ValueError, match="there is no profile to join"):
        ld.Profile.concatenate([])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"loss": "mse"}, ValueError, "loss"),
        ({"combine": "max"}, ValueError, "combine must be one of"),
        ({"gauge": "raw"}, ValueError, "gauge must be one of"),
        ({"constant": "keep"}, ValueError, "constant must be one of"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"save_every": 0}, ValueError, "save_every"),
        ({"limit": 0}, ValueError, "limit"),
        ({"context": 1}, ValueError, "context must lie between 2 and"),
        ({"context": 10**6}, ValueError, "the model's own context of 512 tokens"),
        ({"memory_budget": -1}, ValueError, "memory_budget"),
        ({"dtype": torch.float16}, TypeError, "torch.float16"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(bridge, monkeypatch, options, kind, message):
    monkeypatch.setattr("lens_diversity.profiling.measure.scored_stack", None)
    with pytest.raises(kind, match=message):
        ld.profile(bridge("llama"), TEXTS, **options)


def test_bad_models_are_refused():
    with pytest.raises(TypeError, match="expected a TransformerLens bridge"):
        ld.profile(torch.nn.Linear(2, 2), TEXTS)
    with pytest.raises(ld.UnsupportedModelError):
        ld.profile(families.build_unsupported("mamba"), TEXTS)
    training = families.build("llama").train()
    with pytest.raises(ValueError, match="training mode"):
        ld.profile(training, TEXTS)
    blank = families.build("llama")
    blank.tokenizer = None
    with pytest.raises(ValueError, match="tokenizer"):
        ld.profile(blank, TEXTS)


def test_nothing_to_predict_is_missing_and_said(bridge):
    found = ld.profile(bridge("llama"), ["", "  "])
    assert found.n_tokens == 0
    assert np.isnan(found.summary()["mean"]["error"])
    assert found.by_position().empty
    assert "2 documents had nothing to predict" in repr(found)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_levels_are_between_zero_and_one(bridge, level):
    found = ld.profile(bridge("llama"), TEXTS[:1])
    for table in ("summary", "by_component", "by_module", "by_position", "by_module_and_position"):
        with pytest.raises(ValueError, match=f"between 0 and 1, got {level}"):
            getattr(found, table)(level)


def test_memory_does_not_grow_with_the_corpus(bridge, monkeypatch):
    """Shards are summed up and let go: at no time are two of their tables alive."""
    import gc
    import weakref

    from lens_diversity.profiling import measure

    alive, most = weakref.WeakSet(), 0
    table = measure.ShardSums.table

    def watched(self, *arguments):
        nonlocal most
        gc.collect()
        alive.add(self)
        most = max(most, len(alive))
        return table(self, *arguments)

    monkeypatch.setattr(measure.ShardSums, "table", watched)
    ld.profile(bridge("llama"), TEXTS * 4, save_every=2, progress=False)
    assert most == 1
