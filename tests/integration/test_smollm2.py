"""The core on a real language model: exact sums, the paper's order of magnitude, the gauge."""

import pytest
import torch

import lens_diversity as ld

pytestmark = pytest.mark.smollm2

SENTENCES = {
    "a gorgeous, witty, seductive movie": 1,
    "the film is a dull and lifeless mess": 0,
    "an utterly charming romance with a big heart": 1,
    "the plot is thin and the jokes fall flat": 0,
    "one of the best performances of the year": 1,
    "i wanted my money back after ten minutes": 0,
}
OPTIONS = [3524, 2731]


@pytest.fixture(scope="module")
def prompts():
    question = "\nQuestion: Was that sentence positive or negative? Answer:"
    return [sentence + question for sentence in SENTENCES]


@pytest.fixture(scope="module")
def runs(smollm2, prompts):
    found = []
    for prompt in prompts:
        tokens = smollm2.tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            found.append(smollm2.run_with_cache(tokens, names_filter=ld.names_filter))
    return found


def test_options_are_single_tokens(smollm2):
    assert [smollm2.to_single_token(o) for o in (" negative", " positive")] == OPTIONS


def test_components_sum_to_the_models_logits(runs):
    for logits, cache in runs:
        stack = ld.component_stack(cache, pos=-1)
        assert len(stack) == 61
        total = ld.component_logits(stack, OPTIONS, dtype=torch.float64).sum(0)
        torch.testing.assert_close(
            total, logits[:, -1, OPTIONS].double(), rtol=0, atol=4e-5, check_dtype=False
        )


def test_the_papers_order_of_magnitude(runs):
    """A float64 reference on six sentences of this kind gave MSE 0.249, bias 0.251, logit
    diversity near 1 and an MLP share of diversity of 0.83."""
    results = [
        ld.decompose(cache, [gold], OPTIONS, dtype=torch.float64)
        for (_, cache), gold in zip(runs, SENTENCES.values(), strict=True)
    ]
    means = {
        name: torch.cat([getattr(result, name) for result in results]).mean()
        for name in ("error", "bias", "diversity")
    }
    assert float(means["error"]) == pytest.approx(0.249, abs=0.002)
    assert float(means["bias"]) == pytest.approx(0.251, abs=0.002)
    assert 0.7 < float(means["diversity"]) < 1.4
    shares = sum(result.by_module()["diversity_share"] for result in results) / len(results)
    assert 0.75 < shares["mlp"] < 0.9
    assert shares["embed"] < 0.005


def test_combine_sum_is_the_models_cross_entropy_at_every_position(runs):
    logits, cache = runs[0]
    gold = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    result = ld.decompose(cache, gold, loss="cross_entropy", combine="sum", pos=None)
    own = torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), reduction="none")
    torch.testing.assert_close(result.error.flatten(), own, rtol=0, atol=1e-4)
    size = result.error.abs() + result.bias + result.diversity
    assert float((result.residual.abs() / size).max()) < 1e-5


def test_half_precision_reports_its_rounding(prompts):
    model = ld.load_model("smollm2", dtype="bfloat16")
    tokens = model.tokenizer(prompts[0], return_tensors="pt").input_ids
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
    result = ld.decompose(cache, [1], OPTIONS)
    assert 1e-4 < result.reconstruction_error < 5e-2
    whole = ld.component_stack(cache).with_remainder()
    share = ld.decompose(whole, [1], OPTIONS).by_module()
    assert share.loc["remainder", "components"] == 1


def test_raw_and_compatibility_mode_agree_on_gauge_free_quantities_only(prompts):
    found = {}
    for compatible in (False, True):
        model = ld.load_model("smollm2")
        if compatible:
            model.enable_compatibility_mode()
        tokens = model.tokenizer(prompts[0], return_tensors="pt").input_ids
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
        found[compatible] = {
            (loss, gauge): ld.decompose(cache, [1], OPTIONS, loss, gauge=gauge, dtype=torch.float64)
            for loss in ("paper", "brier", "cross_entropy")
            for gauge in ("model", "centred")
        }
    for key, raw in found[False].items():
        other = found[True][key]
        torch.testing.assert_close(raw.error, other.error, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(raw.bias, other.bias, rtol=1e-5, atol=1e-8)
        if key != ("paper", "model"):
            torch.testing.assert_close(raw.diversity, other.diversity, rtol=1e-3, atol=1e-8)
    paper = [float(found[mode]["paper", "model"].diversity) for mode in (False, True)]
    assert paper[0] > 1.5 * paper[1]


def test_verify_passes(smollm2):
    checks = ld.verify(smollm2)
    assert all(check.passed for check in checks), checks
