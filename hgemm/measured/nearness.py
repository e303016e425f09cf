"""How near problems are, and what the measured ones near a problem say of the estimates there.

Octaves are whole numbers, sixteenths of a power of 2, that templates/capi/src/select.c counts in the same way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

Point = tuple[int, int, int, int]
"""Octaves of m, n, k and batch."""
STEP_BITS = 4
ROWS_WEIGHT = 2
"""m, and the batch with it, decides more than n and k. Source: cross-validation, benchmarks/dispatch_check.py."""
WIDTH = 3 << STEP_BITS - 1
"""At this distance a measured problem says exp(-1) of what one at the very place says, and so on. Source: the same."""
DOUBT = 0.6
"""The weight of the estimate itself beside what was measured: a problem at the very place has 1. Source: the same."""
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


class Nearby(Generic[Row]):
    """What was measured at some points, which says at any other by what estimates are to be multiplied there.

    `ratios` are the times of rows over their estimates, at each of the points; a median is taken out, since only what rows
    are to one another matters.
    """

    def __init__(self, points: Sequence[Point], ratios: Sequence[Mapping[Row, float]]) -> None:
        self._points = points
        self._logs = [centred(of_point) for of_point in ratios]

    def factors(self, at: Point) -> dict[Row, int]:
        """Return by what each measured row's estimate is to be multiplied at a point, in their order; the others' stay as they are.

        What a problem says fades with its distance: a row of which all is far has the factor ONE, nearly.
        """
        sums: dict[Row, list[float]] = {}
        for other, logs in zip(self._points, self._logs, strict=True):
            weight = math.exp(-distance(at, other) / WIDTH)
            for row, value in logs.items():
                total = sums.setdefault(row, [0.0, 0.0])
                total[0] += weight
                total[1] += weight * value
        return {
            row: min(max(round(ONE * math.exp(value / (weight + DOUBT))), LEAST), MOST)
            for row, (weight, value) in sorted(sums.items())
        }


def centred(ratios: Mapping[Row, float]) -> dict[Row, float]:
    """Return the logarithms of ratios, their median taken out."""
    logs = {row: math.log(ratio) for row, ratio in ratios.items()}
    middle = statistics.median(logs.values()) if logs else 0.0
    return {row: value - middle for row, value in logs.items()}
