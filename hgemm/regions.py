"""Regions of problems, for each of which selection has a short list of variants where something was measured.

A region spans half an octave of the rows of D, those of all batches together, of n and of k, with powers of two in its middle; the
outermost ones have all that lies beyond. Problems whose operands' rows begin off the sectors of L2 have regions of their own. Of a
region's list one or another has nearly the least corrected estimate wherever in it a problem lies. templates/capi/src/select.c finds
the region in the same way; the lists are written into an exported table.
"""

from __future__ import annotations

import math

from hgemm.measured.nearness import STEP_BITS, Point

STEP = 1 << STEP_BITS - 1
"""Half an octave, in sixteenths of one."""
LEAST, COUNTS = (0, 16, 16), (28, 15, 14)
"""Of rows, n and k, the first half octave and how many follow: from 1 to 2^13.5, and from 2^8 to 2^15 and 2^14.5."""
STRAIGHT = math.prod(COUNTS)
"""Regions of problems whose rows begin on sectors; as many of the others follow."""
REGIONS = 2 * STRAIGHT
EXTENT_UNIT = 64
"""Columns and k of those are multiples of this, so that everything that is aligned serves."""
CORRECTED_LIMIT = 2**46
"""Clocks beyond which estimates count as equal where they are multiplied by a factor: the products stay below 2^63."""

Listed = tuple[tuple[int, int], ...]
"""Rows of a table, each with the factor, of nearness.ONE, by which its estimate is multiplied."""


def region_of(at: Point, straddling: int) -> int:
    """Return the number of the region that a problem lies in, of whose operands so many straddle sectors."""
    rows, columns, depth = (
        min(max((octaves + STEP // 2) // STEP - least, 0), count - 1)
        for octaves, least, count in zip((at[0] + at[3], at[1], at[2]), LEAST, COUNTS)
    )
    return (rows * COUNTS[1] + columns) * COUNTS[2] + depth + (STRAIGHT if straddling else 0)


def extents_in(region: int, apart: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return a problem of a region, so many sixteenths of an octave from its middle, as if its rows did not straddle."""
    rest, depth = divmod(region % STRAIGHT, COUNTS[2])
    places = (*divmod(rest, COUNTS[1]), depth)
    m, n, k = (
        _extent(max((place + least) * STEP + off, 0)) for place, least, off in zip(places, LEAST, apart, strict=True)
    )
    return m, _up(n), _up(k), 1


def _extent(octaves: int) -> int:
    place, rest = octaves >> STEP_BITS, octaves & (1 << STEP_BITS) - 1
    return (1 << place) + (rest << place >> STEP_BITS)


def _up(extent: int) -> int:
    return -(-extent // EXTENT_UNIT) * EXTENT_UNIT
