"""Problems on a logarithmic grid: their distance, and the corrections of estimates that measurements nearby suggest.

A problem is a point (m, n, k, batch) in sixteenths of an octave. All numbers are integers, so that the exported C library corrects
estimates in the same way (templates/capi/src/select.c).
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TypeVar

Point = tuple[int, int, int, int]
"""Coordinates of m, n, k and batch. Units: sixteenths of an octave."""
STEP_BITS = 4
_FRACTION = (1 << STEP_BITS) - 1


def octaves(extent: int) -> int:
    """Return log2 of an extent in sixteenths, interpolated linearly between powers of 2."""
    power = extent.bit_length() - 1
    return power << STEP_BITS | (extent << STEP_BITS >> power) & _FRACTION


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

FACTOR_ONE = 1 << 12
"""Correction factors are fixed-point numbers. This is 1.0."""
MIN_RATIO, MAX_RATIO = FACTOR_ONE >> 3, FACTOR_ONE << 3
CORRECTED_LIMIT = 2**46
"""Estimates are capped here before they are multiplied by a factor. Products then stay below 2^63. Kernels with longer estimates,
about 11 hours, count as equally fast. Units: clocks."""
NEAREST = 32
"""Measured problems that correct an estimate, at most."""
WEIGHT_ONE = 1 << 10
"""The weight of a measurement at distance 0."""
DECAY_DISTANCE = 3 << STEP_BITS - 1
"""A measurement at this distance has the weight exp(-1). Source: cross-validation, benchmarks/selection.py."""
WEIGHTS = tuple(
    itertools.takewhile(bool, (round(WEIGHT_ONE * math.exp(-apart / DECAY_DISTANCE)) for apart in itertools.count()))
)
"""The weights of measurements by their distance. Those farther away have none."""
ESTIMATE_WEIGHTS = tuple(round(WEIGHT_ONE * weight) for weight in (0.6, 0.6, 4.0))
"""The weight of the uncorrected estimate, by the calibration of a kernel: none, of its family, of its own. Errors that calibrated
estimates still have differ from problem to problem, so one measurement says little of another. Source: cross-validation."""

Name = TypeVar("Name")
"""The name of a kernel: its row in a dispatch table, or its symbol."""
Ratios = Mapping[Name, int]
"""Measured over estimated times of a problem's kernels. Units: FACTOR_ONE is 1.0."""


def nearest(at: Point, problems: Iterable[tuple[Point, Ratios[Name]]]) -> list[tuple[int, Ratios[Name]]]:
    """Return the NEAREST problems that are near enough to have a weight, with their distances. On a tie the first ones count."""
    found = ((distance(at, other), ratios) for other, ratios in problems)
    return heapq.nsmallest(NEAREST, (one for one in found if one[0] < len(WEIGHTS)), key=lambda one: one[0])


def correction(near: Iterable[tuple[int, Ratios[Name]]], name: Name, estimate_weight: int) -> int | None:
    """Return the factor that corrects the estimate of a kernel, or None if it was measured on no problem nearby.

    It is the weighted mean of the kernel's ratios and of 1. Units: FACTOR_ONE is 1.0.
    """
    total, weighted = estimate_weight, estimate_weight * FACTOR_ONE
    for apart, ratios in near:
        if name in ratios:
            total += WEIGHTS[apart]
            weighted += WEIGHTS[apart] * ratios[name]
    return weighted // total if total > estimate_weight else None


def relative_ratios(ratios: Mapping[Name, float]) -> Ratios[Name]:
    """Return the ratios of measured to estimated times of a problem's kernels over their median: only their order matters.

    Units: FACTOR_ONE is 1.0.
    """
    middle = statistics.median(ratios.values()) if ratios else 1.0
    return {
        name: min(max(round(FACTOR_ONE * ratio / middle), MIN_RATIO), MAX_RATIO)
        for name, ratio in sorted(ratios.items())
    }
