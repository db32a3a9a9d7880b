"""The residual stream as an ensemble: from a stack of components to its decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity import functional
from lens_diversity._choices import check_choice
from lens_diversity._input import EnsembleInput
from lens_diversity.capture import Pos
from lens_diversity.decomposition._members import check_weights
from lens_diversity.full_vocab.softmax import DEFAULT_BUDGET
from lens_diversity.full_vocab.targets import Targets
from lens_diversity.neurons import Stack
from lens_diversity.readout import (
    CONSTANTS,
    RECONSTRUCTION_TOLERANCE,
    Reconstruction,
    Vocab,
    without_autocast,
)
from lens_diversity.results import Decomposition

GAUGES = ("model", "centred")
COMBINES = ("mean", "sum")


@without_autocast
def decompose(
    stack_or_cache: Stack | Any,
    targets: Targets,
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
    memory_budget: int = DEFAULT_BUDGET,
    unit: str = "sublayer",
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
            ids otherwise. For ``squared``, integers mean a one-hot target, a float tensor
            ``[batch(, pos), vocab]`` is the target itself, and so are the logits of a
            [`ResidualTarget`][lens_diversity.full_vocab.ResidualTarget].
        vocab: Distinct token ids over which means are taken, or None for the whole vocabulary,
            whose logits are then never formed (``squared``) or streamed (the others).
        loss: One of the above.
        combine: ``"mean"`` takes the members as they are (the paper); ``"sum"`` takes
            ``u_i / w_i``, whose mean is exactly the model's logits, so that softmax losses are the
            model's own.
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
        memory_budget: Bytes that may be used beside the stack and the result.
        unit: What a member is where a cache is given: ``"sublayer"``, ``"block"``, ``"head"`` or
            ``"neuron"``, see [`component_stack`][lens_diversity.component_stack].

    Returns:
        The decomposition, on the device of the stack.

    Raises:
        TypeError: If targets, vocab or dtype have a wrong type.
        ValueError: If an option is unknown, targets have a wrong shape or are out of range, or the
            components do not sum to what the model computed.

    Example:
        >>> import torch
        >>> from lens_diversity.stack import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> result = decompose(stack, targets=[0], loss="squared")
        >>> result.error, result.bias, result.diversity
        (tensor([0.]), tensor([0.5000]), tensor([0.5000]))
    """
    check_choice("combine", combine, COMBINES)
    check_choice("gauge", gauge, GAUGES)
    check_choice("constant", constant, CONSTANTS)
    ensemble = EnsembleInput.of(
        stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype, memory_budget, unit
    )
    stack = ensemble.stack
    labels = [*stack.labels, "constant"] if constant == "component" else stack.labels
    modules = [*stack.modules, "constant"] if constant == "component" else stack.modules
    member_weights = check_weights(weights, len(labels), ensemble.dtype, stack.device)

    parts: list[functional.AmbiguityTerms] = []
    checks: list[Reconstruction] = []
    for chunk in ensemble.chunks(member_weights):
        parts.append(chunk.ambiguity(loss, constant, combine, gauge, member_weights))
        checks.append(chunk.reconstruction)
    worst = max(checks, key=lambda check: check.error)

    def joined(name: str, *lead: int) -> Tensor:
        terms = [getattr(part, name) for part in parts]
        whole = terms[0] if len(terms) == 1 else torch.cat(terms, -1)
        return whole.reshape((*lead, *ensemble.shape))

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


@without_autocast
def leave_one_out(
    stack_or_cache: Stack | Any,
    targets: Targets,
    vocab: Vocab = None,
    loss: str = "paper",
    combine: str = "mean",
    pos: Pos = -1,
    *,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    unit: str = "sublayer",
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
        memory_budget: As in `decompose`.
        unit: As in `decompose`.

    Returns:
        Error without component ``i``, ``[component, batch(, pos)]``, in the units of the loss.

    Raises:
        TypeError: As in `decompose`.
        ValueError: As in `decompose`, and if there is only one component.

    Example:
        >>> import torch
        >>> from lens_diversity.stack import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> leave_one_out(stack, [0], loss="squared")
        tensor([[0.5000],
                [0.5000]])
    """
    check_choice("combine", combine, COMBINES)
    ensemble = EnsembleInput.of(
        stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype, memory_budget, unit
    )
    parts = [chunk.leave_one_out(loss, combine) for chunk in ensemble.chunks()]
    return torch.cat(parts, -1).reshape((len(ensemble.stack), *ensemble.shape))


@without_autocast
def junctions(
    stack_or_cache: Stack | Any,
    targets: Targets,
    vocab: Vocab = None,
    loss: str = "paper",
    combine: str = "mean",
    pos: Pos = -1,
    *,
    scale: str = "final",
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    unit: str = "sublayer",
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
        memory_budget: As in `decompose`.
        unit: As in `decompose`.

    Returns:
        ``error``, ``bias`` and ``diversity`` ``[junction, batch(, pos)]`` and the accumulated
        ``logits`` ``[junction, batch(, pos), vocab]`` (None over the full vocabulary).

    Raises:
        TypeError: As in `decompose`.
        ValueError: As in `decompose`, and for an unknown ``scale``.

    Example:
        >>> import torch
        >>> from lens_diversity.stack import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> stack = ComponentStack.from_values(torch.tensor([[[2., 0.]], [[0., 0.]]]), readout)
        >>> junctions(stack, [0], loss="squared").error
        tensor([[0.5000],
                [0.0000]])
    """
    check_choice("combine", combine, COMBINES)
    check_choice("scale", scale, ("final", "junction"))
    ensemble = EnsembleInput.of(
        stack_or_cache, targets, vocab, loss, pos, attention_mask, dtype, memory_budget, unit
    )
    if scale == "junction":
        _require_own_statistic(ensemble.stack)
    parts = [chunk.junctions(loss, combine, scale) for chunk in ensemble.chunks()]
    return functional.JunctionTerms.concatenate(parts, (len(ensemble.stack), *ensemble.shape))


def _require_own_statistic(stack: Stack) -> None:
    """Recomputed statistics must end at the model's own, or the last junction is another model."""
    final = stack.stream.scale.double()
    recomputed = stack.readout.statistic(stack.total(torch.float64))
    tolerance = max(RECONSTRUCTION_TOLERANCE[t.dtype] for t in (stack, stack.readout.W_U))
    if bool(((recomputed - final).abs() > tolerance * final).any()):
        raise ValueError(
            "scale='junction' recomputes the final norm's statistic, but that of the whole stream "
            "is not what the model used (a hook edited it?); use scale='final'"
        )
