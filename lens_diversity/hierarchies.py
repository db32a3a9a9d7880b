"""The diversity of heads or neurons as a tree: within sublayers, between them, between modules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from lens_diversity._choices import check_choice
from lens_diversity._input import EnsembleInput, as_stack
from lens_diversity.capture import Pos
from lens_diversity.decomposition.nested import NESTED_LOSSES
from lens_diversity.ensemble import COMBINES, GAUGES
from lens_diversity.full_vocab.softmax import DEFAULT_BUDGET
from lens_diversity.neurons import Stack
from lens_diversity.readout import Vocab, without_autocast
from lens_diversity.results import UNITS
from lens_diversity.units import sublayer_of

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("between modules", "between sublayers", "within sublayers")


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A diversity as a tree whose nodes' contributions sum to it.

    A node contributes its weight times the distance of its mean from that of its parent.
    """

    names: list[str]
    """Node names: modules, then sublayers, then heads or neurons."""
    parents: list[int]
    """Index of the node that each is part of; -1 for modules."""
    levels: list[str]
    """What each node's contribution is a part of, one of ``LEVELS``."""
    weights: Float[Tensor, " node"]
    """Weight of each node: what its leaves weigh together."""
    contributions: Float[Tensor, "node *batch"]
    """Weight times distance from the parent's mean."""
    axes: tuple[str, ...]
    """Names of the batch axes."""
    loss: str
    """``squared`` or ``cross_entropy``."""
    combine: str
    """As in [`decompose`][lens_diversity.decompose]."""
    gauge: str
    """As in `decompose`."""

    @property
    def diversity(self) -> Float[Tensor, "*batch"]:
        """The diversity of the leaves: the sum of all contributions."""
        return self.contributions.sum(0)

    def by_level(self) -> pd.DataFrame:
        """Average each level's part over the batch.

        Returns:
            One row per level with ``nodes`` (how many), ``diversity`` and ``share`` (NaN where the
            whole is zero).
        """
        nodes = self.by_node().assign(nodes=1)
        found = nodes.groupby("level", sort=False)[["nodes", "diversity"]].sum()
        return found.assign(share=found["diversity"] / found["diversity"].sum())

    def by_node(self) -> pd.DataFrame:
        """Average each node's contribution over the batch.

        Returns:
            One row per node: ``name``, ``parent`` (a name, empty for modules), ``level``,
            ``weight``, ``diversity`` (its own contribution), ``within`` (that of everything below
            it) and ``share`` of the whole that both have.
        """
        import pandas as pd

        own = self.contributions.detach().to("cpu", torch.float64)
        means = own.reshape(len(own), -1).mean(1)
        within = torch.zeros_like(means)
        # Children follow their parents.
        for node in range(len(self.names) - 1, -1, -1):
            if self.parents[node] >= 0:
                within[self.parents[node]] += means[node] + within[node]
        whole = float(means.sum())
        return pd.DataFrame(
            {
                "name": self.names,
                "parent": ["" if parent < 0 else self.names[parent] for parent in self.parents],
                "level": self.levels,
                "weight": self.weights.detach().to("cpu", torch.float64).numpy(),
                "diversity": means.numpy(),
                "within": within.numpy(),
                "share": ((means + within) / (whole or float("nan"))).numpy(),
            }
        )

    def __repr__(self) -> str:
        parts = self.by_level()
        split = " + ".join(f"{row.diversity:.6g} {level}" for level, row in parts.iterrows())
        return (
            f"Hierarchy({self.loss}, {len(self.names)} nodes; in {UNITS[self.loss]})\n"
            f"  diversity {float(self.diversity.mean()):.6g} = {split}  (batch means)"
        )


@without_autocast
def hierarchy(
    stack_or_cache: Stack | Any,
    vocab: Vocab = None,
    unit: str | None = None,
    loss: str = "squared",
    combine: str = "mean",
    gauge: str = "model",
    pos: Pos = -1,
    *,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
    memory_budget: int = DEFAULT_BUDGET,
) -> Hierarchy:
    """Split the diversity of heads or neurons exactly by level.

    The ``n_s`` parts of sublayer ``s`` are members ``n_s u_n`` with weight ``1 / (L n_s)``, so that
    sublayers are the means of their parts and modules those of their sublayers, and the parts
    between sublayers and between modules together are the sublayers' own diversity:
    ``sum_n D(m, n_s u_n) / (L n_s) = sum_n D(u_s, n_s u_n) / (L n_s) + sum_s D(u_M, u_s) / L +
    sum_M (L_M / L) D(m, u_M)`` (see
    [`nested_diversity`][lens_diversity.functional.nested_diversity]).

    Args:
        stack_or_cache: A cache, or a stack with any units.
        vocab: As in [`decompose`][lens_diversity.decompose].
        unit: What the leaves are where a cache is given: ``"head"`` (default), ``"neuron"`` or
            ``"sublayer"``.
        loss: ``"squared"`` (also the diversity of ``paper``) or ``"cross_entropy"``.
        combine: ``"mean"``, or ``"sum"`` for members ``L`` times as large, whose mean is the
            model's logits.
        gauge: As in `decompose`.
        pos: As in `decompose`.
        attention_mask: As in `decompose`.
        dtype: As in `decompose`.
        memory_budget: As in `decompose`.

    Returns:
        The tree, on the device of the stack.

    Raises:
        TypeError: As in `decompose`.
        ValueError: As in `decompose`.

    Example:
        >>> import torch
        >>> from lens_diversity import ComponentStack, Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> values = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]])
        >>> names, modules = ["L0H0", "L0H1", "0_mlp_out"], ["attn", "attn", "mlp"]
        >>> found = hierarchy(ComponentStack.from_values(values, readout, names, modules))
        >>> found.by_level()["diversity"].to_dict()
        {'between modules': 0.0, 'between sublayers': 0.0, 'within sublayers': 0.5}
    """
    check_choice("loss", loss, NESTED_LOSSES)
    check_choice("combine", combine, COMBINES)
    check_choice("gauge", gauge, GAUGES)
    given = unit or ("sublayer" if isinstance(stack_or_cache, Stack) else "head")
    stack = as_stack(stack_or_cache, pos, attention_mask, given)
    nothing = torch.zeros(stack.batch_shape, dtype=torch.long)
    ensemble = EnsembleInput.of(stack, nothing, vocab, loss, -1, None, dtype, memory_budget)
    tree = _Tree.of(stack)
    levels = [torch.tensor(tree.sublayer), torch.tensor(tree.module)]
    parts = [chunk.nested(levels, loss, combine, gauge) for chunk in ensemble.chunks()]
    leaves, sublayers, modules = (torch.cat(terms, 1) for terms in zip(*parts, strict=True))
    rows = torch.cat([modules, sublayers, leaves[tree.parts]])
    return Hierarchy(
        names=[*tree.modules, *tree.sublayers, *(stack.labels[part] for part in tree.parts)],
        parents=tree.parents,
        levels=tree.levels,
        weights=torch.tensor(tree.weights, dtype=ensemble.dtype, device=stack.device),
        contributions=rows.reshape(len(rows), *ensemble.shape),
        axes=ensemble.axes,
        loss=loss,
        combine=combine,
        gauge=gauge,
    )


@dataclass(frozen=True)
class _Tree:
    """Which sublayer each member is part of, and which module each sublayer."""

    sublayers: list[str]
    modules: list[str]
    sublayer: list[int]
    module: list[int]

    @classmethod
    def of(cls, stack: Stack) -> _Tree:
        owners = [sublayer_of(label) for label in stack.labels]
        kinds = dict(zip(owners, stack.modules, strict=True))
        sublayers, modules = list(kinds), list(dict.fromkeys(kinds.values()))
        places = {name: place for place, name in enumerate(sublayers)}
        return cls(
            sublayers=sublayers,
            modules=modules,
            sublayer=[places[owner] for owner in owners],
            module=[modules.index(kinds[name]) for name in sublayers],
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Number of members of each sublayer."""
        counts = Counter(self.sublayer)
        return [counts[place] for place in range(len(self.sublayers))]

    @cached_property
    def parts(self) -> list[int]:
        """Members that are only a part of their sublayer."""
        return [leaf for leaf, place in enumerate(self.sublayer) if self.sizes[place] > 1]

    @property
    def parents(self) -> list[int]:
        start = len(self.modules)
        above = [*self.module, *(start + self.sublayer[part] for part in self.parts)]
        return [-1] * start + above

    @property
    def levels(self) -> list[str]:
        counts = (len(self.modules), len(self.sublayers), len(self.parts))
        return [name for name, count in zip(LEVELS, counts, strict=True) for _ in range(count)]

    @property
    def weights(self) -> list[float]:
        share = 1 / len(self.sublayers)
        parts = [share / self.sizes[self.sublayer[part]] for part in self.parts]
        modules = [share * self.module.count(place) for place in range(len(self.modules))]
        return [*modules, *[share] * len(self.sublayers), *parts]
