"""Ways to a silently wrong number that a hostile reader found, each closed."""

import dataclasses

import pytest
import torch

import lens_diversity as ld
from tests.families import build

TOKENS = torch.arange(4, 22).view(3, 6)
GOLD = [1, 2, 3]
READOUT = ld.Readout(W_U=torch.eye(4), b_U=torch.zeros(4))


@pytest.fixture(scope="module")
def llama():
    return build("llama")


def run(model, **options):
    with torch.no_grad():
        return model.run_with_cache(TOKENS, **options)


def test_an_edit_of_what_the_unembedding_reads_is_seen(llama):
    with llama.hooks(fwd_hooks=[("unembed.hook_in", lambda tensor, hook: 0.5 * tensor)]):
        _, cache = run(llama, names_filter=ld.names_filter)
    with pytest.raises(ValueError, match="do not add up"):
        ld.decompose(cache, GOLD, loss="cross_entropy", combine="sum")


def test_a_banned_token_does_not_switch_the_check_off(llama):
    def ban(tensor, hook):
        tensor = tensor.clone()
        tensor[..., 5] = -torch.inf
        return tensor

    def steer(tensor, hook):
        return tensor + torch.linspace(-3, 3, tensor.shape[-1])

    hooks = [("unembed.hook_out", ban), ("blocks.1.hook_resid_pre", steer)]
    with llama.hooks(fwd_hooks=hooks):
        _, cache = run(llama)
    with pytest.raises(ValueError, match="do not add up"):
        ld.decompose(cache, [0, 0, 0], [7, 70])


def test_the_residual_is_compared_where_nothing_later_is_cached(llama):
    def flip(tensor, hook):
        signs = torch.ones(tensor.shape[-1])
        signs[::2] = -1
        return signs * tensor

    def keep(name):
        return ld.names_filter(name) and name not in ("ln_final.hook_out", "unembed.hook_in")

    with llama.hooks(fwd_hooks=[("blocks.1.hook_resid_post", flip)]):
        _, cache = run(llama, names_filter=keep)
    with pytest.raises(ValueError, match="residual stream"):
        ld.decompose(cache, GOLD)


@pytest.mark.parametrize("vocab", [None, [7, 8, 70]])
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_autocast_does_not_reach_the_readout(llama, vocab, loss):
    _, cache = run(llama, names_filter=ld.names_filter)
    expected = ld.decompose(cache, [1, 2, 0], vocab, loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ld.decompose(cache, [1, 2, 0], vocab, loss)
        logits = ld.component_logits(ld.component_stack(cache), vocab)
    assert torch.equal(found.component_diversity, expected.component_diversity)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, ld.component_logits(ld.component_stack(cache), vocab))


@pytest.mark.parametrize(
    "call",
    [
        ld.full_vocab.member_readout,
        ld.full_vocab.whitened_logits,
        ld.full_vocab.ResidualTarget.from_stack,
    ],
)
def test_full_vocabulary_readings_are_checked_too(llama, call):
    _, cache = run(llama)
    cache.cache_dict["blocks.0.hook_mlp_out"] = 2 * cache["blocks.0.hook_mlp_out"]
    with pytest.raises(ValueError, match="do not add up"):
        call(ld.component_stack(cache))


def test_a_mask_that_hides_the_position_is_refused(llama):
    _, cache = run(llama)
    mask = torch.ones_like(TOKENS)
    mask[1, -2:] = 0
    with pytest.raises(ValueError, match=r"padding in rows \[1\]"):
        ld.decompose(cache, GOLD, attention_mask=mask)
    stack = ld.component_stack(cache, "last", attention_mask=mask)
    with pytest.raises(ValueError, match="has its positions and units already"):
        ld.decompose(stack, GOLD, attention_mask=mask)
    with pytest.raises(ValueError, match="has its positions and units already"):
        ld.decompose(stack, GOLD, pos=0)


@pytest.mark.parametrize("analysis", [ld.decompose, ld.leave_one_out, ld.junctions])
def test_no_rows_are_refused(llama, analysis):
    _, cache = run(llama)
    nothing = ld.component_stack(cache).select_rows(slice(0, 0))
    with pytest.raises(ValueError, match="no rows"):
        analysis(nothing, torch.zeros(0, dtype=torch.long))


def test_gradients_reach_a_dense_target_over_the_vocabulary(llama):
    _, cache = run(llama, names_filter=ld.names_filter)
    stack = ld.component_stack(cache)
    target = torch.randn(3, stack.readout.d_vocab, requires_grad=True)
    ld.decompose(stack, target, loss="squared").error.sum().backward()
    found, target.grad = target.grad, None
    every = list(range(stack.readout.d_vocab))
    ld.decompose(stack, target, every, loss="squared").error.sum().backward()
    torch.testing.assert_close(found, target.grad)


def test_statistics_of_half_precision_vectors_are_taken_wide():
    readout = dataclasses.replace(READOUT, normalised=True, eps=1e-6)
    values = (300 * torch.randn(5, 2, 4)).half()
    half = ld.ComponentStack.from_values(values, readout)
    wide = ld.ComponentStack.from_values(values.float(), readout)
    torch.testing.assert_close(half.stream.scale, wide.stream.scale)
    torch.testing.assert_close(ld.component_logits(half), ld.component_logits(wide))


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        (torch.ones(3, 4, dtype=torch.long), {}, TypeError, "floating-point"),
        (torch.ones(4), {}, ValueError, "values must be"),
        (torch.ones(2, 2, 2, 2, 4), {}, ValueError, "values must be"),
        (torch.ones(2, 5), {}, ValueError, "d_model=4"),
        (torch.full((2, 4), torch.nan), {}, ValueError, "NaN"),
        (torch.ones(2, 4), {"labels": ["a"]}, ValueError, "1 labels and 2 modules"),
    ],
)
def test_vectors_of_ones_own_are_checked(values, options, error, message):
    with pytest.raises(error, match=message):
        ld.ComponentStack.from_values(values, READOUT, **options)


def test_a_remainder_is_added_once(llama):
    _, cache = run(llama)
    with pytest.raises(ValueError, match="already"):
        ld.component_stack(cache).with_remainder().with_remainder()


def test_recomputed_statistics_must_end_at_the_models_own(llama):
    with llama.hooks(fwd_hooks=[("ln_final.hook_scale", lambda tensor, hook: 2 * tensor)]):
        _, cache = run(llama)
    ld.junctions(cache, [0, 0, 0], [7, 8])
    with pytest.raises(ValueError, match="use scale='final'"):
        ld.junctions(cache, [0, 0, 0], [7, 8], scale="junction")


@pytest.mark.parametrize("tokens", [TOKENS[0], TOKENS[:, :0], TOKENS.float()])
def test_verify_says_what_tokens_it_takes(llama, tokens):
    with pytest.raises(ValueError, match="tokens must"):
        ld.verify(llama, tokens)


def test_hover_texts_are_escaped_once():
    stack = ld.ComponentStack.from_values(torch.eye(4)[:2].unsqueeze(1), READOUT)
    figure = ld.plots.component_heatmap(ld.decompose(stack, [0]), tokens=["<s>"])
    assert figure.data[0].customdata[0][0] == "&lt;s&gt;"
    assert list(figure.layout.xaxis.ticktext) == ["&lt;s&gt;"]


def test_each_application_of_a_layer_has_its_own_cell():
    labels = ["embed", "0_attn_out", "0_mlp_out", "0_attn_out@2"]
    stack = ld.ComponentStack.from_values(
        torch.eye(4).unsqueeze(1), READOUT, labels, ["embed", "attn", "mlp", "attn"]
    )
    result = ld.decompose(stack, [0])
    trace = ld.plots.layer_module_heatmap(result).data[0]
    assert list(trace.y) == ["other", "0", "0@2"]
    assert trace.z[2][1] == pytest.approx(float(result.component_diversity[3, 0]))


def test_the_cache_of_the_vocabulary_can_be_cleared():
    model = build("llama")
    _, cache = run(model)
    ld.decompose(cache, GOLD, loss="squared")
    model.unembed.original_component.weight.data[9] = 50.0
    ld.full_vocab.clear_cache()
    _, cache = run(model)
    found = ld.decompose(cache, GOLD, loss="squared", dtype=torch.float64)
    members = ld.component_logits(ld.component_stack(cache), dtype=torch.float64)
    expected = ld.functional.krogh_vedelsby(members, torch.tensor(GOLD))
    torch.testing.assert_close(found.diversity, expected.diversity)
