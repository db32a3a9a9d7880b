"""What an evaluation found: option logits of every component, and everything that follows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity import functional
from lens_diversity._choices import check_choice
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.ensemble import COMBINES, GAUGES
from lens_diversity.evaluation.store import FolderStore, open_store, shard_plan
from lens_diversity.evaluation.tables import pack, unpack
from lens_diversity.results import Decomposition

if TYPE_CHECKING:
    import pandas as pd

    from lens_diversity.information import RunInformation


@dataclass(frozen=True, eq=False)
class Run:
    """Option logits of every component of a model on a task, with what they were made from.

    All tensors are on the CPU; everything is computed from them in float64.
    """

    option_logits: Float[Tensor, "example component option"]
    """Members ``u_i + kappa / L``: they sum over components to the model's logits before a soft
    cap. Rows with fewer options than the widest are padded with NaN."""
    constant: Float[Tensor, "example option"]
    """``kappa``: the logits that no component wrote, padded likewise."""
    n_options: Int[Tensor, " example"]
    """How many options of each row are real."""
    gold: Int[Tensor, " example"]
    """Index of the right option."""
    n_tokens: Int[Tensor, " example"]
    """Length of each prompt."""
    reconstruction_error: Float[Tensor, " example"]
    """Largest error of the summed components in the row's batch, relative to the range of the
    model's logits."""
    metadata: Mapping[str, Any]
    """Model, task, settings, versions and notes, as `run.json` has them."""

    @classmethod
    def from_table(cls, table: pa.Table, header: Mapping[str, Any]) -> Run:
        """Make a run from stored rows and their header."""
        columns = unpack(table)
        columns.pop("example")
        return cls(**columns, metadata={k: v for k, v in header.items() if k != "shards"})

    @property
    def labels(self) -> list[str]:
        """Component names as TransformerLens' ``decompose_resid`` gives them."""
        return list(self.metadata["labels"])

    @property
    def modules(self) -> list[str]:
        """Kind of each component: ``embed``, ``attn`` or ``mlp``."""
        return list(self.metadata["modules"])

    @property
    def predictions(self) -> Int[Tensor, " example"]:
        """The model's answers: argmax of the summed components."""
        total = self.option_logits.double().sum(1)
        return total.nan_to_num(nan=-torch.inf).argmax(-1)

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return float((self.predictions == self.gold).double().mean())

    def __len__(self) -> int:
        return len(self.gold)

    def __repr__(self) -> str:
        return (
            f"Run({self.metadata['model']['name']!r} on {self.metadata['task']['name']!r}: "
            f"{len(self)} examples x {len(self.labels)} components, "
            f"accuracy {self.accuracy:.3f})"
        )

    def summary(self) -> dict[str, Any]:
        """Summarise as in Table 1 of the paper, raw (the paper prints MSE and bias times 100).

        MSE and bias are Eq. 14 over the options' tokens, diversity Eq. 8 on the options' logits,
        means over examples, members as they are (``loss="paper"``, ``combine="mean"``).

        Returns:
            ``n_examples``, ``accuracy``, ``mse``, ``bias``, ``diversity``, and by module
            ``bias_share`` and ``diversity_share`` (each sums to one).
        """
        result = self.decomposition()
        shares = result.by_module()
        return {
            "n_examples": len(self),
            "accuracy": self.accuracy,
            "mse": float(result.error.mean()),
            "bias": float(result.bias.mean()),
            "diversity": float(result.diversity.mean()),
            "bias_share": shares["bias_share"].to_dict(),
            "diversity_share": shares["diversity_share"].to_dict(),
        }

    def decomposition(
        self, loss: str = "paper", combine: str = "mean", gauge: str = "model"
    ) -> Decomposition:
        """Split each example's error over its options into bias minus diversity.

        Args:
            loss: ``"paper"``, ``"squared"`` (one-hot target), ``"brier"`` or ``"cross_entropy"``;
                see [`decompose`][lens_diversity.decompose].
            combine: ``"mean"`` takes the members as they are, ``"sum"`` times their number.
            gauge: ``"model"``, or ``"centred"`` to subtract each member's mean over the options.

        Returns:
            The decomposition in float64 with a batch axis of examples. Rows with different numbers
            of options are each decomposed over their own; ``n_vocab`` is then the largest.

        Raises:
            ValueError: If an argument is unknown.
        """
        check_loss(loss)
        check_choice("combine", combine, COMBINES)
        check_choice("gauge", gauge, GAUGES)
        count = len(self.labels)
        weights = torch.full((count,), 1 / count, dtype=torch.float64)
        batch = (len(self),)
        terms = {name: torch.empty(batch).double() for name in ("error", "bias", "diversity")}
        terms |= {
            f"component_{n}": torch.empty(count, *batch).double() for n in ("bias", "diversity")
        }
        for rows, members, _ in self._groups():
            if gauge == "centred":
                members = members - members.mean(-1, keepdim=True)
            members = functional.combine_members(members, weights, combine)
            found = LOSSES[loss](members, self.gold[rows], weights)
            for name, values in terms.items():
                values[..., rows] = getattr(found, name)
        return Decomposition(
            **terms,
            weights=weights,
            labels=self.labels,
            modules=self.modules,
            axes=("batch",),
            loss=loss,
            combine=combine,
            gauge=gauge,
            constant="spread",
            n_vocab=int(self.n_options.max()),
            soft_cap=self.metadata["soft_cap"],
            reconstruction_error=float(self.reconstruction_error.max()),
            reconstruction_reference="logits",
        )

    def junctions(self, loss: str = "paper", combine: str = "mean") -> pd.DataFrame:
        """Follow the answer along the residual stream (section 5.2, Figures 3, 5 and 7).

        Junction k is the ensemble of components 1..k, read through the final norm's statistics of
        the whole stream and carrying the whole constant.

        Args:
            loss: As in `decomposition`.
            combine: As in `decomposition`.

        Returns:
            One row per junction: ``junction`` (from 1), ``label`` and ``module`` of the component
            that was added last, ``accuracy``, ``mse`` (``error`` for cross-entropy, in nats),
            ``bias`` and ``diversity``, means over examples.

        Raises:
            ValueError: If an argument is unknown.
        """
        import pandas as pd

        check_loss(loss)
        check_choice("combine", combine, COMBINES)
        error = "error" if loss == "cross_entropy" else "mse"
        sums = {
            name: torch.zeros(len(self.labels)).double()
            for name in ("accuracy", error, "bias", "diversity")
        }
        for rows, members, constant in self._groups():
            gold = self.gold[rows]
            written = members - constant / len(members)
            found = functional.junctions(
                written, gold, loss=loss, combine=combine, constant=constant
            )
            predicted = (written.cumsum(0) + constant).argmax(-1)
            sums["accuracy"] += (predicted == gold).sum(1)
            sums[error] += found.error.sum(1)
            sums["bias"] += found.bias.sum(1)
            sums["diversity"] += found.diversity.sum(1)
        return pd.DataFrame(
            {
                "junction": range(1, len(self.labels) + 1),
                "label": self.labels,
                "module": self.modules,
                **{name: (values / len(self)).numpy() for name, values in sums.items()},
            }
        )

    def information(self, estimator: str = "plugin", **options: Any) -> RunInformation:
        """Estimate what the components know about the label (section 3.4, Theorems 4-8).

        Args:
            estimator: ``"plugin"``, ``"gaussian"``, ``"knn"`` or ``"probe"``.
            **options: As in [`information.of_run`][lens_diversity.information.of_run].

        Returns:
            Estimate, terms, curves and bounds, in bits.

        Raises:
            ValueError: If an argument is unknown or labels take one value only.
        """
        from lens_diversity.information import of_run

        return of_run(self, estimator, **options)

    def to_dataframe(self) -> pd.DataFrame:
        """Lay out every option logit in one long table.

        Returns:
            One row per example, component and option (real ones only): ``example``, ``component``,
            ``label``, ``module``, ``option``, ``logit``, ``gold``, ``prediction``.
        """
        import pandas as pd

        index = self.option_logits.isnan().logical_not().nonzero()
        example, component, option = index.unbind(1)
        labels, modules = pd.Series(self.labels), pd.Series(self.modules)
        return pd.DataFrame(
            {
                "example": example.numpy(),
                "component": component.numpy(),
                "label": labels.to_numpy()[component.numpy()],
                "module": modules.to_numpy()[component.numpy()],
                "option": option.numpy(),
                "logit": self.option_logits[example, component, option].numpy(),
                "gold": self.gold[example].numpy(),
                "prediction": self.predictions[example].numpy(),
            }
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a folder, as ``evaluate(..., out=path)`` does.

        Args:
            path: A folder without a run in it; it is made if it does not exist.

        Raises:
            ValueError: If the folder holds a run already.
        """
        if Path(path, "run.json").exists():
            raise ValueError(f"{path} holds a run already; give another folder")
        every = int(self.metadata["settings"]["save_every"])
        with open_store(path, self.metadata) as store:
            for index, examples in enumerate(shard_plan(self.n_tokens.tolist(), every)):
                store.write(index, self._table(torch.tensor(examples)))

    def _table(self, rows: Int[Tensor, " row"]) -> pa.Table:
        return pack(
            example=rows,
            gold=self.gold[rows],
            n_options=self.n_options[rows],
            n_tokens=self.n_tokens[rows],
            reconstruction_error=self.reconstruction_error[rows],
            option_logits=self.option_logits[rows],
            constant=self.constant[rows],
        )

    def _groups(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows with the same number of options: indices, members and constants, without padding."""
        for width in sorted(set(self.n_options.tolist())):
            rows = (self.n_options == width).nonzero().squeeze(1)
            members = self.option_logits[rows, :, :width].double().transpose(0, 1)
            yield rows, members, self.constant[rows, :width].double()


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a finished run from the folder that ``evaluate(..., out=path)`` or ``save`` wrote.

    Args:
        path: The folder.

    Returns:
        The run.

    Raises:
        ValueError: If the folder holds no run, an unfinished one (with how many examples are
            there), or one whose files were damaged (with their names).
    """
    return Run.from_table(*FolderStore.finished(Path(path)).read())
