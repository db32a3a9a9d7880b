"""What is accepted and how it is read: dtypes, nearly normalised weights, devices."""

import pytest
import torch

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import (
    brown_covariance,
    combine_members,
    junctions,
    krogh_vedelsby,
    leave_one_out,
    pairwise_diversity,
)

FUNCTIONS = {
    **LOSSES,
    "trade-off": brown_covariance,
    **{f"without, {loss}": lambda u, y, loss=loss: leave_one_out(u, y, loss) for loss in LOSSES},
    **{f"junctions, {loss}": lambda u, y, loss=loss: junctions(u, y, loss) for loss in LOSSES},
    "pairs": lambda u, _: pairwise_diversity(u),
    "combination": lambda u, _: combine_members(u, combine="sum"),
}
LABELLED = {name: FUNCTIONS[name] for name in list(FUNCTIONS)[:-2]}
DENSE = ("squared", "trade-off", "without, squared", "junctions, squared")

MEMBERS = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([3, 0])


def numbers(result):
    return [result] if isinstance(result, torch.Tensor) else list(vars(result).values())


def assert_same(found, expected):
    for value, truth in zip(numbers(found), numbers(expected), strict=True):
        assert value.dtype == truth.dtype
        assert torch.equal(value, truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision_is_computed_in_single(name, dtype):
    half = MEMBERS.to(dtype)
    found = FUNCTIONS[name](half, LABELS)
    assert all(value.dtype == torch.float32 for value in numbers(found))
    assert_same(found, FUNCTIONS[name](half.float(), LABELS))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_memory_layout_and_the_input_itself_do_not_matter(name):
    members = MEMBERS.double()
    strided = members.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    found = FUNCTIONS[name](strided, LABELS)
    for value, truth in zip(numbers(found), numbers(FUNCTIONS[name](members, LABELS)), strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-14)
    assert torch.equal(members, MEMBERS.double())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_any_integer_dtype(name, dtype):
    assert_same(LABELLED[name](MEMBERS, LABELS.to(dtype)), LABELLED[name](MEMBERS, LABELS))


@pytest.mark.parametrize("name", DENSE)
def test_integer_labels_are_a_one_hot_target(name):
    one_hot = torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 0]])
    assert_same(LABELLED[name](MEMBERS, LABELS), LABELLED[name](MEMBERS, one_hot))
    assert_same(LABELLED[name](MEMBERS, LABELS), LABELLED[name](MEMBERS, one_hot.bfloat16()))


@pytest.mark.parametrize("name", DENSE)
def test_a_one_hot_target_of_integers_is_refused(name):
    with pytest.raises(ValueError, match=r"batch shape \(2,\), got \(2, 4\)"):
        LABELLED[name](MEMBERS, torch.eye(4, dtype=torch.long)[LABELS])


@pytest.mark.parametrize("name", DENSE)
def test_a_target_beyond_the_range_of_the_members_dtype_is_not_finite(name):
    with pytest.raises(ValueError, match="8 NaN or infinite numbers"):
        LABELLED[name](MEMBERS, torch.full((2, 4), 1e300, dtype=torch.float64))


def test_nearly_normalised_weights_are_normalised():
    nearly = torch.tensor([0.5, 0.25, 0.25005])
    members = MEMBERS.double() + 1e3
    found = krogh_vedelsby(members, LABELS, nearly)
    expected = krogh_vedelsby(members, LABELS, nearly.double() / nearly.double().sum())
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-14, atol=0)
    assert float((found.residual.abs() / found.bias).max()) < 1e-14
    with pytest.raises(ValueError, match=r"sum to 1, got 1\.0002"):
        krogh_vedelsby(members, LABELS, [0.5, 0.25, 0.2502])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_weights_of_any_dtype(dtype):
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=dtype)
    found = krogh_vedelsby(MEMBERS.double(), LABELS, weights)
    assert_same(found, krogh_vedelsby(MEMBERS.double(), LABELS, [0.5, 0.25, 0.25]))


@pytest.mark.parametrize("name", LABELLED)
def test_labels_elsewhere_are_refused(name):
    with pytest.raises(
        ValueError, match=r"labels must be on the members' device cpu, got meta; move"
    ):
        LABELLED[name](MEMBERS, LABELS.to("meta"))


@pytest.mark.parametrize("name", DENSE)
def test_a_target_elsewhere_is_refused(name):
    with pytest.raises(
        ValueError, match="dense target must be on the members' device cpu, got meta"
    ):
        LABELLED[name](MEMBERS, torch.zeros(2, 4, device="meta"))


def test_many_bad_components_or_labels_are_counted_and_not_all_listed():
    with pytest.raises(ValueError, match=r"120 NaN.*\[0, 1, 2, 3, 4, 5, 6, 7, \.\.\. 30 in all\]"):
        pairwise_diversity(torch.full((30, 4), torch.nan))
    with pytest.raises(ValueError, match=r"labels \[-2, 4, 5\] are out of range \[0, 4\)"):
        krogh_vedelsby(torch.zeros(1, 5, 4), torch.tensor([5, 0, 4, -2, 5]))


def test_one_token_has_one_answer():
    members = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    for loss in ("paper", "brier", "cross_entropy"):
        terms = LOSSES[loss](members, torch.zeros(2, dtype=torch.long))
        assert not terms.error.any()
        assert not terms.bias.any()
        (gradient,) = torch.autograd.grad((terms.error + terms.bias).sum(), members)
        assert not gradient.any()
