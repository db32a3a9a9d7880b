"""A task in tokens: what is too long is refused by name, or cut where nothing of the answer is."""

import pytest

from lens_diversity.evaluation.prompts import encode
from tests import families
from tests.unit.evaluation import toy


@pytest.fixture(scope="module")
def tokenizer():
    return families.tokenizer()


def test_prompts_and_options_are_tokenised(tokenizer):
    task = toy.task(3)
    encoded = encode(tokenizer, task, n_ctx=200, overlong="error")
    assert [tokenizer.decode(ids[1:]) for ids in encoded.prompts] == task.prompts
    assert [ids[0] for ids in encoded.prompts] == [tokenizer.bos_token_id] * 3
    assert tokenizer.convert_ids_to_tokens(encoded.options[0]) == ["▁B", "▁G", "▁M"]
    assert set(encoded.multi_token) == {"Bad", "Good", "Mixed"}
    assert encoded.n_truncated == 0


def test_overlong_prompts_are_counted_and_named(tokenizer):
    with pytest.raises(ValueError, match=r"2 of 9 prompts .* 70 tokens .*prompt 2 .*prompts 2, 8"):
        encode(tokenizer, toy.task(9), n_ctx=70, overlong="error")


@pytest.mark.parametrize("bos", ["kept", "none"])
def test_overlong_prompts_are_cut_from_the_left(tokenizer, bos):
    if bos == "none":
        tokenizer = families.tokenizer()
        tokenizer.backend_tokenizer.post_processor = None
    whole = encode(tokenizer, toy.task(9), n_ctx=500, overlong="error").prompts
    encoded = encode(tokenizer, toy.task(9), n_ctx=70, overlong="truncate")
    assert encoded.n_truncated == 2
    assert max(encoded.n_tokens) == 70
    for cut, prompt in zip(encoded.prompts, whole, strict=True):
        kept = len(cut) - (bos == "kept")
        assert cut[-kept:] == prompt[-kept:]
        assert cut[0] == prompt[0] if bos == "kept" or len(prompt) <= 70 else cut == prompt[-70:]


def test_unknown_policies_are_refused(tokenizer):
    with pytest.raises(ValueError, match="overlong must be one of"):
        encode(tokenizer, toy.task(), n_ctx=100, overlong="skip")
