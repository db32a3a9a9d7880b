"""The core on a small trained model, at every position and over the full vocabulary."""

import torch

import lens_diversity as ld


def test_a_story_decomposes_exactly(stories260k):
    tokens = stories260k.tokenizer("Once upon a time", return_tensors="pt").input_ids
    with torch.no_grad():
        logits, cache = stories260k.run_with_cache(tokens)
    stack = ld.component_stack(cache, pos=slice(0, -1))
    assert len(stack) == 11
    result = ld.decompose(stack, tokens[:, 1:], loss="cross_entropy", combine="sum")
    own = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    torch.testing.assert_close(result.error, own, rtol=1e-4, atol=1e-4)
    assert float(result.error[:, 1:].mean()) < 3.0
    assert result.reconstruction_error < 1e-5


def test_knocking_out_a_components_direct_path_is_leave_one_out(stories260k):
    """The closed form equals reading the model's own final stream with the component removed."""
    tokens = stories260k.tokenizer("Once upon a time there was", return_tensors="pt").input_ids
    with torch.no_grad():
        _, cache = stories260k.run_with_cache(tokens)
    stack = ld.component_stack(cache)
    gold = [int(tokens[0, -1])]
    found = ld.leave_one_out(stack, gold, loss="cross_entropy", combine="sum")
    for index in range(len(stack)):
        x = (stack.values.sum(0) - stack.values[index]) / stack.stream.scale
        logits = (x * stories260k.ln_final.weight) @ stories260k.W_U + stories260k.b_U
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(gold))
        torch.testing.assert_close(found[index, 0], expected, rtol=1e-4, atol=1e-4)
