"""Does it help to ask for diversity while training? A tiny model on real text, with and without.

    python examples/train_with_diversity.py [--steps 300] [--seeds 5]

A two-layer character model learns this project's own documentation. Its loss is
``error - weight * diversity`` where ``error = bias - diversity`` is its cross-entropy and the
diversity is that of its components (``combine="sum"``, nats). Negative correlation learning (Liu
and Yao 1999; Brown et al. 2005) does this to ensembles of networks. What counts is the held-out
error; its mean over seeds is printed with a 95 % interval, and so is the paired difference.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import lens_diversity as ld

ROOT = Path(__file__).parent.parent
CONTEXT, BATCH = 48, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.003, -0.003])
    options = parser.parse_args()
    train, held_out, n_characters = corpus()
    rows, plain = [], []
    for seed in range(options.seeds):
        for weight in options.weights:
            model = trained(train, n_characters, weight, options.steps, seed)
            rows.append({"weight": weight, "seed": seed, **measured(model, held_out)})
            print(rows[-1], flush=True)
            if weight == options.weights[0]:
                plain.append(logits_of(model, held_out))
    report(pd.DataFrame(rows))
    report_ensemble(torch.stack(plain), windows_of(held_out)[1])


def corpus() -> tuple[Tensor, Tensor, int]:
    """The documentation as character ids, its last tenth held out."""
    # All but the page that quotes the results.
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "interventions"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    characters = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([characters[character] for character in text])
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:], len(characters)


def trained(
    train: Tensor, n_characters: int, weight: float, steps: int, seed: int
) -> TransformerBridge:
    """Train one model."""
    torch.manual_seed(seed)
    model = character_model(n_characters)
    optimiser = torch.optim.AdamW(model.original_model.parameters(), lr=3e-3, weight_decay=0.01)
    for _ in range(steps):
        starts = torch.randint(len(train) - CONTEXT - 1, (BATCH,))
        windows = torch.stack([train[start : start + CONTEXT + 1] for start in starts])
        tokens, targets = windows[:, :-1], windows[:, 1:]
        # Gradients of diversity reach the components; the unembedding learns from the error.
        with ld.metric(targets, None, "diversity", pos=None, model=model) as diversity:
            logits = model(tokens)
            loss = ld.metric(targets, pos=None)(logits)
            if weight:
                loss = loss - weight * diversity(logits)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.original_model.parameters(), 1.0)
        optimiser.step()
    return model


def character_model(n_characters: int) -> TransformerBridge:
    """A Llama of two layers, untied, as a bridge."""
    config = LlamaConfig(
        vocab_size=n_characters,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    return TransformerBridge.boot_transformers(
        "characters", hf_model=model, tokenizer=characters_tokenizer(n_characters), device="cpu"
    ).eval()


def characters_tokenizer(n_characters: int) -> PreTrainedTokenizerFast:
    """A bridge wants a tokenizer; ids are given here, so it only has to have the right size."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {str(i): i for i in range(n_characters)}
    made = Tokenizer(WordLevel(words, unk_token="0"))
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "0")
    # Without the last two TransformerLens asks the Hub for the same tokenizer with a BOS.
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **names, name_or_path="characters", add_bos_token=True
    )


def measured(model: TransformerBridge, held_out: Tensor) -> dict[str, float]:
    """Error, bias and diversity of the next character on the held-out text."""
    tokens, targets = windows_of(held_out)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
        found = ld.decompose(cache, targets, loss="cross_entropy", combine="sum", pos=None)
    return {name: float(getattr(found, name).mean()) for name in ("error", "bias", "diversity")}


def windows_of(text: Tensor) -> tuple[Tensor, Tensor]:
    """Cut a text into windows and the characters that follow each of theirs."""
    count = (len(text) - 1) // CONTEXT
    return text[: count * CONTEXT].view(count, -1), text[1 : count * CONTEXT + 1].view(count, -1)


def logits_of(model: TransformerBridge, held_out: Tensor) -> Tensor:
    """The model's logits on the held-out text."""
    with torch.no_grad():
        return model(windows_of(held_out)[0])


def report(table: pd.DataFrame) -> None:
    """Means over seeds, and differences from the first weight, seed by seed."""
    first = table["weight"].iloc[0]
    plain = table[table["weight"] == first].set_index("seed")
    print(f"\n| weight | held-out error | bias | diversity | error minus that of {first:g} |")
    print("|---|---|---|---|---|")
    for weight, rows in table.groupby("weight", sort=False):
        difference = rows.set_index("seed")["error"] - plain["error"]
        cells = [interval(rows[name]) for name in ("error", "bias", "diversity")]
        print(f"| {weight:g} | {' | '.join(cells)} | {interval(difference)} |")


def report_ensemble(members: Tensor, targets: Tensor) -> None:
    """The seeds of the first weight as one ensemble: what averaging independent models gives."""
    print(f"\n| ensemble of {len(members)} seeds | error | bias | diversity |\n|---|---|---|---|")
    for name, ambiguity in (
        ("mean of logits, cross-entropy in nats", ld.functional.cross_entropy_ambiguity),
        ("mean of probabilities, Brier score", ld.functional.brier_ambiguity),
    ):
        terms = ambiguity(members, targets)
        assert torch.allclose(terms.error, terms.bias - terms.diversity, atol=1e-4)
        cells = [
            f"{float(getattr(terms, part).mean()):.5f}" for part in ("error", "bias", "diversity")
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def interval(values: pd.Series) -> str:
    """Mean with Student's 95 % interval."""
    mean, count = float(values.mean()), len(values)
    if count < 2 or np.ptp(values) == 0:
        return f"{mean:.4f}"
    half = stats.t.ppf(0.975, count - 1) * float(values.std()) / count**0.5
    return f"{mean:.4f} ({mean - half:.4f} to {mean + half:.4f})"


if __name__ == "__main__":
    main()
