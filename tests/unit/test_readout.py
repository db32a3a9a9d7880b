"""Component logits are exact: they sum to the model's own logits, whatever the family."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lens_diversity as ld
from lens_diversity._bridge import read_readout
from lens_diversity.stack import ComponentStack
from tests.families import FAMILIES, build

TOKENS = torch.randint(3, 60, (3, 8), generator=torch.Generator().manual_seed(1))

OFFSET_NORMS = ("gemma", "gemma2", "gemma3", "nemotron")


def run(model, tokens=TOKENS, **options):
    with torch.no_grad():
        return model.run_with_cache(tokens, **options)


def capped(model, logits):
    cap = read_readout(model).soft_cap
    return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize("compatible", [False, True], ids=["raw", "compatibility"])
@pytest.mark.parametrize("family", FAMILIES)
def test_components_sum_to_the_models_logits(family, compatible):
    model = build(family)
    if compatible:
        model.enable_compatibility_mode()
    logits, cache = run(model)
    stack = ld.component_stack(cache, pos=None)
    total = capped(model, ld.component_logits(stack).sum(0))
    spread = logits.amax(-1, keepdim=True) - logits.amin(-1, keepdim=True)
    assert float(((total - logits).abs() / spread).max()) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_readout_matches_a_naive_one(family):
    """Written from the definition, with the module's own weights and one component at a time."""
    model = build(family)
    _, cache = run(model, names_filter=ld.names_filter)
    stack = ld.component_stack(cache)
    found = ld.component_logits(stack, constant="drop", dtype=torch.float64)

    norm, readout = model.ln_final, read_readout(model)
    scale = cache["ln_final.hook_scale"][:, -1].double()
    weight = getattr(norm, "weight", None)
    gamma = torch.ones(model.cfg.d_model) if weight is None else weight.detach()
    gamma = gamma.double() + (1.0 if family in OFFSET_NORMS else 0.0)
    for index in range(len(stack)):
        for row in range(len(TOKENS)):
            z = stack.values[index, row].double()
            if not norm.uses_rms_norm:
                z = z - z.mean()
            expected = (
                readout.logit_scale * model.W_U.detach().double().T @ (gamma * z / scale[row])
            )
            torch.testing.assert_close(found[index, row], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "gpt2", "cohere", "granite", "gemma2", "phi"])
def test_chosen_tokens_are_columns_of_the_whole(family):
    _, cache = run(build(family))
    stack = ld.component_stack(cache, pos=None)
    whole = ld.component_logits(stack)
    ids = [7, 3, 50]
    for vocab in (ids, torch.tensor(ids), tuple(ids)):
        torch.testing.assert_close(
            ld.component_logits(stack, vocab), whole[..., ids], atol=1e-5, rtol=1e-5
        )


def test_places_of_the_constant():
    model = build("gpt2")
    logits, cache = run(model)
    stack = ld.component_stack(cache)
    spread = ld.component_logits(stack, constant="spread")
    dropped = ld.component_logits(stack, constant="drop")
    member = ld.component_logits(stack, constant="component")
    kappa = read_readout(model).constant(None, like=spread)
    assert float(kappa.abs().max()) > 0.1
    torch.testing.assert_close(spread.mean(0), logits[:, -1] / len(stack), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dropped.sum(0) + kappa, logits[:, -1], atol=1e-4, rtol=1e-4)
    assert member.shape[0] == len(stack) + 1
    torch.testing.assert_close(member[-1], kappa.expand(3, -1))
    torch.testing.assert_close(member.sum(0), logits[:, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_half_precision_caches_are_read_out_in_float32(family, dtype):
    model = build(family, dtype=dtype)
    _, cache = run(model)
    stack = ld.component_stack(cache)
    assert stack.values.dtype == dtype
    logits = ld.component_logits(stack, [3, 4])
    assert logits.dtype == torch.float32
    result = ld.decompose(stack, [0, 1, 0], vocab=[3, 4])
    assert result.error.dtype == torch.float32
    assert 1e-6 < result.reconstruction_error < 2e-2
    assert ld.decompose(stack.with_remainder(), [0, 1, 0], vocab=[3, 4]).labels[-1] == "remainder"


@pytest.mark.parametrize(
    ("family", "cap", "scale"),
    [("gemma2", True, 1.0), ("cohere", False, None), ("granite", False, None)],
)
def test_output_transforms_are_measured(family, cap, scale):
    model = build(family)
    readout = read_readout(model)
    assert (readout.soft_cap is not None) == cap
    if cap:
        assert readout.soft_cap == pytest.approx(model.cfg.output_logits_soft_cap)
    if scale is None:
        assert readout.logit_scale != 1.0
        config = model.original_model.config
        expected = config.logit_scale if family == "cohere" else 1.0 / config.logits_scaling
        assert readout.logit_scale == pytest.approx(expected)
    else:
        assert readout.logit_scale == pytest.approx(scale)


def test_the_readout_shares_the_models_weights():
    model = build("llama")
    readout = read_readout(model)
    assert readout.W_U.data_ptr() == model.W_U.data_ptr()
    assert not readout.W_U.requires_grad


@pytest.mark.parametrize(
    ("vocab", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([3, 3, 4], ValueError, r"repeats the token ids \[3\]"),
        ([-1], ValueError, r"\[-1\] are outside"),
        ([10**6], ValueError, "outside the vocabulary"),
        ([0.5], TypeError, "integer token ids"),
        ([True], TypeError, "integer token ids"),
        ([[1, 2]], ValueError, r"shape \(1, 2\)"),
    ],
)
def test_bad_vocabularies(vocab, error, message):
    _, cache = run(build("llama"))
    with pytest.raises(error, match=message):
        ld.component_logits(ld.component_stack(cache), torch.tensor(vocab))


def test_bad_options():
    _, cache = run(build("llama"))
    stack = ld.component_stack(cache)
    with pytest.raises(ValueError, match="constant must be one of"):
        ld.component_logits(stack, constant="average")
    with pytest.raises(TypeError, match=r"torch\.float32 or torch\.float64"):
        ld.component_logits(stack, dtype=torch.bfloat16)


@pytest.mark.parametrize("record", ["logits", "normalised", "statistic"])
def test_a_wrong_readout_is_refused_by_whatever_record_there_is(record):
    model = build("llama")
    keep = {
        "logits": lambda name: True,
        "normalised": ld.names_filter,
        "statistic": lambda name: (
            ld.names_filter(name)
            and name not in ("ln_final.hook_in", "ln_final.hook_out", "unembed.hook_in")
        ),
    }[record]
    _, cache = run(model, names_filter=keep)
    assert ld.decompose(cache, [0, 0, 0], vocab=[3, 4]).reconstruction_error < 1e-6
    cache.cache_dict["blocks.0.hook_mlp_out"] = 1.5 * cache["blocks.0.hook_mlp_out"]
    with pytest.raises(ValueError, match=r"do not add up.*tolerance 0\.0001"):
        ld.component_logits(ld.component_stack(cache), [3, 4])


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_affine_readout_is_additive(components, rows, centred, biased, dtype):
    """Members sum to the readout of the whole stream: linearity, with the statistics held."""
    generator = torch.Generator().manual_seed(components * 100 + rows)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    readout = ld.Readout(
        W_U=random(6, 9),
        b_U=random(9),
        norm_weight=random(6),
        norm_bias=random(6) if biased else None,
        centred=centred,
        eps=1e-5,
        normalised=True,
        logit_scale=0.7,
    )
    values = random(components, rows, 6)
    total = ld.component_logits(ComponentStack.from_values(values, readout)).sum(0)
    x = values.sum(0)
    if centred:
        normed = torch.nn.functional.layer_norm(x, (6,), readout.norm_weight, readout.norm_bias)
    else:
        normed = torch.nn.functional.rms_norm(x, (6,), readout.norm_weight, eps=1e-5)
        normed = normed if readout.norm_bias is None else normed + readout.norm_bias
    expected = 0.7 * (normed @ readout.W_U + readout.b_U)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(total, expected, atol=tolerance, rtol=tolerance)
