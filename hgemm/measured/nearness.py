"""How near problems are, and what the measured ones near a problem say of the estimates there.

Octaves are whole numbers, sixteenths of a power of 2, that templates/c/src/select.c counts in the same way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

Point = tuple[int, int, int, int]
"""Octaves of m, n, k and batch."""
STEP_BITS = 4
ROWS_WEIGHT = 2
"""m, and the batch with it, decides more than n and k. Source: cross-validation, benchmarks/dispatch_check.py."""
WIDTH = 3 << STEP_BITS
"""At this distance a measured problem says exp(-1/2) of what one at the very place says. Source: the same."""
DOUBT = 0.3
"""The weight of the estimate itself beside what was measured: a problem at the very place has 1. Source: the same."""
NEIGHBOURS = 8
ONE = 1 << 12
"""A factor of 1: so many of an estimate's parts."""
LEAST, MOST = ONE >> 3, ONE << 3


def octaves(extent: int) -> int:
    """Return the sixteenths of an octave from 1 to an extent, by a straight line between powers of 2."""
    place = extent.bit_length() - 1
    return place << STEP_BITS | (extent << STEP_BITS >> place) & (1 << STEP_BITS) - 1


def point(m: int, n: int, k: int, batch: int) -> Point:
    """Return where a problem lies; k may be 0, which is taken for 1."""
    return octaves(m), octaves(n), octaves(max(k, 1)), octaves(batch)


def distance(one: Point, other: Point) -> int:
    """Return how far two problems are from one another."""
    rows = abs(one[0] - other[0]) + abs(one[3] - other[3])
    return ROWS_WEIGHT * rows + abs(one[1] - other[1]) + abs(one[2] - other[2])


Row = TypeVar("Row")
"""What names a row: its place in a table, or its symbol."""


def factors(points: Sequence[Point], ratios: Sequence[Mapping[Row, float]]) -> list[dict[Row, int]]:
    """Return the factors at each of the points (see `factors_at`)."""
    logs = [_centred(of_point) for of_point in ratios]
    return [_factors(at, points, logs) for at in points]


def factors_at(at: Point, points: Sequence[Point], ratios: Sequence[Mapping[Row, float]]) -> dict[Row, int]:
    """Return by what each row's estimate is to be multiplied at a point, for the rows measured at or near it, in their order.

    `ratios` are the times of rows over their estimates, at each of the points; a median is taken out, since only what rows
    are to one another matters. Near points are weighted by a bell curve of their distance.
    """
    nearest = _nearest(at, points)
    return _factors(at, [points[place] for place in nearest], [_centred(ratios[place]) for place in nearest])


def _centred(ratios: Mapping[Row, float]) -> dict[Row, float]:
    logs = {row: math.log(ratio) for row, ratio in ratios.items()}
    middle = statistics.median(logs.values()) if logs else 0.0
    return {row: value - middle for row, value in logs.items()}


def _nearest(at: Point, points: Sequence[Point]) -> list[int]:
    return sorted(range(len(points)), key=lambda place: distance(at, points[place]))[:NEIGHBOURS]


def _factors(at: Point, points: Sequence[Point], logs: Sequence[Mapping[Row, float]]) -> dict[Row, int]:
    sums: dict[Row, list[float]] = {}
    for place in _nearest(at, points):
        weight = max(math.exp(-((distance(at, points[place]) / WIDTH) ** 2) / 2), 1e-9)
        for row, value in logs[place].items():
            total = sums.setdefault(row, [0.0, 0.0])
            total[0] += weight
            total[1] += weight * value
    return {
        row: min(max(round(ONE * math.exp(value / (weight + DOUBT))), LEAST), MOST)
        for row, (weight, value) in sorted(sums.items())
    }
