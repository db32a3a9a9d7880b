"""Mutual information of members' outputs with the label, and the terms of Eq. 13."""

from __future__ import annotations

import math
from typing import Any

from lens_diversity.information._estimator import Estimator
from lens_diversity.information._gaussian import GaussianEstimator
from lens_diversity.information._knn import KnnEstimator
from lens_diversity.information._plugin import PluginEstimator
from lens_diversity.information._probe import ProbeEstimator
from lens_diversity.information._sample import Sample, as_sample
from lens_diversity.information._scores import Rows, Scores, label_entropy, total
from lens_diversity.information.estimates import (
    ESTIMATE,
    LOWER_BOUND,
    Estimate,
    InsufficientSampleError,
    Terms,
)

ESTIMATORS: dict[str, type[Estimator]] = {
    "plugin": PluginEstimator,
    "gaussian": GaussianEstimator,
    "knn": KnnEstimator,
    "probe": ProbeEstimator,
}

_CORRELATIONS = ("total_correlation", "conditional_total_correlation")


def mutual_information(
    outputs: Any, labels: Any, estimator: str = "plugin", *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate ``I(U;Y)`` between the members' joint output and the label, in bits.

    Args:
        outputs: Predicted classes [example, component] (integers), or option logits
            [example, component, option] (floats, NaN where a row has fewer options). Rows are
            independent draws.
        labels: [example] integer labels.
        estimator: ``"plugin"``: counts of predicted classes with Miller and Madow's correction;
            ``"gaussian"``: held-out mixture density of class-conditional Gaussians; ``"knn"``:
            nearest neighbours (Ross 2014); ``"probe"``: lower bound ``H(Y) - CE`` of a
            cross-validated logistic regression.
        level: Coverage of the interval.
        seed: Seed of folds and shuffles.

    Returns:
        The estimate with its interval, its kind (an estimate, or a lower bound) and the
        shuffled-label baseline.

    Raises:
        InsufficientSampleError: If the sample cannot support the number of members.
        ValueError: If an argument is out of range or shapes do not fit.
        TypeError: If outputs or labels have a wrong dtype.

    Example:
        >>> import numpy as np
        >>> y = np.tile([0, 1], 500)
        >>> found = mutual_information(y[:, None], y)
        >>> round(found.value, 2), found.low <= 1 <= found.high
        (1.0, True)
    """
    sample = as_sample(outputs, labels)
    fitted = make_estimator(sample, estimator, level, seed)
    if fitted is None:
        return no_information(sample, estimator, level)
    members = list(range(sample.n_members))
    scores = fitted.scores(members)
    baseline = fitted.baseline(members, [len(members)])
    return to_estimate(fitted, scores, baseline[0])


def terms(
    outputs: Any, labels: Any, estimator: str = "plugin", *, level: float = 0.95, seed: int = 0
) -> Terms:
    """Split the information into relevancy and information-theoretic diversity (Eqs. 13, 17, 18).

    ``I(U;Y) = sum_i I(u_i;Y) + CTC(U|Y) - TC(U)``, in bits, with ``TC = sum_i H(u_i) - H(U)``.

    Args:
        outputs: As in [`mutual_information`][lens_diversity.information.mutual_information].
        labels: As there.
        estimator: As there. ``knn`` and ``probe`` have no total correlation.
        level: Coverage of the intervals.
        seed: Seed of folds and shuffles.

    Returns:
        The terms, not clipped. Those the estimator or the sample cannot give are None, with why.

    Raises:
        ValueError: As there, but a sample too small for the joint term is no error here.
        TypeError: As there.

    Example:
        >>> import numpy as np
        >>> u = np.random.default_rng(0).integers(2, size=(2000, 2))
        >>> found = terms(u, u[:, 0] ^ u[:, 1])
        >>> round(found.joint, 1), round(found.relevancy, 1), round(found.diversity, 1)
        (1.0, 0.0, 1.0)
    """
    sample = as_sample(outputs, labels)
    fitted = make_estimator(sample, estimator, level, seed)
    if fitted is None:
        return _no_terms(sample, estimator)
    try:
        joint = fitted.scores(list(range(sample.n_members)))
    except InsufficientSampleError as error:
        return assemble(fitted, fitted.singles(), None, str(error))
    return assemble(fitted, fitted.singles(), joint)


def make_estimator(sample: Sample, name: str, level: float, seed: int) -> Estimator | None:
    """The estimator for a sample, or None where there is one label and so no information."""
    if name not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {tuple(ESTIMATORS)}, got {name!r}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    return ESTIMATORS[name](sample, level, seed) if sample.n_classes > 1 else None


def to_estimate(fitted: Estimator, scores: Scores, baseline: float) -> Estimate:
    """Clip scores to what is possible and describe them."""
    sample = fitted.sample
    entropy, _, upper = label_entropy(sample.labels)
    largest = math.log2(sample.n_classes)
    raw = scores.information.value
    value = min(max(raw, 0.0), largest)
    low, high = scores.interval
    high = upper if scores.is_bound else high
    return Estimate(
        value=value,
        low=min(max(low, 0.0), value),
        high=max(min(high, largest), value),
        raw=raw,
        baseline=baseline,
        kind=scores.kind,
        assumption=fitted.assumption,
        estimator=fitted.name,
        entropy=entropy,
        n_examples=len(sample),
        n_classes=sample.n_classes,
        n_members=sample.n_members,
        level=fitted.level,
    )


def no_information(sample: Sample, estimator: str, level: float) -> Estimate:
    """With one label there is nothing to know."""
    return Estimate(
        value=0.0,
        low=0.0,
        high=0.0,
        raw=0.0,
        baseline=0.0,
        kind=ESTIMATE,
        assumption="one label occurs, so H(Y) = 0 and I = 0",
        estimator=estimator,
        entropy=0.0,
        n_examples=len(sample),
        n_classes=1,
        n_members=sample.n_members,
        level=level,
    )


def correlations(singles: list[Scores], joint: Scores) -> tuple[Rows, Rows] | None:
    """``TC`` and ``CTC`` of members from their own and their joint densities."""
    if joint.marginal is None or joint.conditional is None:
        return None
    marginals = [score.marginal for score in singles if score.marginal is not None]
    conditionals = [score.conditional for score in singles if score.conditional is not None]
    return joint.marginal - total(marginals), joint.conditional - total(conditionals)


def assemble(
    fitted: Estimator, singles: list[Scores], joint: Scores | None, why_no_joint: str = ""
) -> Terms:
    """Put the terms of a set of members together."""
    relevancy = total([score.information for score in singles])
    rows: dict[str, Rows] = {"relevancy": relevancy}
    reasons: dict[str, str] = {}
    if joint is None:
        reasons = dict.fromkeys(("joint", *_CORRELATIONS, "diversity"), why_no_joint)
    else:
        rows |= {"joint": joint.information, "diversity": joint.information - relevancy}
        both = correlations(singles, joint)
        if both is None:
            reasons = dict.fromkeys(_CORRELATIONS, fitted.no_correlations)
        else:
            rows |= dict(zip(_CORRELATIONS, both, strict=True))
    intervals = {name: quantity.interval(fitted.level) for name, quantity in rows.items()}
    if joint is not None:
        intervals["joint"] = joint.interval
    values = {name: quantity.value for name, quantity in rows.items()}
    bounded = any(score.is_bound for score in [*singles, *([] if joint is None else [joint])])
    return Terms(
        entropy=label_entropy(fitted.sample.labels)[0],
        joint=values.get("joint"),
        relevancy=values["relevancy"],
        total_correlation=values.get("total_correlation"),
        conditional_total_correlation=values.get("conditional_total_correlation"),
        diversity=values.get("diversity"),
        member_information=tuple(score.information.value for score in singles),
        estimator=fitted.name,
        kind=LOWER_BOUND if bounded else ESTIMATE,
        intervals=intervals,
        reasons=reasons,
    )


def _no_terms(sample: Sample, estimator: str) -> Terms:
    reason = "one label occurs: the correlations of members alone are not estimated"
    return Terms(
        entropy=0.0,
        joint=0.0,
        relevancy=0.0,
        total_correlation=None,
        conditional_total_correlation=None,
        diversity=0.0,
        member_information=(0.0,) * sample.n_members,
        estimator=estimator,
        kind=ESTIMATE,
        intervals=dict.fromkeys(("joint", "relevancy", "diversity"), (0.0, 0.0)),
        reasons=dict.fromkeys(_CORRELATIONS, reason),
    )
