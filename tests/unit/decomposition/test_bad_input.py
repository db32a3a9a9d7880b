"""What is refused, and what the message says."""

import re

import pytest
import torch

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import (
    brown_covariance,
    combine_members,
    junctions,
    leave_one_out,
    module_split,
    pairwise_diversity,
)

MEMBERS = torch.zeros(3, 2, 4)
LABELS = torch.tensor([0, 3])
NAN, INF = float("nan"), float("inf")

LABELLED = {
    **LOSSES,
    "trade-off": brown_covariance,
    **{f"without, {loss}": lambda u, y, loss=loss: leave_one_out(u, y, loss) for loss in LOSSES},
    **{f"junctions, {loss}": lambda u, y, loss=loss: junctions(u, y, loss) for loss in LOSSES},
}
DENSE = ["squared", "trade-off", "without, squared", "junctions, squared"]
EVERY = {
    **{name: lambda u, call=call: call(u, LABELS) for name, call in LABELLED.items()},
    "pairs": pairwise_diversity,
    "combination": combine_members,
}
WEIGHTED = {
    **{name: lambda w, call=call: call(MEMBERS, LABELS, w) for name, call in LOSSES.items()},
    "trade-off": lambda w: brown_covariance(MEMBERS, LABELS, w),
    "leave one out": lambda w: leave_one_out(MEMBERS, LABELS, weights=w),
    "sum": lambda w: combine_members(MEMBERS, w, "sum"),
    "mean": lambda w: combine_members(MEMBERS, w, "mean"),
    "modules": lambda w: module_split(MEMBERS, ["embed", "mlp", "mlp"], w),
}


def with_value(value):
    members = MEMBERS.clone()
    members[1, 0, 2] = value
    return members


@pytest.mark.parametrize("function", EVERY.values(), ids=EVERY)
class TestMembers:
    def test_integers(self, function):
        with pytest.raises(TypeError, match=r"members must be floating-point logits.*torch.int64"):
            function(MEMBERS.long())

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_not_finite(self, function, value):
        with pytest.raises(ValueError, match=r"members hold 1 NaN or infinite numbers.*\[1\]"):
            function(with_value(value))

    @pytest.mark.parametrize("shape", [(0, 2, 4), (3, 2, 0), (3,), ()])
    def test_no_component_or_no_token(self, function, shape):
        message = f"at least one component and one token, got shape {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=message):
            function(torch.zeros(shape))


@pytest.mark.parametrize("function", LABELLED.values(), ids=LABELLED)
class TestLabels:
    @pytest.mark.parametrize("shape", [(1,), (1, 2), (), (2, 4)])
    def test_wrong_shape(self, function, shape):
        message = rf"labels must have .* batch shape \(2,\), got {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=message):
            function(MEMBERS, torch.zeros(shape, dtype=torch.long))

    @pytest.mark.parametrize("outside", [4, -1])
    def test_out_of_range(self, function, outside):
        with pytest.raises(ValueError, match=rf"labels \[{outside}\] are out of range \[0, 4\)"):
            function(MEMBERS, torch.tensor([0, outside]))

    def test_booleans(self, function):
        with pytest.raises(TypeError, match=r"labels must be integers, got dtype torch.bool"):
            function(MEMBERS, LABELS.bool())


@pytest.mark.parametrize("name", [name for name in LABELLED if name not in DENSE])
def test_floating_point_labels(name):
    with pytest.raises(TypeError, match=r"labels must be integers, got dtype torch.float32"):
        LABELLED[name](MEMBERS, LABELS.float())


@pytest.mark.parametrize("name", DENSE)
class TestDenseTarget:
    @pytest.mark.parametrize("shape", [(2,), (2, 3), (1, 4), (3, 2, 4)])
    def test_wrong_shape(self, name, shape):
        message = rf"dense target must have .*\(2, 4\).*got {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=message):
            LABELLED[name](MEMBERS, torch.zeros(shape))

    def test_not_finite(self, name):
        with pytest.raises(ValueError, match=r"dense target must be finite, got 1 NaN or infinite"):
            LABELLED[name](MEMBERS, with_value(NAN)[1])


@pytest.mark.parametrize("function", WEIGHTED.values(), ids=WEIGHTED)
class TestWeights:
    @pytest.mark.parametrize("weights", [[0.5, 0.5], [0.25] * 4, torch.ones(3, 1) / 3])
    def test_wrong_count(self, function, weights):
        with pytest.raises(ValueError, match=r"one number for each of the 3 members, got shape"):
            function(weights)

    @pytest.mark.parametrize("bad", [NAN, INF, -0.5])
    def test_negative_or_not_finite(self, function, bad):
        with pytest.raises(ValueError, match=rf"finite and not negative, got \[{bad}\]"):
            function([0.5, bad, 0.5])

    def test_not_summing_to_one(self, function):
        with pytest.raises(ValueError, match=r"weights must sum to 1, got 1.5"):
            function([0.5, 0.5, 0.5])


def test_a_weight_of_zero_in_a_sum():
    weights = [0.0, 0.5, 0.5]
    message = r'combine="sum" divides by the weights.*\[0\].*zero'
    with pytest.raises(ValueError, match=message):
        combine_members(MEMBERS, weights, "sum")
    for loss in LOSSES:
        with pytest.raises(ValueError, match=message):
            leave_one_out(MEMBERS, LABELS, loss, "sum", weights)


@pytest.mark.parametrize("function", [leave_one_out, junctions])
def test_unknown_options(function):
    with pytest.raises(ValueError, match=r"loss must be one of .*'squared'.*got 'mse'"):
        function(MEMBERS, LABELS, loss="mse")
    with pytest.raises(ValueError, match=r"combine must be 'mean' or 'sum', got 'product'"):
        function(MEMBERS, LABELS, combine="product")


def test_unknown_combination():
    with pytest.raises(ValueError, match=r"combine must be 'mean' or 'sum', got 'product'"):
        combine_members(MEMBERS, combine="product")


def test_a_constant_in_the_mean_of_the_others():
    with pytest.raises(ValueError, match=r'constant= .*combine="sum"'):
        leave_one_out(MEMBERS, LABELS, combine="mean", constant=torch.zeros(4))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_nothing_left_after_leaving_one_out(loss, combine):
    with pytest.raises(ValueError, match=r"no ensemble is left; give two"):
        leave_one_out(MEMBERS[:1], LABELS, loss, combine)


@pytest.mark.parametrize("loss", LOSSES)
def test_one_member_with_all_the_weight(loss):
    with pytest.raises(ValueError, match=r"no ensemble is left; give two"):
        leave_one_out(MEMBERS, LABELS, loss, weights=[0.0, 1.0, 0.0])


@pytest.mark.parametrize("function", [junctions, leave_one_out])
class TestConstant:
    @pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (3, 2, 4), (1, 4)])
    def test_wrong_shape(self, function, shape):
        message = rf"constant must have shape \(4,\) or \(2, 4\).*got {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=message):
            function(MEMBERS, LABELS, combine="sum", constant=torch.zeros(shape))

    def test_not_finite(self, function):
        with pytest.raises(ValueError, match=r"constant must be finite, got 4 NaN"):
            function(MEMBERS, LABELS, combine="sum", constant=torch.full((4,), NAN))

    def test_integers(self, function):
        with pytest.raises(TypeError, match=r"constant must be a floating-point tensor"):
            function(MEMBERS, LABELS, combine="sum", constant=torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("shape", [(), (3,), (2,), (3, 2, 1), (2, 3)])
def test_rescale_of_the_wrong_shape(shape):
    message = rf"rescale must have shape \(3, 2\).*got {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        junctions(MEMBERS, LABELS, rescale=torch.ones(shape))


def test_rescale_that_is_not_finite():
    with pytest.raises(ValueError, match=r"rescale must be finite, got 6 NaN or infinite"):
        junctions(MEMBERS, LABELS, rescale=torch.full((3, 2), INF))


def test_shares_of_modules():
    with pytest.raises(ValueError, match=r"modules must name each of the 3 components, got 2"):
        module_split(torch.zeros(3, 2), ["embed", "mlp"])
    with pytest.raises(ValueError, match=r"with at least one component, got shape \(\)"):
        module_split(torch.tensor(1.0), [])
    with pytest.raises(TypeError, match=r"component_term must be floating-point, got dtype"):
        module_split(torch.zeros(2, dtype=torch.int64), ["embed", "mlp"])
