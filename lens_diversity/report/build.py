"""Put the tables and figures of the paper on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lens_diversity import paper
from lens_diversity.evaluation import Run
from lens_diversity.paper._cells import cells
from lens_diversity.plots import paper as figures
from lens_diversity.report.configuration import configurations, notes, overview
from lens_diversity.report.tables import csv_uri, frame_table, percent, printed_table1
from lens_diversity.statistics import CORRECTIONS, METHODS

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_TEMPLATES = Path(__file__).parent / "templates"
_FIGURE_CONFIG = {"responsive": True, "displaylogo": False, "displayModeBar": "hover"}


def build_report(runs: Sequence[Run | Any], out: Path | str, correction: str | None = None) -> Path:
    """Write every table and figure of the paper that the runs give, as one HTML page.

    The page holds all it needs, plotly.js included, and loads nothing; each table can be
    downloaded from it as CSV. Names and texts of models and data sets are escaped.

    Args:
        runs: Finished runs, at most one for a model and task.
        out: The file to write; an older one is replaced.
        correction: Correction of Figure 3's p-values for their number: None, ``"holm"`` or
            ``"benjamini-hochberg"``.

    Returns:
        The file.

    Raises:
        TypeError: If something is not a run.
        ValueError: If there is no run, two runs are of one model and task, the correction is
            unknown, or ``out`` is a folder.

    Example:
        >>> import lens_diversity as ld
        >>> runs = [ld.load_run("results/sst2"), ld.load_run("results/rte")]  # doctest: +SKIP
        >>> build_report(runs, "report.html")  # doctest: +SKIP
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    path = check_request(out, correction)
    content = _content(runs, correction)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        content,
        plotly_js=Markup(get_plotlyjs()),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=metadata.version("lens-diversity"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def check_request(out: Path | str, correction: str | None) -> Path:
    """Refuse what could not be written, before runs are read.

    Raises:
        ValueError: If the correction is unknown or ``out`` is a folder.
    """
    if correction is not None and correction not in CORRECTIONS:
        raise ValueError(f"correction must be None or one of {CORRECTIONS}, got {correction!r}")
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the HTML file to write, as in report.html")
    return path


def _content(runs: Sequence[Run | Any], correction: str | None) -> dict[str, Any]:
    grid = cells(runs)
    table1 = paper.table1(runs)
    curves = paper.junction_curves(runs)
    shares = paper.module_shares(runs)
    table4 = paper.table4(runs)
    scaling = paper.scale_results(table1, table4)
    models = list(dict.fromkeys(model for model, _, _ in grid))
    return {
        "models": models,
        "n_runs": len(grid),
        "n_tasks": len({task for _, task, _ in grid}),
        "n_examples": sum(len(run) for _, _, run in grid),
        "notes": notes(grid),
        "table1": printed_table1(table1),
        "table1_raw": _raw_table1(table1),
        "table4": _sizes(table4),
        "correlations": [_correlations(curves, method, correction) for method in METHODS],
        "correction": correction,
        "module_figure": _html(figures.module_share_bars(shares), "figure-4"),
        "module_table": _shares(shares),
        "junction_figures": [
            (model, _html(figures.junction_lines(curves, model), f"figure-5-{index}"))
            for index, model in enumerate(models)
        ],
        "junction_csv": csv_uri(curves),
        "scaling_figure": _html(figures.scaling_points(scaling), "figure-6"),
        "scaling_table": _scaling(scaling),
        "scaling_tasks": [paper.task_title(task) for task in _common_tasks(scaling)],
        "overview": _overview(grid),
        "configurations": configurations(grid),
        "counted": _counted,
    }


def _raw_table1(frame: pd.DataFrame) -> Any:
    shown = frame[frame["task"] != paper.AVERAGE].copy()
    for metric in paper.METRICS:
        low, high = shown[f"{metric}_low"], shown[f"{metric}_high"]
        shown[f"{metric}_interval"] = [
            f"{a:.4f} to {b:.4f}" for a, b in zip(low, high, strict=True)
        ]
    shown["task"] = shown["task"].map(paper.task_title)
    titles = {"model": "Model", "task": "Task", "n_examples": "Examples"}
    for metric in paper.METRICS:
        titles |= {metric: _title(metric), f"{metric}_interval": "95 % interval"}
    formats = dict.fromkeys(paper.METRICS, "{:.4f}".format)
    return frame_table(frame, "table1.csv", titles, formats, shown)


def _sizes(frame: pd.DataFrame) -> Any:
    titles = {
        "model": "Model",
        "parameters": "Parameters",
        "components": "Layer size |L|",
        "layers": "Blocks",
        "embed": "Embeddings",
        "attn": "Attention",
        "mlp": "MLP",
        "d_model": "Width",
        "d_vocab": "Vocabulary",
    }
    grouped = dict.fromkeys(("parameters", "d_model", "d_vocab"), "{:,}".format)
    return frame_table(frame, "table4.csv", titles, grouped)


def _correlations(curves: pd.DataFrame, method: str, correction: str | None) -> dict[str, Any]:
    frame = paper.correlate_curves(curves, method, correction)
    shown = frame.assign(
        task=frame["task"].map(paper.task_title),
        quantity=frame["quantity"].map(_title),
        correlation=[
            f"{value:z.4f}" if not reason else f"undefined: {reason}"
            for value, reason in zip(frame["correlation"], frame["reason"], strict=True)
        ],
        significant=frame["significant"].map({True: "yes", False: "no"}),
    )
    titles = {
        "model": "Model",
        "task": "Task",
        "quantity": "Accuracy and",
        "correlation": "Correlation",
        "p": "p",
        **({"p_adjusted": "p, adjusted"} if correction else {}),
        "significant": "p < 0.05",
        "n_junctions": "Junctions",
    }
    small: dict[str, Callable[[Any], str]] = dict.fromkeys(("p", "p_adjusted"), "{:.2g}".format)
    table = frame_table(frame, f"figure3-{method}.csv", titles, small, shown)
    undefined = frame[frame["reason"] != ""]
    reasons = undefined.groupby(["model", "task", "reason"], sort=False).size().index
    return {
        "method": method.capitalize(),
        "figure": _html(figures.correlation_heatmap(frame), f"figure-3-{method}"),
        "table": table,
        "undefined": [(model, paper.task_title(task), why) for model, task, why in reasons],
    }


def _shares(frame: pd.DataFrame) -> Any:
    shown = frame.assign(task=frame["task"].map(paper.task_title))
    titles = {
        "model": "Model",
        "task": "Task",
        "module": "Module",
        "component_share": "Share of components",
        "bias_share": "Share of bias",
        "diversity_share": "Share of diversity",
    }
    shares = dict.fromkeys([name for name in titles if name.endswith("share")], percent)
    return frame_table(frame, "figure4.csv", titles, shares, shown)


def _scaling(frame: pd.DataFrame) -> Any:
    titles = {
        "model": "Model",
        "parameters": "Parameters",
        "components": "Layer size |L|",
        "layers": "Blocks",
        "accuracy": "Accuracy",
        "mse": "MSE",
    }
    formats: Mapping[str, Callable[[Any], str]] = {
        "parameters": "{:,}".format,
        "accuracy": "{:.4f}".format,
        "mse": "{:.4f}".format,
    }
    return frame_table(frame, "figure6.csv", titles, formats)


def _overview(grid: list[tuple[str, str, Run]]) -> Any:
    import pandas as pd

    frame = pd.DataFrame(overview(grid))
    titles = {
        "model": "Model",
        "revision": "Revision",
        "dtype": "Dtype",
        "task": "Task",
        "n_examples": "Examples",
        "reconstruction_error": "Reconstruction error",
        "created": "Begun",
    }
    shown = frame.assign(task=frame["task"].map(paper.task_title))
    return frame_table(frame, "runs.csv", titles, {"reconstruction_error": "{:.1e}".format}, shown)


def _common_tasks(scaling: pd.DataFrame) -> list[str]:
    return [] if scaling.empty else str(scaling["tasks"].iloc[0]).split(", ")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _html(figure: go.Figure, name: str) -> str:
    from markupsafe import Markup

    # Plotly writes its JSON with < and > escaped, so no text in it can end the script.
    return Markup(
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=_FIGURE_CONFIG)
    )


def _title(metric: str) -> str:
    return "MSE" if metric == "mse" else metric.capitalize()
