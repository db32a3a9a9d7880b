"""Our estimators beside the field's packages, on distributions whose information is known.

    pip install frites infomeasure
    python -m benchmarks.information_packages [--rows 400] [--draws 30]

Mean and standard deviation over draws, in bits, and the root mean square error over all
distributions an estimator can read. Packages that are not installed are left out by name; none of
them is a dependency. An empty cell: the estimator cannot read such members.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable

import numpy as np
from sklearn.feature_selection import mutual_info_classif

from lens_diversity import information
from tests.unit.information.distributions import CONTINUOUS, DISCRETE, Distribution

Estimator = Callable[[np.ndarray, np.ndarray], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--draws", type=int, default=30)
    options = parser.parse_args()
    compare("continuous", CONTINUOUS, continuous_estimators(), options)
    compare("discrete", DISCRETE, discrete_estimators(), options)


def compare(
    kind: str,
    distributions: dict[str, Distribution],
    estimators: dict[str, Estimator],
    options: argparse.Namespace,
) -> None:
    print(f"\n| {kind}, n = {options.rows} | true I | {' | '.join(estimators)} |")
    print("|---" * (2 + len(estimators)) + "|")
    squares: dict[str, list[float]] = {name: [] for name in estimators}
    for name, distribution in distributions.items():
        rng = np.random.default_rng(0)
        draws = [distribution.draw(rng, options.rows) for _ in range(options.draws)]
        cells = []
        for estimator, estimate in estimators.items():
            found = np.array([estimate(*draw) for draw in draws])
            squares[estimator].append(float(np.mean((found - distribution.truth) ** 2)))
            cells.append("" if np.isnan(found).any() else f"{found.mean():.3f} ({found.std():.3f})")
        print(f"| {name} | {distribution.truth:.3f} | {' | '.join(cells)} |", flush=True)
    errors = [f"{np.nanmean(values) ** 0.5:.3f}" for values in squares.values()]
    print(f"| root mean square error | | {' | '.join(errors)} |")


def own(estimator: str) -> Estimator:
    def estimate(outputs: np.ndarray, labels: np.ndarray) -> float:
        try:
            return information.mutual_information(outputs, labels, estimator).raw
        except information.InsufficientSampleError:
            return np.nan

    return estimate


def continuous_estimators() -> dict[str, Estimator]:
    found = {name: own(name) for name in ("gaussian", "knn", "probe")}
    found["scikit-learn (Ross)"] = one_coordinate(
        lambda column, labels: mutual_info_classif(column, labels, random_state=0)[0] / np.log(2)
    )
    if installed("frites"):
        from frites.core.gcmi_1d import gcmi_model_1d_cd

        def gaussian_copula(outputs: np.ndarray, labels: np.ndarray) -> float:
            try:
                return float(gcmi_model_1d_cd(coordinates(outputs).T, labels))
            except np.linalg.LinAlgError:  # equal members
                return np.nan

        found["frites gcmi_model_1d_cd"] = gaussian_copula
    return found


def discrete_estimators() -> dict[str, Estimator]:
    found = {"plugin": own("plugin")}
    if installed("infomeasure"):
        import infomeasure

        for approach in ("discrete", "miller_madow", "chao_shen", "shrink"):
            found[f"infomeasure {approach}"] = lambda u, y, approach=approach: float(
                infomeasure.mutual_information(joint(u), y, approach=approach, base=2)
            )
    return found


def one_coordinate(estimate: Estimator) -> Estimator:
    """An estimator that reads one column only."""

    def where_possible(outputs: np.ndarray, labels: np.ndarray) -> float:
        columns = coordinates(outputs)
        return estimate(columns, labels) if columns.shape[1] == 1 else np.nan

    return where_possible


def coordinates(outputs: np.ndarray) -> np.ndarray:
    return outputs.reshape(len(outputs), -1)


def joint(outputs: np.ndarray) -> np.ndarray:
    """One symbol for each joint outcome."""
    return np.unique(outputs, axis=0, return_inverse=True)[1].ravel()


def installed(package: str) -> bool:
    if importlib.util.find_spec(package) is not None:
        return True
    print(f"left out: {package} is not installed")
    return False


if __name__ == "__main__":
    main()
