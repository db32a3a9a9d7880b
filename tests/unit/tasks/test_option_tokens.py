"""The token of an option is the one that the model would have to say next."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lens_diversity.tasks import Task, option_token_ids, tokenize_prompts

WORDS = "Was that sentence positive or negative ? Answer: negative Answer: positive Yes No"
PROMPTS = ["Was that positive? Answer:", "Was that sentence negative or positive? Answer:"]
OPTIONS = ["negative", "positive"]


def byte_level(**special):
    """GPT-2's kind: a space is part of the word behind it, nothing is added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def metaspace(model="unigram", suffix=""):
    """Llama's kind: a space is a visible mark, and a BOS token comes first."""
    special = ["<unk>", "<s>", "</s>"]
    if model == "unigram":
        words = {f"▁{word}": -1.0 for word in WORDS.split()}
        letters = dict.fromkeys(["▁", *WORDS], -10.0)
        scores = {**dict.fromkeys(special, 0.0), **letters, **words}
        tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=0))
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if model == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator([WORDS] * 4, trainer)
    return with_bos(tokenizer, suffix)


def with_bos(tokenizer, suffix=""):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"<s> $A{suffix}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def across_words():
    """Llama 2's kind: spaces are replaced in the text, and merges may cross them."""
    letters = ["<unk>", "<s>", "</s>", "▁", *"Answer:noys", ":▁", ":▁n"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(dict.fromkeys(letters))},
            merges=[(":", "▁"), (":▁", "n")],
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return with_bos(tokenizer)


TOKENIZERS = {
    "byte-level BPE": byte_level,
    "Metaspace Unigram": metaspace,
    "Metaspace BPE": lambda: metaspace("bpe"),
}


@pytest.fixture(params=TOKENIZERS, scope="module")
def tokenizer(request):
    return TOKENIZERS[request.param]()


def test_the_first_token_behind_the_prompt(tokenizer):
    found = option_token_ids(tokenizer, PROMPTS, OPTIONS)
    for prompt, ids in zip(PROMPTS, found.ids, strict=True):
        n = len(tokenizer(prompt)["input_ids"])
        assert ids == [tokenizer(f"{prompt} {option}")["input_ids"][n] for option in OPTIONS]
    assert found.ids[0] == found.ids[1]
    pieces = tokenizer.convert_ids_to_tokens(found.ids[0])
    assert all(piece.startswith(("Ġ", "▁")) for piece in pieces)
    assert found.n_unique == 2


def test_a_task_brings_its_options_and_prefix(tokenizer):
    task = Task("t", PROMPTS, [OPTIONS, ["Yes", "No", "or"]], [0, 1])
    found = option_token_ids(tokenizer, task)
    assert found.ids[0] == option_token_ids(tokenizer, PROMPTS[:1], OPTIONS).ids[0]
    assert [len(ids) for ids in found.ids] == [2, 3]
    assert found.n_unique == 5
    with pytest.raises(ValueError, match="brings its own options"):
        option_token_ids(tokenizer, task, OPTIONS)
    with pytest.raises(ValueError, match="give the options of these prompts"):
        option_token_ids(tokenizer, PROMPTS)


def test_options_of_several_tokens_are_told():
    tokenizer = byte_level()
    found = option_token_ids(tokenizer, PROMPTS, ["negatively", "positive"])
    assert found.multi_token == {"negatively": ["Ġnegative", "l", "y"]}
    assert found.ids[0] == option_token_ids(tokenizer, PROMPTS, OPTIONS).ids[0]


def test_more_rows_than_one_call_takes():
    tokenizer = byte_level()
    prompts = [f"{'that ' * (i % 7)}Answer:" for i in range(1100)]
    options = [OPTIONS if i % 2 else ["Yes", "No", "or"] for i in range(1100)]
    found = option_token_ids(tokenizer, prompts, options)
    single = [option_token_ids(tokenizer, prompts[i : i + 1], options[i]).ids[0] for i in (0, 1)]
    assert found.ids == single * 550


def test_options_with_the_same_first_token_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"options 'negative' and 'negative or' of prompts\[0\]"):
        option_token_ids(tokenizer, PROMPTS, ["negative", "positive", "negative or"])


def test_a_shared_mark_of_a_space_is_named():
    with pytest.raises(ValueError, match=r"'xa' and 'xb' .* begin with the token 'Ġ' \(id \d+\)"):
        option_token_ids(byte_level(), PROMPTS, ["xa", "xb"])


def test_the_unknown_token_is_no_option():
    tokenizer = across_words()
    with pytest.raises(ValueError, match=r"option '雪' .* begins with the unknown token '<unk>'"):
        option_token_ids(tokenizer, ["Answer"], ["雪", "y"], answer_prefix="")


def test_a_prompt_that_ends_in_the_middle_of_a_token():
    with pytest.raises(
        ValueError, match=r"prompts\[1\], which ends 'is it pos', .*'itive' share a"
    ):
        option_token_ids(byte_level(), ["Answer:", "is it pos"], ["itive", "!"], answer_prefix="")


def test_merges_across_the_space():
    with pytest.raises(
        ValueError, match=r"ends in \[':'\], with the answer in \[':▁n', 'o'\]; change"
    ):
        option_token_ids(across_words(), ["Answer:"], ["no", "yes"])
    assert option_token_ids(across_words(), ["Answer"], ["no", "yes"], answer_prefix="").ids


def test_white_space_at_the_end_of_a_prompt(tokenizer):
    with pytest.raises(ValueError, match="the prompt ends with white space: take it off"):
        option_token_ids(tokenizer, ["Answer: "], OPTIONS, answer_prefix="")


def test_prompts_have_the_tokenizers_own_special_tokens():
    bos = metaspace()
    assert tokenize_prompts(bos, PROMPTS) == [bos(prompt)["input_ids"] for prompt in PROMPTS]
    assert all(ids[0] == bos.bos_token_id for ids in tokenize_prompts(bos, PROMPTS))
    plain = byte_level(bos_token="<|end|>")
    assert plain.bos_token_id not in tokenize_prompts(plain, PROMPTS)[0]
    assert tokenize_prompts(bos, []) == []


def test_a_second_bos_is_refused():
    with pytest.raises(ValueError, match=r"prompts\[1\] begins with '<s>' twice"):
        tokenize_prompts(metaspace(), [PROMPTS[0], "<s>" + PROMPTS[1]])


def test_an_appended_token_is_refused():
    with pytest.raises(ValueError, match="the tokenizer appends '</s>' to its input"):
        tokenize_prompts(metaspace(suffix=" </s>"), PROMPTS)


def test_prompts_that_are_none(tokenizer):
    with pytest.raises(ValueError, match=r"prompts\[1\] has no tokens: ' '"):
        tokenize_prompts(tokenizer, ["Yes", " "])
    with pytest.raises(TypeError):
        tokenize_prompts(tokenizer, "Answer:")
    with pytest.raises(TypeError, match="expected a Hugging Face tokenizer, found None"):
        tokenize_prompts(None, PROMPTS)


def test_prompts_are_never_cut():
    tokenizer = byte_level(model_max_length=4)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert len(tokenize_prompts(tokenizer, PROMPTS)[1]) > 4


@pytest.mark.smollm2
def test_the_options_of_sst2_for_smollm2(smollm2):
    prompt = "a film\nQuestion: Was that sentence positive or negative? Answer:"
    found = option_token_ids(smollm2.tokenizer, [prompt], OPTIONS)
    assert found.ids == [[3524, 2731]]
    assert found.multi_token == {}
