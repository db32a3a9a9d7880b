"""Members' outputs and labels as arrays, checked once for every estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Independent draws of the members' outputs ``U`` and the label ``Y``."""

    labels: Integers
    """[example], codes 0..n_classes-1 of the labels that occur."""
    classes: Integers
    """[example, component], predicted classes as codes from 0 (argmax of the logits)."""
    values: Floats | None
    """[example, component, option] logits, or None where only classes are known or rows differ in
    their number of options."""
    why_no_values: str = ""
    """Why there are no values."""

    @property
    def n_classes(self) -> int:
        """How many labels occur."""
        return int(self.labels.max()) + 1

    @property
    def n_members(self) -> int:
        """How many members there are."""
        return int(self.classes.shape[1])

    @property
    def class_counts(self) -> Integers:
        """How often each label occurs."""
        return np.bincount(self.labels).astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: Integers) -> Sample:
        """Some of the examples."""
        values = None if self.values is None else self.values[chosen]
        labels = _codes(self.labels[chosen])
        return replace(self, labels=labels, classes=self.classes[chosen], values=values)


def as_sample(outputs: Any, labels: Any) -> Sample:
    """Read predicted classes or logits, and labels.

    Args:
        outputs: [example, component] integers, or [example, component, option] floats (NaN where a
            row has fewer options than the widest).
        labels: [example] integers.

    Raises:
        TypeError: If a dtype is wrong.
        ValueError: If shapes do not fit, there are fewer than two examples, or a logit is infinite.
    """
    members, gold = _array(outputs), _array(labels)
    if gold.ndim != 1 or len(gold) != len(members):
        raise ValueError(
            f"labels must be one integer an example: outputs have shape {members.shape}, labels "
            f"{gold.shape}"
        )
    if not _is_integer(gold):
        raise TypeError(f"labels must be integers, got dtype {gold.dtype}")
    if len(gold) < 2:
        raise ValueError(f"information needs at least two examples, got {len(gold)}")
    if members.ndim not in (2, 3) or 0 in members.shape:
        raise ValueError(
            "outputs must be predicted classes [example, component] or logits "
            f"[example, component, option], got shape {members.shape}"
        )
    if members.ndim == 2:
        return _from_classes(members, _codes(gold))
    return _from_logits(members, _codes(gold))


def _from_classes(members: npt.NDArray[Any], labels: Integers) -> Sample:
    if not _is_integer(members):
        raise TypeError(
            f"outputs [example, component] must be integer classes, got dtype {members.dtype}; "
            "logits need a third axis of options, [example, component, option]"
        )
    classes = np.stack([_codes(column) for column in members.T], axis=1)
    return Sample(labels, classes, None, "predicted classes were given, not logits")


def _from_logits(members: npt.NDArray[Any], labels: Integers) -> Sample:
    if members.dtype.kind not in "fiub":
        raise TypeError(f"logits must be floats, got dtype {members.dtype}")
    logits = members.astype(np.float64)
    if np.isinf(logits).any():
        raise ValueError("outputs have infinite logits")
    missing = np.isnan(logits)
    if missing.all(-1).any():
        raise ValueError("some examples have a component without any finite logit")
    predicted = np.where(missing, -np.inf, logits).argmax(-1)
    classes = np.stack([_codes(column) for column in predicted.T], axis=1)
    if missing.any():
        why = "rows differ in their number of options (NaN); keep those of one width"
        return Sample(labels, classes, None, why)
    return Sample(labels, classes, logits)


def _array(values: Any) -> npt.NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.is_floating_point() else values).astype(
            np.float64 if values.is_floating_point() else np.int64
        )
    return np.asarray(values)


def _is_integer(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind in "iub"


def _codes(values: npt.NDArray[Any]) -> Integers:
    return np.unique(values, return_inverse=True)[1].astype(np.int64).reshape(values.shape)
