"""The paper's tables and figures as functions of stored runs. Each returns a ``DataFrame``."""

from lens_diversity.paper._cells import AVERAGE, TASK_TITLES, task_title
from lens_diversity.paper.junctions import (
    average_correlations,
    correlate_curves,
    junction_correlations,
    junction_curves,
)
from lens_diversity.paper.tables import (
    METRICS,
    module_shares,
    scale_results,
    scaling,
    table1,
    table4,
)

__all__ = [
    "AVERAGE",
    "METRICS",
    "TASK_TITLES",
    "average_correlations",
    "correlate_curves",
    "junction_correlations",
    "junction_curves",
    "module_shares",
    "scale_results",
    "scaling",
    "table1",
    "table4",
    "task_title",
]
