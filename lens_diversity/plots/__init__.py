"""Plotly figures of decompositions. Each function returns a ``plotly.graph_objects.Figure``."""

from lens_diversity.plots.heatmaps import (
    component_heatmap,
    layer_module_heatmap,
    pairwise_heatmap,
)
from lens_diversity.plots.hierarchies import hierarchy_areas
from lens_diversity.plots.information import (
    error_bounds,
    information_curve,
    information_figures,
    information_gains,
    information_terms,
)
from lens_diversity.plots.paper import (
    correlation_heatmap,
    junction_lines,
    module_share_bars,
    scaling_points,
)
from lens_diversity.plots.profiles import profile_components, profile_positions

__all__ = [
    "component_heatmap",
    "correlation_heatmap",
    "error_bounds",
    "hierarchy_areas",
    "information_curve",
    "information_figures",
    "information_gains",
    "information_terms",
    "junction_lines",
    "layer_module_heatmap",
    "module_share_bars",
    "pairwise_heatmap",
    "profile_components",
    "profile_positions",
    "scaling_points",
]
