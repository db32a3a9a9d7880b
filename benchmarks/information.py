"""Time the information curves at the size of a large run.

    python benchmarks/information.py [--examples 2000] [--components 81] [--options 4]

Network order, greedy order and random orders, each with its shuffled-label baseline. `gaussian` and
`knn` are also compared with scikit-learn's estimators of one member's information.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from lens_diversity import information


def members(n_examples: int, n_components: int, n_options: int, seed: int = 0):
    """Logits that share a stream, as those of a network do, with a signal that grows with depth."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_options, size=n_examples)
    shared = rng.standard_normal((n_examples, 1, n_options))
    signal = np.eye(n_options)[labels][:, None] * np.linspace(0, 0.4, n_components)[:, None]
    noise = rng.standard_normal((n_examples, n_components, n_options))
    return (0.5 * shared + signal + noise).astype(np.float32), labels


def time_curves(logits, labels, repeats: int) -> None:
    print(
        f"{'estimator':10s} {'order':8s} {'seconds':>8s} {'CPU':>8s} {'sizes':>6s} "
        f"{'last I':>8s} {'baseline':>9s}"
    )
    for estimator in ("plugin", "gaussian", "knn", "probe"):
        total = 0.0
        for order in ("network", "greedy", "random"):
            start, busy = time.perf_counter(), time.process_time()
            found = information.curve(logits, labels, order, estimator, repeats=repeats)
            seconds = time.perf_counter() - start
            busy = time.process_time() - busy
            total += seconds
            last = found.table[["information", "baseline"]]
            values = [f"{v:8.3f}" for v in last.iloc[-1]] if len(last) else ["stopped"]
            sizes = found.table["size"].nunique()
            print(
                f"{estimator:10s} {order:8s} {seconds:8.1f} {busy:8.1f} {sizes:6d} "
                + " ".join(values),
                flush=True,
            )
        print(f"{estimator:10s} {'all':8s} {total:8.1f}", flush=True)


def compare(logits, labels) -> None:
    from sklearn.feature_selection import mutual_info_classif

    last = logits[:, -4:, :1]
    own = {
        name: [information.mutual_information(last[:, [i]], labels, name).value for i in range(4)]
        for name in ("gaussian", "knn", "probe")
    }
    own["scikit-learn (Ross, k = 3)"] = list(
        mutual_info_classif(last[:, :, 0], labels, n_neighbors=3, random_state=0) / np.log(2)
    )
    print("\nI of one coordinate of the last four members, bits")
    for name, values in own.items():
        print(f"{name:28s} " + " ".join(f"{value:7.4f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--components", type=int, default=81)
    parser.add_argument("--options", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    logits, labels = members(arguments.examples, arguments.components, arguments.options)
    time_curves(logits, labels, arguments.repeats)
    compare(logits, labels)


if __name__ == "__main__":
    main()
