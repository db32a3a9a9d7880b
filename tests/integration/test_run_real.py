"""Trained models on real rows of the paper's tasks."""

from dataclasses import replace

import pytest
import torch

import lens_diversity as ld
from lens_diversity.evaluation import prompts


def largest_miss(model, task, run):
    """Members' sum against the model's logits of one unpadded prompt at a time."""
    encoded = prompts.encode(model.tokenizer, task, int(model.cfg.n_ctx), "error")
    misses = []
    with torch.no_grad():
        for row, (prompt, options) in enumerate(zip(encoded.prompts, encoded.options, strict=True)):
            own = model(torch.tensor([prompt]), logits_to_keep=1)[0, -1]
            found = run.option_logits[row, :, : len(options)].sum(0)
            misses.append(float((found - own[options]).abs().max() / (own.max() - own.min())))
    return max(misses)


def test_a_trained_model_with_bos_gives_its_own_logits(stories260k, data_dir):
    task = ld.tasks.load("sst2", limit=40, data_files=data_dir / "sst2" / "dev.tsv")
    run = ld.evaluate(stories260k, task, batch_size=7)
    assert largest_miss(stories260k, task, run) < 1e-5
    assert len(run.labels) == 11


@pytest.mark.smollm2
def test_sst2_lands_where_the_paper_does(smollm2, data_dir):
    task = ld.tasks.load("sst2", limit=24, data_files=data_dir / "sst2" / "dev.tsv")
    run = ld.evaluate(smollm2, task, batch_size=8)
    assert largest_miss(smollm2, task, run) < 1e-5
    summary = run.summary()
    assert len(run.labels) == 61
    # Table 1, MobileLLM-125M on SST-2: both sit at the uniform predictor's 0.25.
    assert summary["mse"] == pytest.approx(0.25, abs=0.002)
    assert summary["bias"] == pytest.approx(0.25, abs=0.005)
    assert summary["diversity_share"]["mlp"] > 0.8
    assert summary["diversity_share"]["embed"] < 0.002


@pytest.mark.smollm2
def test_arc_rows_of_three_to_five_choices_are_kept(smollm2, data_dir):
    task = ld.tasks.load("arc", data_files=data_dir / "arc" / "ARC-Challenge-Dev.jsonl")
    widths = [len(task.row_options(row)) for row in range(len(task))]
    chosen = [row for row, width in enumerate(widths) if width != 4] + [0, 1]
    part = replace(
        task,
        prompts=[task.prompts[row] for row in chosen],
        options=[task.row_options(row) for row in chosen],
        gold=[task.gold[row] for row in chosen],
    )
    run = ld.evaluate(smollm2, part, batch_size=4)
    assert set(run.n_options.tolist()) == {3, 4, 5}
    assert largest_miss(smollm2, part, run) < 1e-5
    assert len(run.decomposition().error) == len(chosen)
    assert bool(run.decomposition().error.isfinite().all())
