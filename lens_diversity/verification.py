"""The identities a model of one's own must satisfy before its numbers can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.capture import component_stack
from lens_diversity.readout import RECONSTRUCTION_TOLERANCE, linear_logits
from lens_diversity.stack import ComponentStack

_TEXT = "The quick brown fox jumps over the lazy dog, and then it rests in the shade of a tree."

_PAD = 3


@dataclass(frozen=True)
class Check:
    """One identity, measured."""

    name: str
    """What is compared."""
    value: float
    """Largest relative error found."""
    tolerance: float
    """Largest error that passes for the model's dtype."""
    detail: str
    """What the error is relative to."""

    @property
    def passed(self) -> bool:
        """Whether the identity holds."""
        return self.value <= self.tolerance


def verify(model: Any, tokens: Tensor | None = None) -> list[Check]:
    """Measure, on a model of one's own, every identity the decomposition rests on.

    Args:
        model: A ``TransformerBridge`` in evaluation mode.
        tokens: Token ids ``[batch, pos]`` without padding to run (default: an English sentence
            through the model's tokenizer, or arbitrary ids where it has none).

    Returns:
        Checks of: components against the final stream, component logits against the model's
        logits, the float64 readout against the float32 one, and left padding against none.

    Raises:
        UnsupportedModelError: If the model cannot be decomposed at all.
        ValueError: If it is in training mode.

    Example:
        >>> all(check.passed for check in verify(model))  # doctest: +SKIP
        True
    """
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    tokens = _default_tokens(model) if tokens is None else _check_tokens(model, tokens)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=_bridge.names_filter)
        stack = component_stack(cache, pos=None)
        return [
            _stream_check(stack),
            _logits_check(stack, model, logits),
            _precision_check(stack),
            _padding_check(stack, model, tokens),
        ]


def _default_tokens(model: Any) -> Tensor:
    if model.tokenizer is not None:
        ids: Tensor = model.tokenizer(_TEXT, return_tensors="pt").input_ids
        ids = ids[:, : int(model.cfg.n_ctx) - _PAD]
        if ids.shape[1] > 1:
            return ids.to(model.cfg.device)
    return torch.arange(1, 9, device=model.cfg.device).unsqueeze(0) % int(model.cfg.d_vocab)


def _check_tokens(model: Any, tokens: Tensor) -> Tensor:
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.ndim != 2:
        found = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"tokens must be integer ids [batch, pos], got {found}")
    longest = int(model.cfg.n_ctx) - _PAD
    if tokens.numel() == 0 or tokens.shape[1] > longest:
        raise ValueError(
            f"tokens must have at least one row and 1 to {longest} positions (the context less "
            f"{_PAD} of padding), got shape {tuple(tokens.shape)}"
        )
    return tokens


def _stream_check(stack: ComponentStack) -> Check:
    residual = stack.stream.residual
    total = stack.values.double().sum(0)
    own = total if residual is None else residual.double()
    error = (total - own).norm(dim=-1) / own.norm(dim=-1)
    return Check(
        name="components sum to the residual stream",
        value=float(error.max()),
        tolerance=RECONSTRUCTION_TOLERANCE[stack.values.dtype],
        detail="norm of the difference, relative to the norm of the stream",
    )


def _logits_check(stack: ComponentStack, model: Any, logits: Tensor) -> Check:
    components, kappa = linear_logits(stack, None)
    total = components.sum(0) + kappa
    cap = stack.readout.soft_cap
    if cap is not None:
        total = cap * torch.tanh(total / cap)
    spread = (logits.amax(-1) - logits.amin(-1)).to(total)
    return Check(
        name="component logits sum to the model's logits",
        value=float(((total - logits.to(total)).abs().amax(-1) / spread).max()),
        tolerance=RECONSTRUCTION_TOLERANCE[stack.values.dtype],
        detail="largest difference, relative to the range of the row's logits"
        + (" (after the soft cap)" if cap is not None else ""),
    )


def _precision_check(stack: ComponentStack) -> Check:
    ids = torch.arange(min(64, stack.readout.d_vocab))
    single, _ = linear_logits(stack, ids, torch.float32)
    double, _ = linear_logits(stack, ids, torch.float64)
    return Check(
        name="float32 readout agrees with float64",
        value=float((single - double).abs().max() / double.abs().max()),
        tolerance=1e-5,
        detail="largest difference, relative to the largest component logit",
    )


def _padding_check(stack: ComponentStack, model: Any, tokens: Tensor) -> Check:
    padded = torch.cat([tokens[:, :1].expand(-1, _PAD), tokens], 1)
    mask = torch.ones_like(padded)
    mask[:, :_PAD] = 0
    _, cache = model.run_with_cache(
        padded, attention_mask=mask, names_filter=_bridge.names_filter, pos_slice=-1
    )
    name = "left padding with a mask changes nothing"
    # Rounding of half-precision attention differs with the length; the readout's own errors do not.
    tolerance = 10 * RECONSTRUCTION_TOLERANCE[stack.values.dtype]
    try:
        shifted = component_stack(cache, pos=-1).values.double()
    except ValueError as error:
        return Check(name, float("inf"), tolerance, f"{error} Run this model without padding.")
    plain = stack.values[..., -1, :].double()
    return Check(
        name=name,
        value=float((shifted - plain).norm(dim=-1).max() / plain.sum(0).norm(dim=-1).min()),
        tolerance=tolerance,
        detail="largest difference of a component, relative to the norm of the stream",
    )
