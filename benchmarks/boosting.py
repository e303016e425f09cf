"""Gradient boosting with histograms: regression trees for hgemm/model/trees.py, grown by the largest gain first.

Trees learn two things: the errors of estimates, and which launch of a problem is fast. The second is the expected loss if a launch
is chosen at random, by its estimate: faster ones more often. It concerns the launches that compete for the first place.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from hgemm.model.trees import LEAF, ONE, Node, Tree

TREES, LEAVES, DEPTH, RATE = 80, 96, 10, 0.12
BINS = 64
PULL, LEAST_WEIGHT = 15.0, 15.0
"""A leaf's mean is that of its launches and of PULL launches without an error. A leaf has launches of LEAST_WEIGHT at least."""
LOSS_PART, CHOICE_SPREAD, LARGEST_LOSS = 0.3, 0.015, 0.4
"""Weight of the expected loss beside that of squared errors; a launch whose estimate is lower by this part is chosen e times as
often; larger losses count as this one. Source: cross-validation; docs/performance-notes.md, "Selection and tuning"."""


@dataclass(frozen=True)
class Examples:
    """Launches that trees learn from. Shapes: `features` (launch, feature) of int; all others (launch,).

    `errors` are logarithms of times over estimates, relative to those of their problem. `problems` number the problems from 0 on.
    Times and estimates may have any unit. `weights` are those of errors, `counts` those of a problem's expected loss.
    """

    features: np.ndarray
    errors: np.ndarray
    weights: np.ndarray
    problems: np.ndarray
    counts: np.ndarray
    times: np.ndarray
    estimates: np.ndarray

    def slopes(self, changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the directions in which the logarithms of estimates should change, and curvatures. Shapes: (launch,) each.

        The second derivatives of the expected loss may be negative. Positive numbers that limit the steps replace them.
        """
        logs, count = np.log(self.estimates) + changes, int(self.problems.max(initial=-1)) + 1
        lowest, fastest = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(lowest, self.problems, logs)
        np.minimum.at(fastest, self.problems, self.times)
        chances = np.exp((lowest[self.problems] - logs) / CHOICE_SPREAD)
        chances = chances / np.bincount(self.problems, chances, count)[self.problems]
        losses = np.minimum(np.log(self.times / fastest[self.problems]), LARGEST_LOSS)
        excess = losses - np.bincount(self.problems, chances * losses, count)[self.problems]
        part = LOSS_PART * self.counts * chances
        return (
            self.weights * (self.errors - changes) + part * excess / CHOICE_SPREAD,
            self.weights + part * (1 - chances),
        )


@dataclass(frozen=True)
class _Split:
    gain: float
    feature: int
    place: int


def boosted(examples: Examples, trees: int = TREES) -> list[Tree]:
    """Return trees whose sum is about `errors`, and whose choice among the launches of a problem loses little."""
    features, found = examples.features, []
    bounds = [_bounds(column) for column in features.T]
    codes = np.stack([np.searchsorted(its, column) for its, column in zip(bounds, features.T)], axis=1)
    codes = codes + BINS * np.arange(features.shape[1])
    changes = np.zeros(len(features))
    for _ in range(trees):
        tree, predicted = _grown(codes, bounds, *examples.slopes(changes))
        found.append(tree)
        changes = changes + predicted
    return found


def _bounds(column: np.ndarray) -> np.ndarray:
    """Return values at which a feature may be split: all but the largest, or BINS - 1 quantiles."""
    values = np.unique(column)
    if len(values) > BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:], method="lower"))
    return values[:-1]


def _grown(
    codes: np.ndarray, bounds: list[np.ndarray], slopes: np.ndarray, curvatures: np.ndarray
) -> tuple[Tree, np.ndarray]:
    """Return a tree with LEAVES leaves, and its values. Shapes: (launch,)."""
    count = codes.shape[1]

    def histograms(launches: np.ndarray) -> np.ndarray:
        """Return sums of curvatures and of slopes by bin. Shapes: (2, feature, BINS)."""
        its = codes[launches].ravel()
        sums = [
            np.bincount(its, np.repeat(one[launches], count), count * BINS).reshape(count, BINS)
            for one in (curvatures, slopes)
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
    splits, children, depths = {0: best_split(sums_of[0])}, {}, {0: 0}
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
            launches_of[name], splits[name], depths[name] = part, best_split(sums_of[name]), depths[node] + 1
            if depths[name] < DEPTH:
                heapq.heappush(waiting, (-splits[name].gain, name))
    predicted, values = np.zeros(len(codes)), {}
    for node, launches in launches_of.items():
        curvature, slope = sums_of[node][:, 0].sum(axis=1)
        values[node] = round(ONE * RATE * slope / (curvature + PULL))
        predicted[launches] = values[node] / ONE

    def nodes(node: int) -> list[Node]:
        if node not in children:
            return [(LEAF, values[node], 0)]
        left, right = map(nodes, children[node])
        split = splits[node]
        return [(split.feature, int(bounds[split.feature][split.place]), len(left) + 1), *left, *right]

    return tuple(nodes(0)), predicted
