"""Accuracy, MSE, bias and diversity along the residual stream, and how they go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lens_diversity.evaluation import Run
from lens_diversity.paper._cells import AVERAGE, cells
from lens_diversity.paper.tables import METRICS
from lens_diversity.statistics import adjust_p_values, correlation

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = METRICS[1:]
"""What accuracy is correlated with in Figure 3."""
LEVEL = 0.05
"""Significance level of Figure 3."""
_NAMES = {"accuracy": "accuracy", "mse": "MSE", "bias": "bias", "diversity": "diversity"}
_ROUNDING = 1e-12


def junction_curves(runs: Sequence[Run | Any]) -> pd.DataFrame:
    """Follow the four quantities along the residual stream (Figures 5 and 7).

    Junction k is the ensemble of components 1..k, see `Run.junctions`.

    Args:
        runs: Finished runs, at most one for a model and task.

    Returns:
        One row per model, task and junction: ``junction`` (from 1), ``label`` and ``module`` of
        the component added last, ``accuracy``, ``mse``, ``bias``, ``diversity`` (raw), and the
        same with ``_standardised``: minus the mean over the curve's junctions, divided by their
        standard deviation; missing where a quantity is the same at every junction.

    Raises:
        ValueError: If there is no run, or two are of one model and task.
    """
    import pandas as pd

    frames = []
    for model, task, run in cells(runs):
        frame = run.junctions()
        for metric in METRICS:
            frame[f"{metric}_standardised"] = _standardised(frame[metric].to_numpy(float))
        frame.insert(0, "task", task)
        frame.insert(0, "model", model)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def junction_correlations(
    runs: Sequence[Run | Any], method: str = "pearson", correction: str | None = None
) -> pd.DataFrame:
    """Correlate accuracy with MSE, bias and diversity over junctions (Figure 3).

    The p-values are those of independent pairs, as the paper's. Neighbouring junctions share all
    members but one, so they are far from independent and the p-values too small: read them as a
    description of one curve.

    Args:
        runs: Finished runs, at most one for a model and task.
        method: ``"pearson"`` or ``"spearman"``.
        correction: None, ``"holm"`` or ``"benjamini-hochberg"``, over all defined correlations of
            the result.

    Returns:
        One row per model, task and quantity (``mse``, ``bias``, ``diversity``): ``correlation``,
        ``p``, ``p_adjusted`` (equal to ``p`` without a correction), ``significant``
        (``p_adjusted < 0.05``), ``n_junctions``, and ``reason`` where the correlation is undefined
        (then missing), for example where accuracy is the same at every junction.

    Raises:
        ValueError: If an argument is unknown, there is no run, or two are of one model and task.
    """
    return correlate_curves(junction_curves(runs), method, correction)


def correlate_curves(
    curves: pd.DataFrame, method: str = "pearson", correction: str | None = None
) -> pd.DataFrame:
    """Do as [`junction_correlations`][lens_diversity.paper.junction_correlations] from curves.

    Args:
        curves: From [`junction_curves`][lens_diversity.paper.junction_curves].
        method: ``"pearson"`` or ``"spearman"``.
        correction: None, ``"holm"`` or ``"benjamini-hochberg"``.

    Returns:
        The same table.

    Raises:
        ValueError: If an argument is unknown.
    """
    import pandas as pd

    rows = []
    for (model, task), curve in curves.groupby(["model", "task"], sort=False):
        for quantity in QUANTITIES:
            found = correlation(
                curve["accuracy"], curve[quantity], method, ("accuracy", _NAMES[quantity])
            )
            rows.append(
                {
                    "model": model,
                    "task": task,
                    "quantity": quantity,
                    "correlation": np.nan if found.value is None else found.value,
                    "p": np.nan if found.p is None else found.p,
                    "n_junctions": found.n,
                    "reason": found.reason,
                }
            )
    frame = pd.DataFrame(rows)
    adjusted = frame["p"].copy()
    if correction is not None:
        tested = frame["p"].notna()
        adjusted[tested] = adjust_p_values(frame.loc[tested, "p"].to_numpy(), correction)
    frame.insert(5, "p_adjusted", adjusted)
    frame.insert(6, "significant", adjusted < LEVEL)
    return frame


def average_correlations(correlations: pd.DataFrame) -> pd.DataFrame:
    """Average correlations over models and over tasks, as in the margins of Figure 3.

    Args:
        correlations: From [`junction_correlations`][lens_diversity.paper.junction_correlations].

    Returns:
        ``model``, ``task``, ``quantity``, ``correlation`` and ``n`` (how many defined correlations
        were averaged), with ``Avg.`` as the model for means over models, as the task for means
        over tasks, and as both for the mean over everything. They are descriptive and not tested;
        the mean of none is missing.
    """
    import pandas as pd

    margins = []
    for kept in (["model"], ["task"], []):
        groups = correlations.groupby([*kept, "quantity"], sort=False)["correlation"]
        mean = groups.agg(["mean", "count"]).reset_index()
        margins.append(mean.rename(columns={"mean": "correlation", "count": "n"}))
    frame = pd.concat(margins, ignore_index=True)
    frame[["model", "task"]] = frame[["model", "task"]].fillna(AVERAGE)
    return frame[["model", "task", "quantity", "correlation", "n"]]


def _standardised(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return np.full_like(values, np.nan)
    standardised: npt.NDArray[np.float64] = (values - values.mean()) / values.std()
    return standardised
