"""Sums over each document's tokens as rows of a table, and back to moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lens_diversity.profiling.moments import Array, RatioMoments
from lens_diversity.profiling.windows import Batch
from lens_diversity.results import Decomposition

QUANTITIES = ("error", "bias", "diversity")

SCHEMA = pa.schema(
    [
        pa.field("document", pa.int64(), nullable=False),
        pa.field("text_sha256", pa.string(), nullable=False),
        # How many tokens were predicted; all that follows are sums over them.
        pa.field("n_tokens", pa.int64(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in QUANTITIES),
        pa.field("component_bias", pa.list_(pa.float64()), nullable=False),
        pa.field("component_diversity", pa.list_(pa.float64()), nullable=False),
        # By position in the window, up to the last one used; modules are flat, position x module.
        pa.field("position_tokens", pa.list_(pa.int32()), nullable=False),
        *(
            pa.field(f"position_{name}", pa.list_(pa.float32()), nullable=False)
            for name in QUANTITIES
        ),
        pa.field("position_module_bias", pa.list_(pa.float32()), nullable=False),
        pa.field("position_module_diversity", pa.list_(pa.float32()), nullable=False),
        pa.field("reconstruction_error", pa.float32(), nullable=False),
    ]
)


class ShardSums:
    """Sums over the tokens of some documents, filled batch by batch."""

    def __init__(
        self, n_documents: int, n_components: int, membership: Tensor, context: int
    ) -> None:
        """Begin with zeros.

        Args:
            n_documents: Documents of the shard.
            n_components: Members of the ensemble.
            membership: ``[module, component]``: the weight of each member in its module.
            context: Positions of a window.
        """
        self._membership = membership
        modules = len(membership)
        self.n_tokens = torch.zeros(n_documents, dtype=torch.long)
        self.components = torch.zeros(2, n_components, n_documents).double()
        self.position_tokens = torch.zeros(n_documents, context, dtype=torch.long)
        self.positions = torch.zeros(3 + 2 * modules, n_documents, context).double()
        self.reconstruction_error = torch.zeros(n_documents)

    def add(self, batch: Batch, found: Decomposition) -> None:
        """Add a batch's rows to their documents."""
        self.n_tokens += torch.bincount(batch.documents, minlength=len(self.n_tokens))
        components = torch.stack([found.component_bias, found.component_diversity]).double().cpu()
        self.components.index_add_(2, batch.documents, components)
        modules = torch.einsum("mc,qcr->qmr", self._membership, components).flatten(0, 1)
        whole = torch.stack([found.error, found.bias, found.diversity]).double().cpu()
        where = (batch.documents, batch.positions)
        self.position_tokens.index_put_(where, torch.ones_like(batch.targets), accumulate=True)
        for total, values in zip(self.positions, torch.cat([whole, modules]), strict=True):
            total.index_put_(where, values, accumulate=True)
        present = torch.tensor(sorted(set(batch.documents_of_windows)))
        worst = self.reconstruction_error[present].clamp_min(found.reconstruction_error)
        self.reconstruction_error[present] = worst

    def table(self, first: int, digests: Sequence[str]) -> pa.Table:
        """Lay out one row per document, with the columns of ``SCHEMA``."""
        count = len(self.n_tokens)
        lengths = _last_used(self.position_tokens)
        used = torch.arange(self.position_tokens.shape[1]) < lengths.unsqueeze(1)
        whole = dict(zip(QUANTITIES, self.positions[:3], strict=True))
        modules = self.positions[3:].view(2, -1, *self.position_tokens.shape).movedim(1, -1)
        width = modules.shape[-1]
        columns = {
            "document": np.arange(first, first + count),
            "text_sha256": list(digests),
            "n_tokens": self.n_tokens.numpy(),
            **{name: values.sum(1).numpy() for name, values in whole.items()},
            "component_bias": _lists(self.components[0].T),
            "component_diversity": _lists(self.components[1].T),
            "position_tokens": _ragged(self.position_tokens[used].int(), lengths),
            **{f"position_{n}": _ragged(v[used].float(), lengths) for n, v in whole.items()},
            "position_module_bias": _ragged(modules[0][used].float(), lengths * width),
            "position_module_diversity": _ragged(modules[1][used].float(), lengths * width),
            "reconstruction_error": self.reconstruction_error.numpy(),
        }
        return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class ProfileMoments:
    """Sums over documents of everything that a profile reports."""

    n_documents: int
    n_without_targets: int
    n_tokens: int
    reconstruction_error: float
    whole: RatioMoments
    """``[quantity]`` per token."""
    components: RatioMoments
    """``[2, component]`` per token: bias and diversity, raw terms."""
    modules: RatioMoments
    """``[2, module]`` per token: weighted contributions."""
    shares: RatioMoments
    """``[2, module]`` per unit of bias and of diversity."""
    positions: RatioMoments
    """``[quantity, position]`` per token at that position."""
    module_positions: RatioMoments
    """``[2, module, position]``, likewise."""

    @classmethod
    def of(cls, table: pa.Table, membership: Array, context: int) -> ProfileMoments:
        """Sum over the documents of a shard.

        Args:
            table: Rows with the columns of ``SCHEMA``.
            membership: ``[module, component]``: the weight of each member in its module.
            context: Positions of a window.
        """
        table = table.combine_chunks()
        tokens = _numbers(table["n_tokens"])
        whole = np.stack([_numbers(table[name]) for name in QUANTITIES], 1)
        components = np.stack(
            [_matrix(table[f"component_{name}"]) for name in ("bias", "diversity")], 1
        )
        modules = np.einsum("mc,dqc->dqm", membership, components)
        lengths = _numbers(pa.compute.list_value_length(table["position_tokens"])).astype(int)
        at = np.arange(context) < lengths[:, None]

        def spread(name: str, *inner: int) -> Array:
            padded = np.zeros((*at.shape, *inner))
            padded[at] = _values(table[name]).reshape(-1, *inner)
            return np.moveaxis(padded, 1, -1)

        position_tokens = spread("position_tokens")
        positions = np.stack([spread(f"position_{name}") for name in QUANTITIES], 1)
        module_positions = np.stack(
            [spread(f"position_module_{name}", len(membership)) for name in ("bias", "diversity")],
            1,
        )
        return cls(
            n_documents=len(tokens),
            n_without_targets=int((tokens == 0).sum()),
            n_tokens=int(tokens.sum()),
            reconstruction_error=float(_numbers(table["reconstruction_error"]).max(initial=0)),
            whole=RatioMoments.of(whole, tokens[:, None]),
            components=RatioMoments.of(components, tokens[:, None, None]),
            modules=RatioMoments.of(modules, tokens[:, None, None]),
            shares=RatioMoments.of(modules, whole[:, 1:, None]),
            positions=RatioMoments.of(positions, position_tokens[:, None]),
            module_positions=RatioMoments.of(module_positions, position_tokens[:, None, None]),
        )

    def __add__(self, other: ProfileMoments) -> ProfileMoments:
        """Moments of the documents of both."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != "reconstruction_error"
        }
        worst = max(self.reconstruction_error, other.reconstruction_error)
        return ProfileMoments(reconstruction_error=worst, **sums)


def _last_used(counts: Tensor) -> Tensor:
    """One more than the last position with a count."""
    return (counts > 0).long().mul(torch.arange(1, counts.shape[1] + 1)).amax(1)


def _lists(rows: Tensor) -> Any:
    return _ragged(rows, torch.full((len(rows),), rows.shape[1]))


def _ragged(values: Tensor, lengths: Tensor) -> Any:
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
    return pa.ListArray.from_arrays(pa.array(offsets.numpy()), pa.array(values.flatten().numpy()))


def _numbers(column: Any) -> Array:
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _values(column: Any) -> Array:
    return _numbers(column.combine_chunks().flatten())


def _matrix(column: Any) -> Array:
    return _values(column).reshape(len(column), -1)
