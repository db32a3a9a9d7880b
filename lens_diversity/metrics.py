"""Error, bias and diversity as metrics of TransformerLens' patching tools, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity._choices import check_choice
from lens_diversity.capture import Pos, _position_selector
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.ensemble import COMBINES, GAUGES, decompose
from lens_diversity.readout import Vocab, check_vocab, without_autocast

QUANTITIES = ("error", "bias", "diversity")


def metric(
    targets: Tensor | Sequence[int],
    vocab: Vocab = None,
    quantity: str = "error",
    loss: str = "cross_entropy",
    combine: str = "sum",
    gauge: str = "model",
    pos: Pos = -1,
    *,
    model: Any = None,
    reduce: bool = True,
) -> Metric:
    """Make a function of a model's logits for activation patching and attribution patching.

    Give it to ``transformer_lens.patching`` as ``patching_metric`` (with ``reduce=False`` where
    that asks for a value per example) or to ``attribution_patching`` as the metric: gradients reach
    every activation. The error of the network (``quantity="error"``, ``combine="sum"``) needs
    nothing but the logits. Bias, diversity and the error of the components' mean need the
    components: give the ``model`` and run it inside ``with``, where each forward pass is recorded.

    Args:
        targets: Gold labels ``[batch]`` (``[batch, pos]`` where ``pos`` keeps several): indices
            into ``vocab`` where that is given, token ids otherwise.
        vocab: Token ids over which means are taken, or None for the whole vocabulary.
        quantity: ``"error"``, ``"bias"`` or ``"diversity"``.
        loss: As in [`decompose`][lens_diversity.decompose].
        combine: As in `decompose`; with ``"sum"`` the error is the network's own.
        gauge: As in `decompose`; of nothing but bias and diversity.
        pos: Positions, as in [`component_stack`][lens_diversity.component_stack].
        model: A ``TransformerBridge``, for quantities that need the components.
        reduce: Whether to average over the batch, or give ``[batch]`` (positions are averaged).

    Returns:
        A function of logits ``[batch, pos, d_vocab]`` that is also a context manager.

    Raises:
        TypeError: If targets are no integers.
        ValueError: If an option is unknown, or a quantity needs a ``model``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]])
        >>> metric(targets=[1])(logits)
        tensor(0.6931)

        >>> from transformer_lens import patching
        >>> with ld.metric([0], [5, 9], "diversity", model=model) as measure:  # doctest: +SKIP
        ...     patching.get_act_patch_mlp_out(model, corrupted_tokens, clean_cache, measure)
    """
    check_choice("quantity", quantity, QUANTITIES)
    check_loss(loss)
    check_choice("combine", combine, COMBINES)
    check_choice("gauge", gauge, GAUGES)
    return Metric(targets, vocab, quantity, loss, combine, gauge, pos, model, reduce)


class Metric:
    """A function of logits, made by [`metric`][lens_diversity.metric]."""

    def __init__(
        self,
        targets: Tensor | Sequence[int],
        vocab: Vocab,
        quantity: str,
        loss: str,
        combine: str,
        gauge: str,
        pos: Pos,
        model: Any,
        reduce: bool,
    ) -> None:
        self._targets = torch.as_tensor(targets)
        if self._targets.is_floating_point() or self._targets.dtype == torch.bool:
            raise TypeError(f"targets must be integer labels, got dtype {self._targets.dtype}")
        self._of_logits = quantity == "error" and combine == "sum"
        if not self._of_logits and model is None:
            raise ValueError(
                f"{quantity} with combine={combine!r} needs the components: give model= and run "
                "it inside `with metric(...) as measure:`"
            )
        self._vocab, self._pos, self._reduce = vocab, pos, reduce
        self._quantity, self._loss = quantity, loss
        self._combine, self._gauge = combine, gauge
        self._model = model
        self._recording: ExitStack | None = None
        self._activations: dict[str, Tensor] = {}

    def __enter__(self) -> Metric:
        if not self._of_logits:
            if self._recording is not None:
                raise RuntimeError("this metric is recording already; make another one")
            _bridge.require_supported(self._model)
            self._recording = ExitStack()
            self._recording.enter_context(_bridge.recorded(self._model, self._activations))
        return self

    def __exit__(self, *raised: object) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        self._activations.clear()

    def __call__(self, logits: Tensor) -> Float[Tensor, "*batch"]:
        """Measure the forward pass that these logits are of.

        Raises:
            RuntimeError: If the components are needed and were not recorded.
            ValueError: If targets do not fit, or as in `decompose`.
        """
        if logits.ndim != 3:
            raise ValueError(
                f"logits must be [batch, pos, d_vocab], got shape {tuple(logits.shape)}"
            )
        values = self._error(logits) if self._of_logits else self._of_components()
        if self._reduce:
            return values.mean()
        return values if values.ndim == 1 else values.mean(tuple(range(1, values.ndim)))

    @without_autocast
    def _error(self, logits: Float[Tensor, "batch pos d_vocab"]) -> Float[Tensor, "*batch"]:
        selected = _position_selector(logits, self._pos, None, batched=True)(logits)
        ids = check_vocab(self._vocab, logits.shape[-1])
        if ids is not None:
            selected = selected[..., ids.to(selected.device)]
        targets = self._targets.to(selected.device)
        return LOSSES[self._loss](selected.unsqueeze(0), targets).error

    def _of_components(self) -> Float[Tensor, "*batch"]:
        from transformer_lens import ActivationCache

        if self._recording is None:
            raise RuntimeError(
                f"{self._quantity} needs the components of the forward pass: run the model inside "
                "`with metric(...) as measure:`"
            )
        if not self._activations:
            raise RuntimeError(
                "no forward pass of the model was recorded since the last call; was it another "
                "model, or were its hooks reset?"
            )
        cache = ActivationCache(dict(self._activations), self._model)
        self._activations.clear()
        given = (self._targets, self._vocab, self._loss, self._combine, self._gauge)
        found = decompose(cache, *given, pos=self._pos)
        value: Tensor = getattr(found, self._quantity)
        return value
