"""Decompositions of the softmax losses over the whole vocabulary, from members as coefficients.

``members`` are ``[component, row, basis]`` (see `VocabularyBasis`): the same linear arithmetic as
on logits, and only the softmax has to see the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.decomposition._members import weighted_mean
from lens_diversity.decomposition.squared import krogh_vedelsby
from lens_diversity.decomposition.terms import AmbiguityTerms
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.softmax import (
    Budget,
    GoldStatistics,
    gold_statistics,
    mask_gold,
    tiles,
)

Members = Float[Tensor, "component row basis"]


def cross_entropy(
    basis: VocabularyBasis,
    members: Members,
    labels: Int[Tensor, " row"],
    weights: Float[Tensor, " component"],
    budget: Budget,
) -> AmbiguityTerms:
    """``-log q_y = E_i[-log p_iy] - E_i KL(q || p_i)`` with ``q = softmax(m)``, in one pass.

    ``KL(q || p_i) = (m - u_i).q + log_sum(u_i) - log_sum(m)``, where ``(y B).q = y.(B q)`` needs
    the average of the basis under ``q`` and no logits.
    """
    stats, centroid = _with_centroid(basis, members, labels, weights, budget, squares=False)
    gap = torch.einsum("irb,rb->ir", centroid - members, stats.averages)
    log_sums = stats.log_sum
    losses = stats.cross_entropy
    return _averaged(losses[-1], losses[:-1], gap + (log_sums[:-1] - log_sums[-1]), weights)


def paper(
    basis: VocabularyBasis,
    members: Members,
    labels: Int[Tensor, " row"],
    weights: Float[Tensor, " component"],
    budget: Budget,
    coordinates: Float[Tensor, "component row pseudo"],
) -> AmbiguityTerms:
    """Error and bias after a softmax (Eq. 14) in one pass, diversity on logits (Eq. 8).

    ``coordinates`` are the members over the pseudo-tokens of the compact vocabulary, in the gauge
    in which the diversity is wanted.
    """
    stats, _ = _with_centroid(basis, members, labels, weights, budget, squares=True)
    losses = stats.squared_error / basis.d_vocab
    on_logits = krogh_vedelsby(coordinates, torch.zeros_like(coordinates[0]), weights)
    return _averaged(losses[-1], losses[:-1], on_logits.component_diversity, weights)


def brier(
    basis: VocabularyBasis,
    members: Members,
    labels: Int[Tensor, " row"],
    weights: Float[Tensor, " component"],
    budget: Budget,
) -> AmbiguityTerms:
    """Squared error of the mean probability, in two passes: normalisers, then the mean."""
    stats = gold_statistics(basis, members, labels, budget, squares=True)
    error = weighted_mean(stats.missing, weights.to(stats.missing)).square()
    spread = (stats.missing - weighted_mean(stats.missing, weights.to(stats.missing))).square()
    for probabilities in _probabilities(basis, members, labels, stats, budget):
        mean = weighted_mean(probabilities, weights)
        error += _square_length(mean)
        spread += _square_length(probabilities.sub_(mean))
    losses = stats.squared_error / basis.d_vocab
    return _averaged(error / basis.d_vocab, losses, spread / basis.d_vocab, weights)


def ensemble_errors(
    basis: VocabularyBasis,
    ensembles: Members,
    labels: Int[Tensor, " row"],
    loss: str,
    budget: Budget,
) -> Float[Tensor, "component row"]:
    """Cross-entropy, or squared error after a softmax, of the softmax of each vector."""
    squares = loss != "cross_entropy"
    stats = gold_statistics(basis, ensembles, labels, budget, squares=squares)
    errors = stats.squared_error / basis.d_vocab if squares else stats.cross_entropy
    return errors.to(ensembles.dtype)


def brier_without_each(
    basis: VocabularyBasis, members: Members, labels: Int[Tensor, " row"], budget: Budget
) -> Float[Tensor, "component row"]:
    """Brier score of the mean probability of all other members, uniform weights."""
    count = len(members)
    stats = gold_statistics(basis, members, labels, budget, squares=True)
    missing = (stats.missing.sum(0) - stats.missing) / (count - 1)
    errors = missing.square()
    for probabilities in _probabilities(basis, members, labels, stats, budget):
        rest = (probabilities.sum(0) - probabilities).div_(count - 1)
        errors += _square_length(rest)
    return (errors / basis.d_vocab).to(members.dtype)


def _with_centroid(
    basis: VocabularyBasis,
    members: Members,
    labels: Int[Tensor, " row"],
    weights: Float[Tensor, " component"],
    budget: Budget,
    *,
    squares: bool,
) -> tuple[GoldStatistics, Float[Tensor, "row basis"]]:
    centroid = weighted_mean(members, weights)
    vectors = torch.cat([members, centroid.unsqueeze(0)])
    return gold_statistics(basis, vectors, labels, budget, squares=squares), centroid


def _probabilities(
    basis: VocabularyBasis,
    members: Members,
    labels: Int[Tensor, " row"],
    stats: GoldStatistics,
    budget: Budget,
) -> Iterator[Float[Tensor, "component row token"]]:
    """Every member's probabilities, tile by tile, zero at the gold token."""
    count, rows = members.shape[:2]
    flat = members.flatten(0, 1)
    ids = labels.repeat(count)
    log_sum = stats.log_sum.to(flat.dtype).flatten().unsqueeze(1)
    for tokens, tile in tiles(basis, flat, budget):
        mask_gold(tile, tokens, ids, log_sum[:, 0])
        yield tile.sub_(log_sum).exp_().view(count, rows, -1)


def _square_length(values: Float[Tensor, "*rest token"]) -> Float[Tensor, "*rest"]:
    length: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return length.square()


def _averaged(
    error: Tensor, component_bias: Tensor, component_diversity: Tensor, weights: Tensor
) -> AmbiguityTerms:
    """Average in float64, give back in the members' dtype."""
    wide = weights.to(error)
    bias, diversity = component_bias.to(wide), component_diversity.to(wide)
    terms = AmbiguityTerms.averaged(error, bias, diversity, wide)
    return AmbiguityTerms(**{f.name: getattr(terms, f.name).to(weights) for f in fields(terms)})
