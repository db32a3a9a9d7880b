"""One forward pass of a padded batch: what every component wrote at the answer position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import ActivationCache

from lens_diversity import _bridge
from lens_diversity.capture import component_stack
from lens_diversity.evaluation.prompts import Encoded
from lens_diversity.evaluation.tables import pack
from lens_diversity.readout import check_reconstruction, linear_logits


def option_rows(
    model: Any,
    encoded: Encoded,
    examples: Sequence[int],
    dtype: torch.dtype | None = None,
    unit: str = "sublayer",
) -> pa.Table:
    """Run a batch and read out the option logits of every component.

    Args:
        model: A ``TransformerBridge`` in evaluation mode.
        encoded: Prompts and options as tokens.
        examples: Which examples form the batch.
        dtype: Precision of the readout.
        unit: What a member is.

    Returns:
        One row per example (see `pack`). Members carry ``kappa / L`` each, so that they sum to the
        model's logits before a soft cap.

    Raises:
        ValueError: If the components do not sum to the model's own logits.
    """
    tokens, mask = left_padded([encoded.prompts[example] for example in examples])
    options = [encoded.options[example] for example in examples]
    device = model.W_E.device
    with torch.no_grad():
        cache = last_position_cache(model, tokens.to(device), mask.to(device), unit)
        stack = component_stack(cache, pos=-1, unit=unit)
        ids = torch.tensor(sorted({token for row in options for token in row}))
        logits, kappa = linear_logits(stack, ids, dtype)
        found = check_reconstruction(stack, logits.sum(0) + kappa, ids)
        members, constant = _own_options(logits.cpu(), kappa.cpu(), ids, options)
    return pack(
        example=torch.tensor(examples),
        gold=torch.tensor([encoded.gold[example] for example in examples]),
        n_options=torch.tensor([len(row) for row in options]),
        n_tokens=mask.sum(1),
        reconstruction_error=torch.full((len(examples),), found.error),
        option_logits=members,
        constant=constant,
    )


def left_padded(
    prompts: Sequence[Sequence[int]],
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Pad prompts on the left, so that every row's answer position is the last one.

    Returns:
        Token ids and the attention mask; the mask hides the padding, whatever its token.

    Example:
        >>> tokens, mask = left_padded([[5, 6, 7], [8]])
        >>> tokens.tolist(), mask.tolist()
        ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])
    """
    width = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return tokens, mask


def last_position_cache(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    mask: Int[Tensor, "batch pos"],
    unit: str = "sublayer",
) -> ActivationCache:
    """Cache what a decomposition needs at the last position, and nothing else.

    ``run_with_cache(pos_slice=-1)`` keeps views into activations of all positions, which hold
    their memory, and makes every layer return its attention patterns. Hooks that copy the last
    position need neither.

    Returns:
        Activations ``[batch, 1, d_model]``, and the unembedding's output there.
    """
    names = {
        *_bridge.component_hooks(model).values(),
        *_bridge.hooks_of_units(model, unit),
        _bridge.FINAL_NORM_SCALE,
        _bridge.UNEMBED_OUTPUT,
    }
    return kept_cache(model, tokens, mask, names, lambda tensor: tensor[:, -1:].clone())


def kept_cache(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    mask: Int[Tensor, "batch pos"],
    names: Collection[str],
    keep: Callable[[Tensor], Tensor],
) -> ActivationCache:
    """Cache a part of each named activation, and compute logits of the last position at most.

    Returns:
        What ``keep`` returned, by hook name.
    """
    kept: dict[str, Tensor] = {}

    def keeping(name: str) -> Callable[..., None]:
        def hook_function(tensor: Tensor, hook: Any) -> None:
            kept[name] = keep(tensor)

        return hook_function

    hooks = [(name, keeping(name)) for name in model.hook_dict if name in names]
    model.run_with_hooks(tokens, fwd_hooks=hooks, attention_mask=mask, **_answer_only(model))
    return ActivationCache(kept, model)


def _answer_only(model: Any) -> dict[str, int]:
    """Logits of the last position only, where the model can leave out the others."""
    accepted = inspect.signature(model.original_model.forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}


def _own_options(
    logits: Float[Tensor, "component row vocab"],
    kappa: Float[Tensor, " vocab"],
    ids: Int[Tensor, " vocab"],
    options: Sequence[Sequence[int]],
) -> tuple[Float[Tensor, "row component option"], Float[Tensor, "row option"]]:
    """Pick each row's own options from those of the batch, filling short rows up with any."""
    width = max(len(row) for row in options)
    filled = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in options])
    columns = torch.searchsorted(ids, filled)
    constant = kappa[columns]
    members = logits.gather(-1, columns.expand(len(logits), -1, -1)) + constant / len(logits)
    return members.transpose(0, 1), constant
