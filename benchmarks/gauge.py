"""How much of the logit-space diversity is the gauge: the table of docs/theory.md.

python benchmarks/gauge.py [--model smollm2]
"""

from __future__ import annotations

import argparse

import torch

import lens_diversity as ld

PROMPT = "A delight from start to end.\nQuestion: Was that sentence positive or negative? Answer:"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()

    print(f"{'weights':14s} {'tokens':>7s} {'gauge':8s} {'loss':14s}", end="")
    print(f"{'error':>12s} {'bias':>12s} {'diversity':>12s}")
    for compatible in (False, True):
        model = ld.load_model(options.model)
        if compatible:
            model.enable_compatibility_mode()
        tokens = model.tokenizer(PROMPT, return_tensors="pt").input_ids
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens, names_filter=ld.names_filter)
        stack = ld.component_stack(cache)
        gold = model.to_single_token(" positive")
        vocabularies = {None: [gold], (model.to_single_token(" negative"), gold): [1]}
        for vocab, targets in vocabularies.items():
            for gauge in ("model", "centred"):
                for loss in ("squared", "paper", "brier", "cross_entropy"):
                    result = ld.decompose(
                        stack, targets, vocab, loss, gauge=gauge, dtype=torch.float64
                    )
                    weights = "compatibility" if compatible else "raw"
                    print(f"{weights:14s} {result.n_vocab:7d} {gauge:8s} {loss:14s}", end="")
                    terms = (result.error, result.bias, result.diversity)
                    print(" ".join(f"{float(term):12.6g}" for term in terms))


if __name__ == "__main__":
    main()
