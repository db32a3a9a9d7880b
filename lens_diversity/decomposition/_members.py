"""What every decomposition asks of its input, and the arithmetic they share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

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
    members = _widen(members)
    finite = members.isfinite()
    if not bool(finite.all()):
        where = (~finite).flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(
            f"members hold {int((~finite).sum())} NaN or infinite numbers, in components "
            f"{_first_few(where)}"
        )
    return members


def check_labels(labels: Tensor, members: Tensor) -> Int[Tensor, "*batch"]:
    """Refuse labels that do not name one token of each row."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor of integers, got {type(labels).__name__}")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(
            f"labels must be integers, got dtype {labels.dtype}; only the squared loss takes a "
            "dense floating-point target"
        )
    if tuple(labels.shape) != tuple(members.shape[1:-1]):
        raise ValueError(
            f"labels must have the members' batch shape {tuple(members.shape[1:-1])}, got "
            f"{tuple(labels.shape)}"
        )
    _require_same_device(labels, members, "labels")
    labels, vocab = labels.long(), members.shape[-1]
    outside = sorted(set(labels[(labels < 0) | (labels >= vocab)].tolist()))
    if outside:
        raise ValueError(f"labels {_first_few(outside)} are out of range [0, {vocab})")
    return labels


def dense_target(target: Tensor, members: Tensor) -> Float[Tensor, "*batch vocab"]:
    """The target as numbers: integer labels become one-hot, floats must fit the members."""
    if not isinstance(target, Tensor) or not target.is_floating_point():
        labels = check_labels(target, members)
        rows = torch.zeros(members.shape[1:], dtype=members.dtype, device=members.device)
        one_hot: Tensor = rows.scatter(-1, labels.unsqueeze(-1), 1.0)
        return one_hot
    return _check_numbers("a dense target", target, members, tuple(members.shape[1:]))


def check_constant(constant: Tensor | None, members: Tensor) -> Float[Tensor, "*batch vocab"]:
    """Constant logits of each row, zeros for None; refuse what does not fit a member."""
    nothing = torch.zeros_like(members[0])
    if constant is None:
        return nothing
    shapes = tuple(members.shape[-1:]), tuple(members.shape[1:])
    return nothing + _check_numbers("constant", constant, members, *shapes)


def check_rescale(rescale: Tensor | None, members: Tensor) -> Float[Tensor, "component *batch"]:
    """Factors of each junction and row, ones for None; refuse what does not fit."""
    if rescale is None:
        return torch.ones_like(members[..., 0])
    return _check_numbers("rescale", rescale, members, tuple(members.shape[:-1]))


def check_weights(
    weights: Tensor | Sequence[float] | None, count: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " component"]:
    """Member weights that sum to one in the dtype of the computation."""
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=dtype, device=device)
    given = torch.as_tensor(weights, dtype=dtype, device=device)
    if tuple(given.shape) != (count,):
        raise ValueError(
            f"weights must hold one number for each of the {count} members, got shape "
            f"{tuple(given.shape)}"
        )
    refused = given[~(given.isfinite() & (given >= 0))].tolist()
    if refused:
        raise ValueError(f"weights must be finite and not negative, got {_first_few(refused)}")
    total = given.sum()
    found = float(total.detach())
    if abs(found - 1.0) > 1e-4:
        raise ValueError(f"weights must sum to 1, got {found:.6g}; divide them by their sum")
    return given / total


def member_weights(
    weights: Tensor | Sequence[float] | None, members: Tensor
) -> Float[Tensor, " component"]:
    """`check_weights` for these members."""
    return check_weights(weights, members.shape[0], members.dtype, members.device)


def per_member(numbers: Float[Tensor, " component"], values: Tensor) -> Tensor:
    """One number per component, shaped to broadcast against ``values``."""
    return numbers.reshape(-1, *[1] * (values.ndim - 1))


def weighted_mean(
    values: Float[Tensor, "component *rest"], weights: Float[Tensor, " component"]
) -> Float[Tensor, "*rest"]:
    """``sum_i w_i values_i``, not as a matrix product: TF32 and autocast would round that."""
    return (per_member(weights, values) * values).sum(0)


def running_sum(values: Float[Tensor, "component *rest"]) -> Float[Tensor, "component *rest"]:
    """``sum_{i<=k} values_i``; ``cumsum`` has no deterministic CUDA kernel."""
    return torch.stack(list(accumulate(values.unbind())))


def sum_of_others(values: Float[Tensor, "component *rest"]) -> Float[Tensor, "component *rest"]:
    """``sum_{k != i} values_k``: the sum before plus the sum after.

    Taking an outlying member from the total would leave its rounding in place of the others.
    """
    rows, nothing = values.unbind(), torch.zeros_like(values[0])
    before = [nothing, *accumulate(rows[:-1])]
    after = [nothing, *accumulate(rows[:0:-1])]
    return torch.stack([left + right for left, right in zip(before, after[::-1], strict=True)])


def heaviest_member(
    members: Float[Tensor, "component *batch vocab"], weights: Float[Tensor, " component"]
) -> Float[Tensor, "*batch vocab"]:
    """The point from which averages are taken.

    Differences to a member are exact where members are close, so an offset that all share costs no
    digits. The heaviest one, since a member without weight may be anywhere. No derivative depends
    on the choice.
    """
    return members.detach().index_select(0, weights.argmax(0, keepdim=True)).squeeze(0)


def centred_members(
    members: Float[Tensor, "component *batch vocab"], weights: Float[Tensor, " component"]
) -> tuple[
    Float[Tensor, "*batch vocab"],
    Float[Tensor, "*batch vocab"],
    Float[Tensor, "component *batch vocab"],
]:
    """Reference ``r``, shift ``m - r`` and deviations ``u_i - m``; the centroid is their sum."""
    reference = heaviest_member(members, weights)
    relative = members - reference
    shift = weighted_mean(relative, weights)
    return reference, shift, relative - shift


def combine_members(
    members: Tensor,
    weights: Tensor | Sequence[float] | None = None,
    combine: str = "mean",
) -> Float[Tensor, "component *batch vocab"]:
    """Scale members so that their weighted mean is their plain sum, or leave them as they are.

    Args:
        members: Logits ``[component, batch..., vocab]``; half precision is widened to float32.
        weights: Member weights summing to 1 (default uniform).
        combine: ``"mean"`` returns the members, ``"sum"`` returns ``u_i / w_i``.

    Returns:
        Members whose weighted mean is ``sum_i w_i u_i`` or ``sum_i u_i``.

    Raises:
        TypeError: If members are not floating-point.
        ValueError: If ``combine`` is unknown, a weight is zero with ``"sum"``, or the input does
            not fit (see `krogh_vedelsby`).

    Example:
        >>> combine_members(torch.tensor([[1.0], [3.0]]), combine="sum").mean(0)
        tensor([4.])
    """
    check_combine(combine)
    members = check_members(members)
    checked = member_weights(weights, members)
    if combine == "mean":
        return members
    require_every_weight(checked)
    return members / per_member(checked, members)


def check_combine(combine: str) -> None:
    """Refuse an unknown way to combine members."""
    if combine not in ("mean", "sum"):
        raise ValueError(f"combine must be 'mean' or 'sum', got {combine!r}")


def require_every_weight(weights: Float[Tensor, " component"]) -> None:
    """Refuse zero weights, by which ``combine="sum"`` would divide."""
    absent = (weights == 0).nonzero().flatten().tolist()
    if absent:
        raise ValueError(
            f'combine="sum" divides by the weights, but those of components {_first_few(absent)} '
            "are zero; leave these components out"
        )


def _check_numbers(name: str, tensor: Tensor, members: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """Refuse what are not finite numbers of one of these shapes, on the members' device."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {found}")
    if tuple(tensor.shape) not in shapes:
        raise ValueError(
            f"{name} must have shape {' or '.join(map(str, dict.fromkeys(shapes)))} to fit members "
            f"of shape {tuple(members.shape)}, got {tuple(tensor.shape)}"
        )
    _require_same_device(tensor, members, name)
    tensor = tensor.to(members.dtype)
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite numbers")
    return tensor


def _widen(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _require_same_device(tensor: Tensor, members: Tensor, name: str) -> None:
    if tensor.device != members.device:
        raise ValueError(
            f"{name} must be on the members' device {members.device}, got {tensor.device}; move "
            "one of them with .to(device)"
        )


def _first_few(values: list[object], limit: int = 8) -> str:
    shown = ", ".join(map(str, values[:limit]))
    return f"[{shown}, ... {len(values)} in all]" if len(values) > limit else f"[{shown}]"
