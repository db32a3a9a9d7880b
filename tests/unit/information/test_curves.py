"""Curves along orders, the submodularity gap, and what is chosen from a run."""

import numpy as np
import pandas as pd
import pytest
import torch

from lens_diversity import information
from lens_diversity.plots import information as figures
from tests.unit.evaluation.toy import run as toy_run
from tests.unit.information.distributions import DISCRETE, discrete, symmetric


def graded(n=600, members=6, seed=0, options=2):
    """Members that know more the later they come, the last the most."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n)
    logits = rng.normal(size=(n, members, options))
    logits[np.arange(n), :, labels] += np.linspace(0, 1.5, members)
    return logits, labels


@pytest.mark.parametrize("order", ["network", "greedy", "random"])
@pytest.mark.parametrize("estimator", ["plugin", "gaussian"])
def test_orders(order, estimator):
    logits, labels = graded()
    found = information.curve(logits, labels, order, estimator, repeats=3)
    table = found.table
    assert set(table["order"]) == {order}
    assert table["repeat"].nunique() == (3 if order == "random" else 1)
    first = table[table["size"] == 1].iloc[0]
    assert first["information"] == pytest.approx(first["gain"])
    assert first["total_correlation"] == pytest.approx(0, abs=1e-9)
    assert first["information"] == pytest.approx(first["relevancy"])
    identity = table["conditional_total_correlation"] - table["total_correlation"]
    np.testing.assert_allclose(table["diversity"], identity, atol=1e-9)
    assert (table["low"] <= table["information"].clip(lower=0)).all()
    assert (table["baseline"].abs() < 0.2).all()
    for members in found.members:
        assert len(set(members)) == len(members)


@pytest.mark.parametrize("estimator", ["gaussian", "probe", "plugin"])
def test_greedy_begins_with_the_most_informative(estimator):
    logits, labels = graded(n=1000)
    found = information.curve(logits, labels, "greedy", estimator, sizes=[1])
    assert found.members[0][0] == 5
    assert "measured on the other 500" in found.notes[0]


def test_gaussian_greedy_is_the_greedy_of_its_definition():
    """The updated block Cholesky factor gives what scoring every set anew would."""
    from lens_diversity.information._gaussian import GaussianEstimator, stratified_folds
    from lens_diversity.information._niw import SETTINGS, Moments, fit_classes, log_predictive
    from lens_diversity.information._sample import as_sample

    logits, labels = graded(n=200, members=4)
    fitted = GaussianEstimator(as_sample(logits, labels))
    halves = stratified_folds(fitted.sample, 2, 0)

    def score(members):
        columns = np.concatenate([[2 * m, 2 * m + 1] for m in members])
        total = 0.0
        for half in (0, 1):
            train, test = halves != half, halves == half
            values = fitted._values[:, columns]
            moments = Moments.of(values[train], labels[train], 2)
            logs = log_predictive(fit_classes(moments, SETTINGS[1]), values[test], [len(columns)])[
                0
            ]
            prior = np.log(moments.counts / moments.counts.sum())
            own = logs[labels[test], np.arange(test.sum())]
            total += (own - np.logaddexp(*(logs + prior[:, None]))).sum()
        return total

    chosen = []
    for _ in range(4):
        rest = [m for m in range(4) if m not in chosen]
        chosen.append(max(rest, key=lambda m: score([*chosen, m])))
    assert fitted.greedy(4) == chosen


def test_prefixes_are_the_scores_of_their_sets():
    logits, labels = graded(n=300)
    curve = information.curve(logits, labels, [4, 1, 3], "gaussian").table
    alone = information.mutual_information(logits[:, [4, 1]], labels, "gaussian")
    assert curve.loc[1, "information"] == pytest.approx(alone.raw, abs=1e-9)
    assert curve["member"].tolist() == [4, 1, 3]


def test_a_curve_stops_where_the_sample_does_and_says_so():
    rng = np.random.default_rng(0)
    outputs, labels = rng.integers(2, size=(500, 30)), rng.integers(2, size=500)
    found = information.curve(outputs, labels)
    assert 3 <= len(found.table) < 10
    assert "cannot support" in found.stopped[0]
    assert found.table["information"].abs().max() < 0.1
    greedy = information.curve(outputs, labels, "greedy")
    assert greedy.stopped[0]
    # The best of many noisy members is measured on rows it was not chosen by.
    assert greedy.table["information"].max() < 0.1


def test_lower_bounds_have_no_fano_bound():
    logits, labels = graded(n=200)
    table = information.curve(logits[:, [0, 2, 5]], labels, estimator="probe").table
    assert table["size"].tolist() == [1, 2, 3]
    assert table["fano_tight"].isna().all()
    assert table["hellman_raviv"].notna().all()
    assert (table["kind"] == "lower bound").all()
    assert table["combiner_error"].iloc[-1] < 0.25


def test_bands_of_random_orders():
    logits, labels = graded()
    found = information.curve(logits, labels, "random", "gaussian", repeats=5)
    bands = found.bands()
    assert list(bands.columns) == ["median", "low", "high", "repeats"]
    assert (bands["low"] <= bands["high"]).all()
    assert bands["repeats"].eq(5).all()
    # All orders end with the same members.
    assert bands["high"].iloc[-1] == pytest.approx(bands["low"].iloc[-1], abs=1e-9)


def test_gap_of_members_made_independent_given_the_label():
    distribution = discrete(symmetric(2, 0.4, members=4))
    outputs, labels = distribution.draw(np.random.default_rng(0), 2000)
    found = information.submodularity_gap(outputs, labels, draws=8)
    assert found.mean > 0
    assert found.n_violations == 0
    low, high = found.condition_interval
    assert low <= 0 <= high
    assert len(found.table) == 8


def test_gap_of_xor_is_a_violation():
    outputs, labels = DISCRETE["XOR"].draw(np.random.default_rng(0), 500)
    found = information.submodularity_gap(outputs, labels, base_size=0, draws=2)
    assert found.mean == pytest.approx(-1, abs=0.05)
    assert found.interval[1] < 0
    assert found.n_violations == 2
    assert found.condition == pytest.approx(1, abs=0.05)
    permuted = information.within_class_permutation(outputs, labels)
    mended = information.submodularity_gap(permuted, labels, base_size=0, draws=2)
    assert mended.interval[0] <= 0 <= mended.interval[1]
    assert mended.condition == pytest.approx(0, abs=0.05)


def test_permutation_within_classes_keeps_each_members_information():
    logits, labels = graded(n=100)
    permuted = information.within_class_permutation(torch.tensor(logits), torch.tensor(labels))
    for label in (0, 1):
        for member in range(6):
            ours, theirs = permuted[labels == label, member], logits[labels == label, member]
            np.testing.assert_array_equal(np.sort(ours, axis=0), np.sort(theirs, axis=0))
            assert not np.array_equal(ours, theirs)


def test_gap_without_correlations_says_why():
    logits, labels = graded(n=200, options=1 + 1)
    found = information.submodularity_gap(logits, labels, "probe", draws=2)
    assert found.condition is None
    assert "probe" in found.reason


@pytest.fixture(scope="module")
def run():
    """A run whose components know more the later they come."""
    from dataclasses import replace

    made = toy_run([2] * 400)
    logits = made.option_logits.clone()
    strength = torch.linspace(0, 2, logits.shape[1])
    logits[torch.arange(400), :, made.gold] += strength
    return replace(made, option_logits=logits)


@pytest.mark.parametrize("estimator", ["plugin", "gaussian"])
def test_information_of_a_run(run, estimator):
    found = information.of_run(run, estimator, repeats=2)
    assert set(found.curves) == {"network", "greedy", "random"}
    frame = found.to_dataframe()
    assert frame["label"].isin(run.labels).all()
    assert found.members()["information"].idxmax() == len(run.labels) - 1
    errors = found.errors()
    assert errors.loc["network", "error"] == pytest.approx(1 - run.accuracy)
    assert 0 <= errors.loc["best combiner", "error"] < 0.3
    assert "Bayes rule" in errors.loc["hellman_raviv", "holds_for"]


def test_gauges_agree_where_the_shift_is_noise(run):
    centred = information.of_run(run, "gaussian", gauge="centred", orders=["network"])
    model = information.of_run(run, "gaussian", orders=["network"])
    assert centred.estimate.value == pytest.approx(model.estimate.value, abs=0.1)


def test_rows_of_another_width_are_left_out_and_counted():
    mixed = toy_run([2] * 60 + [3] * 5)
    found = information.of_run(mixed, "gaussian", orders=["network"])
    assert found.notes == ("5 of 65 rows do not have 2 options",)
    assert found.estimate.n_examples == 60
    assert information.of_run(mixed, "plugin", orders=["network"]).notes == ()


def test_selection(run):
    found = information.select_components(run, 3)
    assert found.components[0] == len(run.labels) - 1
    assert found.labels[0] == run.labels[-1]
    assert len(found.accuracies) == 3
    assert not set(found.chosen_on) & set(found.checked_on)
    assert len(found.chosen_on) + len(found.checked_on) == len(run)
    assert found.accuracy > found.majority_accuracy + 0.2
    everything = information.select_components(run, len(run.labels))
    assert everything.accuracy == everything.network_accuracy


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: information.select_components(r, 0), "whole number from 1"),
        (lambda r: information.select_components(r, 2, "kde"), "estimator must be one of"),
        (lambda r: information.of_run(r, gauge="raw"), "gauge must be one of"),
        (lambda r: information.of_run(r, orders=["depth"]), "orders must be among"),
        (lambda r: information.curve(r.option_logits, r.gold, "depth"), "order must be one of"),
        (lambda r: information.curve(r.option_logits, r.gold, [0, 0]), "distinct members"),
        (lambda r: information.curve(r.option_logits, r.gold, sizes=[99]), "sizes must lie"),
        (
            lambda r: information.submodularity_gap(r.option_logits[:, :2], r.gold),
            "need 3 members",
        ),
    ],
)
def test_bad_input(run, call, message):
    with pytest.raises(ValueError, match=message):
        call(run)


def test_figures_show_the_curves(run):
    found = information.of_run(run, "gaussian", repeats=2)
    drawn = figures.information_figures(found)
    assert {"information", "gains", "terms_network", "bounds_greedy"} <= set(drawn)
    network = found.curves["network"].table
    trace = next(t for t in drawn["information"].data if t.name == "network")
    np.testing.assert_allclose(trace.y, network["information"])
    names = {trace.name for trace in drawn["bounds_network"].data}
    assert "Hellman-Raviv (Bayes rule on U)" in names
    assert all(figure.layout.yaxis.title.text for figure in drawn.values())


def test_figures_of_nothing_say_why():
    empty = information.Curve(
        table=pd.DataFrame(),
        order="network",
        members=((0,),),
        stopped=("too few examples",),
        estimator="plugin",
        entropy=1.0,
        n_examples=10,
        n_classes=2,
        level=0.95,
    )
    with pytest.raises(ValueError, match="too few examples"):
        figures.information_terms(empty)
