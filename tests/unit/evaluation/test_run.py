"""A run's numbers follow from its option logits, checked against plain loops in float64."""

import math

import numpy as np
import pytest
import torch

from lens_diversity.evaluation import load_run
from tests.unit.evaluation import toy

MIXED = [3, 2, 4, 2, 3, 5]


def rows(run):
    """Each row's real members, constants and gold label, as numpy in float64."""
    for i, width in enumerate(run.n_options.tolist()):
        yield (
            run.option_logits[i, :, :width].double().numpy(),
            run.constant[i, :width].double().numpy(),
            int(run.gold[i]),
        )


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def paper_terms(members, gold):
    """Eq. 14 and Eq. 8 of one row: error, and bias and diversity of each member."""
    target = np.eye(members.shape[1])[gold]
    mean = members.mean(0)
    return (
        ((target - softmax(mean)) ** 2).mean(),
        ((target - softmax(members)) ** 2).mean(1),
        ((mean - members) ** 2).mean(1),
    )


@pytest.mark.parametrize("widths", [[4] * 6, MIXED])
def test_summary_is_equations_14_and_8(widths):
    run = toy.run(widths)
    found = [paper_terms(members, gold) for members, _, gold in rows(run)]
    error, bias, diversity = (np.array(terms) for terms in zip(*found, strict=True))
    right = [members.sum(0).argmax() == gold for members, _, gold in rows(run)]
    summary = run.summary()
    assert summary["n_examples"] == 6
    assert summary["accuracy"] == pytest.approx(np.mean(right), rel=1e-12)
    assert summary["mse"] == pytest.approx(error.mean(), rel=1e-12)
    assert summary["bias"] == pytest.approx(bias.mean(), rel=1e-12)
    assert summary["diversity"] == pytest.approx(diversity.mean(), rel=1e-12)
    for module in ("embed", "attn", "mlp"):
        chosen = [name == module for name in run.modules]
        share = diversity[:, chosen].sum() / diversity.sum()
        assert summary["diversity_share"][module] == pytest.approx(share, rel=1e-12)
        share = bias[:, chosen].sum() / bias.sum()
        assert summary["bias_share"][module] == pytest.approx(share, rel=1e-12)
    assert sum(summary["bias_share"].values()) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("gauge", ["model", "centred"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", ["squared", "brier", "cross_entropy"])
def test_identities_hold_in_every_row_of_a_mixed_run(loss, combine, gauge):
    result = toy.run(MIXED).decomposition(loss, combine, gauge)
    size = result.error.abs() + result.bias.abs() + result.diversity.abs()
    assert float((result.residual.abs() / size).max()) < 1e-12
    assert result.error.dtype == torch.float64
    assert result.n_vocab == 5
    assert result.component_bias.shape == (5, 6)


def test_rows_of_a_mixed_run_are_what_they_are_alone():
    mixed = toy.run(MIXED)
    result = mixed.decomposition("brier")
    for i, (members, _, gold) in enumerate(rows(mixed)):
        p = softmax(members)
        assert float(result.error[i]) == pytest.approx(
            ((np.eye(len(p[0]))[gold] - p.mean(0)) ** 2).mean(), rel=1e-12
        )


def test_cross_entropy_with_combine_sum_is_the_models_own_loss():
    run = toy.run(MIXED)
    own = [-math.log(softmax(members.sum(0))[gold]) for members, _, gold in rows(run)]
    result = run.decomposition("cross_entropy", "sum")
    assert result.error.tolist() == pytest.approx(own, rel=1e-12)


@pytest.mark.parametrize("widths", [[3] * 5, MIXED])
@pytest.mark.parametrize("constant", [0.0, 0.7])
def test_junctions_are_ensembles_of_the_first_members_with_the_whole_constant(widths, constant):
    run = toy.run(widths, constant=constant)
    frame = run.junctions()
    assert frame["junction"].tolist() == [1, 2, 3, 4, 5]
    assert frame["label"].tolist() == run.labels
    assert frame["module"].tolist() == run.modules
    for k in range(1, 6):
        terms, right = [], []
        for members, kappa, gold in rows(run):
            written = members - kappa / 5
            first = written[:k] + kappa / k
            error, bias, diversity = paper_terms(first, gold)
            terms.append((error, bias.mean(), diversity.mean()))
            right.append(first.sum(0).argmax() == gold)
        expected = [np.mean(right), *np.mean(terms, 0)]
        found = frame.loc[k - 1, ["accuracy", "mse", "bias", "diversity"]].tolist()
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    summary = run.summary()
    for name in ("accuracy", "mse", "bias", "diversity"):
        assert frame[name].iloc[-1] == pytest.approx(summary[name], rel=1e-9)


def test_junctions_of_other_losses():
    run = toy.run(MIXED)
    frame = run.junctions("cross_entropy", "sum")
    result = run.decomposition("cross_entropy", "sum")
    assert "mse" not in frame
    assert frame["error"].iloc[-1] == pytest.approx(float(result.error.mean()), rel=1e-9)
    assert frame["diversity"].tolist()[0] == pytest.approx(0, abs=1e-12)


def test_the_long_table_holds_the_real_options_only():
    run = toy.run(MIXED)
    frame = run.to_dataframe()
    assert len(frame) == 5 * sum(MIXED)
    assert frame["logit"].notna().all()
    total = frame.groupby(["example", "option"])["logit"].sum().groupby("example").idxmax()
    assert [option for _, option in total] == run.predictions.tolist()
    row = frame[(frame["example"] == 2) & (frame["label"] == "0_mlp_out")]
    assert row["logit"].to_numpy() == pytest.approx(run.option_logits[2, 2, :4].numpy())


def test_padding_is_never_predicted():
    run = toy.run(MIXED)
    assert bool((run.predictions < run.n_options).all())


@pytest.mark.parametrize("call", ["decomposition", "junctions"])
def test_unknown_arguments_are_refused(call):
    run = toy.run([2, 2])
    with pytest.raises(ValueError, match="loss must be one of"):
        getattr(run, call)(loss="hinge")
    with pytest.raises(ValueError, match="combine must be one of"):
        getattr(run, call)(combine="product")
    with pytest.raises(ValueError, match="gauge must be one of"):
        run.decomposition(gauge="none")


def test_a_saved_run_is_read_back_whole(tmp_path):
    run = toy.run([3, 2, 4, 2, 3, 5, 2, 2, 3])
    run.save(tmp_path / "run")
    assert len(list((tmp_path / "run").glob("*.parquet"))) == 3
    found = load_run(tmp_path / "run")
    assert found.metadata == run.metadata
    assert torch.equal(found.option_logits.nan_to_num(), run.option_logits.nan_to_num())
    assert torch.equal(found.n_tokens, run.n_tokens)
    assert found.summary() == run.summary()
    with pytest.raises(ValueError, match="holds a run already"):
        run.save(tmp_path / "run")


def test_repr_names_what_was_run():
    assert repr(toy.run([2, 2])).startswith("Run('random' on 'toy': 2 examples x 5 components")
