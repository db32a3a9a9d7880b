"""Squared quantities of neurons over the vocabulary, with numbers instead of vectors for each.

A neuron's logits are ``alpha_n b_n``: a number for each position times a fixed vector over the
vocabulary. So ``|alpha b - x|^2 = alpha^2 |b|^2 - 2 alpha b.x + |x|^2``, with ``|b|^2`` made once
for each layer and ``b.x`` for all its neurons one product with the output matrix, as large as the
one that the MLP itself makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.decomposition._members import require_every_weight
from lens_diversity.decomposition.terms import AmbiguityTerms
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import CompactVocabulary, compact_vocabulary
from lens_diversity.neurons import NeuronLayer, NeuronStack
from lens_diversity.stack import ComponentStack

# Rows of an output matrix that are compared to notice that it was changed.
_SAMPLED_ROWS = 16


@dataclass(frozen=True, eq=False)
class NeuronMembers:
    """The members of a `NeuronStack` over the pseudo-tokens of the vocabulary."""

    stack: NeuronStack
    basis: VocabularyBasis
    vocabulary: CompactVocabulary
    tokens: Float[Tensor, "basis pseudo"]
    """The basis at the pseudo-tokens, in the gauge."""
    others: Float[Tensor, "other row basis"]
    """Coefficients of the members that are no neurons."""
    kappa: Float[Tensor, " basis"]
    """Coefficients of the constant."""
    gauge: str

    @classmethod
    def of(
        cls, stack: NeuronStack, basis: VocabularyBasis, dtype: torch.dtype, gauge: str = "model"
    ) -> NeuronMembers:
        """Prepare the members of a stack of rows."""
        others, kappa = basis.components(stack.others, dtype)
        vocabulary = compact_vocabulary(basis)
        tokens = vocabulary.tokens(like=others)
        if gauge == "centred":
            tokens = tokens - tokens.mean(1, keepdim=True)
        return cls(stack, basis, vocabulary, tokens, others, kappa, gauge)

    def layers(self) -> Iterator[tuple[NeuronLayer, Float[Tensor, "row neuron"], Tensor]]:
        """Each layer with ``alpha`` and ``E_j b_j^2`` of its neurons."""
        scale = self.stack.stream.scale.to(self.others)
        for layer in self.stack.layers:
            yield layer, layer.activations.to(self.others) / scale, self._squares(layer)

    def together(self, weights: Float[Tensor, " component"]) -> Float[Tensor, "row basis"]:
        """Coefficients of the weighted sum of all neurons."""
        total = torch.zeros_like(self.stack.others.values[0], dtype=self.others.dtype)
        if bool((weights == weights[0]).all()):
            total = total + sum(layer.written(total.dtype) for layer in self.stack.layers)
            total = weights[0] * total
        else:
            for layer in self.stack.layers:
                total = total + layer.weighted(
                    layer.activations.to(total) * weights[layer.slots].to(total)
                )
        scale = self.stack.stream.scale.to(total)
        return self.basis.widen(self.basis.readout.normalise(total, scale), 0.0)

    def at_tokens(self, coefficients: Float[Tensor, "*rest basis"]) -> Tensor:
        """Logits over the pseudo-tokens."""
        return coefficients @ self.tokens

    def towards(self, logits: Float[Tensor, "*row pseudo"]) -> Float[Tensor, "*row d_model"]:
        """What a direction is multiplied with for its mean product with these logits."""
        readout = self.basis.readout
        inner = logits @ self.tokens[: readout.W_U.shape[0]].T / self.tokens.shape[1]
        return readout.logit_scale * readout.normalise_adjoint(inner)

    def _squares(self, layer: NeuronLayer) -> Float[Tensor, " neuron"]:
        kept = _SQUARES.setdefault(layer.directions.untyped_storage(), [])
        for entry in kept:
            if entry.fits(self, layer):
                return entry.squares.to(self.others.device)
        with torch.no_grad(), torch.inference_mode(False):
            entry = _Squares.make(self, layer)
        kept[:] = [*kept[-3:], entry]
        return entry.squares


def neuron_ambiguity(
    members: NeuronMembers,
    target: Float[Tensor, "row pseudo"],
    weights: Float[Tensor, " component"],
    constant: str,
    combine: str,
) -> AmbiguityTerms:
    """`krogh_vedelsby` over the vocabulary with every neuron a member.

    Args:
        members: The members of a few rows.
        target: On the pseudo-tokens.
        weights: Of all members in stream order, and last of the constant if it is one.
        constant: ``"spread"``, ``"component"`` or ``"drop"``.
        combine: ``"mean"`` or ``"sum"``.

    Raises:
        ValueError: If a weight is zero with ``"sum"``.
    """
    count = len(weights)
    if combine == "sum":
        require_every_weight(weights)
    factors = 1 / weights if combine == "sum" else torch.ones_like(weights)
    # Everything is relative to the first member's share of the constant, which with uniform
    # weights is every member's: then the constant drops out of all differences.
    kappa = members.at_tokens(members.kappa)
    share = factors[0] / count if constant == "spread" else factors.new_zeros(())
    extra = (factors - factors[0]) / count if constant == "spread" else torch.zeros_like(factors)
    slots = torch.tensor(list(members.stack.slots), device=weights.device)
    others = members.at_tokens(members.others) * factors[slots, None, None]
    others = others + extra[slots, None, None] * kappa
    if constant == "component":
        slots = torch.cat([slots, slots.new_tensor([count - 1])])
        last = (factors[-1] * kappa).expand_as(others[:1])
        others = torch.cat([others, last])

    product = torch.ones_like(weights) if combine == "sum" else weights
    centroid = members.at_tokens(members.together(product[: len(members.stack)]))
    centroid = centroid + torch.tensordot(weights[slots], others, 1)
    centroid = centroid + ((weights * extra).sum() - (weights * extra)[slots].sum()) * kappa
    goal = target - share * kappa

    diversity = weights.new_empty(count, len(target))
    bias = torch.empty_like(diversity)
    diversity[slots] = (others - centroid).square().mean(-1)
    bias[slots] = (others - goal).square().mean(-1)
    points = [_Point.of(members, logits, kappa) for logits in (centroid, goal)]
    uneven = bool(extra.any())
    for layer, alphas, squares in members.layers():
        own, shift = factors[layer.slots] * alphas, extra[layer.slots]
        lengths = own * squares
        for terms, point in zip((diversity, bias), points, strict=True):
            found = point.distances(layer, own, lengths)
            if uneven:
                along = 2 * own * layer.products(members.towards(kappa).unsqueeze(0))
                found = found + shift * (along + shift * kappa.square().mean() - 2 * point.kappa)
            terms[layer.slots] = found.clamp_min_(0).T
    error = (centroid - goal).square().mean(-1)
    return AmbiguityTerms.averaged(error, bias, diversity, weights)


def neuron_leave_one_out(
    members: NeuronMembers, target: Float[Tensor, "row pseudo"], combine: str
) -> Float[Tensor, "component row"]:
    """Squared error over the vocabulary without each member, see `leave_one_out`."""
    count = len(members.stack)
    kappa = members.at_tokens(members.kappa)
    total = members.at_tokens(members.together(kappa.new_ones(count)) + members.others.sum(0))
    if combine == "sum":
        step, miss = 1.0, target - kappa - total
    else:
        step = 1 / (count - 1)
        miss = target - kappa / count - total * step
    errors = target.new_zeros(count, len(target))
    others = miss + step * members.at_tokens(members.others)
    errors[list(members.stack.slots)] = others.square().mean(-1)
    point = _Point.of(members, miss, kappa)
    for layer, alphas, squares in members.layers():
        own = -step * alphas
        errors[layer.slots] = point.distances(layer, own, own * squares).clamp_min_(0).T
    return errors


def within_sublayers(
    members: NeuronMembers, sublayers: ComponentStack, owners: Int[Tensor, " component"]
) -> Float[Tensor, "component row"]:
    """Distance of ``n_s u_n`` from ``u_s`` times weight ``1 / (L n_s)``, of all parts of sublayers.

    Args:
        members: The members of a few rows.
        sublayers: What they write together, sublayer by sublayer.
        owners: The sublayer of each member.
    """
    sizes = torch.bincount(owners)
    count = len(sizes)
    nothing = torch.zeros_like(members.at_tokens(members.kappa))
    own, _ = members.basis.components(sublayers, members.others.dtype)
    terms = own.new_empty(len(owners), own.shape[1])
    others = members.at_tokens(members.others)
    for slot, logits in zip(members.stack.slots, others, strict=True):
        size = int(sizes[owners[slot]])
        miss = size * logits - members.at_tokens(own[int(owners[slot])])
        terms[slot] = miss.square().mean(-1) / (count * size)
    for layer, alphas, squares in members.layers():
        place = int(owners[layer.first])
        size = int(sizes[place])
        point = _Point.of(members, members.at_tokens(own[place]), nothing)
        scaled = size * alphas
        found = point.distances(layer, scaled, scaled * squares).clamp_min_(0)
        terms[layer.slots] = found.T / (count * size)
    return terms


@dataclass(frozen=True, eq=False)
class _Point:
    """What the distances of neurons from logits are made of: means of products over the tokens."""

    towards: Float[Tensor, "row d_model"]
    square: Float[Tensor, "row 1"]
    kappa: Float[Tensor, "row 1"]

    @classmethod
    def of(
        cls, members: NeuronMembers, logits: Float[Tensor, "row pseudo"], kappa: Tensor
    ) -> _Point:
        square = logits.square().mean(-1, keepdim=True)
        return cls(members.towards(logits), square, (logits * kappa).mean(-1, keepdim=True))

    def distances(
        self,
        layer: NeuronLayer,
        own: Float[Tensor, "row neuron"],
        lengths: Float[Tensor, "row neuron"],
    ) -> Float[Tensor, "row neuron"]:
        """``a (a |b|^2 - 2 b.x) + |x|^2`` of neurons ``a b``; ``lengths`` are ``a |b|^2``."""
        return torch.addcmul(self.square, own, layer.less_twice_products(lengths, self.towards))


def _coefficients(
    directions: Float[Tensor, "neuron d_model"],
    gain: Float[Tensor, " d_model"] | None,
    basis: VocabularyBasis,
    like: Tensor,
) -> Float[Tensor, "neuron basis"]:
    """What neurons write at activation one, through the final norm at statistic one."""
    directions = directions.to(like)
    if gain is not None:
        directions = directions * gain.to(like)
    fixed = basis.readout.normalise(directions, torch.ones_like(directions[:, :1]))
    return basis.widen(fixed, 0.0)


@dataclass(frozen=True, eq=False)
class _Squares:
    """Squared sizes of a layer's neurons, with what tells whether they still hold."""

    squares: Float[Tensor, " neuron"]
    vocabulary: CompactVocabulary
    layout: tuple[object, ...]
    sample: Tensor

    @classmethod
    def make(cls, members: NeuronMembers, layer: NeuronLayer) -> _Squares:
        given = (layer.gain, members.basis, members.others)
        directions = _coefficients(layer.directions, *given).detach()
        axes = members.vocabulary.axes(like=directions)
        if members.gauge == "centred":
            axes = axes[:-1]
        squares = torch.zeros_like(directions[:, 0])
        for first, block in axes:
            squares += (directions[:, first:] @ block).square().sum(1)
        layout = _layout(members, layer)
        sample = _sample(members, layer)
        return cls(squares / members.basis.d_vocab, members.vocabulary, layout, sample)

    def fits(self, members: NeuronMembers, layer: NeuronLayer) -> bool:
        return (
            self.vocabulary is members.vocabulary
            and self.layout == _layout(members, layer)
            and torch.equal(self.sample, _sample(members, layer))
        )


# By the memory that holds an output matrix, which lives as long as the model.
_SQUARES: WeakKeyDictionary[torch.UntypedStorage, list[_Squares]] = WeakKeyDictionary()


def _layout(members: NeuronMembers, layer: NeuronLayer) -> tuple[object, ...]:
    weight = layer.directions
    version = None if weight.is_inference() else weight._version
    given = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, version)
    return (*given, members.gauge, members.others.dtype)


def _sample(members: NeuronMembers, layer: NeuronLayer) -> Tensor:
    """Some of the neurons' coefficients: these show a change of any weight on the way."""
    step = max(1, len(layer.directions) // _SAMPLED_ROWS)
    few = layer.directions[::step]
    return _coefficients(few, layer.gain, members.basis, members.others).detach().clone()
