"""Analytic gradients against finite differences, through members, dense targets and weights."""

from functools import partial

import pytest
import torch
from torch import autograd

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import (
    brown_covariance,
    combine_members,
    cross_entropy_ambiguity,
    junctions,
    leave_one_out,
    module_split,
    pairwise_diversity,
)

# Fast mode compares random projections of the Jacobian, with one pass instead of one an entry.
gradcheck = partial(autograd.gradcheck, fast_mode=True)

LABELS = torch.tensor([2, 0])


def inputs(components=3, vocab=3):
    members = torch.randn(components, 2, vocab, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(components, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, vocab, dtype=torch.float64, requires_grad=True)
    return members, logits, target


def tensors(terms):
    return terms.error, terms.bias, terms.diversity, terms.component_bias, terms.component_diversity


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("vocab", [2, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_terms(loss, components, vocab):
    members, logits, _ = inputs(components, vocab)
    labels = torch.tensor([1, 0])

    def terms(members, logits):
        return tensors(LOSSES[loss](members, labels, logits.softmax(0)))

    assert gradcheck(terms, (members, logits))
    assert gradcheck(lambda members: tensors(LOSSES[loss](members, labels)), (members,))


def test_terms_of_a_dense_target():
    def terms(members, logits, target):
        return tensors(LOSSES["squared"](members, target, logits.softmax(0)))

    assert gradcheck(terms, inputs())


@pytest.mark.parametrize("components", [1, 3])
def test_trade_off(components):
    def terms(members, logits, target):
        found = brown_covariance(members, target, logits.softmax(0))
        # Of one member no covariance depends on anything.
        pairs = () if components == 1 else (found.cov_bar,)
        return found.bias, found.diversity, found.paper_bias, found.ensemble_variance, *pairs

    assert gradcheck(terms, inputs(components))


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_leave_one_out(loss, combine):
    members, logits, target = inputs()
    constant = target[0].detach().requires_grad_() if combine == "sum" else None

    def errors(members, logits, constant):
        return leave_one_out(members, LABELS, loss, combine, logits.softmax(0), constant)

    assert gradcheck(errors, (members, logits, constant))
    if loss == "squared":
        assert gradcheck(
            lambda members, target: leave_one_out(members, target, loss, combine),
            (members, target),
        )


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_junctions(loss, combine):
    members, _, constant = inputs()
    rescale = (1 + torch.rand(3, 2, dtype=torch.float64)).requires_grad_()

    def terms(members, constant=None, rescale=None, target=LABELS):
        found = junctions(members, target, loss, combine, constant, rescale)
        return found.error, found.bias, found.diversity, found.logits

    assert gradcheck(terms, (members,))
    assert gradcheck(terms, (members, constant, rescale))
    if loss == "squared":
        dense = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        assert gradcheck(terms, (members, constant, rescale, dense))


def test_a_constant_of_zeros_that_is_learnt_has_its_gradient():
    members, constant = inputs()[0], torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for loss in LOSSES:
        found = junctions(members, LABELS, loss, constant=constant)
        (gradient,) = autograd.grad(found.error.sum(), constant)
        assert bool((gradient != 0).all())


def test_pairs_and_combinations_and_shares():
    members, logits, _ = inputs()
    assert gradcheck(pairwise_diversity, (members,))
    for combine in ("mean", "sum"):
        assert gradcheck(
            lambda members, logits, combine=combine: combine_members(
                members, logits.softmax(0), combine
            ),
            (members, logits),
        )
    assert gradcheck(
        lambda members, logits: tuple(
            module_split(members, ["embed", "mlp", "mlp"], logits.softmax(0)).values()
        ),
        (members, logits),
    )


def test_gradients_are_finite_where_members_are_certain_or_equal():
    certain = torch.tensor([[2000.0, 0.0], [1000.0, 0.0]], dtype=torch.float64)
    equal = torch.ones(3, 2, dtype=torch.float64)
    for numbers in (certain, equal):
        for label in (0, 1):
            members = numbers.clone().requires_grad_()
            terms = cross_entropy_ambiguity(members, torch.tensor(label))
            (gradient,) = autograd.grad(terms.error + terms.bias + terms.diversity, members)
            assert bool(gradient.isfinite().all())
