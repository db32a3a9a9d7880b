"""Information terms of discrete distributions that are known exactly, in bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from lens_diversity.information._sample import Floats

# 3^L terms of up to 2^L entropies each: seconds at twelve members.
MAX_MEMBERS = 12
SIGNS = ("brown", "printed")


@dataclass(frozen=True)
class ExactTerms:
    """Every term of Theorem 4 for a known joint distribution, in bits."""

    entropy: float
    """``H(Y)``."""
    joint: float
    """``I(U;Y)``."""
    relevancy: float
    """``sum_i I(u_i;Y)``."""
    total_correlation: float
    """``TC(U) = sum_i H(u_i) - H(U)``."""
    conditional_total_correlation: float
    """``CTC(U|Y) = sum_i H(u_i|Y) - H(U|Y)``."""
    redundancy: float
    """``sum over |T| >= 2 of I(T)``: equals the total correlation under Brown's sign."""
    conditional_redundancy: float
    """``sum over |T| >= 2 of I(T|Y)``: equals the conditional one under Brown's sign."""
    sign: str
    """``brown`` or ``printed``: the sign of the interaction information in both sums."""

    @property
    def diversity(self) -> float:
        """Information-theoretic diversity ``I(U;Y) - relevancy = CTC - TC``."""
        return self.joint - self.relevancy


def exact_terms(joint_table: Any, sign: str = "brown") -> ExactTerms:
    """Compute the terms of Eq. 13 and of Eqs. 17-18 from a joint probability table.

    Redundancy sums the interaction information of every subset of two or more members. Brown
    (2009) defines it as ``I(T) = (-1)^|T| sum over non-empty A in T of (-1)^(|A|-1) H(A)``;
    Eqs. 15-16 of Kamigaito et al. (2025) print it without the factor ``(-1)^|T|``, with which
    Eq. 13 fails from three members on.

    Args:
        joint_table: Probabilities ``p(u_1, ..., u_L, y)``: one axis a member, the label's last.
        sign: ``"brown"``, or ``"printed"`` for the sums as the paper prints them.

    Returns:
        All terms in bits.

    Raises:
        ValueError: If the table is no distribution over at least one member and a label, has more
            than 12 members, or the sign is unknown.

    Example:
        >>> xor = np.zeros((2, 2, 2))
        >>> xor[[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] = 0.25
        >>> terms = exact_terms(xor)
        >>> terms.joint, terms.relevancy, terms.diversity
        (1.0, 0.0, 1.0)
    """
    if sign not in SIGNS:
        raise ValueError(f"sign must be one of {SIGNS}, got {sign!r}")
    table = check_table(joint_table)
    members = range(table.ndim - 1)
    everyone = tuple(members)
    label = table.ndim - 1
    entropy = {subset: entropy_of(table, subset) for subset in _subsets(everyone)}
    with_label = {s: entropy_of(table, (*s, label)) for s in _subsets(everyone)}
    h_y = entropy_of(table, (label,))
    given = {subset: value - h_y for subset, value in with_label.items()}
    return ExactTerms(
        entropy=h_y,
        joint=entropy[everyone] - given[everyone],
        relevancy=sum(entropy[(i,)] - given[(i,)] for i in members),
        total_correlation=sum(entropy[(i,)] for i in members) - entropy[everyone],
        conditional_total_correlation=sum(given[(i,)] for i in members) - given[everyone],
        redundancy=_redundancy(entropy, everyone, sign),
        conditional_redundancy=_redundancy(given, everyone, sign),
        sign=sign,
    )


def exact_information(joint_table: Any, members: Sequence[int]) -> float:
    """``I(u_S;Y)`` in bits for some of the members of a joint table.

    Args:
        joint_table: Probabilities ``p(u_1, ..., u_L, y)``.
        members: Axes of the members in ``S``; none gives 0.

    Returns:
        The mutual information in bits.
    """
    table = check_table(joint_table)
    chosen, label = tuple(members), table.ndim - 1
    return (
        entropy_of(table, chosen)
        + entropy_of(table, (label,))
        - entropy_of(table, (*chosen, label))
    )


def check_table(joint_table: Any) -> Floats:
    """Validate a joint probability table ``p(u_1, ..., u_L, y)``."""
    table = np.asarray(joint_table, dtype=np.float64)
    if table.ndim < 2:
        raise ValueError(
            "a joint table has one axis a member and the label's last, at least two axes; got "
            f"{table.ndim}"
        )
    if table.ndim - 1 > MAX_MEMBERS:
        raise ValueError(
            f"{table.ndim - 1} members have {2 ** (table.ndim - 1)} subsets; at most "
            f"{MAX_MEMBERS} are summed over"
        )
    if not np.isfinite(table).all() or (table < 0).any() or abs(table.sum() - 1) > 1e-9:
        raise ValueError(
            f"probabilities must be non-negative and sum to 1, got a sum of {table.sum():g} and a "
            f"minimum of {table.min():g}"
        )
    return table


def entropy_of(table: Floats, axes: Sequence[int]) -> float:
    """Entropy in bits of the marginal over some axes."""
    others = tuple(axis for axis in range(table.ndim) if axis not in set(axes))
    return entropy(table.sum(axis=others))


def entropy(probabilities: Any) -> float:
    """Entropy ``-sum p log2 p`` in bits.

    Example:
        >>> entropy([0.5, 0.25, 0.25])
        1.5
    """
    p = np.asarray(probabilities, dtype=np.float64).ravel()
    p = p[p > 0]
    # A certain outcome has entropy 0, not the -0.0 that the sum gives.
    return float(max(0.0, -(p * np.log2(p)).sum()))


def _subsets(members: tuple[int, ...], smallest: int = 1) -> Iterator[tuple[int, ...]]:
    for size in range(smallest, len(members) + 1):
        yield from combinations(members, size)


def _redundancy(
    entropies: dict[tuple[int, ...], float], members: tuple[int, ...], sign: str
) -> float:
    subsets = _subsets(members, smallest=2)
    return sum((_interaction(entropies, subset, sign) for subset in subsets), start=0.0)


def _interaction(
    entropies: dict[tuple[int, ...], float], subset: tuple[int, ...], sign: str
) -> float:
    total: float = sum((-1) ** (len(part) - 1) * entropies[part] for part in _subsets(subset))
    return -total if sign == "brown" and len(subset) % 2 else total
