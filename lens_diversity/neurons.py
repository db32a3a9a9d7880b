"""Neurons as members, by their activations: no vector of the stream is held for any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.readout import Readout
from lens_diversity.stack import ComponentStack, FinalStream


@dataclass(frozen=True, eq=False)
class NeuronLayer:
    """The neurons of one MLP: ``z_n = activation_n * (gain * direction_n)``."""

    activations: Float[Tensor, "*batch neuron"]
    """What each neuron's direction is multiplied with, in float32 at least."""
    directions: Float[Tensor, "neuron d_model"]
    """Rows of the output matrix, as the model holds them."""
    gain: Float[Tensor, " d_model"] | None
    """Weight of a norm after the MLP, if any."""
    first: int
    """Index of the first of them among the members of the stack."""
    together: Float[Tensor, "*batch d_model"]
    """The sum of what they write."""

    @classmethod
    def of(
        cls, activations: Tensor, directions: Tensor, gain: Tensor | None, first: int
    ) -> NeuronLayer:
        """Sum what the neurons write."""
        return cls(activations, directions, gain, first, _summed(activations, directions, gain))

    @property
    def slots(self) -> slice:
        """Their indices among the members of the stack."""
        return slice(self.first, self.first + len(self.directions))

    def weighted(self, activations: Float[Tensor, "*batch neuron"]) -> Tensor:
        """What they would write together at other activations, in the dtype of these."""
        return _summed(activations, self.directions, self.gain)

    def written(self, dtype: torch.dtype) -> Float[Tensor, "*batch d_model"]:
        """What they write together, summed in ``dtype``."""
        if dtype == self.together.dtype:
            return self.together
        return self.weighted(self.activations.to(dtype))

    def products(self, vectors: Float[Tensor, "row d_model"]) -> Float[Tensor, "row neuron"]:
        """Products of each neuron's direction with vectors of the stream."""
        return self._gained(vectors) @ self.directions.to(vectors).T

    def less_twice_products(
        self, start: Float[Tensor, "row neuron"], vectors: Float[Tensor, "row d_model"]
    ) -> Float[Tensor, "row neuron"]:
        """``start - 2 products(vectors)`` in one pass."""
        return torch.addmm(start, self._gained(vectors), self.directions.to(vectors).T, alpha=-2)

    def _gained(self, vectors: Tensor) -> Tensor:
        return vectors if self.gain is None else vectors * self.gain.to(vectors)


def _summed(
    activations: Float[Tensor, "*batch neuron"],
    directions: Float[Tensor, "neuron d_model"],
    gain: Float[Tensor, " d_model"] | None,
) -> Float[Tensor, "*batch d_model"]:
    total = activations @ directions.to(activations)
    return total if gain is None else total * gain.to(total)


@dataclass(frozen=True, eq=False)
class NeuronStack:
    """The neurons of every MLP, and the embeddings, attention outputs and biases beside them.

    It stands wherever a `ComponentStack` does, but for what would need a vector of the stream for
    every neuron and position: the squared loss works over the whole vocabulary, the others over
    chosen tokens. `materialise` makes the ordinary stack, where that is small enough.
    """

    others: ComponentStack
    """Members that are no neurons."""
    slots: Sequence[int]
    """Their indices among all members."""
    layers: Sequence[NeuronLayer]
    """The neurons, layer by layer."""
    labels: list[str]
    """Names of all members in stream order."""
    modules: list[str]
    """Kind of each member."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the batch axes."""
        return self.others.axes

    @property
    def stream(self) -> FinalStream:
        """The model's own record of the sum."""
        return self.others.stream

    @property
    def readout(self) -> Readout:
        """The affine map from residual vectors to logits."""
        return self.others.readout

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Sizes of ``axes``."""
        return self.others.batch_shape

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the activations."""
        return self.others.dtype

    @property
    def device(self) -> torch.device:
        """Where the activations are."""
        return self.others.device

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient with respect to any member is wanted."""
        return self.others.requires_grad or any(
            layer.activations.requires_grad for layer in self.layers
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sizes = [f"{axis} {size}" for axis, size in zip(self.axes, self.batch_shape, strict=True)]
        count = len(self) - len(self.slots)
        return (
            f"NeuronStack({' x '.join([f'{len(self)} members', *sizes])}: {count} neurons, "
            f"{len(self.slots)} others)"
        )

    def total(self, dtype: torch.dtype) -> Float[Tensor, "*batch d_model"]:
        """The sum of all members."""
        total = self.others.total(dtype)
        for layer in self.layers:
            total = total + layer.written(dtype)
        return total

    def to(self, device: torch.device | str) -> NeuronStack:
        """Move the activations to a device; the output matrices follow, layer by layer."""
        layers = [
            replace(
                layer,
                activations=layer.activations.to(device),
                directions=layer.directions.to(device),
                together=layer.together.to(device),
            )
            for layer in self.layers
        ]
        return replace(self, others=self.others.to(device), layers=layers)

    def rows(self) -> NeuronStack:
        """The same stack with all batch axes flattened into one."""
        layers = [
            replace(
                layer,
                activations=layer.activations.reshape(-1, layer.activations.shape[-1]),
                together=layer.together.reshape(-1, layer.together.shape[-1]),
            )
            for layer in self.layers
        ]
        return replace(self, others=self.others.rows(), layers=layers)

    def select_rows(self, rows: slice) -> NeuronStack:
        """Part of a stack along its first batch axis."""
        layers = [
            replace(layer, activations=layer.activations[rows], together=layer.together[rows])
            for layer in self.layers
        ]
        return replace(self, others=self.others.select_rows(rows), layers=layers)

    def with_remainder(self) -> NeuronStack:
        """Append what the stream holds and no member wrote, see `ComponentStack.with_remainder`.

        Raises:
            ValueError: If the cache did not hold the final stream, or it is there already.
        """
        remainder = self.others.remainder_of(self.total(self.dtype))
        others = replace(
            self.others,
            values=torch.cat([self.others.values, remainder.unsqueeze(0)]),
            labels=[*self.others.labels, "remainder"],
            modules=[*self.others.modules, "remainder"],
        )
        return replace(
            self,
            others=others,
            slots=[*self.slots, len(self)],
            labels=[*self.labels, "remainder"],
            modules=[*self.modules, "remainder"],
        )

    def materialise(self) -> ComponentStack:
        """Make a vector of the stream for every neuron and position.

        Returns:
            The same members as an ordinary stack, ``[component, batch(, pos), d_model]``: 106 MB a
            position for the 46,080 neurons of SmolLM2-135M.
        """
        values = self.others.values.new_empty(len(self), *self.others.values.shape[1:])
        values[list(self.slots)] = self.others.values
        for layer in self.layers:
            directions = layer.directions.to(values)
            if layer.gain is not None:
                directions = directions * layer.gain.to(values)
            values[layer.slots] = torch.einsum(
                "...n,nd->n...d", layer.activations.to(values), directions
            )
        return replace(self.others, values=values, labels=self.labels, modules=self.modules)

    def sublayers(self, owners: Int[Tensor, " component"]) -> ComponentStack:
        """Sum members by sublayer.

        Args:
            owners: The sublayer of each member, numbered in stream order.

        Returns:
            A stack with a component per sublayer.
        """
        others = owners[list(self.slots)]
        count = int(owners.max()) + 1
        values = self.others.values.new_zeros(count, *self.others.values.shape[1:])
        values = values.index_add(0, others.to(values.device), self.others.values)
        for layer in self.layers:
            own = torch.zeros(count, *[1] * (values.ndim - 1), dtype=values.dtype)
            own[owners[layer.first]] = 1
            values = values + own.to(values.device) * layer.written(values.dtype)
        names = [str(place) for place in range(count)]
        return replace(self.others, values=values, labels=names, modules=["other"] * count)

    def linear_logits(
        self, ids: Int[Tensor, " vocab"] | None, dtype: torch.dtype
    ) -> Float[Tensor, "component *batch vocab"]:
        """Every member's ``u_i`` without the constant, at chosen tokens."""
        logits = self.others.linear_logits(ids, dtype)
        found = logits.new_empty(len(self), *logits.shape[1:])
        found[list(self.slots)] = logits
        scale = self.stream.scale.to(found)
        for layer in self.layers:
            directions = layer.directions.to(found)
            if layer.gain is not None:
                directions = directions * layer.gain.to(found)
            fixed = self.readout.normalise(directions, torch.ones_like(directions[:, :1]))
            tokens = self.readout.project(fixed, ids)
            found[layer.slots] = torch.einsum(
                "...n,nv->n...v", layer.activations.to(found) / scale, tokens
            )
        return found


Stack = ComponentStack | NeuronStack
"""What an analysis reads."""
