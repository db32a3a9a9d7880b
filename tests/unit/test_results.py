"""Views of a decomposition add up and keep every number."""

import pandas as pd
import pytest
import torch

import lens_diversity as ld
from tests.families import build


@pytest.fixture(scope="module")
def result():
    tokens = torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        _, cache = build("gpt2").run_with_cache(tokens)
    gold = torch.zeros(3, 5, dtype=torch.long)
    return ld.decompose(cache, gold, [5, 9, 31], "brier", pos=None, constant="component")


def test_modules_share_the_whole(result):
    modules = result.by_module()
    assert list(modules.index) == ["embed", "attn", "mlp", "constant"]
    assert list(modules["components"]) == [2, 2, 2, 1]
    assert modules["bias"].sum() == pytest.approx(float(result.bias.mean()))
    assert modules["diversity"].sum() == pytest.approx(float(result.diversity.mean()))
    assert modules["bias_share"].sum() == pytest.approx(1)
    assert modules["diversity_share"].sum() == pytest.approx(1)
    attention = [i for i, module in enumerate(result.modules) if module == "attn"]
    expected = float(result.component_diversity[attention].mean((1, 2)).sum() / 7)
    assert modules.loc["attn", "diversity"] == pytest.approx(expected)


def test_components(result):
    frame = result.by_component()
    assert list(frame["label"]) == result.labels
    assert frame["layer"].isna().tolist() == [True, True, False, False, False, False, True]
    assert frame["layer"].dropna().tolist() == [0, 0, 1, 1]
    assert (frame["weight"] * frame["bias"]).sum() == pytest.approx(float(result.bias.mean()))


def test_the_long_table_keeps_every_number(result):
    frame = result.to_dataframe()
    assert len(frame) == 7 * 3 * 5
    pivot = frame.pivot_table(index="component", columns=["batch", "pos"], values="diversity")
    torch.testing.assert_close(
        torch.tensor(pivot.to_numpy()).reshape(7, 3, 5), result.component_diversity.double()
    )
    weighted = frame.assign(bias=frame["bias"] * frame["weight"])
    whole = weighted.groupby(["batch", "pos"]).agg({"bias": "sum", "ensemble_bias": "first"})
    pd.testing.assert_series_equal(
        whole["bias"], whole["ensemble_bias"], check_names=False, rtol=1e-5
    )
    one = frame.query("batch == 1 and pos == 2")
    assert one["ensemble_error"].nunique() == 1
    assert one["ensemble_error"].iloc[0] == pytest.approx(float(result.error[1, 2]))


def test_a_single_row_has_a_table_too():
    readout = ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3))
    stack = ld.ComponentStack.from_values(torch.eye(3)[:2], readout)
    result = ld.decompose(stack, 0, loss="squared")
    assert len(result.to_dataframe()) == 2
    assert "one row" in repr(result)


def test_repr_tells_the_story(result):
    text = repr(result)
    assert text.startswith("Decomposition(brier, 7 members, batch 3 x pos 5, 3 tokens")
    assert f"error {float(result.error.mean()):.6g} = bias" in text
    assert "gauge=model" in text
    assert "reconstruction error" in text


def test_repr_names_the_soft_cap_and_the_missing_identity():
    tokens = torch.randint(3, 60, (2, 5))
    with torch.no_grad():
        _, cache = build("gemma2").run_with_cache(tokens)
    text = repr(ld.decompose(cache, [0, 1], [5, 9]))
    assert "before the soft cap" in text
    assert " vs bias" in text


def test_shares_of_a_zero_whole_are_nan_not_numbers():
    readout = ld.Readout(W_U=torch.eye(3), b_U=torch.zeros(3))
    stack = ld.ComponentStack.from_values(torch.ones(2, 1, 3), readout)
    result = ld.decompose(stack, [0], loss="squared")
    assert result.by_module()["diversity_share"].isna().all()
