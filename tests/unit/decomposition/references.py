"""The decompositions written out as the papers print them: loops over plain Python floats.

Nothing here knows of torch, of numerical tricks or of the library: one row of the batch at a time,
``members`` is a list of lists ``[component][vocab]``, ``target`` a list ``[vocab]`` and ``weights``
a list ``[component]``.
"""

import math

import numpy as np


def log_softmax(row):
    top = max(row)
    total = top + math.log(math.fsum(math.exp(value - top) for value in row))
    return [value - total for value in row]


def softmax(row):
    return [math.exp(value) for value in log_softmax(row)]


def mean(values):
    return math.fsum(values) / len(values)


def weighted(weights, values):
    return math.fsum(w * x for w, x in zip(weights, values, strict=True))


def squared_distance(left, right):
    return mean([(a - b) ** 2 for a, b in zip(left, right, strict=True)])


def kullback_leibler(left, right):
    """From logits."""
    logs = zip(log_softmax(left), log_softmax(right), strict=True)
    return math.fsum(math.exp(p) * (p - q) for p, q in logs)


def mean_row(rows, weights):
    return [weighted(weights, column) for column in zip(*rows, strict=True)]


def squared_terms(members, target, weights):
    centroid = mean_row(members, weights)
    return (
        squared_distance(target, centroid),
        [squared_distance(target, member) for member in members],
        [squared_distance(centroid, member) for member in members],
    )


def paper_terms(members, target, weights):
    centroid = mean_row(members, weights)
    return (
        squared_distance(target, softmax(centroid)),
        [squared_distance(target, softmax(member)) for member in members],
        [squared_distance(centroid, member) for member in members],
    )


def brier_terms(members, target, weights):
    return squared_terms([softmax(member) for member in members], target, weights)


def cross_entropy_terms(members, target, weights):
    gold = target.index(1.0)
    centroid = mean_row(members, weights)
    return (
        -log_softmax(centroid)[gold],
        [-log_softmax(member)[gold] for member in members],
        [kullback_leibler(centroid, member) for member in members],
    )


TERMS = {
    "squared": squared_terms,
    "paper": paper_terms,
    "brier": brier_terms,
    "cross_entropy": cross_entropy_terms,
}


def combined(members, weights, combine):
    if combine == "mean":
        return members
    return [[x / w for x in member] for member, w in zip(members, weights, strict=True)]


def error_without(members, target, weights, loss, combine, constant, index):
    """The error after deleting one member; with "sum" each combined member carries the constant."""
    kept = [member for i, member in enumerate(members) if i != index]
    share = [w for i, w in enumerate(weights) if i != index]
    share = [w / math.fsum(share) for w in share]
    kept = [
        [x + c for x, c in zip(member, constant, strict=True)]
        for member in combined(kept, share, combine)
    ]
    return TERMS[loss](kept, target, share)[0]


def junction_terms(members, target, loss, combine, constant, factor, count):
    """Error, bias, diversity and logits of the first ``count`` members, scaled by ``factor``."""
    share = [1 / count] * count
    first = [
        [factor * x + c / count for x, c in zip(member, constant, strict=True)]
        for member in members[:count]
    ]
    error, bias, diversity = TERMS[loss](combined(first, share, combine), target, share)
    logits = [math.fsum(column) for column in zip(*first, strict=True)]
    return error, mean(bias), mean(diversity), logits


def brown_terms(members, target, weights):
    """Theorem 3 by its definitions, with the covariance of every pair; named by ``BROWN``."""
    members_of = range(len(members))
    mu = [mean(member) for member in members]
    grand = weighted(weights, mu)
    share = {(i, k): weights[i] * weights[k] for i in members_of for k in members_of}
    cov = {(i, k): covariance(members[i], members[k]) for i, k in share}
    mass = math.fsum(w for (i, k), w in share.items() if i != k)
    across = math.fsum(w * cov[i, k] for (i, k), w in share.items() if i != k)
    var_bar = weighted(weights, [cov[i, i] for i in members_of])
    return (
        grand - mean(target),
        var_bar,
        across / mass if mass else 0.0,
        var_bar + weighted(weights, [(x - grand) ** 2 for x in mu]),
        math.fsum(w * cov[pair] for pair, w in share.items()),
        covariance(target, target),
        weighted(weights, [covariance(member, target) for member in members]),
    )


BROWN = (
    "bias_bar",
    "var_bar",
    "cov_bar",
    "omega",
    "ensemble_variance",
    "target_var",
    "target_cov",
)


def covariance(left, right):
    """Over the vocabulary, divided by its size."""
    a, b = mean(left), mean(right)
    return mean([(x - a) * (y - b) for x, y in zip(left, right, strict=True)])


def over_batch(function, members, target):
    """``function(members, target)`` of every row, gathered into arrays with the batch axes last.

    ``members`` is an array ``[component, batch..., vocab]`` and ``target`` ``[batch..., vocab]``.
    """
    members, target = np.asarray(members, dtype=float), np.asarray(target, dtype=float)
    batch = target.shape[:-1]
    rows = [function(members[:, *at].tolist(), target[at].tolist()) for at in np.ndindex(batch)]
    return [_batch_last(np.asarray(part), batch) for part in zip(*rows, strict=True)]


def _batch_last(rows, batch):
    """``[row, ...]`` to ``[..., batch...]``."""
    return np.moveaxis(rows, 0, -1).reshape((*rows.shape[1:], *batch))
