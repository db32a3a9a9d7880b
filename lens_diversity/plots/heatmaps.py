"""Heatmaps of what each component contributes: by layer, by position and by pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lens_diversity.results import Decomposition

_QUANTITIES = ("bias", "diversity")
# Diversity spans orders of magnitude between the first and the last layers, so colour follows a
# sequential scale that stays readable in print and for colour-blind readers.
_COLOURS = "Viridis"


def layer_module_heatmap(result: Decomposition, quantity: str = "diversity") -> go.Figure:
    """Draw each member's batch-mean term as a map of layers against modules.

    Args:
        result: A decomposition.
        quantity: ``"bias"`` or ``"diversity"`` (raw member terms).

    Returns:
        One cell per member; embeddings and other members without a layer stand in a row of
        their own at the bottom.

    Raises:
        ValueError: If ``quantity`` is unknown.

    Example:
        >>> figure = layer_module_heatmap(result)  # doctest: +SKIP
        >>> figure.write_html("diversity.html")  # doctest: +SKIP
    """
    _check_quantity(quantity)
    frame = result.by_component()
    rows = [
        "other" if layer is None else _application(layer, label)
        for layer, label in zip(_layers(frame["layer"]), frame["label"], strict=True)
    ]
    grid = (
        frame.assign(row=rows, column=_columns(frame))
        .pivot_table(index="row", columns="column", values=quantity, sort=False, aggfunc="sum")
        .reindex(index=list(dict.fromkeys(rows)), columns=list(dict.fromkeys(_columns(frame))))
    )
    return _heatmap(
        grid.to_numpy(dtype=float),
        x=list(grid.columns),
        y=list(grid.index),
        title=f"{_name(quantity)} of each component ({result.loss}), mean over rows",
        x_title="module",
        y_title="layer",
        value=quantity,
    )


def component_heatmap(
    result: Decomposition,
    quantity: str = "diversity",
    tokens: Sequence[str] | None = None,
    row: int = 0,
) -> go.Figure:
    """Draw members against positions (or against examples where there is no position axis).

    Args:
        result: A decomposition with axes ``batch`` and/or ``pos``.
        quantity: ``"bias"`` or ``"diversity"`` (raw member terms).
        tokens: Names for the horizontal axis: the token strings of the drawn row (as
            ``model.to_str_tokens`` gives them), or names of the examples.
        row: Which example to draw where there are both examples and positions.

    Returns:
        The figure, first component at the bottom.

    Raises:
        ValueError: If ``quantity`` is unknown, ``row`` is out of range, the result has no axis to
            draw, or ``tokens`` has another length than the axis.
    """
    _check_quantity(quantity)
    terms = result.component_bias if quantity == "bias" else result.component_diversity
    if not result.axes:
        raise ValueError(
            "the result is a single row without batch or position axis; draw it with "
            "layer_module_heatmap(result)"
        )
    if len(result.axes) > 1:
        if not -terms.shape[1] <= row < terms.shape[1]:
            raise ValueError(f"row {row} is out of range: the result has {terms.shape[1]} rows")
        terms = terms[:, row]
    axis = result.axes[-1]
    names = _axis_names(tokens, terms.shape[1], axis)
    figure = _heatmap(
        _array(terms),
        x=list(range(len(names))),
        y=result.labels,
        title=f"{_name(quantity)} of each component ({result.loss})",
        x_title="position" if axis == "pos" else "example",
        y_title="component",
        value=quantity,
        hover_names=names,
    )
    # Tokens repeat within a text, so cells sit at their index and only the tick texts are tokens.
    ticks = [_escape(name) for name in names]
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=ticks)
    return figure


def pairwise_heatmap(distances: Float[Tensor, "..."], labels: Sequence[str]) -> go.Figure:
    """Draw the matrix of pairwise diversities ``D_ik = E_j (u_ij - u_kj)^2``.

    Args:
        distances: From [`functional.pairwise_diversity`][lens_diversity.functional]; batch axes
            are averaged.
        labels: Member names.

    Returns:
        A square figure; the ensemble's diversity is the sum of all cells over ``2 L^2``.

    Raises:
        ValueError: If the matrix is not square or ``labels`` has another length.
    """
    if distances.ndim < 2 or distances.shape[0] != distances.shape[1]:
        raise ValueError(
            f"distances must be [component, component, ...], got {tuple(distances.shape)}"
        )
    if len(labels) != distances.shape[0]:
        raise ValueError(f"{len(labels)} labels for {distances.shape[0]} components")
    matrix = _array(distances.flatten(2).mean(2) if distances.ndim > 2 else distances)
    figure = _heatmap(
        matrix,
        x=list(labels),
        y=list(labels),
        title="Pairwise diversity of the components, mean over rows",
        x_title="component",
        y_title="component",
        value="D",
    )
    figure.update_yaxes(scaleanchor="x", constrain="domain")
    return figure


def _heatmap(
    values: npt.NDArray[np.float64],
    *,
    x: Sequence[Any],
    y: Sequence[Any],
    title: str,
    x_title: str,
    y_title: str,
    value: str,
    hover_names: Sequence[str] | None = None,
) -> go.Figure:
    import plotly.graph_objects as go

    shown = [_escape(str(name)) for name in (hover_names or x)]
    trace = go.Heatmap(
        z=values,
        x=list(x),
        y=[str(name) for name in y],
        customdata=np.tile(np.asarray(shown, dtype=object), (len(y), 1)),
        colorscale=_COLOURS,
        colorbar={"title": {"text": value}},
        hovertemplate=f"{y_title} %{{y}}<br>{x_title} %{{customdata}}<br>{value} %{{z:.4g}}"
        "<extra></extra>",
        hoverongaps=False,
    )
    figure = go.Figure(trace)
    figure.update_layout(
        title={"text": title},
        template="plotly_white",
        width=max(640, 24 * len(x) + 240),
        height=max(480, 14 * len(y) + 200),
    )
    figure.update_xaxes(title={"text": x_title})
    figure.update_yaxes(title={"text": y_title}, type="category")
    return figure


def _check_quantity(quantity: str) -> None:
    if quantity not in _QUANTITIES:
        raise ValueError(f"quantity must be one of {_QUANTITIES}, got {quantity!r}")


def _name(quantity: str) -> str:
    return quantity.capitalize()


def _application(layer: int, label: str) -> str:
    """A layer that runs several times has a row for each: ``3``, then ``3@2``."""
    _, at, count = label.partition("@")
    return f"{layer}{at}{count}"


def _layers(column: Any) -> list[int | None]:
    return [
        None if value is None else int(value)
        for value in column.astype(object).where(column.notna(), None)
    ]


def _columns(frame: Any) -> list[str]:
    """Modules, heads and neurons are the columns; embeddings (token, position) get one each."""
    return [
        label if layer is None else _column(label, module)
        for label, module, layer in zip(
            frame["label"], frame["module"], _layers(frame["layer"]), strict=True
        )
    ]


def _column(label: str, module: str) -> str:
    """``L3H2`` stands in the column ``H2``, the bias of layer 3's attention in ``attn bias``."""
    if label.startswith("L"):
        return label.lstrip("L").lstrip("0123456789")
    return f"{module} bias" if label.endswith("_bias") else module


def _axis_names(tokens: Sequence[str] | None, count: int, axis: str) -> list[str]:
    if tokens is None:
        return [str(index) for index in range(count)]
    if len(tokens) != count:
        raise ValueError(f"{len(tokens)} tokens for {count} entries of the {axis} axis")
    return [token.replace("\n", "\\n") for token in tokens]


def _escape(text: str) -> str:
    """Plotly renders a subset of HTML in labels; text of a data set must stay text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _array(values: Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = values.detach().cpu().double().numpy()
    return array
