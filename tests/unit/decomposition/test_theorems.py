"""The paper's theorems (Kamigaito et al. 2025): what holds, and where what is printed does not.

``u_ij`` are logits ``[component, vocab]`` of one position, ``m`` their mean over components and
``t`` the target.
"""

import pytest
import torch

from lens_diversity.functional import (
    bias_diversity,
    brier_ambiguity,
    brown_covariance,
    cross_entropy_ambiguity,
    krogh_vedelsby,
    module_split,
)

EXACT = {
    "squared": krogh_vedelsby,
    "brier": brier_ambiguity,
    "cross_entropy": cross_entropy_ambiguity,
}
MODULES = ["embed", "attn", "mlp", "attn", "mlp"]


def random_ensemble(vocab=6):
    """Five members and a dense target that has nothing to do with them."""
    members = torch.randn(len(MODULES), vocab, dtype=torch.float64)
    return members, torch.randn(vocab, dtype=torch.float64)


def test_theorem_1_error_is_bias_minus_diversity():
    """Claim (Eqs. 6-8): ``E_j (t_j - m_j)^2`` is the average squared error of the members minus
    their average squared distance from ``m``. It holds exactly, whatever the target."""
    for _ in range(100):
        members, target = random_ensemble()
        mean = members.mean(0)
        error = (target - mean).square().mean()
        bias = (target - members).square().mean()
        diversity = (mean - members).square().mean()
        torch.testing.assert_close(error, bias - diversity, rtol=1e-12, atol=1e-14)
        terms = krogh_vedelsby(members, target)
        torch.testing.assert_close(terms.error, error, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(terms.bias, bias, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(terms.diversity, diversity, rtol=1e-12, atol=1e-14)


def test_theorem_1_by_module():
    """Claim (Eqs. 9-10): bias and diversity are sums over embedding, attention and MLP of
    ``|M| / L`` times the module's own average. It holds exactly."""
    members, target = random_ensemble()
    terms = krogh_vedelsby(members, target)
    for whole, own in (
        (terms.bias, (target - members).square().mean(-1)),
        (terms.diversity, (members.mean(0) - members).square().mean(-1)),
    ):
        shares = {
            module: MODULES.count(module)
            / len(MODULES)
            * own[[name == module for name in MODULES]].mean()
            for module in ("embed", "attn", "mlp")
        }
        torch.testing.assert_close(sum(shares.values()), whole, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(module_split(own, MODULES), shares, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", EXACT)
def test_theorem_2_diversity_vanishes_with_bias(loss):
    """Claim: diversity tends to zero as bias does. For the whole ensemble it follows from
    ``error >= 0``: ``diversity <= bias``, for every loss with an exact identity."""
    labels = torch.tensor([1])
    for _ in range(100):
        members = 3 * torch.randn(5, 1, 4, dtype=torch.float64)
        terms = EXACT[loss](members, labels)
        assert bool(terms.diversity <= terms.bias)
    for certainty in (1.0, 10.0, 100.0):
        nearly = torch.randn(5, 1, 4, dtype=torch.float64) / certainty
        if loss == "squared":
            nearly[..., 1] += 1.0
        else:
            nearly[..., 1] += certainty
        terms = EXACT[loss](nearly, labels)
        assert bool(terms.diversity <= terms.bias)
        assert certainty < 100 or float(terms.bias) < 1e-3


def test_theorem_2_fails_for_a_module():
    """Claim: as a module's bias tends to zero, so does its diversity. Counter-example: every
    embedding member equals the target, but the others move the mean away. The embedding's bias is
    0 and its diversity ``E_j (m_j - t_j)^2``, the error of the whole ensemble."""
    members, target = random_ensemble()
    members[0] = target
    terms = krogh_vedelsby(members, target)
    assert float(terms.component_bias[0]) < 1e-30
    torch.testing.assert_close(terms.component_diversity[0], terms.error, rtol=1e-12, atol=0.0)
    assert float(terms.component_diversity[0]) > 0.1
    bias, diversity = (
        module_split(term, MODULES) for term in (terms.component_bias, terms.component_diversity)
    )
    assert float(bias["embed"]) < 1e-30
    assert float(diversity["embed"]) > 0.02


def test_theorem_3_diversity():
    """Claim (Eq. 11): ``diversity = Omega - [var_bar / L + (1 - 1/L) cov_bar]``. It holds
    exactly."""
    for _ in range(100):
        members, target = random_ensemble()
        terms = brown_covariance(members, target)
        count = len(members)
        bracket = terms.var_bar / count + (1 - 1 / count) * terms.cov_bar
        exact = krogh_vedelsby(members, target).diversity
        torch.testing.assert_close(terms.omega - bracket, exact, rtol=1e-12, atol=1e-13)


def test_theorem_3_bias_as_printed_fails_and_with_two_more_terms_holds():
    """Claim (Eq. 11): ``bias = bias_bar^2 + Omega``. Counter-example: almost any target. The bias
    is ``bias_bar^2 + Omega + Var_j(t) - 2 E_i Cov_j(u_i, t)``."""
    missed = []
    for _ in range(100):
        members, target = random_ensemble()
        terms, exact = brown_covariance(members, target), krogh_vedelsby(members, target).bias
        torch.testing.assert_close(terms.bias, exact, rtol=1e-12, atol=1e-13)
        missed.append(float((terms.paper_bias - exact).abs() / exact))
    assert min(missed) > 1e-4
    assert sum(missed) / len(missed) > 0.1


def test_theorem_3_bias_as_printed_is_right_for_a_constant_target():
    """Claim (Eq. 11): ``bias = bias_bar^2 + Omega``. It holds where the target is constant over
    the vocabulary: then ``Var_j(t)`` and ``Cov_j(u_i, t)`` are zero. A one-hot target is not."""
    members, _ = random_ensemble()
    constant = torch.full((6,), 0.7, dtype=torch.float64)
    exact = krogh_vedelsby(members, constant).bias
    terms = brown_covariance(members, constant)
    torch.testing.assert_close(terms.paper_bias, exact, rtol=1e-12, atol=0.0)
    one_hot = torch.tensor(2)
    exact = krogh_vedelsby(members, one_hot).bias
    assert float((brown_covariance(members, one_hot).paper_bias - exact).abs()) > 1e-2


def test_equation_14_has_no_identity():
    """Claim (section 3.3): MSE and bias after a softmax stand beside the diversity of Eq. 8.
    Counter-example to ``error = bias - diversity``: bias is at most 1 and diversity grows with the
    square of the logits, beyond any multiple of it."""
    members, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor(1)
    base = bias_diversity(members, labels)
    assert float(base.residual.abs()) > 0.1
    for scale in (10.0, 100.0, 1000.0):
        terms = bias_diversity(scale * members, labels)
        torch.testing.assert_close(terms.diversity, scale**2 * base.diversity)
        assert float(terms.bias) <= 1.0
        assert float(terms.diversity) > scale * float(terms.bias)
    for loss in ("brier", "cross_entropy"):
        terms = EXACT[loss](1000 * members, labels)
        assert float(terms.diversity) <= float(terms.bias)


def test_the_gauge_of_each_member_changes_diversity_alone():
    """Claim (Eq. 8): diversity measures how much members differ. A constant added to all logits of
    a member changes none of its predictions, but the diversity of ``squared`` and ``paper``; the
    error and bias of ``paper`` and all of ``brier`` and ``cross_entropy`` stay."""
    members, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor(1)
    offset = 3 * torch.randn(5, 1, dtype=torch.float64)
    before, after = (bias_diversity(u, labels) for u in (members, members + offset))
    torch.testing.assert_close(before.bias, after.bias, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(before.error, after.error, rtol=1e-12, atol=0.0)
    assert float((before.diversity - after.diversity).abs()) > 0.1
    shift = (offset - offset.mean()).square().mean()
    deviation = (members - members.mean(0)).mean(-1, keepdim=True)
    expected = before.diversity + shift + 2 * (deviation * (offset - offset.mean())).mean()
    torch.testing.assert_close(after.diversity, expected)
    squared = [krogh_vedelsby(u, labels).diversity for u in (members, members + offset)]
    torch.testing.assert_close(torch.stack(squared), torch.stack([before.diversity, expected]))
    for loss in ("brier", "cross_entropy"):
        before, after = (EXACT[loss](u, labels) for u in (members, members + offset))
        for name in ("error", "bias", "diversity"):
            torch.testing.assert_close(
                getattr(before, name), getattr(after, name), rtol=1e-10, atol=1e-14
            )


def test_the_gauge_of_all_members_alike_changes_no_diversity():
    """An offset that all members share leaves every diversity as it is, and all of ``paper``; the
    error and bias of ``squared`` do change, because its target stays."""
    members, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor(1)
    for loss in (bias_diversity, brier_ambiguity, cross_entropy_ambiguity):
        before, after = (loss(u, labels) for u in (members, members + 2.5))
        for name in ("error", "bias", "diversity"):
            torch.testing.assert_close(
                getattr(before, name), getattr(after, name), rtol=1e-10, atol=1e-14
            )
    before, after = (krogh_vedelsby(u, labels) for u in (members, members + 2.5))
    torch.testing.assert_close(before.diversity, after.diversity, rtol=1e-12, atol=0.0)
    assert float((before.error - after.error).abs()) > 0.1
