"""Prompts as token ids, and the token that stands for each option after its prompt.

One policy for special tokens: the tokenizer's own default (``add_special_tokens=True``). Llama's
and Mistral's put a BOS token in front, GPT-2's and SmolLM2's none; prompts and options are
tokenised in the same way, so an option's token is the one the model would have to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lens_diversity.tasks.task import Task

# Rows tokenised in one call: enough to use all threads of a fast tokenizer, without holding the
# token ids of every joint text of a large task at once.
_ROWS = 512


@dataclass(frozen=True)
class OptionTokens:
    """The token that stands for each option."""

    ids: list[list[int]]
    """Token ids ``[example][option]``."""
    multi_token: dict[str, list[str]]
    """Options of more than one token and their tokens (as first met): only the first is scored."""
    n_unique: int
    """How many different tokens stand for options, over all rows."""


def tokenize_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Tokenise prompts as the model reads them, without padding or truncation.

    Args:
        tokenizer: A Hugging Face tokenizer.
        prompts: Texts.

    Returns:
        Token ids, one list a prompt.

    Raises:
        TypeError: If ``prompts`` is a single string or ``tokenizer`` cannot be called.
        ValueError: If the tokenizer appends a token to its input, a prompt begins with BOS twice,
            or a prompt has no tokens.
    """
    if isinstance(prompts, str):
        raise TypeError("prompts must be a list of texts, found a single string")
    prompts = list(prompts)
    if not prompts:
        return []
    ids = _encode(tokenizer, prompts)
    bos = tokenizer.bos_token_id
    for row, found in enumerate(ids):
        if not prompts[row].strip() or not found:
            raise ValueError(f"prompts[{row}] has no tokens: {prompts[row]!r}")
        if bos is not None and found[:2] == [bos, bos]:
            raise ValueError(
                f"prompts[{row}] begins with {tokenizer.bos_token!r} twice: the tokenizer adds it "
                "already, so take it out of the prompt"
            )
    _check_nothing_appended(tokenizer, prompts[0], ids[0])
    return ids


def option_token_ids(
    tokenizer: Any,
    prompts: Task | Sequence[str],
    options: Sequence[Any] | None = None,
    answer_prefix: str | None = None,
) -> OptionTokens:
    """Find the token with which each option begins, in the context of its prompt.

    Prompt and ``prompt + answer_prefix + option`` are tokenised; the first must be the beginning
    of the second, and the next token stands for the option.

    Args:
        tokenizer: A Hugging Face tokenizer.
        prompts: A task, or texts.
        options: The options of all rows, or one list a row; a task brings its own.
        answer_prefix: Text between prompt and option; a task brings its own, else a space.

    Returns:
        Token ids ``[example][option]``, and which options have more than one token.

    Raises:
        TypeError: If ``tokenizer`` cannot be called.
        ValueError: If a prompt's last token changes when the option follows, or two options of a
            row begin with the same token or one with the unknown token; names prompt, options and
            token. Also what [`tokenize_prompts`][lens_diversity.tasks.tokenize_prompts] raises.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"Answer:": 0, "no": 1, "yes": 2, "indeed": 3}))
        >>> words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        >>> found = option_token_ids(tokenizer, ["Answer:"], ["no", "yes indeed"])
        >>> found.ids, found.multi_token
        ([[1, 2]], {'yes indeed': ['yes', 'indeed']})
    """
    task = _as_task(prompts, options, answer_prefix)
    ids: list[list[int]] = []
    multi_token: dict[str, list[str]] = {}
    contexts = tokenize_prompts(tokenizer, task.prompts)
    for start in range(0, len(task), _ROWS):
        rows = range(start, min(start + _ROWS, len(task)))
        pairs = [(row, option) for row in rows for option in task.row_options(row)]
        joint = iter(
            _encode(tokenizer, [task.prompts[r] + task.answer_prefix + o for r, o in pairs])
        )
        for row in rows:
            tails = {
                option: _tail(tokenizer, task, row, option, contexts[row], next(joint))
                for option in task.row_options(row)
            }
            _check_distinct(tokenizer, row, tails)
            ids.append([tail[0] for tail in tails.values()])
            for option, tail in tails.items():
                if len(tail) > 1 and option not in multi_token:
                    multi_token[option] = tokenizer.convert_ids_to_tokens(tail)
    return OptionTokens(ids, multi_token, len({token for row_ids in ids for token in row_ids}))


def _as_task(
    prompts: Task | Sequence[str], options: Sequence[Any] | None, answer_prefix: str | None
) -> Task:
    if isinstance(prompts, Task):
        if options is not None or answer_prefix is not None:
            raise ValueError("a task brings its own options and answer_prefix: give only the task")
        return prompts
    if options is None:
        raise ValueError("give the options of these prompts, or a task instead of prompts")
    prefix = " " if answer_prefix is None else answer_prefix
    return Task("prompts", list(prompts), options, [0] * len(prompts), answer_prefix=prefix)


def _encode(tokenizer: Any, texts: list[str], *, special: bool = True) -> list[list[int]]:
    if not callable(tokenizer):
        raise TypeError(f"expected a Hugging Face tokenizer, found {tokenizer!r}")
    # Texts longer than the model are for the caller to refuse, who knows the model.
    encoded = tokenizer(
        texts, add_special_tokens=special, padding=False, truncation=False, verbose=False
    )
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def _check_nothing_appended(tokenizer: Any, text: str, ids: list[int]) -> None:
    """An answer cannot be predicted behind an end-of-text token."""
    (plain,) = _encode(tokenizer, [text], special=False)
    if ids[-1:] != plain[-1:]:
        token = tokenizer.convert_ids_to_tokens(ids[-1])
        raise ValueError(
            f"the tokenizer appends {token!r} to its input, after which no answer can follow; "
            "load it without (for example add_eos_token=False)"
        )


def _tail(
    tokenizer: Any, task: Task, row: int, option: str, context: list[int], joint: list[int]
) -> list[int]:
    """Return the tokens that the option adds to its prompt."""
    n = len(context)
    if joint[:n] == context and len(joint) > n:
        return joint[n:]
    same = next((i for i, token in enumerate(context) if joint[i : i + 1] != [token]), n)
    prompt = task.prompts[row]
    advice = (
        "the prompt ends with white space: take it off there and put it into answer_prefix"
        if prompt != prompt.rstrip()
        else "change answer_prefix or the end of the prompt so that a token ends between them"
    )
    raise ValueError(
        f"prompts[{row}], which ends {prompt[-20:]!r}, and the answer "
        f"{task.answer_prefix + option!r} share a token: alone the prompt ends in "
        f"{tokenizer.convert_ids_to_tokens(context[same:])}, with the answer in "
        f"{tokenizer.convert_ids_to_tokens(joint[same:])}; {advice}"
    )


def _check_distinct(tokenizer: Any, row: int, tails: dict[str, list[int]]) -> None:
    seen: dict[int, str] = {}
    for option, (first, *_) in tails.items():
        token = tokenizer.convert_ids_to_tokens(first)
        if first == tokenizer.unk_token_id:
            raise ValueError(
                f"option {option!r} of prompts[{row}] begins with the unknown token {token!r}: "
                "the tokenizer lacks its characters"
            )
        other = seen.setdefault(first, option)
        if other != option:
            raise ValueError(
                f"options {other!r} and {option!r} of prompts[{row}] both begin with the token "
                f"{token!r} (id {first}), so logits of one token cannot tell them apart; choose "
                "options that begin differently"
            )
