"""How much every two members differ."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity.decomposition._members import check_members


def pairwise_diversity(members: Tensor) -> Float[Tensor, "component component ..."]:
    """Compute the mean squared difference of every pair of members.

    ``D_ik = E_j (u_ij - u_kj)^2``, and the ensemble's diversity is ``sum_ik D_ik / (2 L^2)``
    (``1/2 sum_ik w_i w_k D_ik`` with weights).

    Args:
        members: Outputs ``[component, batch..., vocab]``; half precision is widened to float32.

    Returns:
        ``[component, component, batch...]`` in the squared units of the members, symmetric with a
        zero diagonal.

    Raises:
        TypeError: If members are not floating-point.
        ValueError: If there is no member, or a number is NaN or infinite.

    Example:
        >>> pairwise_diversity(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]])
    """
    members = check_members(members)
    count = members.shape[0]
    pairs = torch.cat([_distances(members[first + 1 :], members[first]) for first in range(count)])
    first, second = torch.triu_indices(count, count, offset=1, device=members.device)
    table = pairs.new_zeros(count, count, *pairs.shape[1:])
    table[first, second] = pairs
    table[second, first] = pairs
    return table


def _distances(
    members: Float[Tensor, "component *batch vocab"], other: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "component *batch"]:
    return (members - other).square().mean(-1)
