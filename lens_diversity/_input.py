"""The validated input of an analysis on a stack, and the choice of what reads it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lens_diversity._chunks import (
    Chunk,
    DenseChunk,
    NeuronChunk,
    StreamedChunk,
    WhitenedChunk,
)
from lens_diversity.capture import Pos, component_stack
from lens_diversity.decomposition.losses import check_loss
from lens_diversity.full_vocab._sample import check_on_sample
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import compact_vocabulary
from lens_diversity.full_vocab.softmax import check_budget, rows_within
from lens_diversity.full_vocab.targets import ResidualTarget, Targets, flat_targets
from lens_diversity.neurons import NeuronStack, Stack
from lens_diversity.readout import (
    Vocab,
    check_reconstruction,
    check_vocab,
    linear_logits,
    readout_dtype,
)
from lens_diversity.stack import ComponentStack

# Tensors of the size of the members' logits that an analysis makes.
_TEMPORARIES = 4
# Members of a chunk of rows that stay in a processor's cache from one operation to the next.
_CACHE_BYTES = 8 * 2**20


@dataclass(frozen=True, eq=False)
class EnsembleInput:
    """Validated input of every analysis on a stack, with the batch axes flattened to rows."""

    stack: Stack
    targets: Tensor | ResidualTarget
    ids: Int[Tensor, " vocab"] | None
    loss: str
    dtype: torch.dtype
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    memory_budget: int

    @classmethod
    def of(
        cls,
        stack_or_cache: Stack | Any,
        targets: Targets,
        vocab: Vocab,
        loss: str,
        pos: Pos,
        attention_mask: Tensor | None,
        dtype: torch.dtype | None,
        memory_budget: int,
        unit: str = "sublayer",
    ) -> EnsembleInput:
        check_loss(loss)
        check_budget(memory_budget)
        stack = as_stack(stack_or_cache, pos, attention_mask, unit)
        ids = check_vocab(vocab, stack.readout.d_vocab)
        if 0 in stack.batch_shape:
            raise ValueError(f"there are no rows to analyse: {stack}")
        return cls(
            stack=stack.rows(),
            targets=flat_targets(targets, stack, ids, loss),
            ids=ids,
            loss=loss,
            dtype=readout_dtype(stack.dtype, dtype),
            axes=stack.axes,
            shape=stack.batch_shape,
            memory_budget=memory_budget,
        )

    @property
    def n_vocab(self) -> int:
        return self.stack.readout.d_vocab if self.ids is None else len(self.ids)

    def chunks(self, *parameters: Tensor) -> Iterator[Chunk]:
        """Take a few rows at a time, so that every analysis stays within its memory.

        Gradients of a softmax loss, or into the unembedding or other ``parameters`` of an analysis,
        need the logits themselves.
        """
        if self.ids is not None or (
            torch.is_grad_enabled() and self._needs_logits_for_gradients(*parameters)
        ):
            return self._dense()
        if isinstance(self.stack, NeuronStack):
            return self._neurons(self.stack)
        if self.loss != "squared":
            return self._streamed(self.stack)
        # Pseudo-tokens are one or two more than dimensions.
        few = self.n_vocab <= self.stack.readout.W_U.shape[0] + 2
        return self._dense() if few else self._whitened(self.stack)

    def _needs_logits_for_gradients(self, *parameters: Tensor) -> bool:
        readout, targets = self.stack.readout, self.targets
        into = [*parameters, readout.W_U, readout.b_U, readout.norm_weight, readout.norm_bias]
        into.append(targets.stream if isinstance(targets, ResidualTarget) else targets)
        members = self.loss != "squared" and self.stack.requires_grad
        return members or any(tensor is not None and tensor.requires_grad for tensor in into)

    def _dense(self) -> Iterator[DenseChunk]:
        for rows in self._slices(self.n_vocab, self.memory_budget // _TEMPORARIES):
            part, targets = self.stack.select_rows(rows), self.targets[rows]
            logits, kappa = linear_logits(part, self.ids, self.dtype)
            if isinstance(targets, ResidualTarget):
                targets = targets.logits(None).to(logits)
            found = check_reconstruction(part, logits.sum(0) + kappa, self.ids)
            yield DenseChunk(part, logits, kappa, targets, found, of_vocabulary=self.ids is None)

    def _whitened(self, stack: ComponentStack) -> Iterator[WhitenedChunk]:
        basis = VocabularyBasis.of(stack.readout)
        vocabulary = compact_vocabulary(basis)
        budget = self.memory_budget // _TEMPORARIES
        if stack.device.type == "cpu":
            budget = min(budget, _CACHE_BYTES)
        for rows in self._slices(vocabulary.n_tokens, budget):
            part = stack.select_rows(rows)
            found = check_on_sample(part, self.dtype)
            targets = vocabulary.target(basis, self.targets[rows])
            targets = targets.to(device=part.device, dtype=self.dtype)
            yield WhitenedChunk(part, basis, self.dtype, targets, found)

    def _streamed(self, stack: ComponentStack) -> Iterator[StreamedChunk]:
        assert isinstance(self.targets, Tensor)
        basis = VocabularyBasis.of(stack.readout)
        step = rows_within(self.memory_budget, len(stack) + 2, basis, self.dtype)
        for start in range(0, len(self.targets), step):
            rows = slice(start, start + step)
            part = stack.select_rows(rows)
            found = check_on_sample(part, self.dtype)
            given = basis.components(part, self.dtype)
            targets = self.targets[rows]
            yield StreamedChunk(part, basis, *given, targets, found, self.memory_budget)

    def _neurons(self, stack: NeuronStack) -> Iterator[NeuronChunk]:
        if self.loss != "squared":
            raise ValueError(
                f"loss={self.loss!r} over the whole vocabulary would need the logits of "
                f"{len(stack)} members at {self.n_vocab} tokens; with neurons give option tokens "
                'with vocab=, use loss="squared", or unit="head" or "sublayer"'
            )
        basis = VocabularyBasis.of(stack.readout)
        vocabulary = compact_vocabulary(basis)
        # Two terms of every member, and room for those of one layer again.
        for rows in self._slices(2, 3 * self.memory_budget // 4):
            part = stack.select_rows(rows)
            found = check_on_sample(part, self.dtype)
            targets = vocabulary.target(basis, self.targets[rows])
            targets = targets.to(device=part.device, dtype=self.dtype)
            yield NeuronChunk(part, basis, self.dtype, targets, found)

    def _slices(self, width: int, budget: int) -> Iterator[slice]:
        count = prod(self.shape)
        step = max(1, budget // (len(self.stack) * width * self.dtype.itemsize))
        for start in range(0, count, step):
            yield slice(start, start + step)


def as_stack(
    stack_or_cache: Stack | Any, pos: Pos, attention_mask: Tensor | None, unit: str
) -> Stack:
    """Make the stack of a cache; a stack is given back.

    Raises:
        ValueError: If positions, units or a mask are asked of a stack.
    """
    if not isinstance(stack_or_cache, Stack):
        return component_stack(stack_or_cache, pos, unit, attention_mask=attention_mask)
    if attention_mask is not None or pos != -1 or unit != "sublayer":
        raise ValueError(
            "a stack has its positions and units already; give pos=, unit= and attention_mask= to "
            "component_stack"
        )
    return stack_or_cache
