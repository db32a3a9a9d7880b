"""Bias and diversity in terms of variances and covariances over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import (
    check_members,
    dense_target,
    heaviest_member,
    member_weights,
    sum_of_others,
    weighted_mean,
)


@dataclass(frozen=True, eq=False)
class BrownTerms:
    """The terms of the bias-diversity trade-off (Theorem 3), each ``[batch...]``."""

    bias_bar: Float[Tensor, "*batch"]
    """``E_i mu_i - E_j t_j`` with ``mu_i = E_j u_ij``."""
    var_bar: Float[Tensor, "*batch"]
    """``E_i Var_j u_i``."""
    cov_bar: Float[Tensor, "*batch"]
    """Mean over ``i != k`` of ``Cov_j(u_i, u_k)``; 0 for one member."""
    omega: Float[Tensor, "*batch"]
    """``var_bar + E_i (mu_i - E_k mu_k)^2``."""
    ensemble_variance: Float[Tensor, "*batch"]
    """``Var_j m = sum_ik w_i w_k Cov_j(u_i, u_k)``, the bracket of Eq. 11: for uniform weights
    ``var_bar / L + (1 - 1/L) cov_bar``."""
    target_var: Float[Tensor, "*batch"]
    """``Var_j t``."""
    target_cov: Float[Tensor, "*batch"]
    """``E_i Cov_j(u_i, t)``."""

    @property
    def diversity(self) -> Float[Tensor, "*batch"]:
        """``Omega - Var_j m``, exactly the diversity of the squared error."""
        return self.omega - self.ensemble_variance

    @property
    def bias(self) -> Float[Tensor, "*batch"]:
        """``bias_bar^2 + Omega + Var_j t - 2 E_i Cov_j(u_i, t)``, exactly the bias."""
        return self.paper_bias + self.target_var - 2 * self.target_cov

    @property
    def paper_bias(self) -> Float[Tensor, "*batch"]:
        """``bias_bar^2 + Omega`` as Eq. 11 prints it, without two terms.

        Right where they cancel, as for a target that is constant over the vocabulary.
        """
        return self.bias_bar.square() + self.omega


def brown_covariance(
    members: Tensor,
    target: Tensor,
    weights: Tensor | Sequence[float] | None = None,
) -> BrownTerms:
    """Decompose bias and diversity into variances and covariances over the vocabulary.

    ``diversity = Omega - [var_bar / L + (1 - 1/L) cov_bar]`` and
    ``bias = bias_bar^2 + Omega + Var_j t - 2 E_i Cov_j(u_i, t)`` (Brown et al. 2005; Kamigaito et
    al. 2025, Theorem 3, whose bias line lacks the last two terms). The covariances come from
    ``Var_j m = sum_ik w_i w_k Cov_j(u_i, u_k)``, not from an ``L x L`` matrix.

    Diversity is a difference of variances here: where members nearly coincide it loses about
    ``log10(omega / diversity)`` digits, which `krogh_vedelsby` keeps.

    Args:
        members: Outputs ``[component, batch..., vocab]``; half precision is widened to float32.
        target: Dense target ``[batch..., vocab]``, or integer labels ``[batch...]``.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).
            ``cov_bar`` is the mean over pairs weighted by ``w_i w_k``.

    Returns:
        The terms, in the squared units of the members (``bias_bar`` in their units).

    Raises:
        TypeError: If members are not floating-point or labels not integers.
        ValueError: If shapes do not fit, labels are out of range, weights do not sum to 1, or a
            number is NaN or infinite.

    Example:
        >>> terms = brown_covariance(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor(0))
        >>> terms.diversity, terms.bias
        (tensor(0.1250), tensor(0.2500))
    """
    members = check_members(members)
    target = dense_target(target, members)
    weights = member_weights(weights, members)
    # One number a row, so that an offset of everything costs no digits and no mean changes meaning.
    reference = heaviest_member(members, weights)[..., :1]
    relative, target = members - reference, target - reference
    means = relative.mean(-1)
    deviations = relative - means.unsqueeze(-1)
    target_deviations = target - target.mean(-1, keepdim=True)
    ensemble = weighted_mean(deviations, weights)

    grand_mean = weighted_mean(means, weights)
    variances = deviations.square().mean(-1)
    var_bar = weighted_mean(variances, weights)
    ensemble_variance = ensemble.square().mean(-1)
    between = ensemble_variance - weighted_mean(variances, weights.square())
    pairs = weighted_mean(sum_of_others(weights), weights)
    return BrownTerms(
        bias_bar=grand_mean - target.mean(-1),
        var_bar=var_bar,
        cov_bar=between / pairs if bool(pairs > 0) else torch.zeros_like(between),
        omega=var_bar + weighted_mean((means - grand_mean).square(), weights),
        ensemble_variance=ensemble_variance,
        target_var=target_deviations.square().mean(-1),
        target_cov=(ensemble * target_deviations).mean(-1),
    )
