"""Everything the information theory has to say about one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lens_diversity.information._sample import Sample, as_sample
from lens_diversity.information.curves import ORDERS, Curve, curve_of
from lens_diversity.information.estimates import Estimate, InsufficientSampleError, Terms
from lens_diversity.information.estimators import (
    ESTIMATORS,
    assemble,
    make_estimator,
    to_estimate,
)

if TYPE_CHECKING:
    import pandas as pd

    from lens_diversity.evaluation import Run

GAUGES = ("model", "centred")


@dataclass(frozen=True, eq=False)
class RunInformation:
    """Information between a run's components and its labels, in bits."""

    estimate: Estimate | None
    """``I(U;Y)`` of all components, or None where the examples cannot support them."""
    reason: str
    """Why there is no such estimate; empty where there is."""
    terms: Terms
    """Terms of Eq. 13 for all components."""
    curves: dict[str, Curve]
    """Curves by order."""
    labels: tuple[str, ...]
    """Component names."""
    network_error: float
    """Share of the same examples that the network gets wrong."""
    estimator: str
    """Name of the estimator."""
    gauge: str
    """``model``, or ``centred``: logits minus their mean over the options."""
    notes: tuple[str, ...]
    """Examples that were left out, and why."""

    def to_dataframe(self) -> pd.DataFrame:
        """All curves as one table, with the name of the component added last as ``label``."""
        import pandas as pd

        table = pd.concat([found.table for found in self.curves.values()], ignore_index=True)
        return table.assign(label=[self.labels[member] for member in table["member"]])

    def members(self) -> pd.DataFrame:
        """Information of each component on its own: ``label`` and ``information``."""
        import pandas as pd

        return pd.DataFrame({"label": self.labels, "information": self.terms.member_information})

    def errors(self) -> pd.DataFrame:
        """Actual errors beside the bounds, for all components or as many as are supported.

        Returns:
            One row each: ``name``, ``error``, ``members`` (how many components it reads) and
            ``holds_for`` or what the error is of. The Fano bounds of predicted classes say nothing
            about the network, which reads logits.
        """
        import pandas as pd

        rows: list[tuple[str, float, int, str]] = [
            ("network", self.network_error, len(self.labels), "sum of all components' logits")
        ]
        network = self.curves.get("network")
        found = None if network is None else network.table.dropna(subset=["combiner_error"])
        if found is not None and len(found):
            # Chosen by information: the least of many noisy errors would be too small.
            best = found.iloc[int(found["information"].argmax())]
            about = f"held-out Bayes rule of {self.estimator} where the network order tells most"
            rows.append(("best combiner", float(best["combiner_error"]), int(best["size"]), about))
        if self.estimate is not None:
            for name, row in self.estimate.bounds().iterrows():
                text = row["holds_for"] + (f" ({row['note']})" if row["note"] else "")
                rows.append((str(name), row["value"], len(self.labels), text))
        columns = ["name", "error", "members", "holds_for"]
        return pd.DataFrame(rows, columns=columns).set_index("name")


def of_run(
    run: Run,
    estimator: str = "plugin",
    *,
    gauge: str = "model",
    orders: Sequence[str] = ORDERS,
    sizes: Sequence[int] | None = None,
    repeats: int = 20,
    level: float = 0.95,
    seed: int = 0,
) -> RunInformation:
    """Measure the information between a run's components and its labels (Theorems 4-8).

    Args:
        run: From [`evaluate`][lens_diversity.evaluate].
        estimator: As in [`mutual_information`][lens_diversity.information.mutual_information].
            ``plugin`` reads the components' predicted options, the others their option logits.
        gauge: ``"model"`` reads logits as they are; ``"centred"`` their differences between
            options, one coordinate less, which is all a softmax sees of a member.
        orders: Which curves to follow; see [`curve`][lens_diversity.information.curve].
        sizes: Numbers of components to look at, None for all (powers of two for ``probe``).
        repeats: How many random orders.
        level: Coverage of intervals.
        seed: Seed of orders, folds and shuffles.

    Returns:
        Estimate, terms, curves, bounds and actual errors.

    Raises:
        ValueError: If an argument is unknown or labels take one value only.

    Example:
        >>> import lens_diversity as ld
        >>> run = ld.load_run("results/")  # doctest: +SKIP
        >>> of_run(run, "gaussian").curves["network"].table  # doctest: +SKIP
    """
    unknown = sorted(set(orders) - set(ORDERS))
    if unknown:
        raise ValueError(f"orders must be among {ORDERS}, got {unknown}")
    sample, examples, notes = run_sample(run, estimator, gauge)
    fitted = make_estimator(sample, estimator, level, seed)
    if fitted is None:
        raise ValueError("one label occurs in the run, so its components have nothing to tell")
    members = list(range(sample.n_members))
    estimate, reason = None, ""
    singles = fitted.singles()
    try:
        scores = fitted.scores(members)
        estimate = to_estimate(fitted, scores, fitted.baseline(members, [len(members)])[0])
        terms = assemble(fitted, singles, scores)
    except InsufficientSampleError as error:
        reason = str(error)
        terms = assemble(fitted, singles, None, reason)
    curves = {
        order: curve_of(sample, order, estimator, sizes, repeats, level, seed, fitted)
        for order in orders
    }
    wrong = run.predictions[examples] != run.gold[examples]
    return RunInformation(
        estimate=estimate,
        reason=reason,
        terms=terms,
        curves=curves,
        labels=tuple(run.labels),
        network_error=float(wrong.double().mean()),
        estimator=estimator,
        gauge=gauge,
        notes=notes,
    )


def run_sample(run: Run, estimator: str, gauge: str) -> tuple[Sample, Tensor, tuple[str, ...]]:
    """A run's outputs as a sample, which examples it holds, and notes on those left out.

    Logits of rows with different numbers of options are no draws of one variable, so estimators
    that read logits keep the most frequent width; predicted options need not.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {tuple(ESTIMATORS)}, got {estimator!r}")
    if gauge not in GAUGES:
        raise ValueError(f"gauge must be one of {GAUGES}, got {gauge!r}")
    everything = torch.arange(len(run))
    if estimator == "plugin":
        return as_sample(run.option_logits, run.gold), everything, ()
    width = int(run.n_options.bincount().argmax())
    kept = (run.n_options == width).nonzero().squeeze(1)
    notes: tuple[str, ...] = ()
    if len(kept) < len(run):
        notes = (f"{len(run) - len(kept)} of {len(run)} rows do not have {width} options",)
    logits = run.option_logits[kept, :, :width].double()
    if gauge == "centred":
        logits = logits @ torch.from_numpy(contrasts(width))
    return as_sample(logits, run.gold[kept]), kept, notes


def contrasts(width: int) -> np.ndarray:
    """Orthonormal columns [option, option - 1] that sum to 0: coordinates of centred logits."""
    basis = np.zeros((width, width - 1))
    for column in range(width - 1):
        basis[: column + 1, column] = 1.0
        basis[column + 1, column] = -(column + 1.0)
    scaled: np.ndarray = basis / np.linalg.norm(basis, axis=0)
    return scaled
