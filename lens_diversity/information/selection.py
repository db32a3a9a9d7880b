"""The most informative components of a run, and what the network is worth with them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lens_diversity.information._sample import Sample
from lens_diversity.information.curves import halves
from lens_diversity.information.estimates import InsufficientSampleError
from lens_diversity.information.estimators import make_estimator
from lens_diversity.information.runs import run_sample

if TYPE_CHECKING:
    from lens_diversity.evaluation import Run


@dataclass(frozen=True)
class Selection:
    """Components by the information they add, with accuracies on rows the choice did not see."""

    components: tuple[int, ...]
    """Indices of the chosen components, the most informative first."""
    labels: tuple[str, ...]
    """Their names."""
    accuracies: tuple[float, ...]
    """Accuracy with the first 1, 2, ..., k of them kept: the argmax of their option logits plus
    the constant (their direct effect; other components still fed them)."""
    network_accuracy: float
    """Accuracy of the whole network on the same rows."""
    majority_accuracy: float
    """Accuracy of the most frequent label of the rows of the choice, on the same rows."""
    chosen_on: tuple[int, ...]
    """Examples the components were chosen by."""
    checked_on: tuple[int, ...]
    """Examples of the accuracies."""
    estimator: str
    """Name of the estimator."""

    @property
    def accuracy(self) -> float:
        """Accuracy with all chosen components kept."""
        return self.accuracies[-1]


def select_components(
    run: Run, k: int, estimator: str = "gaussian", *, gauge: str = "model", seed: int = 0
) -> Selection:
    """Choose the ``k`` components that together say most about the label, greedily.

    Each is the one that adds most to ``I(U;Y)`` given those chosen before. Half of the examples
    decide and the other half give the accuracies, since the best of many estimates is too good
    on the examples it was chosen by. The greedy set is within ``1 - 1/e`` of the best where ``I``
    is submodular (Nemhauser et al. 1978; Theorem 7's condition), and carries no promise elsewhere.

    Args:
        run: From [`evaluate`][lens_diversity.evaluate].
        k: How many components to keep.
        estimator: As in [`mutual_information`][lens_diversity.information.mutual_information].
        gauge: As in [`of_run`][lens_diversity.information.of_run].
        seed: Seed of the halves.

    Returns:
        The components, and the accuracies with only those kept. What remains in a real forward
        pass is another question: see
        [`mean_ablation`][lens_diversity.information.mean_ablation].

    Raises:
        ValueError: If ``k`` is out of range or labels take one value only.
        InsufficientSampleError: If the examples support fewer components with this estimator.

    Example:
        >>> import lens_diversity as ld
        >>> run = ld.load_run("results/")  # doctest: +SKIP
        >>> select_components(run, 5).labels  # doctest: +SKIP
    """
    count = len(run.labels)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= count:
        raise ValueError(f"k must be a whole number from 1 to {count}, got {k!r}")
    sample, examples, _ = run_sample(run, estimator, gauge)
    if sample.n_classes == 1:
        raise ValueError("one label occurs in the run, so no component is informative")
    choice, check = halves(sample, seed)
    chosen = _greedy(sample.rows(choice), estimator, k, seed)
    chosen_on, checked_on = examples[choice], examples[check]
    constant = run.constant[checked_on].double()
    written = run.option_logits[checked_on].double() - constant.unsqueeze(1) / count
    sums = constant.unsqueeze(1) + written[:, chosen].cumsum(1)
    gold = run.gold[checked_on]
    hits = sums.nan_to_num(nan=-torch.inf).argmax(-1) == gold.unsqueeze(1)
    majority = run.gold[chosen_on].bincount().argmax()
    return Selection(
        components=tuple(chosen),
        labels=tuple(run.labels[component] for component in chosen),
        accuracies=tuple(hits.double().mean(0).tolist()),
        network_accuracy=float((run.predictions[checked_on] == gold).double().mean()),
        majority_accuracy=float((gold == majority).double().mean()),
        chosen_on=tuple(chosen_on.tolist()),
        checked_on=tuple(checked_on.tolist()),
        estimator=estimator,
    )


def _greedy(sample: Sample, estimator: str, k: int, seed: int) -> list[int]:
    fitted = make_estimator(sample, estimator, 0.95, seed)
    assert fitted is not None
    chosen = fitted.greedy(k)
    if len(chosen) < k:
        raise InsufficientSampleError(
            f'estimator="{estimator}" supports a choice of {len(chosen)} components with '
            f'{len(sample)} examples, {k} were asked for; "gaussian" and "probe" have no such limit'
        )
    return chosen
