"""Members and targets in the coordinates where squared quantities over the vocabulary are cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.full_vocab._sample import check_on_sample
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.gram import compact_vocabulary
from lens_diversity.full_vocab.targets import ResidualTarget, flat_targets
from lens_diversity.readout import CONSTANTS, place_constant, readout_dtype, without_autocast
from lens_diversity.stack import ComponentStack


@without_autocast
def whitened_logits(
    stack: ComponentStack, constant: str = "spread", dtype: torch.dtype | None = None
) -> Float[Tensor, "component *batch pseudo"]:
    """Every member's logits over ``d_model + 2`` pseudo-tokens with the vocabulary's moments.

    Means over the last axis of these numbers, of their squares and of their products are the means
    over the whole vocabulary of the logits', of their squares and products. So
    `functional.krogh_vedelsby`, `pairwise_diversity`, `brown_covariance`, `junctions` and
    `leave_one_out` (for the squared loss), and the centred gauge (minus the mean over the last
    axis) take them in the place of full-vocabulary logits, at ``d_vocab / d_model`` times less
    work. Softmax does not: it is no function of moments.

    Args:
        stack: Components of the residual stream.
        constant: As in [`component_logits`][lens_diversity.component_logits].
        dtype: ``torch.float32`` (default) or ``torch.float64``.

    Returns:
        Numbers ``[component, batch(, pos), pseudo]`` in the units of logits.

    Raises:
        TypeError: If ``dtype`` is another one.
        ValueError: If ``constant`` is unknown, or the components do not sum to what the model
            computed.

    Example:
        >>> import torch
        >>> import lens_diversity as ld
        >>> readout = ld.Readout(W_U=torch.randn(4, 500), b_U=torch.randn(500))
        >>> stack = ld.ComponentStack.from_values(torch.randn(3, 2, 4), readout)
        >>> short, full = whitened_logits(stack), ld.component_logits(stack)
        >>> short.shape, full.shape
        (torch.Size([3, 2, 7]), torch.Size([3, 2, 500]))
        >>> pairs = ld.functional.pairwise_diversity
        >>> bool(torch.allclose(pairs(short), pairs(full), rtol=1e-4))
        True
    """
    if constant not in CONSTANTS:
        raise ValueError(f"constant must be one of {CONSTANTS}, got {constant!r}")
    wanted = readout_dtype(stack.values.dtype, dtype)
    check_on_sample(stack, wanted)
    logits, kappa = linear_whitened(stack, VocabularyBasis.of(stack.readout), wanted)
    return place_constant(logits, kappa, constant)


def linear_whitened(
    stack: ComponentStack, basis: VocabularyBasis, dtype: torch.dtype
) -> tuple[Float[Tensor, "component *batch pseudo"], Float[Tensor, " pseudo"]]:
    """Every component's ``u_i`` without the constant, and ``kappa``, over the pseudo-tokens.

    The final norm's weight and the logit scale go into the pseudo-tokens: one pass less over the
    components.
    """
    readout, values = stack.readout, stack.values.to(dtype)
    tokens = compact_vocabulary(basis).tokens(like=values)
    kappa = basis.widen(readout.norm_constant(values), 1.0) @ tokens
    gain = values.new_full(values.shape[-1:], readout.logit_scale)
    if readout.norm_weight is not None:
        gain = gain * (readout.norm_weight.to(values) + readout.norm_weight_offset)
    weighted = gain.unsqueeze(1) * tokens[: len(gain)]
    unweighted = replace(readout, norm_weight=None)
    return unweighted.normalise(values, stack.stream.scale.to(values)) @ weighted, kappa


@without_autocast
def whitened_target(
    targets: Tensor | Sequence[int] | int | ResidualTarget,
    stack: ComponentStack,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch pseudo"]:
    """The target that goes with `whitened_logits` of a stack.

    What a target has outside the span of the unembedding (most of a one-hot vector) is one
    coordinate in which no member has anything.

    Args:
        targets: Token ids ``[batch(, pos)]`` for one-hot targets, a float tensor
            ``[batch(, pos), d_vocab]``, or a `ResidualTarget`.
        stack: The stack of the members.
        dtype: ``torch.float32`` (default) or ``torch.float64``.

    Returns:
        Numbers ``[batch(, pos), pseudo]`` in the units of logits.

    Raises:
        TypeError: If integer targets are no integers, or ``dtype`` is another one.
        ValueError: If shapes do not fit or token ids leave the vocabulary.

    Example:
        >>> import torch
        >>> import lens_diversity as ld
        >>> readout = ld.Readout(W_U=torch.randn(4, 500), b_U=torch.zeros(500))
        >>> stack = ld.ComponentStack.from_values(torch.randn(3, 2, 4), readout)
        >>> goal = whitened_target([7, 300], stack)
        >>> bool(torch.allclose(goal.square().mean(-1), torch.tensor(1 / 500)))
        True
        >>> terms = ld.functional.brown_covariance(whitened_logits(stack), goal)
    """
    wanted = readout_dtype(stack.values.dtype, dtype)
    rows = flat_targets(targets, stack, None, "squared")
    basis = VocabularyBasis.of(stack.readout)
    found = compact_vocabulary(basis).target(basis, rows)
    return found.to(stack.values.device).to(wanted).reshape(*stack.batch_shape, -1)
