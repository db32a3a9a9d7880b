"""Targets of the squared loss that never exist as vectors over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.full_vocab._sample import check_on_sample
from lens_diversity.neurons import Stack
from lens_diversity.readout import Readout, readout_dtype


@dataclass(frozen=True, eq=False)
class ResidualTarget:
    """The logits of another residual stream as the target of the squared loss.

    The stream may be that of another position, prompt, layer or model, as long as the vocabulary is
    the same. Its logits ``t = scale * c (N_x(x) W_U + b_U)`` enter by the (cross-)Gram matrix of
    the two unembeddings. With ``combine="mean"`` the ensemble predicts ``logits / L``, which
    ``scale=1 / len(stack)`` brings to the same size.

    Example:
        >>> import torch
        >>> import lens_diversity as ld
        >>> readout = ld.Readout(W_U=torch.randn(4, 50), b_U=torch.zeros(50))
        >>> stack = ld.ComponentStack.from_values(torch.randn(3, 2, 4), readout)
        >>> own = ResidualTarget.from_stack(stack)
        >>> result = ld.decompose(stack, own, loss="squared", combine="sum")
        >>> bool(result.error.max() < 1e-9 * result.bias.max())
        True
    """

    stream: Float[Tensor, "*batch d_model"]
    """What the unembedding reads: the stream after the final norm, its bias included."""
    readout: Readout
    """The unembedding that reads it."""
    scale: float = 1.0
    """Factor on the logits."""

    @classmethod
    def from_stack(cls, stack: Stack, scale: float = 1.0) -> ResidualTarget:
        """The logits of a stack's own stream, its final norm held as the model computed it.

        Args:
            stack: Components ``[component, batch(, pos), d_model]`` of any model with the same
                vocabulary; their sum is the stream.
            scale: Factor on the logits.

        Returns:
            A target with the stack's batch shape.

        Raises:
            ValueError: If the components do not sum to what the model computed.
        """
        dtype = readout_dtype(stack.dtype, None)
        check_on_sample(stack, dtype)
        total = stack.total(dtype)
        normalised = stack.readout.normalise(total, stack.stream.scale.to(dtype))
        return cls(normalised + stack.readout.norm_constant(total), stack.readout, scale)

    @classmethod
    def from_residual(
        cls, residual: Float[Tensor, "*batch d_model"], readout: Readout, scale: float = 1.0
    ) -> ResidualTarget:
        """The logits of a residual vector (before the final norm), at its own norm statistics.

        Args:
            residual: Stream ``[batch(, pos), d_model]``.
            readout: The final norm and unembedding to read it with, such as ``stack.readout``.
            scale: Factor on the logits.

        Returns:
            A target with the residual's batch shape.

        Raises:
            ValueError: If the residual's last axis is not the readout's ``d_model``.
        """
        d_model = readout.W_U.shape[0]
        if residual.shape[-1] != d_model:
            raise ValueError(
                f"the residual has {residual.shape[-1]} dimensions and the readout {d_model}; give "
                "the stream before the final norm together with its own model's readout"
            )
        wide = residual.to(readout_dtype(residual.dtype, None))
        normalised = readout.normalise(wide, readout.statistic(wide))
        return cls(normalised + readout.norm_constant(wide), readout, scale)

    def check(self, shape: tuple[int, ...], d_vocab: int) -> None:
        """Refuse a target of other rows or of another vocabulary.

        Raises:
            ValueError: If a shape does not fit.
        """
        if tuple(self.stream.shape[:-1]) != shape:
            raise ValueError(
                f"the target's stream must have the stack's batch shape {shape}, got "
                f"{tuple(self.stream.shape[:-1])}"
            )
        if self.readout.d_vocab != d_vocab:
            raise ValueError(
                f"the target's unembedding has {self.readout.d_vocab} tokens and the stack's "
                f"{d_vocab}; both must share one vocabulary"
            )

    def rows(self) -> ResidualTarget:
        """The same target with all batch axes flattened into one."""
        return ResidualTarget(
            self.stream.reshape(-1, self.stream.shape[-1]), self.readout, self.scale
        )

    def __getitem__(self, rows: slice) -> ResidualTarget:
        return ResidualTarget(self.stream[rows], self.readout, self.scale)

    def logits(self, ids: Int[Tensor, " vocab"] | None) -> Float[Tensor, "*batch vocab"]:
        """The target at chosen tokens."""
        bias = (
            self.readout.b_U if ids is None else self.readout.b_U[ids.to(self.readout.b_U.device)]
        )
        own: Tensor = self.readout.project(self.stream, ids)
        return self.scale * (own + self.readout.logit_scale * bias.to(own))


Targets = Tensor | Sequence[int] | int | ResidualTarget


def flat_targets(
    targets: Targets, stack: Stack, ids: Int[Tensor, " vocab"] | None, loss: str
) -> Tensor | ResidualTarget:
    """Validate targets and flatten them to one row per row of the stack."""
    shape, d_vocab = stack.batch_shape, stack.readout.d_vocab
    n_vocab = d_vocab if ids is None else len(ids)
    if isinstance(targets, ResidualTarget):
        if loss != "squared":
            raise TypeError(
                f'loss={loss!r} needs integer gold labels; give a ResidualTarget with "squared"'
            )
        targets.check(shape, d_vocab)
        rows = targets.rows()
        return rows if ids is None else rows.logits(ids).to(stack.device)
    given = torch.as_tensor(targets).to(stack.device)
    if given.is_floating_point():
        if loss != "squared":
            raise TypeError(
                f"loss={loss!r} needs integer gold labels, got dtype {given.dtype}; a dense float "
                'target is for loss="squared"'
            )
        if tuple(given.shape) != (*shape, n_vocab):
            raise ValueError(
                f"a dense target must have shape {(*shape, n_vocab)} (batch, vocab), got "
                f"{tuple(given.shape)}"
            )
        return given.reshape(-1, n_vocab)
    if given.dtype == torch.bool or given.is_complex():
        raise TypeError(f"targets must be integer labels, got dtype {given.dtype}")
    if tuple(given.shape) != shape:
        raise ValueError(
            f"targets must have one label for each of the stack's {stack.axes or 'single'} rows: "
            f"expected shape {shape}, got {tuple(given.shape)}"
        )
    labels = given.long().reshape(-1)
    outside = sorted(set(labels[(labels < 0) | (labels >= n_vocab)].tolist()))
    if outside:
        raise ValueError(
            f"targets {outside[:5]} are out of range [0, {n_vocab}); with vocab= they are indices "
            "into it, without it token ids"
        )
    return labels
