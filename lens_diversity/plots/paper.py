"""The paper's Figures 3 to 7, from the tables of [`paper`][lens_diversity.paper]."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from lens_diversity.paper._cells import AVERAGE, sorted_tasks, task_title
from lens_diversity.paper.junctions import QUANTITIES, average_correlations
from lens_diversity.paper.tables import METRICS
from lens_diversity.plots.heatmaps import _escape

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_TITLES = {"accuracy": "Accuracy", "mse": "MSE", "bias": "Bias", "diversity": "Diversity"}
# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes for prints in grey.
_COLOURS = {"accuracy": "#000000", "mse": "#0072B2", "bias": "#D55E00", "diversity": "#009E73"}
_DASHES = {"accuracy": "solid", "mse": "dash", "bias": "dot", "diversity": "solid"}
_MODULE_COLOURS = {"embed": "#CC79A7", "attn": "#56B4E9", "mlp": "#0072B2"}
_MODULE_TITLES = {"embed": "embedding", "attn": "attention", "mlp": "MLP"}
_OTHER_COLOUR = "#999999"
_UNDEFINED = "n/a"
_LARGE = 1_000_000_000
_PANELS_A_ROW = 4
_WRAP = 40
# Height of a cell of Figure 3 and of the space between its panels, in pixels.
_CELL = 30
_GAP = 70


def correlation_heatmap(correlations: pd.DataFrame) -> go.Figure:
    """Draw Figure 3: correlation of accuracy with MSE, bias and diversity over junctions.

    Args:
        correlations: From [`paper.junction_correlations`][lens_diversity.paper].

    Returns:
        One panel a quantity, models against tasks; cells that were not run are empty. Significant
        cells are underlined, undefined ones read n/a and show their reason when pointed at. The
        margins ``Avg.`` are means over the defined cells and are not tested.
    """
    from plotly.subplots import make_subplots

    models = list(dict.fromkeys(correlations["model"]))
    tasks = sorted_tasks(correlations["task"])
    averages = average_correlations(correlations)
    rows = len(models) + 1
    figure = make_subplots(
        rows=len(QUANTITIES),
        cols=1,
        vertical_spacing=_GAP / (_GAP * 2 + _CELL * rows * 3),
        subplot_titles=[f"Accuracy and {_name(quantity)}" for quantity in QUANTITIES],
    )
    for panel, quantity in enumerate(QUANTITIES, start=1):
        found = {
            (row.model, row.task): row
            for frame in (correlations, averages)
            for row in frame[frame["quantity"] == quantity].itertuples()
        }
        grid = [[found.get((model, task)) for task in [*tasks, AVERAGE]] for model in models]
        grid.append([found[AVERAGE, task] for task in [*tasks, AVERAGE]])
        figure.add_trace(_correlation_panel(grid, models, tasks), row=panel, col=1)
        # Lines set the untested margins apart from the cells.
        line = {"row": panel, "col": 1, "line": {"color": "white", "width": 5}}
        figure.add_hline(y=len(models) - 0.5, **line)
        figure.add_vline(x=len(tasks) - 0.5, **line)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    scale = {"colorscale": "RdBu", "reversescale": True, "cmin": -1, "cmax": 1}
    bar = {"thickness": 12, "tickvals": [-1, -0.5, 0, 0.5, 1]}
    figure.update_layout(coloraxis={**scale, "colorbar": bar})
    return _styled(figure, height=_GAP * 2 + _CELL * rows * 3, above=30)


def _correlation_panel(grid: list[list[Any]], models: list[str], tasks: list[str]) -> go.Heatmap:
    import plotly.graph_objects as go

    # None, not NaN: an undefined cell is empty in the page's JSON too.
    return go.Heatmap(
        z=[[None if cell is None else _or_none(cell.correlation) for cell in row] for row in grid],
        text=[[_cell_text(cell) for cell in row] for row in grid],
        customdata=[[_cell_hover(cell) for cell in row] for row in grid],
        x=[*(_escape(task_title(task)) for task in tasks), AVERAGE],
        y=[*(_wrapped(model) for model in models), AVERAGE],
        texttemplate="%{text}",
        textfont={"size": 12},
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=True,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )


def _cell_text(cell: Any) -> str:
    if cell is None:
        return ""
    if np.isnan(cell.correlation):
        return _UNDEFINED
    text = f"{cell.correlation:z.2f}"
    return f"<u>{text}</u>" if getattr(cell, "significant", False) else text


def _cell_hover(cell: Any) -> str:
    if cell is None:
        return "not run"
    where = f"{_escape(cell.model)}<br>{_escape(task_title(cell.task))}<br>"
    if AVERAGE in (cell.model, cell.task):
        mean = "undefined" if np.isnan(cell.correlation) else f"{cell.correlation:z.4f}"
        return f"{where}mean of {cell.n} defined cells: {mean} (not tested)"
    if np.isnan(cell.correlation):
        return f"{where}undefined: {_escape(cell.reason)}"
    adjusted = "" if cell.p == cell.p_adjusted else f", adjusted {cell.p_adjusted:.2g}"
    return (
        f"{where}correlation {cell.correlation:z.4f}<br>p = {cell.p:.2g}{adjusted}, "
        f"{cell.n_junctions} junctions"
    )


def module_share_bars(shares: pd.DataFrame) -> go.Figure:
    """Draw Figure 4: the share of bias and diversity by module, mean over each model's tasks.

    Args:
        shares: From [`paper.module_shares`][lens_diversity.paper].

    Returns:
        Stacked bars, one a model, beside the modules' share of the number of components.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = {
        "component_share": "Share of components",
        "bias_share": "Share of bias",
        "diversity_share": "Share of diversity",
    }
    means = shares[shares["task"] == AVERAGE]
    figure = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.05,
        subplot_titles=list(panels.values()),
    )
    for column, name in enumerate(panels, start=1):
        for module, rows in means.groupby("module", sort=False):
            values = [_or_none(value) for value in rows[name]]
            title = _escape(_MODULE_TITLES.get(str(module), str(module)))
            bar = go.Bar(
                x=values,
                y=[_wrapped(model) for model in rows["model"]],
                text=["" if v is None or v < 0.08 else f"{v:.0%}" for v in values],
                name=title,
                legendgroup=str(module),
                showlegend=column == 1,
                orientation="h",
                marker={"color": _MODULE_COLOURS.get(str(module), _OTHER_COLOUR)},
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"%{{y}}<br>{title}: %{{x:.3%}}<extra></extra>",
            )
            figure.add_trace(bar, row=1, col=column)
    figure.update_layout(barmode="stack", bargap=0.35, legend={"traceorder": "normal"})
    figure.update_xaxes(range=[0, 1], tickformat=".0%", tickvals=[0, 0.5, 1])
    figure.update_yaxes(autorange="reversed", type="category")
    return _styled(figure, height=60 + 44 * means["model"].nunique())


def junction_lines(curves: pd.DataFrame, model: str | None = None) -> go.Figure:
    """Draw Figure 5, or a model's part of Figure 7: the four quantities along the junctions.

    Args:
        curves: From [`paper.junction_curves`][lens_diversity.paper].
        model: Which model, where there are several.

    Returns:
        One panel a task of standardised curves; the raw value shows when pointed at. A quantity
        that is the same at every junction has no standardised form: its line is left out and the
        panel says so.

    Raises:
        ValueError: If the table has no such model, or several and ``model`` is not given.
    """
    from plotly.subplots import make_subplots

    models = list(dict.fromkeys(curves["model"]))
    if model is None and len(models) == 1:
        model = models[0]
    if model not in models:
        raise ValueError(f"model must be one of {models}, got {model!r}")
    curves = curves[curves["model"] == model]
    tasks = sorted_tasks(curves["task"])
    columns = min(_PANELS_A_ROW, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.28 / rows,
        subplot_titles=[_escape(task_title(task)) for task in tasks],
    )
    for index, task in enumerate(tasks):
        row, column = index // columns + 1, index % columns + 1
        curve = curves[curves["task"] == task]
        missing = [metric for metric in METRICS if curve[f"{metric}_standardised"].isna().all()]
        for metric in METRICS:
            line = _junction_line(curve, metric, legend=index == 0)
            figure.add_trace(line, row=row, col=column)
        if missing:
            figure.add_annotation(
                text=f"{', '.join(_name(m) for m in missing)}: same at every junction",
                **_corner(row, column),
            )
        if index + columns >= len(tasks):
            figure.update_xaxes(
                title={"text": "junction"}, showticklabels=True, row=row, col=column
            )
    figure.update_yaxes(title={"text": "standardised"}, col=1)
    return _styled(figure, height=40 + 210 * rows)


def _junction_line(curve: pd.DataFrame, metric: str, *, legend: bool) -> go.Scatter:
    import plotly.graph_objects as go

    labels = [_escape(str(label)) for label in curve["label"]]
    return go.Scatter(
        x=curve["junction"].tolist(),
        y=[_or_none(value) for value in curve[f"{metric}_standardised"]],
        customdata=list(zip(labels, curve[metric].tolist(), strict=True)),
        name=_TITLES[metric],
        legendgroup=metric,
        showlegend=legend,
        mode="lines+markers" if len(curve) < 8 else "lines",
        line={"color": _COLOURS[metric], "dash": _DASHES[metric], "width": 1.6},
        hovertemplate=f"%{{customdata[0]}}<br>{_TITLES[metric]} %{{customdata[1]:.5g}} "
        "(standardised %{y:.2f})<extra></extra>",
    )


def scaling_points(scaling: pd.DataFrame) -> go.Figure:
    """Draw Figure 6: accuracy and MSE against the number of layers, over models.

    Args:
        scaling: From [`paper.scaling`][lens_diversity.paper].

    Returns:
        One marker a model, open below a billion parameters (which the paper leaves out), and a
        line through the means of models with the same number of components.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.1, subplot_titles=["Accuracy", "MSE"]
    )
    if scaling.empty:
        figure.add_annotation(text="The models have no task in common.", **_corner(1, 1))
    columns = [scaling[name].tolist() for name in ("model", "parameters", "layers")]
    hover = [
        f"{_escape(model)}<br>{parameters / 1e6:,.0f}M parameters, {layers} layers"
        for model, parameters, layers in zip(*columns, strict=True)
    ]
    symbols = ["circle" if count >= _LARGE else "circle-open" for count in scaling["parameters"]]
    for column, metric in enumerate(("accuracy", "mse"), start=1):
        means = scaling.groupby("components")[metric].mean()
        line = go.Scatter(
            x=means.index.tolist(),
            y=means.tolist(),
            mode="lines",
            line={"color": _OTHER_COLOUR, "width": 1},
            hoverinfo="skip",
        )
        points = go.Scatter(
            x=scaling["components"].tolist(),
            y=scaling[metric].tolist(),
            customdata=hover,
            mode="markers",
            marker={"size": 10, "color": _COLOURS["mse"], "symbol": symbols, "line": {"width": 2}},
            hovertemplate="%{customdata}<br>%{x} components: %{y:.4f}<extra></extra>",
        )
        for trace in (line, points):
            figure.add_trace(trace.update(showlegend=False), row=1, col=column)
        if not scaling.empty:
            figure.update_yaxes(range=_range(scaling[metric], least=0.02), row=1, col=column)
            figure.update_xaxes(range=_range(scaling["components"], least=4.0), row=1, col=column)
    figure.update_xaxes(title={"text": "number of layers |L| (components)"})
    figure.update_yaxes(title={"text": "mean over tasks"}, tickformat=".3f")
    return _styled(figure, height=300)


def _styled(figure: go.Figure, height: int, above: int = 70) -> go.Figure:
    """Give a figure its look; ``height`` is that of the panels with their axes."""
    figure.update_layout(
        template="plotly_white",
        height=height + above,
        margin={"l": 10, "r": 10, "t": above, "b": 10},
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"},
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True, ticklabelstandoff=6)
    figure.update_annotations(font={"size": 13})
    return figure


def _corner(row: int, column: int) -> dict[str, Any]:
    """Place a note at the bottom of a panel."""
    return {
        "row": row,
        "col": column,
        "xref": "x domain",
        "yref": "y domain",
        "x": 0.5,
        "y": 0.02,
        "showarrow": False,
    }


def _range(values: Any, least: float) -> list[float]:
    """An axis around the values that stays readable where they are equal."""
    margin = max(0.15 * (values.max() - values.min()), least / 2)
    return [float(values.min() - margin), float(values.max() + margin)]


def _name(quantity: str) -> str:
    title = _TITLES[quantity]
    return title if title.isupper() else title.lower()


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _wrapped(name: str) -> str:
    """Break long model names, so that they leave room for the figure."""
    return "<br>".join(_escape(piece) for piece in textwrap.wrap(name, _WRAP))
