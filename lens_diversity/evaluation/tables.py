"""Option logits as columns: what one row of a stored run holds, and its way back to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

SCHEMA = pa.schema(
    [
        pa.field("example", pa.int64(), nullable=False),
        pa.field("gold", pa.int32(), nullable=False),
        pa.field("n_options", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("reconstruction_error", pa.float32(), nullable=False),
        # Flat, one component after the other, without padding: component x option.
        pa.field("option_logits", pa.list_(pa.float32()), nullable=False),
        pa.field("constant", pa.list_(pa.float32()), nullable=False),
    ]
)
_SCALARS = ("example", "gold", "n_options", "n_tokens", "reconstruction_error")


def pack(
    *,
    option_logits: Float[Tensor, "row component option"],
    constant: Float[Tensor, "row option"],
    n_options: Int[Tensor, " row"],
    **columns: Tensor,
) -> pa.Table:
    """Lay rows out as a table; entries beyond a row's ``n_options`` are not stored.

    Args:
        option_logits: Member logits, padded to a common width.
        constant: ``kappa``, padded likewise.
        n_options: How many options of each row are real.
        **columns: ``example``, ``gold``, ``n_tokens`` and ``reconstruction_error``, ``[row]``.

    Returns:
        One row per example, with the columns of ``SCHEMA``.
    """
    count, n_components, width = option_logits.shape
    real = torch.arange(width) < n_options.unsqueeze(1)
    members = option_logits[real.unsqueeze(1).expand(count, n_components, width)]
    scalars = {"n_options": n_options, **columns}
    return pa.table(
        {name: scalars[name].numpy() for name in _SCALARS}
        | {
            "option_logits": _lists(members, n_options * n_components),
            "constant": _lists(constant[real], n_options),
        },
        schema=SCHEMA,
    )


def unpack(table: pa.Table) -> dict[str, Tensor]:
    """Read a table back, in the order of the examples.

    Args:
        table: Rows as `pack` lays them out.

    Returns:
        Tensors by column name; ``option_logits`` ``[example, component, option]`` and
        ``constant`` ``[example, option]`` are padded with NaN to the widest row.
    """
    table = table.combine_chunks().sort_by("example")
    tensors = {name: torch.tensor(_numpy(table[name])) for name in _SCALARS}
    n_options = tensors["n_options"].long()
    values = torch.tensor(_numpy(table["option_logits"].combine_chunks().flatten()))
    constant = torch.tensor(_numpy(table["constant"].combine_chunks().flatten()))
    n_components = len(values) // int(n_options.sum())
    width = int(n_options.max())
    real = torch.arange(width) < n_options.unsqueeze(1)
    shape = (len(n_options), n_components, width)
    return tensors | {
        "gold": tensors["gold"].long(),
        "n_options": n_options,
        "n_tokens": tensors["n_tokens"].long(),
        "option_logits": _padded(values, real.unsqueeze(1).expand(shape)),
        "constant": _padded(constant, real),
    }


def _padded(values: Tensor, real: Tensor) -> Tensor:
    padded = torch.full(real.shape, torch.nan)
    padded[real] = values
    return padded


def _lists(values: Tensor, lengths: Tensor) -> Any:
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
    return pa.ListArray.from_arrays(pa.array(offsets.numpy()), pa.array(values.float().numpy()))


def _numpy(column: Any) -> npt.NDArray[np.generic]:
    array: npt.NDArray[np.generic] = column.to_numpy()
    return array
