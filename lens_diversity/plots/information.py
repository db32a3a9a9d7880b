"""Figures of the information curves: joint information, its terms, gains, and error bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lens_diversity.information import Curve, RunInformation

# Okabe and Ito's colours; dashes tell the lines apart in grey.
_COLOURS = {"network": "#0072B2", "greedy": "#009E73", "random": "#999999", "given": "#0072B2"}
_TERMS = {
    "information": ("I(U;Y)", "#000000", "solid"),
    "relevancy": ("relevancy", "#0072B2", "dash"),
    "total_correlation": ("total correlation", "#D55E00", "dot"),
    "conditional_total_correlation": ("conditional total correlation", "#CC79A7", "dashdot"),
    "diversity": ("information-theoretic diversity", "#009E73", "solid"),
}
_BOUNDS = {
    "fano_weak": ("Fano, weak (any predictor on U)", "#56B4E9", "dot"),
    "fano_tight": ("Fano, tight (any predictor on U)", "#0072B2", "solid"),
    "hellman_raviv": ("Hellman-Raviv (Bayes rule on U)", "#D55E00", "solid"),
    "combiner_error": ("held-out error of the estimator's rule", "#000000", "dash"),
}


def information_curve(curves: Sequence[Curve]) -> go.Figure:
    """Draw the joint information as members are added, with intervals and baselines.

    Args:
        curves: From [`information.curve`][lens_diversity.information.curve], one an order.

    Returns:
        One line an order. Bands are 95% intervals (their lower half for lower bounds), or for
        random orders the middle 90% of the orders; dotted lines are shuffled-label baselines.

    Raises:
        ValueError: If there is no curve with a point in it.
    """
    figure = _figure(curves)
    for found in curves:
        bands = _bands(found)
        _add_band(figure, found, bands)
        table = found.table.groupby("size")["baseline"].mean()
        colour = _COLOURS[found.order]
        name = f"{found.order}, shuffled labels"
        _add_line(figure, table.index, table, name, colour, "dot")
    top = max(found.entropy for found in curves)
    figure.add_hline(y=top, line={"dash": "dash", "width": 1}, annotation_text="H(Y)")
    estimator = curves[0].estimator
    title = f"Information of the first k components with the label ({estimator})"
    return _styled(figure, title, "bits", curves)


def information_terms(curve: Curve) -> go.Figure:
    """Draw the terms of Eq. 13 along a curve.

    Args:
        curve: From [`information.curve`][lens_diversity.information.curve]; repeated orders are
            averaged.

    Returns:
        One line a term; those the estimator cannot give are left out.

    Raises:
        ValueError: If the curve has no point.
    """
    figure = _figure([curve])
    means = curve.table.groupby("size")[list(_TERMS)].mean()
    for quantity, (name, colour, dash) in _TERMS.items():
        if means[quantity].notna().any():
            _add_line(figure, means.index, means[quantity], name, colour, dash)
    title = f"Terms of the information along the {curve.order} order ({curve.estimator})"
    return _styled(figure, title, "bits", [curve])


def information_gains(curves: Sequence[Curve]) -> go.Figure:
    """Draw what each further member adds to the joint information.

    Args:
        curves: From [`information.curve`][lens_diversity.information.curve].

    Returns:
        Gains a member (the mean over repeats); where sizes are skipped, the mean gain since the
        size before.

    Raises:
        ValueError: If there is no curve with a point in it.
    """
    figure = _figure(curves)
    for found in curves:
        mean = found.table.groupby("size")[["gain"]].mean()
        steps = mean.index.to_series().diff().fillna(mean.index[0])
        gains = mean["gain"] / steps
        _add_line(figure, mean.index, gains, found.order, _COLOURS[found.order], "solid")
    title = f"Information gained by each further component ({curves[0].estimator})"
    return _styled(figure, title, "bits a component", curves)


def error_bounds(curve: Curve, network_error: float | None = None) -> go.Figure:
    """Draw the bounds of Eq. 12 and the actual errors along a curve.

    Args:
        curve: From [`information.curve`][lens_diversity.information.curve].
        network_error: The whole network's error, drawn as a horizontal line.

    Returns:
        One line a bound, named after the predictors it holds for. Lower bounds on the information
        have no Fano bound.

    Raises:
        ValueError: If the curve has no point.
    """
    figure = _figure([curve])
    means = curve.table.groupby("size")[list(_BOUNDS)].mean()
    for quantity, (name, colour, dash) in _BOUNDS.items():
        if means[quantity].notna().any():
            _add_line(figure, means.index, means[quantity], name, colour, dash)
    if network_error is not None:
        line = {"dash": "dash", "width": 1, "color": "#CC79A7"}
        figure.add_hline(y=network_error, line=line, annotation_text="whole network")
    title = f"Error bounds along the {curve.order} order ({curve.estimator})"
    return _styled(figure, title, "probability of error", [curve])


def information_figures(found: RunInformation) -> dict[str, go.Figure]:
    """Draw every figure of a run's information.

    Args:
        found: From [`information.of_run`][lens_diversity.information.of_run].

    Returns:
        Figures by name: ``information``, ``gains``, and for each order with a point in it
        ``terms_ORDER`` and ``bounds_ORDER``.
    """
    drawn = [curve for curve in found.curves.values() if len(curve.table)]
    if not drawn:
        return {}
    figures = {"information": information_curve(drawn), "gains": information_gains(drawn)}
    for curve in drawn:
        figures[f"terms_{curve.order}"] = information_terms(curve)
        figures[f"bounds_{curve.order}"] = error_bounds(curve, found.network_error)
    return figures


def _bands(curve: Curve) -> pd.DataFrame:
    """Middle, lower and upper line of a curve by size."""
    if len(curve.members) > 1:
        return curve.bands().rename(columns={"median": "middle"})
    table = curve.table.set_index("size")
    upper = table["high"].where(table["kind"] == "estimate", table["information"])
    return table.assign(middle=table["information"], high=upper)[["middle", "low", "high"]]


def _add_band(figure: go.Figure, curve: Curve, bands: pd.DataFrame) -> None:
    import plotly.graph_objects as go

    colour = _COLOURS[curve.order]
    x = [*bands.index, *bands.index[::-1]]
    y = [*bands["high"], *bands["low"][::-1]]
    outline = {
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.2,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", legendgroup=curve.order, **outline))
    _add_line(figure, bands.index, bands["middle"], curve.order, colour, "solid")


def _add_line(
    figure: go.Figure, x: pd.Index, y: pd.Series, name: str, colour: str, dash: str
) -> None:
    import plotly.graph_objects as go

    # None, not NaN: a gap is empty in the page's JSON too.
    values = [None if value != value else float(value) for value in y]
    line = {"color": colour, "dash": dash}
    mode = "lines+markers" if len(values) < 12 else "lines"
    figure.add_trace(go.Scatter(x=list(x), y=values, name=name, mode=mode, line=line))


def _figure(curves: Sequence[Curve]) -> go.Figure:
    import plotly.graph_objects as go

    if not any(len(curve.table) for curve in curves):
        reasons = {reason for curve in curves for reason in curve.stopped if reason}
        raise ValueError(f"there is no point to draw: {'; '.join(sorted(reasons)) or 'no curve'}")
    return go.Figure()


def _styled(figure: go.Figure, title: str, y_title: str, curves: Sequence[Curve]) -> go.Figure:
    """Titles, and below the plot why curves end early."""
    reasons = {
        f"{curve.order}: {reason.split(':')[0]}"
        for curve in curves
        for reason in curve.stopped
        if reason
    }
    subtitle = "<br>".join(sorted(reasons)[:3])
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle, "font": {"size": 11}}},
        template="plotly_white",
        width=820,
        height=520,
        margin={"t": 110},
    )
    figure.update_xaxes(title={"text": "number of components k"})
    figure.update_yaxes(title={"text": y_title})
    return figure
