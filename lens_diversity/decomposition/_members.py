"""What every decomposition asks of its input, and the arithmetic they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_members(members: Tensor) -> Float[Tensor, "component *batch vocab"]:
    """Refuse what is no ensemble of logits; half precision is widened to float32."""
    if not isinstance(members, Tensor):
        raise TypeError(f"members must be a tensor, got {type(members).__name__}")
    if not members.is_floating_point():
        raise TypeError(f"members must be floating-point logits, got dtype {members.dtype}")
    if members.ndim < 2 or members.shape[0] == 0 or members.shape[-1] == 0:
        raise ValueError(
            "members must be [component, batch..., vocab] with at least one component and one "
            f"token, got shape {tuple(members.shape)}"
        )
    _require_finite(members, "members")
    return members.float() if members.dtype in (torch.float16, torch.bfloat16) else members


def check_labels(labels: Tensor, members: Tensor) -> Int[Tensor, "*batch"]:
    """Refuse labels that do not name one token of each row."""
    labels = torch.as_tensor(labels)
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels must be integers, got dtype {labels.dtype}")
    if tuple(labels.shape) != tuple(members.shape[1:-1]):
        raise ValueError(
            f"labels must have the members' batch shape {tuple(members.shape[1:-1])}, got "
            f"{tuple(labels.shape)}"
        )
    _require_same_device(labels, members, "labels")
    vocab = members.shape[-1]
    outside = labels[(labels < 0) | (labels >= vocab)]
    if outside.numel():
        raise ValueError(
            f"labels {sorted(set(outside.tolist()))[:5]} are out of range [0, {vocab})"
        )
    return labels.long()


def dense_target(target: Tensor, members: Tensor) -> Float[Tensor, "*batch vocab"]:
    """The target as numbers: integer labels become one-hot, floats must fit the members."""
    if not isinstance(target, Tensor) or not target.is_floating_point():
        return one_hot(check_labels(target, members), members)
    if tuple(target.shape) != tuple(members.shape[1:]):
        raise ValueError(
            f"a dense target must have the members' shape {tuple(members.shape[1:])} (batch, "
            f"vocab), got {tuple(target.shape)}"
        )
    _require_same_device(target, members, "target")
    _require_finite(target, "target")
    return target.to(members.dtype)


def one_hot(labels: Int[Tensor, "*batch"], members: Tensor) -> Float[Tensor, "*batch vocab"]:
    """One-hot rows in the members' dtype."""
    rows = torch.zeros(members.shape[1:], dtype=members.dtype, device=members.device)
    return rows.scatter(-1, labels.unsqueeze(-1), 1.0)


def check_weights(
    weights: Tensor | Sequence[float] | None, count: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " component"]:
    """Member weights that sum to one exactly in the dtype of the computation."""
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=dtype, device=device)
    given = torch.as_tensor(weights, dtype=dtype, device=device)
    if tuple(given.shape) != (count,):
        raise ValueError(
            f"weights must hold one number for each of the {count} members, got shape "
            f"{tuple(given.shape)}"
        )
    if not bool(given.isfinite().all()) or bool((given < 0).any()):
        raise ValueError("weights must be finite and not negative")
    total = given.sum()
    if abs(float(total) - 1.0) > 1e-4:
        raise ValueError(f"weights must sum to 1, got {float(total):.6g}; divide them by their sum")
    return given / total


def member_weights(
    weights: Tensor | Sequence[float] | None, members: Tensor
) -> Float[Tensor, " component"]:
    """`check_weights` for these members."""
    return check_weights(weights, members.shape[0], members.dtype, members.device)


def weighted_mean(
    values: Float[Tensor, "component *rest"], weights: Float[Tensor, " component"]
) -> Float[Tensor, "*rest"]:
    """``sum_i w_i values_i``."""
    mean: Tensor = torch.tensordot(weights, values, 1)
    return mean


def centred_members(
    members: Float[Tensor, "component *batch vocab"], weights: Float[Tensor, " component"]
) -> tuple[Float[Tensor, "*batch vocab"], Float[Tensor, "component *batch vocab"]]:
    """Centroid ``m`` relative to the first member, and deviations ``u_i - m``.

    Differences to a member are exact where members are close, so an offset that all share costs no
    digits: the centroid itself is ``members[0] + shift``.
    """
    relative = members - members[:1]
    shift = weighted_mean(relative, weights)
    return shift, relative - shift


def combine_members(
    members: Float[Tensor, "component *batch vocab"],
    weights: Tensor | Sequence[float] | None = None,
    combine: str = "mean",
) -> Float[Tensor, "component *batch vocab"]:
    """Scale members so that their weighted mean is their plain sum, or leave them as they are.

    Args:
        members: Logits ``[component, batch..., vocab]``.
        weights: Member weights summing to 1 (default uniform).
        combine: ``"mean"`` returns the members, ``"sum"`` returns ``u_i / w_i``.

    Returns:
        Members whose weighted mean is ``sum_i w_i u_i`` or ``sum_i u_i``.

    Raises:
        ValueError: If ``combine`` is unknown or a weight is zero with ``"sum"``.

    Example:
        >>> combine_members(torch.tensor([[1.0], [3.0]]), combine="sum").mean(0)
        tensor([4.])
    """
    check_combine(combine)
    if combine == "mean":
        return members
    scale = member_weights(weights, members)
    if bool((scale == 0).any()):
        raise ValueError('combine="sum" divides by the weights, so none may be zero')
    return members / scale.reshape(-1, *[1] * (members.ndim - 1))


def check_combine(combine: str) -> None:
    """Refuse an unknown way to combine members."""
    if combine not in ("mean", "sum"):
        raise ValueError(f"combine must be 'mean' or 'sum', got {combine!r}")


def _require_same_device(tensor: Tensor, members: Tensor, name: str) -> None:
    if tensor.device != members.device:
        raise ValueError(
            f"{name} are on {tensor.device} and members on {members.device}; move one of them"
        )


def _require_finite(tensor: Tensor, name: str) -> None:
    bad = ~tensor.isfinite()
    if bool(bad.any()):
        where = bad.flatten(1).any(1).nonzero().flatten().tolist() if tensor.ndim > 1 else []
        raise ValueError(
            f"{name} hold {int(bad.sum())} NaN or infinite numbers (first index along the leading "
            f"axis: {where[:5]})"
        )
