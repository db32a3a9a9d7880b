"""What an estimator returns: a number in bits with its interval, its kind and its baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lens_diversity.information.bounds import (
    FANO_HOLDS_FOR,
    HELLMAN_RAVIV_HOLDS_FOR,
    error_bounds,
    tight_fano,
)

if TYPE_CHECKING:
    import pandas as pd

ESTIMATE = "estimate"
LOWER_BOUND = "lower bound"


class InsufficientSampleError(ValueError):
    """The sample cannot support the number of members."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of ``I(U;Y)`` in bits."""

    value: float
    """The estimate, clipped to what is possible, ``[0, log2 |Y|]``."""
    low: float
    """Lower end of the interval, which is valid at ``I = 0`` too."""
    high: float
    """Upper end. For a lower bound: that of ``H(Y)``, since nothing better is known."""
    raw: float
    """The estimate before clipping. Slightly negative values mean no information found."""
    baseline: float
    """The same estimator on shuffled labels, where ``I = 0``: mean over shuffles, not clipped."""
    kind: str
    """``"estimate"`` or ``"lower bound"``."""
    assumption: str
    """What the estimate rests on."""
    estimator: str
    """``plugin``, ``gaussian``, ``knn`` or ``probe``."""
    entropy: float
    """``H(Y)`` in bits (Miller-Madow, at most ``log2 |Y|``)."""
    n_examples: int
    """Number of rows."""
    n_classes: int
    """Number of labels that occur."""
    n_members: int
    """Number of members."""
    level: float
    """Coverage aimed at."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether ``value`` estimates a lower bound on ``I(U;Y)`` only."""
        return self.kind == LOWER_BOUND

    def bounds(self) -> pd.DataFrame:
        """Bounds on the error that follow, with the predictors each holds for.

        Returns:
            One row a bound: ``value`` (from the estimate), ``safe`` (from the end of the interval
            that makes the bound weaker), ``holds_for``, and ``note``. A lower bound on the
            information gives no Fano bound but the trivial 0.
        """
        import pandas as pd

        weak, upper = error_bounds(self.entropy, self.value, self.n_classes)
        safe_weak = error_bounds(self.entropy, self.high, self.n_classes).lower
        safe_upper = error_bounds(self.entropy, self.low, self.n_classes).upper
        tight = tight_fano(self.entropy, self.value, self.n_classes)
        safe_tight = tight_fano(self.entropy, self.high, self.n_classes)
        note = ""
        if self.is_lower_bound:
            weak = tight = safe_weak = safe_tight = 0.0
            note = (
                f"{self.estimator} gives a lower bound on I here, from which no Fano bound follows"
            )
        rows = [
            ("fano_weak", weak, safe_weak, FANO_HOLDS_FOR, note or self._about_fano()),
            ("fano_tight", tight, safe_tight, FANO_HOLDS_FOR, note),
            ("hellman_raviv", upper, safe_upper, HELLMAN_RAVIV_HOLDS_FOR, self._about_entropy()),
        ]
        columns = ["bound", "value", "safe", "holds_for", "note"]
        return pd.DataFrame(rows, columns=columns).set_index("bound")

    def _about_fano(self) -> str:
        return "says nothing with two classes" if self.n_classes == 2 else ""

    def _about_entropy(self) -> str:
        if self.n_classes == 1:
            return "one class: there is no error to make"
        over = self.raw > self.entropy
        return "the estimate exceeds H(Y) by estimation error and counts as H(Y)" if over else ""


@dataclass(frozen=True)
class Terms:
    """Terms of Eq. 13 in bits; ``diversity = joint - relevancy`` = conditional TC - TC.

    Point estimates are not clipped, so that the identity holds exactly; each has an interval in
    ``intervals``. What the estimator cannot give is None, with why in ``reasons``.
    """

    entropy: float
    """``H(Y)``."""
    joint: float | None
    """``I(U;Y)``."""
    relevancy: float
    """``sum_i I(u_i;Y)``."""
    total_correlation: float | None
    """``TC(U) = sum_i H(u_i) - H(U)``: how much the members repeat each other."""
    conditional_total_correlation: float | None
    """``CTC(U|Y)``: the same given the label; 0 is the condition of Theorems 7 and 8."""
    diversity: float | None
    """Information-theoretic diversity; negative where members are mostly redundant."""
    member_information: tuple[float, ...]
    """``I(u_i;Y)`` of each member."""
    estimator: str
    """Name of the estimator."""
    kind: str
    """``"estimate"``, or ``"lower bound"`` (on the joint and each member's information; their
    difference is then neither)."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """``(low, high)`` of each term that was estimated."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a term is None."""
