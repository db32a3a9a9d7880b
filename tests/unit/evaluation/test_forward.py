"""The batch's activations: only the answer position, and nothing that holds more memory."""

import torch

from lens_diversity import names_filter
from lens_diversity.capture import component_stack
from lens_diversity.evaluation.forward import last_position_cache, left_padded


def test_every_row_ends_at_its_last_token():
    tokens, mask = left_padded([[4, 5, 6], [7], [8, 9]])
    assert tokens.tolist() == [[4, 5, 6], [0, 0, 7], [0, 8, 9]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]


def test_the_cache_is_that_of_run_with_cache(bridge):
    model = bridge("gpt2")
    tokens, mask = left_padded([[5, 6, 7, 8, 9], [10, 11]])
    with torch.no_grad():
        ours = component_stack(last_position_cache(model, tokens, mask), pos=-1)
        _, cache = model.run_with_cache(tokens, attention_mask=mask, names_filter=names_filter)
    theirs = component_stack(cache, pos=-1)
    assert ours.labels == theirs.labels
    assert torch.equal(ours.values, theirs.values)
    assert torch.equal(ours.stream.scale, theirs.stream.scale)


def test_the_cache_holds_one_position_and_its_logits_only(bridge):
    model = bridge("llama")
    tokens, mask = left_padded([list(range(3, 60)), [5, 6]])
    with torch.no_grad():
        cache = last_position_cache(model, tokens, mask)
    for name, value in cache.cache_dict.items():
        assert value.shape[1] == 1, name
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size(), name
    assert cache.cache_dict["unembed.hook_out"].shape == (2, 1, model.cfg.d_vocab)


def test_hooks_are_taken_off_again_and_those_of_the_user_stay(bridge):
    model = bridge("llama")
    seen = []
    model.add_hook("blocks.0.hook_mlp_out", lambda tensor, hook: seen.append(tensor.shape))
    try:
        tokens, mask = left_padded([[5, 6, 7]])
        with torch.no_grad():
            last_position_cache(model, tokens, mask)
            last_position_cache(model, tokens, mask)
            model(tokens)
        assert len(seen) == 3
        assert sum(len(point.fwd_hooks) for point in model.hook_dict.values()) > 0
    finally:
        model.reset_hooks()
    assert sum(len(point.fwd_hooks) for point in model.hook_dict.values()) == 0
