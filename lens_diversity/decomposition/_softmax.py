"""Softmax without lost digits: probabilities of confident members, divergences of close ones.

Everything starts from margins to the gold logit, ``v_j = u_j - u_y``. Softmax sees nothing else,
and an offset of all logits of a member drops out before anything is rounded.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def gold_margins(
    logits: Float[Tensor, "*lead vocab"], labels: Int[Tensor, "..."]
) -> Float[Tensor, "*lead vocab"]:
    """``u_j - u_y``; labels miss at most the leading axis of the logits."""
    return logits - logits.gather(-1, _gold(logits, labels))


def surprisal(
    margins: Float[Tensor, "*lead vocab"], labels: Int[Tensor, "..."]
) -> Float[Tensor, "*lead"]:
    """``-log p_y = log(1 + sum_{j != y} e^{v_j})``, to full precision where ``p_y`` is near 1."""
    rivals = margins.scatter(-1, _gold(margins, labels), -torch.inf).logsumexp(-1)
    return torch.nn.functional.softplus(rivals, threshold=40)


def misses(
    margins: Float[Tensor, "*lead vocab"], labels: Int[Tensor, "..."]
) -> Float[Tensor, "*lead vocab"]:
    """``p_j - y_j``, to full precision where ``p_y`` is near 1."""
    gold = torch.expm1(-surprisal(margins, labels)).unsqueeze(-1)
    return margins.softmax(-1).scatter(-1, _gold(margins, labels), gold)


def kullback_leibler(
    q: Float[Tensor, "*batch vocab"],
    p: Float[Tensor, "*batch vocab"],
    log_ratio: Float[Tensor, "*batch vocab"],
) -> Float[Tensor, "*batch"]:
    """``KL(q || p)`` in nats, with ``log_ratio = log q - log p`` as exactly as it is known.

    Summed as ``sum_j (q_j log_ratio_j + p_j - q_j)``: the added part is zero in all, and makes each
    term non-negative and of second order in ``log_ratio``, so that close distributions keep their
    digits. ``p - q`` is ``q (e^-log_ratio - 1)`` where the two are close.
    """
    close = q * torch.expm1(-log_ratio.clamp(min=-1))
    return (q * log_ratio + torch.where(log_ratio > -1, close, p - q)).sum(-1)


def _gold(logits: Tensor, labels: Tensor) -> Tensor:
    return labels.unsqueeze(-1).expand(*logits.shape[:-1], 1)
