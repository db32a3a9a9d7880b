"""A few rows of an ensemble, with its analyses: on logits, on pseudo-tokens, or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity import functional
from lens_diversity.decomposition._members import (
    check_members,
    per_member,
    running_sum,
    sum_of_others,
)
from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.decomposition.nested import nested
from lens_diversity.full_vocab import losses
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.coordinates import linear_whitened
from lens_diversity.full_vocab.gram import compact_vocabulary
from lens_diversity.full_vocab.neurons import (
    NeuronMembers,
    neuron_ambiguity,
    neuron_leave_one_out,
    within_sublayers,
)
from lens_diversity.full_vocab.squared import squared_ambiguity
from lens_diversity.neurons import NeuronStack, Stack
from lens_diversity.readout import Reconstruction, place_constant
from lens_diversity.stack import ComponentStack


@dataclass(frozen=True, eq=False)
class DenseChunk:
    """Component logits of a few rows with their targets."""

    stack: Stack
    logits: Float[Tensor, "component row vocab"]
    kappa: Float[Tensor, " vocab"]
    targets: Tensor
    reconstruction: Reconstruction
    of_vocabulary: bool

    def ambiguity(
        self, loss: str, constant: str, combine: str, gauge: str, weights: Tensor
    ) -> functional.AmbiguityTerms:
        members = _in_gauge(place_constant(self.logits, self.kappa, constant), gauge)
        members = functional.combine_members(members, weights, combine)
        return LOSSES[loss](members, self.targets, weights)

    def leave_one_out(self, loss: str, combine: str) -> Float[Tensor, "component row"]:
        whole = combine == "sum"
        return functional.leave_one_out(
            self.logits if whole else place_constant(self.logits, self.kappa, "spread"),
            self.targets,
            loss=loss,
            combine=combine,
            constant=self.kappa if whole else None,
        )

    def junctions(self, loss: str, combine: str, scale: str) -> functional.JunctionTerms:
        terms = functional.junctions(
            self.logits,
            self.targets,
            loss=loss,
            combine=combine,
            constant=self.kappa,
            rescale=_rescale(self.stack, self.logits.dtype) if scale == "junction" else None,
        )
        return replace(terms, logits=None) if self.of_vocabulary else terms

    def nested(self, levels: Levels, loss: str, combine: str, gauge: str) -> list[Tensor]:
        label = torch.zeros(self.logits.shape[1:-1], dtype=torch.long, device=self.logits.device)

        def spread(children: Tensor, shares: Tensor) -> Tensor:
            return LOSSES[loss](children, label, shares).component_diversity

        members, weights = _scaled_parts(self.logits, self.kappa, levels, combine)
        return nested(_in_gauge(members, gauge), levels, weights, spread)


@dataclass(frozen=True, eq=False)
class WhitenedChunk:
    """A few rows over the whole vocabulary with a squared loss.

    What is a mean over the vocabulary is the same mean over the pseudo-tokens of a
    `CompactVocabulary`, so these can stand for the logits everywhere. The decomposition itself,
    the one that is asked of whole corpora, has a faster way when no gradient is wanted.
    """

    stack: ComponentStack
    basis: VocabularyBasis
    dtype: torch.dtype
    targets: Float[Tensor, "row pseudo"]
    reconstruction: Reconstruction

    def ambiguity(
        self, loss: str, constant: str, combine: str, gauge: str, weights: Tensor
    ) -> functional.AmbiguityTerms:
        if torch.is_grad_enabled() and self.stack.values.requires_grad:
            return self._on_pseudo_tokens.ambiguity(loss, constant, combine, gauge, weights)
        own, kappa = self.basis.components(self.stack, self.dtype)
        if constant == "component" or bool(kappa.any()):
            own = place_constant(own, kappa, constant)
        if combine == "sum":
            own = functional.combine_members(own, weights, combine)
        vocabulary = compact_vocabulary(self.basis)
        axes = vocabulary.axes(like=own)
        if gauge == "centred":
            axes = axes[:-1]
        target = vocabulary.on_axes(self.targets)
        return squared_ambiguity(own, axes, target, weights, self.basis.d_vocab)

    def leave_one_out(self, loss: str, combine: str) -> Float[Tensor, "component row"]:
        return self._on_pseudo_tokens.leave_one_out(loss, combine)

    def junctions(self, loss: str, combine: str, scale: str) -> functional.JunctionTerms:
        return self._on_pseudo_tokens.junctions(loss, combine, scale)

    def nested(self, levels: Levels, loss: str, combine: str, gauge: str) -> list[Tensor]:
        return self._on_pseudo_tokens.nested(levels, loss, combine, gauge)

    @property
    def _on_pseudo_tokens(self) -> DenseChunk:
        logits, kappa = linear_whitened(self.stack, self.basis, self.dtype)
        given = (self.stack, logits, kappa, self.targets, self.reconstruction)
        return DenseChunk(*given, of_vocabulary=True)


@dataclass(frozen=True, eq=False)
class StreamedChunk:
    """Coefficients of a few rows' component logits, for the softmax losses over the vocabulary."""

    stack: ComponentStack
    basis: VocabularyBasis
    coefficients: Float[Tensor, "component row basis"]
    kappa: Float[Tensor, " basis"]
    targets: Int[Tensor, " row"]
    reconstruction: Reconstruction
    memory_budget: int

    def ambiguity(
        self, loss: str, constant: str, combine: str, gauge: str, weights: Tensor
    ) -> functional.AmbiguityTerms:
        members = place_constant(check_members(self.coefficients), self.kappa, constant)
        members = functional.combine_members(members, weights, combine)
        return self._terms(members, loss, gauge, weights)

    def leave_one_out(self, loss: str, combine: str) -> Float[Tensor, "component row"]:
        own = check_members(self.coefficients)
        count = len(own)
        if count == 1:
            raise ValueError("without its only member there is no ensemble left; give at least two")
        spread = place_constant(own, self.kappa, "spread")
        if loss == "brier":
            # Of the others, u_k / (1 / (L - 1)) + kappa with "sum": the same for all that leave.
            members = spread if combine == "mean" else (count - 1) * own + self.kappa
            return losses.brier_without_each(self.basis, members, self.targets, self.memory_budget)
        rest = (
            sum_of_others(spread) / (count - 1)
            if combine == "mean"
            else sum_of_others(own) + self.kappa
        )
        return losses.ensemble_errors(self.basis, rest, self.targets, loss, self.memory_budget)

    def junctions(self, loss: str, combine: str, scale: str) -> functional.JunctionTerms:
        own = check_members(self.coefficients)
        if loss != "brier" and (combine, scale) == ("mean", "final") and not bool(self.kappa.any()):
            return self._cumulative(own, loss)
        factor = torch.ones_like(own[..., :1])
        if scale == "junction":
            factor = _rescale(self.stack, own.dtype).unsqueeze(-1)
        parts = []
        for count in range(1, len(own) + 1):
            members = factor[count - 1] * own[:count] + self.kappa / count
            weights = members.new_full((count,), 1 / count)
            members = functional.combine_members(members, weights, combine)
            parts.append(self._terms(members, loss, "model", weights))
        return functional.JunctionTerms(
            torch.stack([part.error for part in parts]),
            torch.stack([part.bias for part in parts]),
            torch.stack([part.diversity for part in parts]),
            logits=None,
        )

    def nested(self, levels: Levels, loss: str, combine: str, gauge: str) -> list[Tensor]:
        def spread(children: Tensor, shares: Tensor) -> Tensor:
            return self._terms(children, loss, gauge, shares).component_diversity

        own = check_members(self.coefficients)
        members, weights = _scaled_parts(own, self.kappa, levels, combine)
        return nested(members, levels, weights, spread)

    def _cumulative(
        self, own: Float[Tensor, "component row basis"], loss: str
    ) -> functional.JunctionTerms:
        """Members that are the same at every junction: two rows a junction instead of ``k + 1``."""
        counts = torch.arange(1, len(own) + 1, device=own.device).to(own)
        given = (self.targets, loss, self.memory_budget)
        alone = losses.ensemble_errors(self.basis, own, *given)
        error = losses.ensemble_errors(
            self.basis, running_sum(own) / per_member(counts, own), *given
        )
        bias = running_sum(alone) / counts.unsqueeze(1)
        if loss == "cross_entropy":
            return functional.JunctionTerms(error, bias, bias - error, logits=None)
        pseudo = self._pseudo(own)
        squared = functional.junctions(pseudo, torch.zeros_like(pseudo[0]), loss="squared")
        return functional.JunctionTerms(error, bias, squared.diversity, logits=None)

    def _terms(
        self,
        members: Float[Tensor, "member row basis"],
        loss: str,
        gauge: str,
        weights: Float[Tensor, " member"],
    ) -> functional.AmbiguityTerms:
        given = (self.basis, members, self.targets, weights, self.memory_budget)
        if loss == "cross_entropy":
            return losses.cross_entropy(*given)
        if loss == "brier":
            return losses.brier(*given)
        return losses.paper(*given, _in_gauge(self._pseudo(members), gauge))

    def _pseudo(self, members: Float[Tensor, "member row basis"]) -> Tensor:
        tokens = compact_vocabulary(self.basis).tokens(like=members)
        return members @ tokens


@dataclass(frozen=True, eq=False)
class NeuronChunk:
    """A few rows of neurons over the whole vocabulary with a squared loss."""

    stack: NeuronStack
    basis: VocabularyBasis
    dtype: torch.dtype
    targets: Float[Tensor, "row pseudo"]
    reconstruction: Reconstruction

    def ambiguity(
        self, loss: str, constant: str, combine: str, gauge: str, weights: Tensor
    ) -> functional.AmbiguityTerms:
        members = NeuronMembers.of(self.stack, self.basis, self.dtype, gauge)
        return neuron_ambiguity(members, self.targets, weights, constant, combine)

    def leave_one_out(self, loss: str, combine: str) -> Float[Tensor, "component row"]:
        members = NeuronMembers.of(self.stack, self.basis, self.dtype)
        return neuron_leave_one_out(members, self.targets, combine)

    def junctions(self, loss: str, combine: str, scale: str) -> functional.JunctionTerms:
        raise ValueError(
            f"junctions of {len(self.stack)} neurons over the whole vocabulary would need a vector "
            'for each: give option tokens with vocab=, or use unit="head" or "sublayer"'
        )

    def nested(self, levels: Levels, loss: str, combine: str, gauge: str) -> list[Tensor]:
        members = NeuronMembers.of(self.stack, self.basis, self.dtype, gauge)
        sublayers = self.stack.sublayers(levels[0])
        given = (self.basis, self.dtype, self.targets, self.reconstruction)
        of_sublayers = WhitenedChunk(sublayers, *given)
        # Every sublayer a group of its own: what is left is between them.
        alone = torch.arange(len(sublayers))
        _, *between = of_sublayers.nested([alone, levels[1]], loss, combine, gauge)
        scale = len(sublayers) ** 2 if combine == "sum" else 1
        return [scale * within_sublayers(members, sublayers, levels[0]), *between]


Levels = Sequence[Int[Tensor, " _"]]
"""The sublayer of each member, the module of each sublayer."""

Chunk = DenseChunk | WhitenedChunk | StreamedChunk | NeuronChunk


def _scaled_parts(
    own: Float[Tensor, "member row _"], kappa: Float[Tensor, " _"], levels: Levels, combine: str
) -> tuple[Float[Tensor, "member row _"], Float[Tensor, " member"]]:
    """Members ``n_s u_n`` and their weights ``1 / (L n_s)``; their means are those of sublayers."""
    sizes = torch.bincount(levels[0])
    parts = sizes[levels[0]].to(own)
    members = per_member(parts, own) * own + kappa / len(sizes)
    if combine == "sum":
        members = len(sizes) * members
    return members, 1 / (len(sizes) * parts)


def _in_gauge(members: Float[Tensor, "member row vocab"], gauge: str) -> Tensor:
    return members - members.mean(-1, keepdim=True) if gauge == "centred" else members


def _rescale(stack: Stack, dtype: torch.dtype) -> Float[Tensor, "junction row"]:
    """Ratio of the whole stream's norm statistic to that of each partial sum."""
    if isinstance(stack, NeuronStack):
        raise ValueError(
            "scale='junction' needs the stream after every neuron; use scale='final', or "
            "stack.materialise() where that is small enough"
        )
    statistic = stack.readout.statistic(stack.values.to(dtype).cumsum(0))
    return (stack.stream.scale.to(statistic) / statistic).squeeze(-1)
