"""The paper's tables and figures from stored runs, as one page that needs no network."""

from lens_diversity.report.build import build_report
from lens_diversity.report.folders import find_runs, write_report

__all__ = ["build_report", "find_runs", "write_report"]
