"""Diversity as nested areas: modules, their sublayers, and the heads or neurons of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lens_diversity._choices import check_choice
from lens_diversity.plots.heatmaps import _escape
from lens_diversity.plots.paper import _MODULE_COLOURS, _MODULE_TITLES, _OTHER_COLOUR
from lens_diversity.results import UNITS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lens_diversity.hierarchies import Hierarchy

# More areas than this are a blur, and a page that no browser opens.
_MOST_AREAS = 5000


def hierarchy_areas(found: Hierarchy, kind: str = "sunburst") -> go.Figure:
    """Draw where diversity comes from, an area for each node.

    An area is what a node and everything in it contribute. What its parts leave free is its own:
    its distance from the mean of what it is a part of.

    Args:
        found: From [`hierarchy`][lens_diversity.hierarchy].
        kind: ``"sunburst"`` or ``"treemap"``.

    Returns:
        The figure, mean over rows. A click on an area makes it the whole; above 5,000 nodes
        (neurons) sublayers are the smallest areas.

    Raises:
        ValueError: If ``kind`` is unknown, or there is no diversity to share out.

    Example:
        >>> figure = hierarchy_areas(ld.hierarchy(cache))  # doctest: +SKIP
    """
    import plotly.graph_objects as go

    check_choice("kind", kind, ("sunburst", "treemap"))
    table = found.by_node()
    whole = float(table["diversity"].sum())
    if not whole > 0:
        raise ValueError("there is nothing to draw: the diversity is zero")
    table = table.assign(value=table["diversity"], above=found.parents)
    if len(table) > _MOST_AREAS:
        of_sublayers = table["level"] == "between sublayers"
        table["value"] += table["within"].where(of_sublayers, 0.0)
        table = table[table["level"] != "within sublayers"]
    modules = [_module(node, found.parents) for node in table.index]
    names = [found.names[module] for module in modules]
    draw = {"sunburst": go.Sunburst, "treemap": go.Treemap}[kind]
    figure = go.Figure(
        draw(
            ids=["all", *map(str, table.index)],
            labels=["all", *map(_label, table["name"], table["level"])],
            parents=["", *("all" if above < 0 else str(above) for above in table["above"])],
            values=[0.0, *table["value"]],
            customdata=[["", 0.0], *zip(table["level"], table["diversity"], strict=True)],
            branchvalues="remainder",
            marker={"colors": ["#ffffff", *(_MODULE_COLOURS.get(n, _OTHER_COLOUR) for n in names)]},
            hovertemplate=(
                "%{label}<br>%{value:.4g}, %{percentRoot:.1%} of all"
                "<br>of it %{customdata[0]}: %{customdata[1]:.4g}<extra></extra>"
            ),
        )
    )
    levels = found.by_level()["share"]
    split = ", ".join(f"{share:.1%} {level}" for level, share in levels.items())
    title = f"Diversity {whole:.4g} {UNITS[found.loss]} ({found.loss}, combine={found.combine})"
    figure.update_layout(
        title={"text": title, "subtitle": {"text": split, "font": {"size": 11}}},
        template="plotly_white",
        width=820,
        height=720,
        margin={"t": 110, "l": 20, "r": 20, "b": 20},
    )
    return figure


def _module(node: int, parents: list[int]) -> int:
    while parents[node] >= 0:
        node = parents[node]
    return node


def _label(name: str, level: str) -> str:
    titles = _MODULE_TITLES if level == "between modules" else {}
    return _escape(titles.get(name, name))
