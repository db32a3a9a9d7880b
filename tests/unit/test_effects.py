"""Closed-form effects against leave-one-out; real ones against hooks set by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import lens_diversity as ld
from lens_diversity import _bridge
from lens_diversity.evaluation.prompts import encode
from tests.unit.evaluation.toy import task as toy_task


@pytest.fixture(scope="module")
def task():
    return toy_task(options=["Once", "The", "A"])


@pytest.fixture(scope="module")
def encoded(stories260k, task):
    return encode(stories260k.tokenizer, task, int(stories260k.cfg.n_ctx), "error")


def judged(encoded, example, logits):
    """Cross-entropy of an example's own options."""
    own = logits[encoded.options[example]].double()
    return float(-own.log_softmax(0)[encoded.gold[example]])


@pytest.mark.parametrize("loss", ["cross_entropy", "paper", "squared"])
def test_direct_zero_is_leave_one_out(stories260k, task, loss):
    found = ld.ablation_effects(stories260k, task, "zero", loss=loss, batch_size=5)
    run = ld.evaluate(stories260k, task)
    constant = run.constant
    own = run.option_logits.transpose(0, 1) - constant / len(run.labels)
    expected = ld.functional.leave_one_out(
        own, run.gold, loss=loss, combine="sum", constant=constant
    )
    torch.testing.assert_close(found.direct, expected, rtol=1e-4, atol=1e-5)
    assert found.correct.tolist() == (run.predictions == run.gold).tolist()


@pytest.mark.parametrize("positions", ["all", "answer"])
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_real_effects_by_hand(stories260k, task, encoded, how, positions):
    model = stories260k
    found = ld.ablation_effects(model, task, how, positions=positions, batch_size=5)
    hooks = _bridge.component_hooks(model)
    assert found.labels == list(hooks)
    picked = slice(None) if positions == "all" else slice(-1, None)
    for index in (0, 2, len(hooks) - 1):
        name = hooks[found.labels[index]]
        written = []
        with torch.no_grad():
            for prompt in encoded.prompts:
                _, cache = model.run_with_cache(torch.tensor([prompt]), names_filter=[name])
                written.append(cache[name][0, picked])
        value = torch.cat(written).double().mean(0).float() if how == "mean" else torch.tensor(0.0)

        def swap(tensor, hook, value=value):
            tensor = tensor.clone()
            tensor[:, picked] = value
            return tensor

        for example in (0, 5, 11):
            with torch.no_grad(), model.hooks([(name, swap)]):
                logits = model(torch.tensor([encoded.prompts[example]]))[0, -1]
            expected = judged(encoded, example, logits)
            assert float(found.real[index, example]) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_direct_mean_replaces_logits_by_those_of_the_mean(stories260k, task, encoded):
    model = stories260k
    found = ld.ablation_effects(model, task, "mean", positions="answer", batch_size=5)
    stacks = []
    with torch.no_grad():
        for prompt in encoded.prompts:
            _, cache = model.run_with_cache(torch.tensor([prompt]))
            stacks.append(ld.component_stack(cache))
    mean = torch.stack([stack.values[3, 0] for stack in stacks]).mean(0)
    for example in (1, 7):
        stack = stacks[example]
        values = stack.values.clone()
        values[3] = mean
        # The final norm keeps the statistic of the whole network.
        normalised = stack.readout.normalise(values, stack.stream.scale).sum(0)
        logits = stack.readout.project(normalised, torch.tensor(encoded.options[example]))[0]
        own = logits.double()
        expected = float(-own.log_softmax(0)[encoded.gold[example]])
        assert float(found.direct[3, example]) == pytest.approx(expected, rel=1e-3)


def test_last_component_has_no_indirect_effect_but_the_norms(stories260k, task):
    """The last MLP is read by the final norm only: direct and real order examples alike."""
    found = ld.ablation_effects(stories260k, task, "mean", positions="answer")
    direct, real = found.direct[-1], found.real[-1]
    assert stats.spearmanr(direct, real).statistic > 0.9


def test_resampling_draws_from_the_batch(stories260k, task):
    first = ld.ablation_effects(stories260k, task, "resample", batch_size=6, seed=1)
    again = ld.ablation_effects(stories260k, task, "resample", batch_size=6, seed=1)
    other = ld.ablation_effects(stories260k, task, "resample", batch_size=6, seed=2)
    torch.testing.assert_close(first.real, again.real, rtol=0, atol=0)
    torch.testing.assert_close(first.direct, again.direct, rtol=0, atol=0)
    assert not torch.equal(first.real, other.real)
    same = replace(task, prompts=[task.prompts[0]] * 4, gold=task.gold[:4])
    alike = ld.ablation_effects(stories260k, same, "resample", positions="answer")
    torch.testing.assert_close(alike.real, alike.error.expand_as(alike.real), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alike.direct, alike.real, rtol=1e-4, atol=1e-5)


def test_examples_come_in_the_order_asked_for(stories260k, task):
    whole = ld.ablation_effects(stories260k, task, "zero", batch_size=4)
    few = ld.ablation_effects(stories260k, task, "zero", examples=[7, 2, 10], batch_size=2)
    torch.testing.assert_close(few.real, whole.real[:, [7, 2, 10]], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(few.error, whole.error[[7, 2, 10]], rtol=1e-4, atol=1e-5)


def test_rows_with_different_numbers_of_options(stories260k):
    options = [["Once", "The", "A"][: 2 + row % 2] for row in range(6)]
    mixed = toy_task(6, options=options, gold=[row % 2 for row in range(6)])
    found = ld.ablation_effects(stories260k, mixed, "zero")
    assert found.real.isfinite().all()
    assert found.real.shape == (len(found.labels), 6)


def test_tables(stories260k, task):
    found = ld.ablation_effects(stories260k, task, "zero")
    table = found.by_component()
    assert table["label"].tolist() == found.labels
    growth = (found.real - found.error).double().mean(1)
    np.testing.assert_allclose(table["real"], growth)
    correlation = found.correlation(repeats=200)
    assert correlation.index.tolist() == ["all", "attn", "mlp"]
    expected = stats.spearmanr(table["direct"], table["real"]).statistic
    assert correlation.loc["all", "spearman"] == pytest.approx(expected)
    mlps = table[table["module"] == "mlp"]
    expected = stats.pearsonr(mlps["direct"], mlps["real"]).statistic
    assert correlation.loc["mlp", "pearson"] == pytest.approx(expected)
    row = correlation.loc["all"]
    assert row["spearman_low"] < row["spearman_high"]
    assert f"{row['spearman']:.3f}" in repr(found)
    alike = replace(found, direct=found.error.expand_as(found.direct))
    assert np.isnan(alike.correlation().loc["all", "spearman"])


def test_bad_input_is_refused(stories260k, task):
    for wrong in ({"how": "noise"}, {"positions": "last"}, {"loss": "hinge"}):
        with pytest.raises(ValueError, match="must be one of"):
            ld.ablation_effects(stories260k, task, **wrong)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        ld.ablation_effects(stories260k, task, batch_size=0)
    with pytest.raises(ValueError, match="examples must be some of"):
        ld.ablation_effects(stories260k, task, examples=[99])
    with pytest.raises(ValueError, match="nothing to draw from"):
        ld.ablation_effects(stories260k, task, "resample", positions="answer", batch_size=11)
