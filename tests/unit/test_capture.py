"""Components are collected from caches of every shape, and bad caches are refused."""

import pytest
import torch
from transformer_lens import ActivationCache

import lens_diversity as ld
from lens_diversity.stack import ComponentStack
from tests.families import FAMILIES, UNSUPPORTED, build, build_unsupported


@pytest.fixture(scope="module")
def gpt2():
    return build("gpt2")


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))


def run(model, tokens, **options):
    with torch.no_grad():
        return model.run_with_cache(tokens, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_and_values_are_those_of_decompose_resid(family):
    model = build(family)
    tokens = torch.randint(3, 60, (2, 6))
    _, cache = run(model, tokens)
    expected, labels = cache.decompose_resid(return_labels=True)
    stack = ld.component_stack(cache, pos=None)
    assert stack.labels == labels
    torch.testing.assert_close(stack.values, expected)
    assert stack.axes == ("batch", "pos")
    assert set(stack.modules) == {"embed", "attn", "mlp"}
    assert stack.modules[labels.index("1_mlp_out")] == "mlp"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_models_without_one_stream_of_sublayers_are_refused_without_a_forward_pass(name):
    model = build_unsupported(name)
    with pytest.raises(ld.UnsupportedModelError):
        ld.require_supported(model)


def test_only_the_filtered_hooks_are_needed(gpt2, tokens):
    _, full = run(gpt2, tokens)
    _, few = run(gpt2, tokens, names_filter=ld.names_filter)
    assert len(few) < 15
    torch.testing.assert_close(
        ld.component_stack(few, pos=None).values, ld.component_stack(full, pos=None).values
    )


@pytest.mark.parametrize("pos", [-1, 0, 3, None, slice(2, 5), [0, -1]])
def test_positions(gpt2, tokens, pos):
    _, cache = run(gpt2, tokens)
    stack = ld.component_stack(cache, pos=pos)
    everything = ld.component_stack(cache, pos=None).values
    picked = everything if pos is None else everything[:, :, pos]
    torch.testing.assert_close(stack.values, picked)
    assert stack.axes == (("batch",) if isinstance(pos, int) else ("batch", "pos"))


def test_last_takes_each_rows_last_real_token(gpt2, tokens):
    _, cache = run(gpt2, tokens)
    everything = ld.component_stack(cache, pos=None).values
    right = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7])
    left = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    stack = ld.component_stack(cache, pos="last", attention_mask=right)
    torch.testing.assert_close(stack.values, everything[:, [0, 1], [3, 6]])
    stack = ld.component_stack(cache, pos="last", attention_mask=left)
    torch.testing.assert_close(stack.values, everything[:, :, -1])


def test_right_padding_is_read_at_the_last_real_token(gpt2, tokens):
    padded = torch.cat([tokens, torch.zeros_like(tokens[:, :2])], 1)
    mask = torch.ones_like(padded)
    mask[:, -2:] = 0
    _, plain = run(gpt2, tokens)
    _, cache = run(gpt2, padded, attention_mask=mask)
    torch.testing.assert_close(
        ld.component_stack(cache, pos="last", attention_mask=mask).values,
        ld.component_stack(plain, pos=-1).values,
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_cache_without_batch_axis(gpt2, tokens):
    _, batched = run(gpt2, tokens[:1])
    _, single = run(gpt2, tokens[:1], remove_batch_dim=True)
    stack = ld.component_stack(single, pos=None)
    assert stack.axes == ("pos",)
    torch.testing.assert_close(stack.values, ld.component_stack(batched, pos=None).values[:, 0])
    one = ld.component_stack(single, pos=-1)
    assert one.axes == ()
    assert one.batch_shape == ()
    mask = torch.tensor([1, 1, 1, 0, 0, 0, 0])
    last = ld.component_stack(single, pos="last", attention_mask=mask)
    torch.testing.assert_close(last.values, stack.values[:, 2])


def test_a_cache_of_one_position_and_its_logits(gpt2, tokens):
    logits, cache = run(gpt2, tokens, names_filter=ld.names_filter, pos_slice=-1, logits_to_keep=1)
    stack = ld.component_stack(cache)
    total = ld.component_logits(stack).sum(0)
    torch.testing.assert_close(total, logits[:, -1], atol=1e-4, rtol=1e-4)


def test_hooks_of_the_user_show_in_the_components(gpt2, tokens):
    def halve(tensor, hook):
        return 0.5 * tensor

    _, plain = run(gpt2, tokens)
    with gpt2.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", halve)]):
        logits, cache = run(gpt2, tokens)
    stack = ld.component_stack(cache)
    index = stack.labels.index("0_mlp_out")
    before = ld.component_stack(plain).values[index]
    torch.testing.assert_close(stack.values[index], 0.5 * before)
    torch.testing.assert_close(
        ld.component_logits(stack).sum(0), logits[:, -1], atol=1e-4, rtol=1e-4
    )


def test_an_edit_of_the_stream_itself_is_refused_and_can_be_kept_as_remainder(gpt2, tokens):
    def steer(tensor, hook):
        # Not a constant, which LayerNorm would not see.
        return tensor + torch.linspace(-3, 3, tensor.shape[-1])

    with gpt2.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", steer)]):
        logits, cache = run(gpt2, tokens)
    stack = ld.component_stack(cache)
    with pytest.raises(ValueError, match=r"do not add up.*misses.*with_remainder"):
        ld.component_logits(stack)
    whole = stack.with_remainder()
    assert whole.labels[-1] == "remainder"
    assert whole.modules[-1] == "remainder"
    torch.testing.assert_close(
        ld.component_logits(whole).sum(0), logits[:, -1], atol=1e-4, rtol=1e-4
    )


def test_missing_hooks_are_named_with_the_filter_that_brings_them(gpt2, tokens):
    _, cache = run(gpt2, tokens, names_filter=lambda name: name.endswith("hook_attn_out"))
    with pytest.raises(ValueError, match=r"lacks hook_embed.*names_filter=lens_diversity"):
        ld.component_stack(cache)
    _, cache = run(gpt2, tokens, names_filter=lambda name: "hook_scale" not in name)
    with pytest.raises(ValueError, match=r"lacks ln_final\.hook_scale"):
        ld.component_stack(cache)


def test_a_dict_is_no_cache(gpt2, tokens):
    _, activations = run(gpt2, tokens, return_cache_object=False)
    with pytest.raises(TypeError, match="ActivationCache"):
        ld.component_stack(activations)
    assert len(ld.component_stack(ActivationCache(activations, gpt2))) == 6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_activations_are_named(gpt2, tokens, bad):
    def spoil(tensor, hook):
        tensor = tensor.clone()
        tensor[1] = bad
        return tensor

    with gpt2.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", spoil)]):
        _, cache = run(gpt2, tokens)
    with pytest.raises(ValueError, match=r"1_mlp_out.*1 of 2 rows"):
        ld.component_stack(cache)


def test_training_mode_is_refused():
    model = build("llama")
    _, cache = run(model, torch.randint(3, 60, (1, 4)))
    model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        ld.component_stack(cache)


@pytest.mark.parametrize(
    ("pos", "message"),
    [
        (7, "out of range: the cache holds 7"),
        (-8, "out of range"),
        ([], "out of range"),
        ([0, 9], "out of range"),
        (slice(5, 5), "none of the cache's 7"),
        ("first", "pos must be"),
        ("last", "needs attention_mask"),
    ],
)
def test_bad_positions(gpt2, tokens, pos, message):
    _, cache = run(gpt2, tokens)
    with pytest.raises(ValueError, match=message):
        ld.component_stack(cache, pos=pos)


def test_bad_masks(gpt2, tokens):
    _, cache = run(gpt2, tokens)
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 3\)"):
        ld.component_stack(cache, pos="last", attention_mask=torch.ones(2, 3))
    with pytest.raises(ValueError, match="without any real token"):
        ld.component_stack(cache, pos="last", attention_mask=torch.zeros(2, 7))


def test_unknown_unit(gpt2, tokens):
    _, cache = run(gpt2, tokens)
    with pytest.raises(ValueError, match="unit must be one of"):
        ld.component_stack(cache, unit="layer")


def test_repr_says_what_is_inside(gpt2, tokens):
    _, cache = run(gpt2, tokens)
    assert repr(ld.component_stack(cache)) == (
        "ComponentStack(6 components x batch 2 x d_model 32: 2 embed, 2 attn, 2 mlp)"
    )


def test_a_stack_of_ones_own_vectors():
    readout = ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3), normalised=True, eps=0.0)
    values = torch.tensor([[3.0, 0, 0], [0, 4.0, 0]])
    stack = ComponentStack.from_values(values, readout)
    expected = values / values.sum(0).pow(2).mean().sqrt()
    torch.testing.assert_close(ld.component_logits(stack), expected)
