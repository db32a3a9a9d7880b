"""Mean ablation edits the components that are not kept, and nothing else."""

from dataclasses import replace

import pytest
import torch

import lens_diversity as ld
from lens_diversity import _bridge
from lens_diversity.evaluation.forward import left_padded
from lens_diversity.evaluation.hooked import answer_logits, places, replaced_by
from lens_diversity.evaluation.prompts import encode
from lens_diversity.information.ablation import _means, mean_ablation
from tests.unit.evaluation.toy import task as toy_task


@pytest.fixture(scope="module")
def task(stories260k):
    """A task whose gold labels are the model's own answers."""
    made = toy_task(options=["Once", "The", "A"])
    run = ld.evaluate(stories260k, made)
    return replace(made, gold=run.predictions.tolist())


def test_keeping_everything_changes_nothing(stories260k, task):
    everything = list(_bridge.component_hooks(stories260k))
    for positions in ("answer", "all"):
        found = mean_ablation(stories260k, task, everything, positions=positions)
        assert found.accuracy == found.network_accuracy == 1.0
        assert len(found.kept) == len(everything)


def test_without_components_every_prompt_gets_one_answer(stories260k, task):
    """All that is left is the mean stream, the same for all."""
    found = mean_ablation(stories260k, task, [], positions="all", batch_size=5)
    shares = torch.tensor(task.gold).bincount() / len(task)
    assert any(found.accuracy == pytest.approx(float(share)) for share in shares)


@pytest.mark.parametrize("positions", ["answer", "all"])
def test_the_stream_holds_the_means(stories260k, task, positions):
    encoded = encode(stories260k.tokenizer, task, int(stories260k.cfg.n_ctx), "error")
    batch = list(range(4))
    tokens, mask = left_padded([encoded.prompts[example] for example in batch])
    hook = "blocks.1.hook_mlp_out"
    means, _ = _means(stories260k, encoded, [batch], [hook], positions)
    where = places(mask, positions)
    plain, edited, resid = [], [], []

    def keep(into):
        return lambda tensor, hook: into.append(tensor.clone())

    answer_logits(
        stories260k, tokens, mask, [(hook, keep(plain)), ("blocks.2.hook_in", keep(resid))]
    )
    torch.testing.assert_close(plain[0][where].double().mean(0), means[hook])
    replaced = [(hook, replaced_by(means[hook], where)), ("blocks.2.hook_in", keep(edited))]
    answer_logits(stories260k, tokens, mask, replaced)
    expected = torch.where(where.unsqueeze(-1), means[hook].float() - plain[0], torch.tensor(0.0))
    torch.testing.assert_close(edited[0] - resid[0], expected, atol=1e-5, rtol=0)


def test_positions_differ_where_attention_reads_them(stories260k, task):
    kept = ["4_mlp_out"]
    examples = [0, 2, 4]
    answer = mean_ablation(stories260k, task, kept, examples=examples)
    assert answer.n_examples == 3
    assert answer.kept == ("4_mlp_out",)
    assert answer.network_accuracy == 1.0
    by_index = mean_ablation(stories260k, task, [10], examples=examples)
    assert by_index == answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": ["9_mlp_out"]}, "no component '9_mlp_out'"),
        ({"keep": [99]}, "no component 99"),
        ({"keep": [0], "positions": "first"}, "positions must be one of"),
        ({"keep": [0], "examples": [99]}, r"examples must be some of 0\.\."),
        ({"keep": [0], "batch_size": 0}, "at least 1"),
    ],
)
def test_bad_input(stories260k, task, arguments, message):
    with pytest.raises(ValueError, match=message):
        mean_ablation(stories260k, task, **arguments)
