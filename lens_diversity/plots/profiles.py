"""Figures of a profile: its terms by layer and by position, with their intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lens_diversity.plots.heatmaps import _check_quantity, _escape, _name
from lens_diversity.plots.paper import _COLOURS, _MODULE_COLOURS, _MODULE_TITLES, _OTHER_COLOUR
from lens_diversity.results import UNITS

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lens_diversity.profiling import Profile

_QUANTITIES = {"error": "#000000", "bias": _COLOURS["bias"], "diversity": _COLOURS["diversity"]}


def profile_components(found: Profile, quantity: str = "diversity") -> go.Figure:
    """Draw each component's term, mean over the corpus, with its interval.

    Args:
        found: From [`profile`][lens_diversity.profile].
        quantity: ``"bias"`` or ``"diversity"`` (raw terms).

    Returns:
        Components in stream order, one line a module; bars are 95% intervals.

    Raises:
        ValueError: If ``quantity`` is unknown, or nothing was predicted.

    Example:
        >>> figure = profile_components(ld.load_profile("results/news"))  # doctest: +SKIP
    """
    import plotly.graph_objects as go

    _check_quantity(quantity)
    _require_tokens(found)
    table = found.by_component()
    figure = go.Figure()
    for module, rows in table.groupby("module", sort=False):
        above, below = _arms(rows, quantity)
        colour = _MODULE_COLOURS.get(str(module), _OTHER_COLOUR)
        figure.add_trace(
            go.Scatter(
                x=rows.index.to_list(),
                y=rows[quantity].to_list(),
                error_y={"array": above, "arrayminus": below, "width": 2, "thickness": 1},
                customdata=rows["label"].to_list(),
                name=_escape(_MODULE_TITLES.get(str(module), str(module))),
                mode="lines+markers",
                line={"color": colour, "width": 1},
                marker={"size": 5},
                hovertemplate=f"%{{customdata}}<br>{quantity} %{{y:.4g}}<extra></extra>",
            )
        )
    step = max(1, len(table) // 30)
    labels = [_escape(label) for label in table["label"][::step]]
    figure.update_xaxes(title={"text": "component"}, tickvals=table.index[::step], ticktext=labels)
    figure.update_yaxes(title={"text": f"{quantity}, {UNITS[_loss(found)]}"})
    return _styled(figure, f"{_name(quantity)} of each component", found)


def profile_positions(found: Profile) -> go.Figure:
    """Draw error, bias and diversity against the position in the window: what context does.

    Args:
        found: From [`profile`][lens_diversity.profile].

    Returns:
        One line a quantity with its 95% band. Late positions are those of long documents only:
        pointing at one shows how many there are.

    Raises:
        ValueError: If nothing was predicted.

    Example:
        >>> figure = profile_positions(ld.load_profile("results/news"))  # doctest: +SKIP
    """
    import plotly.graph_objects as go

    _require_tokens(found)
    table = found.by_position()
    figure = go.Figure()
    for quantity, colour in _QUANTITIES.items():
        known = table[table[f"{quantity}_low"].notna()]
        band = {
            "x": [*known["position"], *known["position"][::-1]],
            "y": [*known[f"{quantity}_high"], *known[f"{quantity}_low"][::-1]],
            "fill": "toself",
            "fillcolor": colour,
            "opacity": 0.15,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "legendgroup": quantity,
            "showlegend": False,
        }
        figure.add_trace(go.Scatter(mode="lines", **band))
        figure.add_trace(
            go.Scatter(
                x=table["position"].to_list(),
                y=table[quantity].to_list(),
                customdata=table["documents"].to_list(),
                name=quantity,
                legendgroup=quantity,
                mode="lines",
                line={"color": colour},
                hovertemplate=f"position %{{x}}<br>{quantity} %{{y:.4g}}"
                "<br>%{customdata} documents<extra></extra>",
            )
        )
    figure.update_xaxes(title={"text": "position in the window"})
    figure.update_yaxes(title={"text": UNITS[_loss(found)]})
    return _styled(figure, "Error, bias and diversity by position", found)


def _loss(found: Profile) -> str:
    loss: str = found.metadata["settings"]["loss"]
    return loss


def _arms(rows: pd.DataFrame, quantity: str) -> tuple[list[Any], list[Any]]:
    """Lengths of the error bars; None where a single document has no interval."""
    above = rows[f"{quantity}_high"] - rows[quantity]
    below = rows[quantity] - rows[f"{quantity}_low"]
    return _without_nan(above), _without_nan(below)


def _without_nan(values: pd.Series) -> list[Any]:
    return [None if value != value else value for value in values]


def _require_tokens(found: Profile) -> None:
    if not found.n_tokens:
        raise ValueError("there is nothing to draw: no token of the profile's texts was predicted")


def _styled(figure: go.Figure, title: str, found: Profile) -> go.Figure:
    settings = found.metadata["settings"]
    subtitle = (
        f"{found.metadata['model']['name']}, {found.n_documents:,} documents, "
        f"{found.n_tokens:,} tokens; {settings['loss']}, combine={settings['combine']}, "
        f"gauge={settings['gauge']}"
    )
    figure.update_layout(
        title={"text": title, "subtitle": {"text": _escape(subtitle), "font": {"size": 11}}},
        template="plotly_white",
        width=820,
        height=520,
        margin={"t": 110},
    )
    return figure
