"""The decompositions written out as the papers print them: loops over plain Python floats.

Nothing here knows of torch, of numerical tricks or of the library: one row of the batch at a time,
``members`` is a list of lists ``[component][vocab]``, ``target`` a list ``[vocab]`` and ``weights``
a list ``[component]``.
"""

import math

import numpy as np


def softmax(row):
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / math.fsum(powers) for power in powers]


def squared_distance(left, right):
    return math.fsum((a - b) ** 2 for a, b in zip(left, right, strict=True)) / len(left)


def kullback_leibler(left, right):
    return math.fsum(
        p * (math.log(p) - math.log(q)) for p, q in zip(left, right, strict=True) if p > 0
    )


def mean_row(rows, weights):
    return [math.fsum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*rows)]


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
    centroid = softmax(mean_row(members, weights))
    return (
        -math.log(centroid[gold]),
        [-math.log(softmax(member)[gold]) for member in members],
        [kullback_leibler(centroid, softmax(member)) for member in members],
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
    logits = [math.fsum(column) for column in zip(*first)]
    return error, math.fsum(bias) / count, math.fsum(diversity) / count, logits


def brown_terms(members, target, weights):
    """Theorem 3 by its definitions, with the covariance of every pair."""
    count = len(members)
    mu = [math.fsum(member) / len(member) for member in members]
    grand = math.fsum(w * x for w, x in zip(weights, mu, strict=True))
    pairs = [(i, k) for i in range(count) for k in range(count)]
    between = {
        (i, k): weights[i] * weights[k] * covariance(members[i], members[k]) for i, k in pairs
    }
    others = [(i, k) for i, k in pairs if i != k]
    mass = math.fsum(weights[i] * weights[k] for i, k in others)
    var_bar = math.fsum(w * covariance(u, u) for w, u in zip(weights, members, strict=True))
    return {
        "bias_bar": grand - math.fsum(target) / len(target),
        "var_bar": var_bar,
        "cov_bar": math.fsum(between[pair] for pair in others) / mass if mass else 0.0,
        "omega": var_bar
        + math.fsum(w * (x - grand) ** 2 for w, x in zip(weights, mu, strict=True)),
        "ensemble_variance": math.fsum(between.values()),
        "target_var": covariance(target, target),
        "target_cov": math.fsum(
            w * covariance(u, target) for w, u in zip(weights, members, strict=True)
        ),
    }


def covariance(left, right):
    """Over the vocabulary, divided by its size."""
    a, b = math.fsum(left) / len(left), math.fsum(right) / len(right)
    return math.fsum((x - a) * (y - b) for x, y in zip(left, right, strict=True)) / len(left)


def over_batch(function, members, target):
    """``function(members, target)`` of every row, gathered into arrays with the batch axes last.

    ``members`` is an array ``[component, batch..., vocab]`` and ``target`` ``[batch..., vocab]``.
    """
    members, target = np.asarray(members, dtype=float), np.asarray(target, dtype=float)
    batch = target.shape[:-1]
    rows = [
        function(members[:, *index].tolist(), target[index].tolist()) for index in np.ndindex(batch)
    ]
    return [
        np.moveaxis(np.asarray(part).reshape(*batch, *np.shape(part[0])), range(len(batch)),
                    range(-len(batch), 0))
        for part in zip(*rows, strict=True)
    ]
