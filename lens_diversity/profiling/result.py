"""What a profile found: means over a corpus with intervals, by component, module and position."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lens_diversity.evaluation.header import PROFILE
from lens_diversity.evaluation.store import FolderStore
from lens_diversity.profiling.moments import Array, Interval, RatioMoments
from lens_diversity.profiling.rows import QUANTITIES, ProfileMoments
from lens_diversity.results import UNITS, layer_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_TERMS = ("bias", "diversity")


@dataclass(frozen=True, eq=False)
class Profile:
    """Error, bias and diversity of a model's next-token predictions, averaged over a corpus.

    Means are over tokens, ``sum of a document's terms / sum of its tokens``; intervals treat
    documents as the independent units (see `RatioMoments`). They are NaN for a single document,
    and too narrow where documents repeat each other.
    """

    moments: ProfileMoments
    """Sums over documents; all tables follow from them."""
    metadata: Mapping[str, Any]
    """Model, data, settings and versions, as `profile.json` has them."""

    @property
    def labels(self) -> list[str]:
        """Member names, as ``decompose_resid`` gives them."""
        return list(self.metadata["labels"])

    @property
    def modules(self) -> list[str]:
        """Kind of each member: ``embed``, ``attn`` or ``mlp``."""
        return list(self.metadata["modules"])

    @property
    def n_documents(self) -> int:
        """Documents that were read."""
        return self.moments.n_documents

    @property
    def n_tokens(self) -> int:
        """Tokens that were predicted."""
        return self.moments.n_tokens

    @property
    def n_without_targets(self) -> int:
        """Documents of less than two tokens, in which nothing is predicted."""
        return self.moments.n_without_targets

    @property
    def reconstruction_error(self) -> float:
        """Largest relative error of the summed components against the model."""
        return self.moments.reconstruction_error

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Average over all tokens.

        Args:
            level: Coverage of the intervals.

        Returns:
            Rows ``error``, ``bias`` and ``diversity`` with ``mean``, ``low`` and ``high``.
        """
        import pandas as pd

        _check_level(level)
        return pd.DataFrame(self.moments.whole.interval(level)._asdict(), index=list(QUANTITIES))

    def by_component(self, level: float = 0.95) -> pd.DataFrame:
        """Average each member's terms over all tokens.

        Args:
            level: Coverage of the intervals.

        Returns:
            One row per member in stream order: ``label``, ``module``, ``layer``, ``weight``, and
            ``bias`` and ``diversity`` (raw terms, not weighted), each with ``_low`` and ``_high``.
        """
        import pandas as pd

        _check_level(level)
        layers = pd.array([layer_of(label) for label in self.labels], dtype="Int64")
        columns = {
            "label": self.labels,
            "module": self.modules,
            "layer": layers,
            "weight": 1 / len(self.labels),
        }
        return pd.DataFrame(columns | _terms(self.moments.components, level))

    def by_module(self, level: float = 0.95) -> pd.DataFrame:
        """Split bias and diversity by module (Eqs. 9-10).

        Args:
            level: Coverage of the intervals.

        Returns:
            One row per module: ``components`` (how many), ``bias`` and ``diversity`` (weighted
            contributions, which sum to the whole), ``bias_share`` and ``diversity_share`` (which
            sum to one), each with ``_low`` and ``_high``.
        """
        import pandas as pd

        _check_level(level)
        names = module_names(self.modules)
        columns: dict[str, Any] = {"components": [self.modules.count(name) for name in names]}
        columns |= _terms(self.moments.modules, level)
        columns |= _terms(self.moments.shares, level, suffix="_share")
        return pd.DataFrame(columns, index=pd.Index(names, name="module"))

    def by_position(self, level: float = 0.95) -> pd.DataFrame:
        """Average over the tokens at each position of a window: what more context does.

        Args:
            level: Coverage of the intervals.

        Returns:
            One row per position (from 0, the prediction after one token) that was used:
            ``position``, ``documents``, ``tokens``, and ``error``, ``bias`` and ``diversity``,
            each with ``_low`` and ``_high``.
        """
        import pandas as pd

        _check_level(level)
        moments = self.moments.positions
        columns: dict[str, Any] = {
            "position": np.arange(moments.x.shape[-1]),
            "documents": moments.documents[0].astype(int),
            "tokens": moments.x[0].astype(int),
        }
        for index, name in enumerate(QUANTITIES):
            columns |= _named(name, moments[index].interval(level))
        return pd.DataFrame(columns).query("tokens > 0").reset_index(drop=True)

    def by_module_and_position(self, level: float = 0.95) -> pd.DataFrame:
        """Split bias and diversity at each position by module.

        Args:
            level: Coverage of the intervals.

        Returns:
            One row per position and module: ``position``, ``module``, and ``bias`` and
            ``diversity`` (weighted contributions), each with ``_low`` and ``_high``.
        """
        import pandas as pd

        _check_level(level)
        moments = self.moments.module_positions
        names = module_names(self.modules)
        index = pd.MultiIndex.from_product(
            [names, range(moments.x.shape[-1])], names=["module", "position"]
        )
        columns = {
            name: values.ravel() for name, values in _terms(moments, level, flat=True).items()
        }
        frame = pd.DataFrame(columns, index=index).reset_index()
        used = self.moments.positions.x[0] > 0
        ordered = frame[used[frame["position"]]].sort_values("position", kind="stable")
        return pd.DataFrame(ordered).reset_index(drop=True)

    @classmethod
    def concatenate(cls, parts: Sequence[Profile]) -> Profile:
        """Join profiles of one model on different documents, made by different processes perhaps.

        Args:
            parts: Profiles with the same model, settings and members. That no document is in two
                of them cannot be seen from here.

        Returns:
            The profile of all their documents.

        Raises:
            ValueError: If there is no part, or two differ in more than their data.
        """
        if not parts:
            raise ValueError("there is no profile to join")
        first = parts[0].metadata
        for part in parts[1:]:
            for key in ("model", "settings", "labels", "modules"):
                if part.metadata[key] != first[key]:
                    raise ValueError(
                        f"the profiles differ in their {key}: {first[key]!r} and "
                        f"{part.metadata[key]!r}"
                    )
        data = {"kind": "joined", "parts": [part.metadata["data"] for part in parts]}
        return cls(reduce(add, (part.moments for part in parts)), {**first, "data": data})

    def __repr__(self) -> str:
        loss = self.metadata["settings"]["loss"]
        lines = [
            f"Profile({self.metadata['model']['name']!r}: {self.n_documents} documents, "
            f"{self.n_tokens} tokens; {loss}, combine={self.metadata['settings']['combine']}, "
            f"gauge={self.metadata['settings']['gauge']}; in {UNITS[loss]})"
        ]
        for name, row in self.summary().iterrows():
            lines.append(f"  {name:<10} {row['mean']:.5g}  [{row['low']:.5g}, {row['high']:.5g}]")
        if self.n_without_targets:
            lines.append(f"  {self.n_without_targets} documents had nothing to predict")
        return "\n".join(lines)


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a finished profile from the folder that ``profile(..., out=path)`` wrote.

    Args:
        path: The folder.

    Returns:
        The profile.

    Raises:
        ValueError: If the folder holds no profile, an unfinished one, or one whose files were
            damaged (with their names).
    """
    store = FolderStore.finished(Path(path), PROFILE)
    tables = (store.shard(index) for index in sorted(store.done()))
    header = {name: value for name, value in store.header.items() if name != "shards"}
    return from_tables(tables, header)


def from_tables(tables: Iterable[pa.Table], header: Mapping[str, Any]) -> Profile:
    """Sum shards up, one at a time, in their order."""
    membership = module_membership(header["modules"])
    context = int(header["settings"]["context"])
    parts = (ProfileMoments.of(table, membership, context) for table in tables)
    return Profile(reduce(add, parts), header)


def module_names(modules: Sequence[str]) -> list[str]:
    """Modules in the order in which they first occur."""
    return list(dict.fromkeys(modules))


def module_membership(modules: Sequence[str]) -> Array:
    """``[module, component]``: the weight of each member in its module, uniform over all."""
    kinds = np.array(modules)
    rows = [(kinds == name) / len(kinds) for name in module_names(modules)]
    return np.array(rows, dtype=np.float64)


def _terms(
    moments: RatioMoments, level: float, suffix: str = "", *, flat: bool = False
) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for index, name in enumerate(_TERMS):
        columns |= _named(f"{name}{suffix}", moments[index].interval(level))
    return {name: values.ravel() for name, values in columns.items()} if flat else columns


def _named(name: str, interval: Interval) -> dict[str, Array]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
