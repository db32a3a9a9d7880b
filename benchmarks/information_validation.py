"""Estimators against known information: the table of docs/information.md.

    python benchmarks/information_validation.py [--draws 1.0] [--estimators plugin gaussian ...]

For every estimator, distribution and sample size: the true information, the mean and bias of the
estimate, its standard deviation, and how often the nominal 95% interval holds the truth. Where the
result is a lower bound (a probe's, one from few rows a coordinate, or that of Gaussians which the
members are not), coverage is one of the lower end. Refused: the sample does not support the
estimate in most draws. Draws of one label only, which can happen with a rare one, are left out.
"""

from __future__ import annotations

import argparse

import numpy as np

from lens_diversity.information import InsufficientSampleError
from lens_diversity.information._sample import as_sample
from lens_diversity.information.estimators import make_estimator, to_estimate
from tests.unit.information.distributions import CONTINUOUS, DISCRETE

DRAWS = {"plugin": 400, "gaussian": 200, "knn": 100, "probe": 40}
SIZES = {
    "plugin": (50, 200, 1000, 4000),
    "gaussian": (100, 400, 2000),
    "knn": (100, 400, 1000),
    "probe": (100, 400, 1000),
}


def validate(estimator: str, distribution, n: int, draws: int, seed: int = 0):
    rng = np.random.default_rng([seed, n])
    found = []
    for _ in range(draws):
        outputs, labels = distribution.draw(rng, n)
        try:
            sample = as_sample(outputs, labels)
            if sample.n_classes == 1:
                continue
            fitted = make_estimator(sample, estimator, 0.95, 0)
            scores = fitted.scores(list(range(outputs.shape[1])))
        except InsufficientSampleError:
            continue
        found.append(to_estimate(fitted, scores, baseline=np.nan))
    if len(found) < draws / 2:
        return None
    raw = np.array([estimate.raw for estimate in found])
    fair = estimator != "gaussian" or distribution.gaussian
    covered = np.mean([e.low <= distribution.truth <= (e.high if fair else np.inf) for e in found])
    width = np.mean([e.high - e.low for e in found])
    return raw, covered, width, found[0].kind if fair else "lower bound (not Gaussian)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=float, default=1.0, help="factor on the number of draws")
    parser.add_argument("--estimators", nargs="+", default=list(DRAWS))
    options = parser.parse_args()
    print("| estimator | distribution | n | true I | mean | bias | sd | coverage | width | kind |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for estimator in options.estimators:
        for name, distribution in (DISCRETE if estimator == "plugin" else CONTINUOUS).items():
            for n in SIZES[estimator]:
                draws = max(2, int(options.draws * DRAWS[estimator]))
                measured = validate(estimator, distribution, n, draws)
                if measured is None:
                    print(
                        f"| {estimator} | {name} | {n} | {distribution.truth:.4f} |"
                        + " |" * 5
                        + " refused |"
                    )
                    continue
                raw, covered, width, kind = measured
                print(
                    f"| {estimator} | {name} | {n} | {distribution.truth:.4f} | {raw.mean():.4f} | "
                    f"{raw.mean() - distribution.truth:+.4f} | {raw.std():.4f} | {covered:.3f} | "
                    f"{width:.3f} | {kind} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
