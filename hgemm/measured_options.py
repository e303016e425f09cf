"""Launch options that were measured, for the launches that they suit: those of the same kernel on the same grid of tiles.

The options of a launch depend on its problem through the tiles only: how many there are along m and n, the batch, and the k-tiles
of each. So a measured problem speaks for others with the same tiles. The exported C library looks in the same list in the same
way (templates/capi/src/select.c).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from hgemm.dispatch_table import Row, Survey, default_options
from hgemm.launch import WORKSPACE_COUNTERS
from hgemm.problem import LaunchOptions
from hgemm.selection_query import SelectionQuery, Target

Place = tuple[int, int, int, int, int, int, int, int]
"""Row, clusters along m and n, batch, k-tiles, m, n, k: the order of the list."""
GRID = 4
"""The first numbers of a Place. They are equal for launches that may share options, if their k-tiles are similar."""
MAX_K_RATIO = (3, 2)
"""The largest ratio of the k-tiles of two launches that share options."""


def place_of(at: int, row: Row, m: int, n: int, k: int, batch: int = 1) -> Place:
    """Return the place of a problem in the list, for the kernel of a row. `at` is the number of the row."""
    down, across = row.tile_m * row.cluster_m, row.tile_n * row.cluster_n
    return at, -(-m // down), -(-n // across), batch, -(-max(k, 1) // row.tile_k), m, n, k


class MeasuredOptions:
    """The measured options of a survey, sorted by place."""

    def __init__(self, rows: Sequence[Row], survey: Survey) -> None:
        self._rows = rows
        found = sorted(
            ((place_of(at, rows[at], *one.extents), options) for one in survey.problems for at, options in one.options),
            key=lambda entry: entry[0],
        )
        self.entries: list[tuple[Place, LaunchOptions]] = found
        self._places = [place for place, _ in found]

    def find(self, at: int, query: SelectionQuery) -> LaunchOptions | None:
        """Return the options for a row that were measured on a problem with the same tiles, or None.

        The exact problem comes first, then the one whose k-tiles are the nearest, the smaller one on a tie.
        """
        row = self._rows[at]
        here = place_of(at, row, query.m, query.n, query.k, query.batch)
        above = bisect_right(self._places, here)
        near = [index for index in (above - 1, above) if 0 <= index < len(self._places)]
        near = [index for index in near if _similar(self._places[index], here)]
        if not near:
            return None
        _, options = self.entries[min(near, key=lambda index: abs(self._places[index][GRID] - here[GRID]))]
        return options if usable(options, row, query) else None


def _similar(one: Place, other: Place) -> bool:
    """Return whether two launches may share options."""
    less, more = sorted((one[GRID], other[GRID]))
    return one[:GRID] == other[:GRID] and more * MAX_K_RATIO[1] <= less * MAX_K_RATIO[0]


def usable(options: LaunchOptions, row: Row, query: SelectionQuery) -> bool:
    """Return whether a launch of a kernel can take options, with the workspace of a query."""
    if not row.decides_splits:
        return options.splits == row.splits and options.whole_tiles == 0
    shared = row.tiles(query.m, query.n) * query.batch - options.whole_tiles * row.cluster_m * row.cluster_n
    k_tiles = -(-max(query.k, 1) // row.tile_k)
    fits = row.workspace_bytes(query.m, query.n, query.batch, options) <= query.workspace_bytes
    return options.splits <= k_tiles and shared >= 0 and (options.splits == 1 or shared <= WORKSPACE_COUNTERS) and fits


def options_of(
    at: int, row: Row, query: SelectionQuery, target: Target, measured: MeasuredOptions | None
) -> tuple[LaunchOptions | None, bool]:
    """Return the options that a launch takes, None if the row leaves none open, and whether they were measured."""
    if not (row.decides_splits or row.decides_raster):
        return None, False
    found = measured.find(at, query) if measured else None
    if found is None:
        return default_options(row, query, target), False
    return (found if row.decides_raster else replace(found, raster_tiles=1)), True
