"""Estimates against distributions whose information is known, and refusals where it cannot be."""

import numpy as np
import pytest
import torch

from lens_diversity import information
from lens_diversity.information._sample import as_sample
from lens_diversity.information.estimators import make_estimator, to_estimate
from tests.unit.information.distributions import CONTINUOUS, DISCRETE

NOISE = "independent noise, 2 members"


def measured(distribution, estimator, n, draws):
    rng = np.random.default_rng(1)
    found = []
    for _ in range(draws):
        outputs, labels = distribution.draw(rng, n)
        fitted = make_estimator(as_sample(outputs, labels), estimator, 0.95, 0)
        found.append(to_estimate(fitted, fitted.scores(range(outputs.shape[1])), 0.0))
    return found


def check(found, truth, bias, coverage=0.9):
    raw = np.array([estimate.raw for estimate in found])
    error = 3 * raw.std() / np.sqrt(len(raw))
    assert abs(raw.mean() - truth) <= bias + error
    covered = np.mean([estimate.low <= truth <= estimate.high for estimate in found])
    assert covered >= coverage


@pytest.mark.parametrize("name", DISCRETE)
def test_plugin(name):
    distribution = DISCRETE[name]
    check(measured(distribution, "plugin", 400, 40), distribution.truth, bias=0.01)


@pytest.mark.parametrize("name", [n for n, d in CONTINUOUS.items() if d.gaussian])
def test_gaussian(name):
    distribution = CONTINUOUS[name]
    check(measured(distribution, "gaussian", 400, 30), distribution.truth, bias=0.03)


@pytest.mark.parametrize(
    "name", ["independent noise, 1 member", "2 Gaussians, separation 1", "XOR of signs"]
)
def test_knn(name):
    distribution = CONTINUOUS[name]
    check(measured(distribution, "knn", 300, 30), distribution.truth, bias=0.03)


@pytest.mark.parametrize("name", ["independent noise, 1 member", "2 members, separation 1 each"])
def test_probe_bounds_from_below(name):
    distribution = CONTINUOUS[name]
    found = measured(distribution, "probe", 200, 10)
    check(found, distribution.truth, bias=0.05)
    assert all(estimate.is_lower_bound for estimate in found)
    assert all(estimate.high == pytest.approx(1.0, abs=0.01) for estimate in found)


@pytest.mark.parametrize("estimator", ["gaussian", "probe"])
def test_what_a_model_cannot_see_is_only_missed_from_below(estimator):
    distribution = CONTINUOUS["XOR of signs"]
    found = measured(distribution, estimator, 400, 5)
    assert all(estimate.raw < distribution.truth for estimate in found)
    assert all(estimate.low <= distribution.truth for estimate in found)


def test_gaussian_never_exceeds_the_entropy_for_separated_classes():
    """The difference of log-determinants would give log2(20) - 1 and more here."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    outputs = (40 * labels + rng.normal(size=600))[:, None, None]
    found = information.mutual_information(outputs, labels, "gaussian")
    assert found.value == pytest.approx(1.0, abs=0.01)
    total, within = outputs.var(), outputs[labels == 0].var() / 2 + outputs[labels == 1].var() / 2
    assert 0.5 * np.log2(total / within) > 3


def test_intervals_are_valid_without_information():
    for estimator, distribution in (
        ("plugin", DISCRETE[NOISE]),
        ("gaussian", CONTINUOUS["independent noise, 1 member"]),
    ):
        found = measured(distribution, estimator, 200, 40)
        assert np.mean([estimate.low == 0 for estimate in found]) >= 0.9
        assert np.mean([estimate.high for estimate in found]) < 0.1


@pytest.mark.parametrize("estimator", ["plugin", "gaussian", "knn", "probe"])
def test_shuffled_baseline_is_always_there(estimator):
    rng = np.random.default_rng(2)
    outputs, labels = CONTINUOUS["2 Gaussians, separation 4"].draw(rng, 300)
    if estimator == "plugin":
        outputs = (outputs[:, :, 0] > 2).astype(int)
    found = information.mutual_information(outputs, labels, estimator)
    assert found.value > 0.7
    assert abs(found.baseline) < 0.06
    assert found.low <= found.value <= found.high


def test_many_members_are_refused_by_plugin():
    """Every row unique: the bare plug-in estimate is H(Y) for pure noise."""
    rng = np.random.default_rng(0)
    outputs, labels = rng.integers(2, size=(1000, 61)), rng.integers(2, size=1000)
    with pytest.raises(information.InsufficientSampleError, match="1000 examples cannot support"):
        information.mutual_information(outputs, labels)
    terms = information.terms(outputs, labels)
    assert terms.joint is None
    assert "cannot support 61 members" in terms.reasons["joint"]
    assert terms.relevancy == pytest.approx(0, abs=0.05)


def test_other_estimators_refuse_what_they_cannot_support():
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(300, 61, 4)), rng.integers(2, size=300)
    for estimator in ("knn", "gaussian"):
        with pytest.raises(information.InsufficientSampleError, match="61 members have 244"):
            information.mutual_information(outputs, labels, estimator)
    bound = information.mutual_information(outputs[:, :20], labels, "gaussian")
    assert bound.is_lower_bound
    assert bound.value < 0.05


def test_terms_identity_and_known_correlations():
    rng = np.random.default_rng(4)
    n, rho = 4000, 0.8
    labels = rng.integers(2, size=n)
    outputs = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=n)
    outputs = (outputs + labels[:, None])[:, :, None]
    terms = information.terms(outputs, labels, "gaussian")
    assert terms.diversity == pytest.approx(terms.joint - terms.relevancy, abs=1e-12)
    correlations = terms.conditional_total_correlation - terms.total_correlation
    assert terms.diversity == pytest.approx(correlations, abs=1e-12)
    expected = -0.5 * np.log2(1 - rho**2)
    assert terms.conditional_total_correlation == pytest.approx(expected, abs=0.05)
    low, high = terms.intervals["conditional_total_correlation"]
    assert low <= expected <= high


@pytest.mark.parametrize("name", ["3 members independent given Y", "duplicated members", "XOR"])
def test_plugin_terms_are_those_of_the_table(name):
    outputs, labels = DISCRETE[name].draw(np.random.default_rng(5), 4000)
    terms = information.terms(outputs, labels)
    assert terms.joint == pytest.approx(DISCRETE[name].truth, abs=0.05)
    correlations = terms.conditional_total_correlation - terms.total_correlation
    assert terms.diversity == pytest.approx(correlations, abs=1e-12)
    if name == "3 members independent given Y":
        low, high = terms.intervals["conditional_total_correlation"]
        assert low <= 0 <= high


@pytest.mark.parametrize("estimator", ["knn", "probe"])
def test_no_total_correlation_is_none_with_the_reason(estimator):
    outputs, labels = CONTINUOUS["2 members, separation 1 each"].draw(np.random.default_rng(6), 200)
    terms = information.terms(outputs, labels, estimator)
    assert terms.total_correlation is None
    assert terms.conditional_total_correlation is None
    assert "total correlation" in terms.reasons["total_correlation"] or "entropies" in str(
        terms.reasons
    )
    assert terms.diversity == pytest.approx(terms.joint - terms.relevancy)


def test_probe_reads_predicted_classes_too():
    outputs, labels = DISCRETE["4-ary channel, noise 0.5"].draw(np.random.default_rng(7), 800)
    found = information.mutual_information(outputs, labels, "probe")
    assert found.value == pytest.approx(DISCRETE["4-ary channel, noise 0.5"].truth, abs=0.1)


def test_logits_give_plugin_their_argmax_and_torch_equals_numpy():
    rng = np.random.default_rng(8)
    logits, labels = rng.normal(size=(200, 2, 3)), rng.integers(3, size=200)
    logits[labels == 0, 0, 2] = np.nan
    by_logits = information.mutual_information(torch.tensor(logits), torch.tensor(labels))
    classes = np.where(np.isnan(logits), -np.inf, logits).argmax(-1)
    assert by_logits.raw == information.mutual_information(classes, labels).raw


def test_one_label_is_no_information():
    found = information.mutual_information(np.zeros((10, 2), int), np.ones(10, int))
    assert (found.value, found.low, found.high, found.entropy) == (0, 0, 0, 0)
    assert information.terms(np.zeros((10, 2), int), np.ones(10, int)).joint == 0
    assert found.bounds()["value"].tolist() == [0, 0, 0]


def test_bounds_say_what_they_hold_for():
    outputs, labels = CONTINUOUS["4 Gaussians, spacing 1.5"].draw(np.random.default_rng(9), 400)
    table = information.mutual_information(outputs, labels, "gaussian").bounds()
    assert list(table.index) == ["fano_weak", "fano_tight", "hellman_raviv"]
    assert "Bayes rule" in table.loc["hellman_raviv", "holds_for"]
    assert table.loc["fano_tight", "safe"] <= table.loc["fano_tight", "value"]
    assert table.loc["hellman_raviv", "safe"] >= table.loc["hellman_raviv", "value"]
    # A probe's lower bound on I gives a valid upper bound on the error and no Fano bound.
    probe = information.mutual_information(outputs, labels, "probe").bounds()
    assert probe.loc["fano_tight", "value"] == 0
    assert "no Fano bound" in probe.loc["fano_tight", "note"]
    assert probe.loc["hellman_raviv", "value"] > 0


INTEGERS = np.zeros((20, 2), int)
LABELS = np.tile([0, 1], 10)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(INTEGERS, LABELS[:5]), ValueError, "one integer an example"),
        (lambda m: m(INTEGERS, LABELS / 2), TypeError, "labels must be integers"),
        (lambda m: m(INTEGERS / 2, LABELS), TypeError, "third axis of options"),
        (lambda m: m(INTEGERS[0], LABELS[:2]), ValueError, "outputs must be predicted classes"),
        (lambda m: m(np.full((20, 2, 2), np.inf), LABELS), ValueError, "infinite"),
        (lambda m: m(np.full((20, 2, 2), np.nan), LABELS), ValueError, "without any finite"),
        (lambda m: m(INTEGERS, LABELS, "kde"), ValueError, "estimator must be one of"),
        (lambda m: m(INTEGERS, LABELS, level=1.0), ValueError, "level must lie"),
        (lambda m: m(INTEGERS, LABELS, "gaussian"), ValueError, "needs logits"),
        (lambda m: m(INTEGERS[:4, :, None] / 1, LABELS[:4], "gaussian"), ValueError, "at least 10"),
        (lambda m: m(INTEGERS[:, :, None] / 1, LABELS, "knn"), ValueError, "at least 40"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(information.mutual_information)
