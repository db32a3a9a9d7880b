"""What ablating each component does: predicted from the logits' sum, and in a real forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity._choices import check_choice
from lens_diversity.capture import component_stack
from lens_diversity.decomposition.losses import LOSSES, check_loss
from lens_diversity.evaluation._progress import progress_bar
from lens_diversity.evaluation.forward import last_position_cache, left_padded
from lens_diversity.evaluation.hooked import (
    POSITIONS,
    added_to,
    answer_logits,
    batches_by_length,
    check_examples,
    places,
)
from lens_diversity.evaluation.prompts import Encoded, encode
from lens_diversity.readout import Readout, check_reconstruction, linear_logits
from lens_diversity.results import layer_of
from lens_diversity.tasks import Task
from lens_diversity.units import module_of

if TYPE_CHECKING:
    import pandas as pd

REPLACEMENTS = ("zero", "mean", "resample")


@dataclass(frozen=True, eq=False)
class AblationEffects:
    """Errors of a network without each component, predicted and real, example by example."""

    labels: list[str]
    """The components, in stream order."""
    error: Float[Tensor, " example"]
    """The whole network's error."""
    direct: Float[Tensor, "component example"]
    """Its error when only what the component writes straight to the logits is replaced."""
    real: Float[Tensor, "component example"]
    """Its error when the component is replaced in the forward pass and later ones read that."""
    correct: Bool[Tensor, " example"]
    """Whether the whole network is right."""
    direct_correct: Bool[Tensor, "component example"]
    """The same for ``direct``."""
    real_correct: Bool[Tensor, "component example"]
    """The same for ``real``."""
    how: str
    """``zero``, ``mean`` or ``resample``."""
    positions: str
    """``all`` or ``answer``."""
    loss: str
    """The error over the options' logits."""

    def by_component(self) -> pd.DataFrame:
        """Average over the examples.

        Returns:
            One row per component: ``label``, ``module``, ``layer``, ``direct`` and ``real`` (by how
            much the error grows) and ``direct_accuracy`` and ``real_accuracy``.
        """
        import pandas as pd

        def means(values: Tensor) -> npt.NDArray[np.float64]:
            return values.double().mean(1).numpy()

        return pd.DataFrame(
            {
                "label": self.labels,
                "module": [module_of(label) for label in self.labels],
                "layer": pd.array([layer_of(label) for label in self.labels], dtype="Int64"),
                "direct": means(self.direct - self.error),
                "real": means(self.real - self.error),
                "direct_accuracy": means(self.direct_correct),
                "real_accuracy": means(self.real_correct),
            }
        )

    def correlation(self, repeats: int = 1000, seed: int = 0) -> pd.DataFrame:
        """Correlate predicted and real growth of the error over the components.

        Args:
            repeats: Bootstrap samples of the examples for the intervals.
            seed: Of the bootstrap.

        Returns:
            One row for ``all`` components and one for each module of three or more: ``components``,
            ``spearman`` with its 95% interval (``spearman_low``, ``spearman_high``; examples
            resampled, components as they are) and ``pearson``. NaN where all components have the
            same effect.
        """
        import pandas as pd

        table = self.by_component()
        direct = (self.direct - self.error).double().numpy()
        real = (self.real - self.error).double().numpy()
        generator = np.random.default_rng(seed)
        draws = generator.integers(direct.shape[1], size=(repeats, direct.shape[1]))
        groups = {"all": np.ones(len(table), dtype=bool)}
        for module, rows in table.groupby("module", sort=False):
            if len(rows) >= 3:
                groups[str(module)] = (table["module"] == module).to_numpy()
        found = [_correlated(direct[own], real[own], draws) for own in groups.values()]
        return pd.DataFrame(found, index=list(groups))

    def __repr__(self) -> str:
        found = float(self.correlation(repeats=0)["spearman"].iloc[0])
        return (
            f"AblationEffects({len(self.labels)} components x {len(self.error)} examples; "
            f"how={self.how}, positions={self.positions}, loss={self.loss}; rank correlation of "
            f"direct and real effect {found:.3f})"
        )


def ablation_effects(
    model: Any,
    task: Task,
    how: str = "mean",
    *,
    positions: str = "all",
    examples: Sequence[int] | None = None,
    loss: str = "cross_entropy",
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = True,
) -> AblationEffects:
    """Ablate each component in turn, in closed form and in the real forward pass.

    The *direct* effect replaces ``u_i`` in the sum of logits at the answer position (with
    ``how="zero"`` that is [`leave_one_out`][lens_diversity.leave_one_out] of the sum, what the
    ensemble view predicts); the *real* one replaces the component's output by a hook, and whatever
    comes after reads what is left. Their rank correlation tells how far the ensemble predicts what
    pruning a component does.

    Args:
        model: A ``TransformerBridge`` in evaluation mode, with a tokenizer.
        task: Prompts, options and gold labels.
        how: ``"zero"``; ``"mean"`` over the examples and the positions that are replaced; or
            ``"resample"``: what the component wrote at another of these positions, drawn within
            each batch.
        positions: ``"all"`` replaces the output at every real token, as pruning does;
            ``"answer"`` only where the answer is read.
        examples: Which examples to use; None takes all.
        loss: As in [`decompose`][lens_diversity.decompose], of the options' logits.
        batch_size: Examples a forward pass.
        seed: Of the batches and draws of ``"resample"``.
        progress: Whether to show a bar on a terminal.

    Returns:
        The effects; one forward pass of every example for each component, and two more.

    Raises:
        ValueError: If an option is unknown, an example does not exist, or the task cannot be read
            by the model.

    Example:
        >>> import lens_diversity as ld
        >>> model, task = ld.load_model("smollm2"), ld.tasks.load("sst2")  # doctest: +SKIP
        >>> found = ld.ablation_effects(model, task, examples=range(64))  # doctest: +SKIP
        >>> found.correlation()  # doctest: +SKIP
    """
    check_choice("how", how, REPLACEMENTS)
    check_choice("positions", positions, POSITIONS)
    check_loss(loss)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    chosen = check_examples(examples, len(task))
    encoded = encode(model.tokenizer, task, int(model.cfg.n_ctx), "error")
    batches = list(batches_by_length(encoded, chosen, batch_size))
    if how == "resample" and any(len(batch) == 1 for batch in batches) and positions == "answer":
        raise ValueError(
            "a batch of one example has nothing to draw from at the answer position; choose "
            f"batch_size so that it leaves no single one of {len(chosen)} examples"
        )
    hooks = _bridge.component_hooks(model)
    means = _means(model, encoded, batches, list(hooks.values()), positions, how)
    parts = []
    with progress_bar(
        f"{how} ablation", "passes", len(batches) * len(hooks), shown=progress
    ) as bar:
        for index, batch in enumerate(batches):
            generator = torch.Generator().manual_seed(seed + index)
            part = _Batch.of(model, encoded, batch, loss)
            parts.append(part.effects(model, hooks, means, how, positions, generator, bar))
    found = {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}
    order = [example for batch in batches for example in batch]
    asked = torch.tensor([order.index(example) for example in chosen])
    values = {name: value[..., asked] for name, value in found.items()}
    return AblationEffects(labels=list(hooks), how=how, positions=positions, loss=loss, **values)


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch of prompts with what the whole network does on it."""

    tokens: Int[Tensor, "row pos"]
    mask: Int[Tensor, "row pos"]
    options: list[list[int]]
    gold: list[int]
    loss: str
    readout: Readout
    scale: Float[Tensor, "row 1"]
    own: Float[Tensor, "component row vocab"]
    """Each component's logits at the tokens of ``ids``."""
    kappa: Float[Tensor, " vocab"]
    ids: Int[Tensor, " vocab"]

    @classmethod
    def of(cls, model: Any, encoded: Encoded, batch: list[int], loss: str) -> _Batch:
        tokens, mask = left_padded([encoded.prompts[example] for example in batch])
        options = [encoded.options[example] for example in batch]
        device = model.W_E.device
        ids = torch.tensor(sorted({token for row in options for token in row}))
        with torch.no_grad():
            cache = last_position_cache(model, tokens.to(device), mask.to(device))
            stack = component_stack(cache, pos=-1)
            own, kappa = linear_logits(stack, ids, None)
            check_reconstruction(stack, own.sum(0) + kappa, ids)
        return cls(
            tokens=tokens,
            mask=mask,
            options=options,
            gold=[encoded.gold[example] for example in batch],
            loss=loss,
            readout=stack.readout,
            scale=stack.stream.scale,
            own=own.cpu(),
            kappa=kappa.cpu(),
            ids=ids,
        )

    def effects(
        self,
        model: Any,
        hooks: dict[str, str],
        means: dict[str, Tensor],
        how: str,
        positions: str,
        generator: torch.Generator,
        done: Callable[[int], None],
    ) -> dict[str, Tensor]:
        whole = self.own.sum(0) + self.kappa
        where = places(self.mask, positions)
        direct, real = [], []
        for own, hook in zip(self.own, hooks.values(), strict=True):
            swap = _Swap(means.get(hook), where, generator if how == "resample" else None)
            logits = answer_logits(model, self.tokens, self.mask, [(hook, swap)])
            real.append(self.judged(logits[:, self.ids].to(whole)))
            direct.append(self.judged(whole - own + self._read(swap.written)))
            done(1)
        error, correct = self.judged(whole)
        return {
            "error": error,
            "correct": correct,
            "direct": torch.stack([errors for errors, _ in direct]),
            "direct_correct": torch.stack([right for _, right in direct]),
            "real": torch.stack([errors for errors, _ in real]),
            "real_correct": torch.stack([right for _, right in real]),
        }

    def judged(
        self, logits: Float[Tensor, "row vocab"]
    ) -> tuple[Float[Tensor, " row"], Bool[Tensor, " row"]]:
        """Error and correctness over each row's own options."""
        errors, right = [], []
        for row, options, gold in zip(logits, self.options, self.gold, strict=True):
            own = row[torch.searchsorted(self.ids, torch.tensor(options))]
            errors.append(LOSSES[self.loss](own.unsqueeze(0), torch.tensor(gold)).error)
            right.append(own.argmax() == gold)
        return torch.stack(errors), torch.stack(right)

    def _read(self, written: Float[Tensor, "row d_model"]) -> Float[Tensor, "row vocab"]:
        vectors = written.to(self.scale.device, torch.promote_types(written.dtype, torch.float32))
        normalised = self.readout.normalise(vectors, self.scale.to(vectors))
        return self.readout.project(normalised, self.ids).to(self.own)


class _Swap:
    """A hook that replaces a component's output, and keeps what it wrote at the answer."""

    def __init__(
        self,
        mean: Tensor | None,
        where: Bool[Tensor, "row pos"],
        generator: torch.Generator | None,
    ) -> None:
        self._mean, self._where, self._generator = mean, where, generator
        self.written: Tensor

    def __call__(self, tensor: Tensor, hook: Any) -> Tensor:
        whole = tensor.expand(*self._where.shape, -1).clone()
        where = self._where.to(tensor.device)
        found = whole[where]
        if self._generator is not None:
            order = torch.randperm(len(found), generator=self._generator)
            whole[where] = found[order.to(tensor.device)]
        elif self._mean is None:
            whole[where] = 0.0
        else:
            whole[where] = self._mean.to(whole)
        self.written = whole[:, -1].clone()
        return whole


def _means(
    model: Any,
    encoded: Encoded,
    batches: list[list[int]],
    hooks: list[str],
    positions: str,
    how: str,
) -> dict[str, Float[Tensor, " d_model"]]:
    if how != "mean":
        return {}
    sums: dict[str, Tensor] = {}
    count = 0
    for batch in batches:
        tokens, mask = left_padded([encoded.prompts[example] for example in batch])
        where = places(mask, positions)
        answer_logits(model, tokens, mask, [(hook, added_to(sums, hook, where)) for hook in hooks])
        count += int(where.sum())
    return {hook: total / count for hook, total in sums.items()}


def _correlated(
    direct: npt.NDArray[np.float64],
    real: npt.NDArray[np.float64],
    draws: npt.NDArray[np.int64],
) -> dict[str, int | float]:
    def ranked(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(stats.rankdata(values, axis=-1), dtype=np.float64)

    means = direct.mean(1), real.mean(1)
    # [repeat, component]
    sampled = direct[:, draws].mean(-1).T, real[:, draws].mean(-1).T
    spread = _rowwise(ranked(sampled[0]), ranked(sampled[1])) if len(draws) else np.array([np.nan])
    low, high = (
        np.nanquantile(spread, [0.025, 0.975]) if np.isfinite(spread).any() else [np.nan] * 2
    )
    return {
        "components": len(direct),
        "spearman": float(_rowwise(ranked(means[0]), ranked(means[1]))),
        "spearman_low": float(low),
        "spearman_high": float(high),
        "pearson": float(_rowwise(*means)),
    }


def _rowwise(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Pearson's correlation along the last axis, NaN where one side does not vary."""
    left = left - left.mean(-1, keepdims=True)
    right = right - right.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.sqrt((left**2).sum(-1) * (right**2).sum(-1))
        return np.asarray((left * right).sum(-1) / size)
