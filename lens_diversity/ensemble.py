"""The residual stream as an ensemble: from a stack of components to its decomposition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity import functional
from lens_diversity.capture import ComponentStack, Pos, component_stack
from lens_diversity.decomposition._members import check_weights
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.readout import (
    CONSTANTS,
    Reconstruction,
    Vocab,
    check_reconstruction,
    check_vocab,
    linear_logits,
    place_constant,
    readout_dtype,
)
from lens_diversity.results import Decomposition

GAUGES = ("model", "centred")
COMBINES = ("mean", "sum")

# Logits of all members for one chunk of rows: small enough for any machine, large enough that
# the matrix product and not Python is what takes the time.
_CHUNK_BYTES = 64 * 2**20


def decompose(
    stack_or_cache: ComponentStack | Any,
    targets: Tensor | Sequence[int] | int,
    vocab: Vocab = None,
    loss: str = "paper",
    combine: str = "mean",
    gauge: str = "model",
    weights: Tensor | Sequence[float] | None = None,
    pos: Pos = -1,
    *,
    constant: str = "spread",
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Decomposition:
    r"""Split the error of a residual stream into its members' bias minus their diversity.

    The members are the components' logits ``u_i`` (see
    [`component_logits`][lens_diversity.component_logits]), their centroid is
    ``m = sum_i w_i u_i``. The losses:

    - ``squared``: ``E_j (t_j - m_j)^2 = bias - diversity`` (Krogh and Vedelsby 1994; Theorem 1).
    - ``paper``: error and bias after a softmax (Eq. 14), diversity on logits (Eq. 8); no identity.
    - ``brier``: squared error of ``mean_i softmax(u_i)``; exact.
    - ``cross_entropy``: ``-log softmax(m)_y = E_i[-log p_iy] - E_i KL(softmax(m) || p_i)`` in
      nats; exact (Heskes 1998).

    Args:
        stack_or_cache: A [`ComponentStack`][lens_diversity.ComponentStack], or an
            ``ActivationCache`` from which one is made at ``pos``.
        targets: Gold labels ``[batch(, pos)]``: indices into ``vocab`` where it is given, token
            ids otherwise. For ``squared``, integers mean a one-hot target and a float tensor
            ``[batch(, pos), vocab]`` is the target itself.
        vocab: Distinct token ids over which means are taken, or None for the whole vocabulary,
            which is then read out a few rows at a time.
        loss: One of the above.
        combine: ``"mean"`` takes the members as they are (the paper); ``"sum"`` takes
            ``u_i / w_i``, whose mean is exactly the model's logits, so that softmax losses are the model's own.
        gauge: ``"model"`` keeps the logits as the weights give them; ``"centred"`` subtracts each
            member's mean over the vocab. Squared and paper diversity depend on it, since softmax
            (and TransformerLens' ``center_unembed``) leaves a shift of all logits free.
        weights: Member weights, non-negative and summing to 1 (default uniform).
        pos: Positions to take from a cache, as in
            [`component_stack`][lens_diversity.component_stack].
        constant: Place of the logits that no component wrote: ``"spread"``, ``"component"`` (one
            more member) or ``"drop"``.
        attention_mask: ``[batch, pos]``, for ``pos="last"``.
        dtype: ``torch.float32`` or ``torch.float64`` for the readout and everything after it.

    Returns:
        The decomposition, on the device of the stack.

    Raises:
        TypeError: If targets, vocab or dtype have a wrong type.
        ValueError: If an option is unknown, targets have a wrong shape or are out of range, or the
            components do not sum to what the model computed.

    Example:
        >>> import torch
        >>> from lens_diversity.capture import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> result = decompose(stack, targets=[0], loss="squared")
        >>> result.error, result.bias, result.diversity
        (tensor([0.]), tensor([0.5000]), tensor([0.5000]))
    """
    _check_choice("combine", combine, COMBINES)
    _check_choice("gauge", gauge, GAUGES)
    _check_choice("constant", constant, CONSTANTS)
    ensemble = _Ensemble.of(stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype)
    stack = ensemble.stack
    labels = [*stack.labels, "constant"] if constant == "component" else stack.labels
    modules = [*stack.modules, "constant"] if constant == "component" else stack.modules
    member_weights = check_weights(weights, len(labels), ensemble.dtype, stack.values.device)

    parts: list[functional.AmbiguityTerms] = []
    worst = Reconstruction(0.0, "nothing")
    for chunk in ensemble.chunks():
        members = place_constant(chunk.logits, chunk.kappa, constant)
        if gauge == "centred":
            members = members - members.mean(-1, keepdim=True)
        members = functional.combine_members(members, member_weights, combine)
        parts.append(LOSSES[loss](members, chunk.targets, member_weights))
        worst = max(worst, chunk.reconstruction, key=lambda check: check.error)

    def joined(name: str, *lead: int) -> Tensor:
        terms = torch.cat([getattr(part, name) for part in parts], -1)
        return terms.reshape((*lead, *ensemble.shape))

    return Decomposition(
        error=joined("error"),
        bias=joined("bias"),
        diversity=joined("diversity"),
        component_bias=joined("component_bias", len(labels)),
        component_diversity=joined("component_diversity", len(labels)),
        weights=member_weights,
        labels=labels,
        modules=modules,
        axes=ensemble.axes,
        loss=loss,
        combine=combine,
        gauge=gauge,
        constant=constant,
        n_vocab=ensemble.n_vocab,
        soft_cap=stack.readout.soft_cap,
        reconstruction_error=worst.error,
        reconstruction_reference=worst.reference,
    )


def leave_one_out(
    stack_or_cache: ComponentStack | Any,
    targets: Tensor | Sequence[int] | int,
    vocab: Vocab = None,
    loss: str = "paper",
    combine: str = "mean",
    pos: Pos = -1,
    *,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "component *batch"]:
    """Compute what the ensemble's error would be without each component, in closed form.

    With ``combine="sum"`` the prediction without component ``i`` is the model's logits minus
    ``u_i`` (constants kept whole): what ablating its direct path to the logits does. With
    ``combine="mean"`` it is the mean of the other members.

    Args:
        stack_or_cache: As in [`decompose`][lens_diversity.decompose].
        targets: As in `decompose`.
        vocab: As in `decompose`.
        loss: As in `decompose`.
        combine: As in `decompose`.
        pos: As in `decompose`.
        attention_mask: As in `decompose`.
        dtype: As in `decompose`.

    Returns:
        Error without component ``i``, ``[component, batch(, pos)]``, in the units of the loss.

    Raises:
        TypeError: As in `decompose`.
        ValueError: As in `decompose`, and if there is only one component.

    Example:
        >>> import torch
        >>> from lens_diversity.capture import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> leave_one_out(stack, [0], loss="squared")
        tensor([[0.5000],
                [0.5000]])
    """
    _check_choice("combine", combine, COMBINES)
    ensemble = _Ensemble.of(stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype)
    whole = combine == "sum"
    parts = [
        functional.leave_one_out(
            chunk.logits if whole else place_constant(chunk.logits, chunk.kappa, "spread"),
            chunk.targets,
            loss=loss,
            combine=combine,
            constant=chunk.kappa if whole else None,
        )
        for chunk in ensemble.chunks()
    ]
    return torch.cat(parts, -1).reshape((len(ensemble.stack), *ensemble.shape))


def junctions(
    stack_or_cache: ComponentStack | Any,
    targets: Tensor | Sequence[int] | int,
    vocab: Vocab = None,
    loss: str = "paper",
    combine: str = "mean",
    pos: Pos = -1,
    *,
    scale: str = "final",
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> functional.JunctionTerms:
    """Follow error, bias and diversity along the residual stream (section 5.2, Figures 3, 5, 7).

    Junction ``k`` is the ensemble of components ``1..k``, carrying the whole constant. With
    ``scale="final"`` all are read through the final norm's statistics of the whole stream (exact,
    additive); with ``scale="junction"`` the statistics are those of the partial sum, as in the
    usual logit lens. Accuracies under the two agree where there are no constants.

    Args:
        stack_or_cache: As in [`decompose`][lens_diversity.decompose].
        targets: As in `decompose`.
        vocab: As in `decompose`.
        loss: As in `decompose`.
        combine: As in `decompose`.
        pos: As in `decompose`.
        scale: ``"final"`` or ``"junction"``.
        attention_mask: As in `decompose`.
        dtype: As in `decompose`.

    Returns:
        ``error``, ``bias`` and ``diversity`` ``[junction, batch(, pos)]`` and the accumulated
        ``logits`` ``[junction, batch(, pos), vocab]``.

    Raises:
        TypeError: As in `decompose`.
        ValueError: As in `decompose`, and for an unknown ``scale``.

    Example:
        >>> import torch
        >>> from lens_diversity.capture import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> junctions(stack, [0], loss="squared").error
        tensor([[0.5000],
                [0.0000]])
    """
    _check_choice("combine", combine, COMBINES)
    _check_choice("scale", scale, ("final", "junction"))
    ensemble = _Ensemble.of(stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype)
    parts = [
        functional.junctions(
            chunk.logits,
            chunk.targets,
            loss=loss,
            combine=combine,
            constant=chunk.kappa,
            rescale=None if scale == "final" else chunk.junction_rescale(),
        )
        for chunk in ensemble.chunks()
    ]
    return functional.JunctionTerms.concatenate(parts, (len(ensemble.stack), *ensemble.shape))


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Component logits of a few rows, checked against the model, with their targets."""

    stack: ComponentStack
    logits: Float[Tensor, "component row vocab"]
    kappa: Float[Tensor, " vocab"]
    targets: Tensor
    reconstruction: Reconstruction

    def junction_rescale(self) -> Float[Tensor, "junction row"]:
        """Ratio of the whole stream's norm statistic to that of each partial sum."""
        partial = self.stack.values.to(self.logits.dtype).cumsum(0)
        statistic = self.stack.readout.statistic(partial)
        return (self.stack.stream.scale.to(statistic) / statistic).squeeze(-1)


@dataclass(frozen=True, eq=False)
class _Ensemble:
    """Validated input of every analysis on a stack, with the batch axes flattened to rows."""

    stack: ComponentStack
    targets: Tensor
    ids: Int[Tensor, " vocab"] | None
    dtype: torch.dtype
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls,
        stack_or_cache: ComponentStack | Any,
        targets: Tensor | Sequence[int] | int,
        vocab: Vocab,
        loss: str,
        pos: Pos,
        attention_mask: Tensor | None,
        dtype: torch.dtype | None,
    ) -> _Ensemble:
        check_loss(loss)
        stack = (
            stack_or_cache
            if isinstance(stack_or_cache, ComponentStack)
            else component_stack(stack_or_cache, pos=pos, attention_mask=attention_mask)
        )
        ids = check_vocab(vocab, stack.readout.d_vocab)
        n_vocab = stack.readout.d_vocab if ids is None else len(ids)
        return cls(
            stack=stack.rows(),
            targets=_flat_targets(targets, stack, n_vocab, loss),
            ids=ids,
            dtype=readout_dtype(stack.values.dtype, dtype),
            axes=stack.axes,
            shape=stack.batch_shape,
        )

    @property
    def n_vocab(self) -> int:
        return self.stack.readout.d_vocab if self.ids is None else len(self.ids)

    def chunks(self) -> Iterator[_Chunk]:
        """Read out a few rows at a time, so that the full vocabulary fits into memory."""
        per_row = len(self.stack) * self.n_vocab * self.dtype.itemsize
        step = max(1, _CHUNK_BYTES // per_row)
        for start in range(0, len(self.targets), step):
            rows = slice(start, start + step)
            part = self.stack.select_rows(rows)
            logits, kappa = linear_logits(part, self.ids, self.dtype)
            found = check_reconstruction(part, logits.sum(0) + kappa, self.ids)
            yield _Chunk(part, logits, kappa, self.targets[rows], found)


def _flat_targets(
    targets: Tensor | Sequence[int] | int, stack: ComponentStack, n_vocab: int, loss: str
) -> Tensor:
    """Validate targets and flatten them to one row per row of the stack."""
    given = torch.as_tensor(targets).to(stack.values.device)
    shape = stack.batch_shape
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


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
