"""Gradient boosting with histograms: regression trees for hgemm/model/trees.py, grown by the largest gain first."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from hgemm.model.trees import LEAF, ONE, Node, Tree

TREES, LEAVES, RATE = 40, 64, 0.15
BINS = 64
PULL, LEAST_WEIGHT = 15.0, 15.0
"""A leaf's mean is that of its launches and of PULL launches without an error. A leaf has launches of LEAST_WEIGHT at least."""


@dataclass(frozen=True)
class _Split:
    gain: float
    feature: int
    place: int


def boosted(features: np.ndarray, errors: np.ndarray, weights: np.ndarray, trees: int = TREES) -> list[Tree]:
    """Return trees whose sum is about `errors`. Shapes: features (launch, feature) of int; errors and weights (launch,)."""
    bounds = [_bounds(column) for column in features.T]
    codes = np.stack([np.searchsorted(its, column) for its, column in zip(bounds, features.T)], axis=1)
    codes = codes + BINS * np.arange(features.shape[1])
    left, found = np.array(errors, float), []
    for _ in range(trees):
        tree, predicted = _grown(codes, bounds, left, weights)
        found.append(tree)
        left = left - predicted
    return found


def _bounds(column: np.ndarray) -> np.ndarray:
    """Return values at which a feature may be split: all but the largest, or BINS - 1 quantiles."""
    values = np.unique(column)
    if len(values) > BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:], method="lower"))
    return values[:-1]


def _grown(
    codes: np.ndarray, bounds: list[np.ndarray], errors: np.ndarray, weights: np.ndarray
) -> tuple[Tree, np.ndarray]:
    """Return a tree with LEAVES leaves, and its values. Shapes: (launch,)."""
    weighted, count = weights * errors, codes.shape[1]

    def histograms(launches: np.ndarray) -> np.ndarray:
        """Return sums of weights and of weighted errors by bin. Shapes: (2, feature, BINS)."""
        its = codes[launches].ravel()
        sums = [
            np.bincount(its, np.repeat(one[launches], count), count * BINS).reshape(count, BINS)
            for one in (weights, weighted)
        ]
        return np.stack(sums)

    def best_split(sums: np.ndarray) -> _Split:
        below = sums.cumsum(axis=2)
        total = below[:, :, -1:]
        above = total - below
        gains = sum(part[1] ** 2 / (part[0] + PULL) for part in (below, above)) - total[1] ** 2 / (total[0] + PULL)
        gains = np.where(np.minimum(below[0], above[0]) >= LEAST_WEIGHT, gains, -np.inf)
        feature, place = np.unravel_index(int(gains.argmax()), gains.shape)
        return _Split(float(gains[feature, place]), int(feature), int(place))

    launches_of = {0: np.arange(len(codes))}
    sums_of = {0: histograms(launches_of[0])}
    splits, children = {0: best_split(sums_of[0])}, {}
    waiting = [(-splits[0].gain, 0)]
    while waiting and len(children) < LEAVES - 1:
        gain, node = heapq.heappop(waiting)
        if not gain < 0 or np.isinf(gain):
            break
        split, launches = splits[node], launches_of.pop(node)
        is_left = codes[launches, split.feature] <= BINS * split.feature + split.place
        both = launches[is_left], launches[~is_left]
        names = 2 * len(children) + 1, 2 * len(children) + 2
        few = int(len(both[0]) > len(both[1]))
        sums_of[names[few]] = histograms(both[few])
        sums_of[names[1 - few]] = sums_of.pop(node) - sums_of[names[few]]
        children[node] = names
        for name, part in zip(names, both):
            launches_of[name], splits[name] = part, best_split(sums_of[name])
            heapq.heappush(waiting, (-splits[name].gain, name))
    predicted, values = np.zeros(len(codes)), {}
    for node, launches in launches_of.items():
        weight, error = sums_of[node][:, 0].sum(axis=1)
        values[node] = round(ONE * RATE * error / (weight + PULL))
        predicted[launches] = values[node] / ONE

    def nodes(node: int) -> list[Node]:
        if node not in children:
            return [(LEAF, values[node], 0)]
        left, right = map(nodes, children[node])
        split = splits[node]
        return [(split.feature, int(bounds[split.feature][split.place]), len(left) + 1), *left, *right]

    return tuple(nodes(0)), predicted
