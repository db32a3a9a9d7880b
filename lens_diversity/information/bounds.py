"""Bounds on the probability of error, and what each of them holds for."""

from __future__ import annotations

import math
from typing import NamedTuple, SupportsFloat, SupportsInt

from scipy.optimize import brentq

FANO_HOLDS_FOR = "any predictor that is a function of the same U whose information was measured"
HELLMAN_RAVIV_HOLDS_FOR = "the Bayes rule on U only, not an arbitrary predictor"


class ErrorBounds(NamedTuple):
    """Bounds of Eq. 12 on the probability of error."""

    lower: float
    """Weak Fano bound, clipped at 0: for any predictor that is a function of the same U."""
    upper: float
    """Hellman and Raviv's bound: for the Bayes rule on U, not for an arbitrary predictor."""


def error_bounds(
    entropy: SupportsFloat, mutual_information: SupportsFloat, n_classes: SupportsInt
) -> ErrorBounds:
    """Bound the error of predicting ``Y`` from ``U`` (Theorem 4, Eq. 12; Zhou and Li 2010).

    ``(H(Y) - I - 1) / log2 |Y| <= P(error) <= (H(Y) - I) / 2``. The lower bound (Fano) holds for
    every predictor that is a function of the same ``U`` whose information was measured: the
    network is one of its members' logits, but not of their predicted classes. The upper one
    (Hellman and Raviv 1970) holds for the Bayes rule on ``U`` and for no other predictor. An
    underestimate of ``I`` (a probe's) keeps the upper bound valid and breaks the lower one.

    Args:
        entropy: ``H(Y)`` in bits.
        mutual_information: ``I(U;Y)`` in bits. More than ``H(Y)``, which only an estimate can be,
            counts as ``H(Y)``, and less than 0 as 0.
        n_classes: How many labels there are. With one there is no error to make: ``(0, 0)``. With
            two the weak form says nothing (``H(Y) <= 1``); see
            [`tight_fano`][lens_diversity.information.tight_fano].

    Returns:
        ``(lower, upper)``.

    Raises:
        ValueError: If an argument is not finite, the entropy is negative or far above
            ``log2 n_classes``, or ``n_classes`` is less than one.

    Example:
        >>> error_bounds(2.0, 0.5, 4)
        ErrorBounds(lower=0.25, upper=0.75)
    """
    missing, count = _equivocation(entropy, mutual_information, n_classes)
    if count == 1:
        return ErrorBounds(0.0, 0.0)
    return ErrorBounds(max(0.0, (missing - 1) / math.log2(count)), missing / 2)


def tight_fano(
    entropy: SupportsFloat, mutual_information: SupportsFloat, n_classes: SupportsInt
) -> float:
    """Solve Fano's inequality itself: ``H_b(P) + P log2(|Y| - 1) >= H(Y) - I(U;Y)``.

    Args:
        entropy: ``H(Y)`` in bits.
        mutual_information: ``I(U;Y)`` in bits, clipped to ``[0, H(Y)]``.
        n_classes: How many labels there are.

    Returns:
        The smallest ``P`` that satisfies it: a lower bound on the error of any predictor that is a
        function of the same ``U``, never below the weak form and informative for two classes too.

    Raises:
        ValueError: As in `error_bounds`.

    Example:
        >>> round(tight_fano(1.0, 0.5, 2), 4)
        0.11
    """
    missing, count = _equivocation(entropy, mutual_information, n_classes)
    if count == 1 or missing == 0:
        return 0.0
    chance = 1 - 1 / count
    if missing >= _fano_entropy(chance, count):
        return chance
    return float(brentq(lambda p: _fano_entropy(p, count) - missing, 0.0, chance, xtol=1e-14))


def _fano_entropy(error: float, n_classes: int) -> float:
    binary = sum(-p * math.log2(p) for p in (error, 1 - error) if p > 0)
    return binary + error * math.log2(max(n_classes - 1, 1))


def _equivocation(
    entropy: SupportsFloat, mutual_information: SupportsFloat, n_classes: SupportsInt
) -> tuple[float, int]:
    """``H(Y|U) = H(Y) - I``, with the information clipped to what is possible, and ``|Y|``."""
    count, h, information = int(n_classes), float(entropy), float(mutual_information)
    if count != n_classes or count < 1:
        raise ValueError(f"n_classes must be a whole number of at least 1, got {n_classes!r}")
    if not (math.isfinite(h) and math.isfinite(information)):
        raise ValueError(
            f"entropy and mutual information must be finite, got {h} and {information}"
        )
    largest = math.log2(count)
    # A bias-corrected entropy exceeds the largest possible one by (|Y| - 1) / 2n nats at most.
    if not -1e-9 <= h <= largest + 0.1:
        raise ValueError(
            f"the entropy of {count} classes lies between 0 and log2({count}) = {largest:.4g} "
            f"bits, got {h:g}"
        )
    return max(0.0, min(max(h, 0.0), largest) - max(information, 0.0)), count
