"""The losses by name, all with the signature ``(members, target, weights)``."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from lens_diversity.decomposition.probability import (
    bias_diversity,
    brier_ambiguity,
    cross_entropy_ambiguity,
)
from lens_diversity.decomposition.squared import krogh_vedelsby
from lens_diversity.decomposition.terms import AmbiguityTerms

LOSSES: MappingProxyType[str, Callable[..., AmbiguityTerms]] = MappingProxyType(
    {
        "squared": krogh_vedelsby,
        "paper": bias_diversity,
        "brier": brier_ambiguity,
        "cross_entropy": cross_entropy_ambiguity,
    }
)


def check_loss(loss: str) -> None:
    """Refuse an unknown loss by naming the known ones."""
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {tuple(LOSSES)}, got {loss!r}")
