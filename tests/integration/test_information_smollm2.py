"""Information of a trained model's components on real rows, and real ablations."""

import numpy as np
import pytest

import lens_diversity as ld
from lens_diversity import information
from lens_diversity.plots import information as figures

ROWS = 200


@pytest.fixture(scope="module")
def news(smollm2, data_dir):
    task = ld.tasks.load("ag_news", limit=ROWS, data_files=data_dir / "ag_news" / "test.csv")
    return task, ld.evaluate(smollm2, task, batch_size=16)


@pytest.mark.smollm2
def test_one_late_attention_output_knows_most_of_what_the_components_know(news):
    _, run = news
    found = information.of_run(run, "gaussian", gauge="centred", orders=["network"])
    best = found.members().sort_values("information").iloc[-1]
    assert best["label"] == "27_attn_out"
    assert best["information"] > 0.5
    # Its own Bayes rule on its option logits does far better than the network with all components.
    alone = information.curve(run.option_logits, run.gold, [int(best.name)], "gaussian").table
    assert alone["combiner_error"].item() < found.network_error - 0.1
    assert len(figures.information_figures(found)) == 4


@pytest.mark.smollm2
def test_predicted_options_of_all_components_are_refused(news):
    _, run = news
    found = information.of_run(run, orders=["network"])
    assert found.estimate is None
    assert f"{ROWS} examples cannot support 61 members" in found.reason
    assert found.terms.relevancy > 0.3
    curve = found.curves["network"]
    assert 1 <= len(curve.table) < 10
    assert "cannot support" in curve.stopped[0]


@pytest.mark.smollm2
def test_shuffled_gold_labels_tell_nothing(news):
    _, run = news
    labels = np.random.default_rng(0).permutation(run.gold.numpy())
    found = information.mutual_information(run.option_logits[:, [55, 59, 60]], labels, "gaussian")
    assert found.low == 0


@pytest.mark.smollm2
def test_selected_components_alone_and_in_a_real_forward_pass(smollm2, news):
    task, run = news
    chosen = information.select_components(run, 3)
    assert chosen.accuracy > chosen.majority_accuracy
    examples = chosen.checked_on[:24]
    found = information.mean_ablation(smollm2, task, chosen.labels, examples=examples)
    hits = run.predictions[list(examples)] == run.gold[list(examples)]
    assert found.network_accuracy == pytest.approx(float(hits.double().mean()))
    assert 0 <= found.accuracy <= 1
    assert found.kept == chosen.labels
