"""Problems on a logarithmic grid: their distance, the corrections that measurements nearby suggest, and regions.

A problem is a point (m, n, k, batch) in sixteenths of an octave. All coordinates are whole numbers. The exported C library
computes regions in the same way (templates/capi/src/select.c).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

Point = tuple[int, int, int, int]
"""Coordinates of m, n, k and batch. Units: sixteenths of an octave."""
STEP_BITS = 4
_FRACTION = (1 << STEP_BITS) - 1


def octaves(extent: int) -> int:
    """Return log2 of an extent in sixteenths, interpolated linearly between powers of 2."""
    power = extent.bit_length() - 1
    return power << STEP_BITS | (extent << STEP_BITS >> power) & _FRACTION


def _extent(octaves: int) -> int:
    """Return the extent at a coordinate: the inverse of `octaves`."""
    power, rest = octaves >> STEP_BITS, octaves & _FRACTION
    return (1 << power) + (rest << power >> STEP_BITS)


def extents_between(first: int, last: int, per_octave: int = 8) -> list[int]:
    """Return extents in both directions of a logarithmic grid, with both ends, in ascending order."""
    steps = range(octaves(first), octaves(last), (1 << STEP_BITS) // per_octave)
    return sorted({first, last, *map(_extent, steps)})


def point(m: int, n: int, k: int, batch: int) -> Point:
    """Return the coordinates of a problem. A k of 0 counts as 1."""
    return octaves(m), octaves(n), octaves(max(k, 1)), octaves(batch)


# ==== Distance ====

ROWS_WEIGHT = 2
"""m and batch matter more than n and k. Source: cross-validation, benchmarks/selection.py."""


def distance(one: Point, other: Point) -> int:
    """Return the weighted L1 distance of two problems. m and batch together count as rows."""
    rows = abs(one[0] - other[0]) + abs(one[3] - other[3])
    return ROWS_WEIGHT * rows + abs(one[1] - other[1]) + abs(one[2] - other[2])


# ==== Corrections of estimated times by measurements nearby ====

DECAY_DISTANCE = 3 << STEP_BITS - 1
"""A measurement at this distance has the weight exp(-1). Source: cross-validation, benchmarks/selection.py."""
ESTIMATE_WEIGHT = 0.6
"""The weight of the uncorrected estimate. A measurement at distance 0 has 1. Source: cross-validation, as above."""
FACTOR_ONE = 1 << 12
"""Correction factors are fixed-point numbers. This is 1.0."""
MIN_FACTOR, MAX_FACTOR = FACTOR_ONE >> 3, FACTOR_ONE << 3

Name = TypeVar("Name")
"""What names a variant: its row in a dispatch table, or its symbol."""


class Corrections(Generic[Name]):
    """Correction factors of estimated times, interpolated from measured problems.

    `ratios` holds, for each of `points`, the measured over the estimated time of each variant. The median of each point is
    divided out: only the order of variants matters.
    """

    def __init__(self, points: Sequence[Point], ratios: Sequence[Mapping[Name, float]]) -> None:
        self._points = points
        self._logs = [centered_logs(of_point) for of_point in ratios]

    def factors(self, at: Point) -> dict[Name, int]:
        """Return the factor of each measured variant at a point. Units: FACTOR_ONE is 1.0.

        A measurement's weight falls with its distance. Far from all measurements a factor is nearly FACTOR_ONE.
        """
        totals: dict[Name, list[float]] = {}
        for other, logs in zip(self._points, self._logs, strict=True):
            weight = math.exp(-distance(at, other) / DECAY_DISTANCE)
            for name, value in logs.items():
                total = totals.setdefault(name, [0.0, 0.0])
                total[0] += weight
                total[1] += weight * value
        return {
            name: min(max(round(FACTOR_ONE * math.exp(value / (weight + ESTIMATE_WEIGHT))), MIN_FACTOR), MAX_FACTOR)
            for name, (weight, value) in sorted(totals.items())
        }


def centered_logs(ratios: Mapping[Name, float]) -> dict[Name, float]:
    """Return the logarithms of ratios minus their median."""
    logs = {name: math.log(ratio) for name, ratio in ratios.items()}
    middle = statistics.median(logs.values()) if logs else 0.0
    return {name: value - middle for name, value in logs.items()}


# ==== Regions: cells of half an octave, each with a shortlist of variants ====

STEP = 1 << STEP_BITS - 1
"""The edge of a region: half an octave."""
REGION_MIN, REGION_COUNTS = (0, 16, 16), (28, 15, 14)
"""First half octave and number of cells along rows (m * batch), n and k.

Rows range from 1 to 2^13.5, n from 2^8 to 2^15, k from 2^8 to 2^14.5.
"""
ALIGNED_REGIONS = math.prod(REGION_COUNTS)
"""Regions of problems whose rows begin on 32-byte sectors. As many regions of the other problems follow."""
REGIONS = 2 * ALIGNED_REGIONS
EXTENT_UNIT = 64
"""n and k of sampled problems are multiples of this, so that every alignment is met."""
CORRECTED_LIMIT = 2**46
"""Estimates are capped here before they are multiplied by a factor. Products then stay below 2^63. Units: clocks."""

Shortlist = tuple[tuple[int, int], ...]
"""Rows of a dispatch table, each with the correction factor of its estimate."""


def region_of(at: Point, straddling: int) -> int:
    """Return the region of a problem. `straddling` counts the operands whose rows begin off L2's sectors."""
    rows, columns, depth = (
        min(max((coordinate + STEP // 2) // STEP - first, 0), count - 1)
        for coordinate, first, count in zip((at[0] + at[3], at[1], at[2]), REGION_MIN, REGION_COUNTS)
    )
    return (rows * REGION_COUNTS[1] + columns) * REGION_COUNTS[2] + depth + (ALIGNED_REGIONS if straddling else 0)


def sample_extents(region: int, offset: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return m, n, k and batch of a problem in a region, at an offset from the middle, with aligned rows.

    Units: `offset` counts sixteenths of an octave along rows, n and k.
    """
    rest, depth = divmod(region % ALIGNED_REGIONS, REGION_COUNTS[2])
    cells = (*divmod(rest, REGION_COUNTS[1]), depth)
    m, n, k = (
        _extent(max((cell + first) * STEP + off, 0)) for cell, first, off in zip(cells, REGION_MIN, offset, strict=True)
    )
    return m, _round_up(n), _round_up(k), 1


def _round_up(extent: int) -> int:
    return -(-extent // EXTENT_UNIT) * EXTENT_UNIT
