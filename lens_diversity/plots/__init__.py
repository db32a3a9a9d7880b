"""Plotly figures of decompositions. Each function returns a ``plotly.graph_objects.Figure``."""

from lens_diversity.plots.heatmaps import (
    component_heatmap,
    layer_module_heatmap,
    pairwise_heatmap,
)

__all__ = ["component_heatmap", "layer_module_heatmap", "pairwise_heatmap"]
