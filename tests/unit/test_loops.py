"""Blocks that run several times in one forward pass, against the same model unrolled."""

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.modeling_outputs import BaseModelOutputWithPast

import lens_diversity as ld
from lens_diversity.loops import looped_component_stack
from tests import families

IDS = torch.tensor([[5, 9, 20, 7, 30, 11], [8, 3, 17, 40, 41, 6]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])

# Which physical block runs at each step.
BLOCKWISE = [0, 0, 1, 1]
STACKWISE = [0, 1, 0, 1]


class Looping(LlamaModel):
    """A Llama body that runs its blocks in the order ``config.order``."""

    def forward(self, input_ids=None, attention_mask=None, **_):
        stream = self.embed_tokens(input_ids)
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        allowed = torch.ones(len(positions[0]), len(positions[0])).tril().bool()
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None]
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
        rotary = self.rotary_emb(stream, position_ids=positions)
        for step, index in enumerate(self.config.order):
            # As in Ouro, where the final norm also ends every pass over the stack.
            if step in self.config.norm_before:
                stream = self.norm(stream)
            stream = self.layers[index](
                stream, attention_mask=mask, position_ids=positions, position_embeddings=rotary
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(stream))


class LoopingLlama(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model = Looping(config)
        self.post_init()


def config(n_blocks):
    return LlamaConfig(
        vocab_size=families.VOCAB,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=n_blocks,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        architectures=["LlamaForCausalLM"],
    )


def boot(hf_model):
    return TransformerBridge.boot_transformers(
        "looping",
        hf_model=hf_model.eval(),
        tokenizer=families.tokenizer(),
        device="cpu",
        dtype=torch.float32,
    ).eval()


def looping(order, norm_before=()):
    """A model of two blocks in the given order, and a copy of its weights."""
    torch.manual_seed(0)
    settings = config(2)
    settings.order, settings.norm_before = order, norm_before
    model = LoopingLlama(settings)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    return boot(model), weights


def unrolled(order, weights):
    """An ordinary Llama with a copy of a block for each time that it runs."""
    copies = {name: weight for name, weight in weights.items() if ".layers." not in name}
    for step, index in enumerate(order):
        old, new = f".layers.{index}.", f".layers.{step}."
        copies |= {name.replace(old, new): weights[name] for name in weights if old in name}
    model = LlamaForCausalLM(config(len(order)))
    model.load_state_dict(copies)
    return boot(model)


@pytest.fixture(scope="module", params=[BLOCKWISE, STACKWISE], ids=["blockwise", "stackwise"])
def pair(request):
    looped, weights = looping(request.param)
    return looped, unrolled(request.param, weights)


@pytest.mark.parametrize("pos", [-1, None, "last", [1, 4]])
def test_every_application_is_a_component(pair, pos):
    looped, plain = pair
    _, cache = plain.run_with_cache(IDS, attention_mask=MASK, names_filter=ld.names_filter)
    expected = ld.component_stack(cache, pos, attention_mask=MASK)
    stack = looped_component_stack(looped, IDS, pos, attention_mask=MASK)
    assert len(stack) == 1 + 2 * 4
    assert (stack.modules, stack.axes) == (expected.modules, expected.axes)
    torch.testing.assert_close(stack.values, expected.values, rtol=0, atol=1e-5)
    for part in ("scale", "residual", "normalised"):
        found, wanted = getattr(stack.stream, part), getattr(expected.stream, part)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    logits = plain(IDS, attention_mask=MASK)
    torch.testing.assert_close(looped(IDS, attention_mask=MASK), logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        ld.component_logits(stack).sum(0),
        ld.component_logits(expected).sum(0),
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("order", "steps"),
    [(BLOCKWISE, ["0{}", "0{}@2", "1{}", "1{}@2"]), (STACKWISE, ["0{}", "1{}", "0{}@2", "1{}@2"])],
)
def test_labels_are_in_the_order_of_execution(order, steps):
    stack = looped_component_stack(looping(order)[0], IDS)
    kinds = ("_attn_out", "_mlp_out")
    assert stack.labels == ["embed", *(step.format(kind) for step in steps for kind in kinds)]
    assert stack.modules == ["embed", *["attn", "mlp"] * 4]


def test_without_loops_it_is_the_stack_of_the_cache(bridge):
    for name in ("gpt2", "gemma2"):
        model = bridge(name)
        _, cache = model.run_with_cache(IDS, names_filter=ld.names_filter)
        expected = ld.component_stack(cache, pos=None)
        stack = looped_component_stack(model, IDS, pos=None)
        assert stack.labels == expected.labels
        assert torch.equal(stack.values, expected.values)
        assert stack.stream.logits is not None


def test_a_cache_of_a_looping_model_is_refused(pair):
    looped, _ = pair
    _, cache = looped.run_with_cache(IDS, names_filter=ld.names_filter)
    with pytest.raises(ValueError, match="do not add up"):
        ld.component_logits(ld.component_stack(cache))


def test_a_final_norm_between_loops_is_refused():
    model, _ = looping(STACKWISE, norm_before=(2,))
    with pytest.raises(ld.UnsupportedModelError, match="runs its final norm 2 times"):
        looped_component_stack(model, IDS)


def test_bad_input_is_refused_before_the_run(bridge):
    with pytest.raises(ValueError, match="pos=9 is out of range"):
        looped_component_stack(bridge("gpt2"), IDS, pos=9)
    with pytest.raises(ValueError, match="needs attention_mask="):
        looped_component_stack(bridge("gpt2"), IDS, pos="last")
    with pytest.raises(TypeError, match="expected a TransformerLens bridge"):
        looped_component_stack(torch.nn.Linear(2, 2), IDS)
