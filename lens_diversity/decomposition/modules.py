"""A member average split by kind of member."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import check_weights, weighted_mean


def module_split(
    component_term: Tensor,
    modules: Sequence[str],
    weights: Tensor | Sequence[float] | None = None,
) -> dict[str, Float[Tensor, "*batch"]]:
    """Split a bias or diversity into the contributions of embeddings, attention and MLPs.

    ``sum_i w_i term_i = sum over modules M of sum_{i in M} w_i term_i``; with uniform weights a
    module contributes ``|M| / L`` times its own average (Kamigaito et al. 2025, Eqs. 9-10).

    Args:
        component_term: ``component_bias`` or ``component_diversity``, ``[component, batch...]``.
        modules: The module of each component.
        weights: Member weights ``[component]``, not negative, summing to 1 (default uniform).

    Returns:
        The weighted contribution of each module, ``[batch...]`` in the units of the term, in order
        of first appearance. They sum to the whole.

    Raises:
        TypeError: If the term is not floating-point.
        ValueError: If there is no component, modules do not name each one, or weights do not sum
            to 1.

    Example:
        >>> terms = torch.tensor([4.0, 1.0, 3.0])
        >>> module_split(terms, ["embed", "mlp", "mlp"], weights=[0.5, 0.25, 0.25])
        {'embed': tensor(2.), 'mlp': tensor(1.)}
    """
    if not component_term.is_floating_point():
        raise TypeError(f"component_term must be floating-point, got dtype {component_term.dtype}")
    if component_term.ndim == 0 or component_term.shape[0] == 0:
        raise ValueError(
            "component_term must be [component, batch...] with at least one component, got shape "
            f"{tuple(component_term.shape)}"
        )
    if len(modules) != component_term.shape[0]:
        raise ValueError(
            f"modules must name each of the {component_term.shape[0]} components, got "
            f"{len(modules)} names"
        )
    shares = check_weights(weights, len(modules), component_term.dtype, component_term.device)
    split = {}
    for module in dict.fromkeys(modules):
        own = torch.tensor([name == module for name in modules], device=component_term.device)
        split[module] = weighted_mean(component_term[own], shares[own])
    return split
