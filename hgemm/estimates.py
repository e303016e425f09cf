"""Estimates of a kernel on many problems at once, or of many kernels on one problem, as arrays.

The functions of hgemm.dispatch_table and hgemm.requirements compute with numbers and with arrays. The estimates are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hgemm.dispatch_table import (
    MAX_SPLIT_WAVES,
    MIN_SPLIT_K_TILES,
    SPLITS,
    Row,
    features_of,
    has_trees,
    launch_clocks,
    maximum,
    sms_used,
    tiles_per_sm,
)
from hgemm.launch import WORKSPACE_COUNTERS
from hgemm.model.calibrated import calibration
from hgemm.model.trees import FEATURES, MAX_CHANGE
from hgemm.model.trees import ONE as TREE_ONE
from hgemm.octave_grid import CORRECTED_LIMIT, FACTOR_ONE
from hgemm.problem import LaunchOptions
from hgemm.requirements import violations
from hgemm.selection_query import SelectionQuery, Target

MAX_PRODUCTS = 2**48
"""Multiplications of a problem whose estimate fits in int64. Those of larger ones are computed with Python's integers."""
LARGEST_CLUSTER = 2048
"""Rows, columns or k of a cluster of tiles, at most. Incomplete ones add to a problem."""

REFINED_PER_STEP = 16
"""Estimates that the trees refine together in a selection. Often one step decides."""

Stack = TypeVar("Stack", SelectionQuery, Row, LaunchOptions)
"""Several queries, kernels or options as one whose numbers are arrays."""


def fits_int64(query: SelectionQuery) -> bool:
    """Return whether int64 holds the numbers of an estimate."""
    return math.prod(extent + LARGEST_CLUSTER for extent in (query.m, query.n, query.k)) * query.batch <= MAX_PRODUCTS


def stacked(queries: Sequence[SelectionQuery]) -> SelectionQuery:
    """Return queries of one kind as one query. m, n and k are arrays, and so are other numbers that differ. Shapes: (query,)."""
    return _stacked(queries, ("m", "n", "k"), all(map(fits_int64, queries)))


def _stacked(ones: Sequence[Stack], always: Sequence[str], fits: bool) -> Stack:
    """Return all as one. The fields `always` and those that differ are arrays, of Python's integers unless `fits`."""
    columns: dict[str, Any] = {}
    for one in fields(ones[0]):
        if one.type in ("int", "bool") and one.compare:
            values: list[int] = [getattr(its, one.name) for its in ones]
            if one.name in always or len({*values}) > 1:
                columns[one.name] = np.array(values, np.int64 if fits else object)
    return replace(ones[0], **columns)


def part_of(stack: Stack, places: np.ndarray) -> Stack:
    """Return the queries, kernels or options at these places. Shapes: (place,)."""
    arrays = {name: one[places] for name, one in vars(stack).items() if isinstance(one, np.ndarray)}
    return replace(stack, **arrays) if arrays else stack


def supported(row: Row, queries: SelectionQuery, target: Target) -> np.ndarray:
    """Return the places of the queries, or of the kernels, for which hgemm.requirements.row_supports is true. Shapes: (place,)."""
    nothing: Any = (queries.m < 0) & (row.tile_m < 0)
    return np.flatnonzero(~reduce(or_, violations(row, queries, target), nothing))  # a violation may be one for all


def estimates(row: Row, queries: SelectionQuery, target: Target) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the estimates of launches with their default options, as hgemm.dispatch_table.estimate_clocks.

    Shapes: (query,) or (kernel,).
    """
    unsplit: Any = launch_clocks(row, queries, target, LaunchOptions(row.splits))
    found: np.ndarray[Any, np.dtype[np.int64]] = unsplit
    if np.any(row.decides_splits):
        at, its_row, its, options = _split_launches(row, queries, target)
        np.minimum.at(found, at, launch_clocks(its_row, its, target, options))
    return found


def _split_launches(
    row: Row, queries: SelectionQuery, target: Target
) -> tuple[np.ndarray, Row, SelectionQuery, LaunchOptions]:
    """Return the launches that split k, as hgemm.dispatch_table.candidate_options: their places, rows, queries and options.

    Shapes: all (launch,).
    """
    tiles: Any = row.tiles(queries.m, queries.n) * queries.batch
    sms = sms_used(row, target)
    whole = np.stack([0 * tiles, tiles // sms * sms])
    rest: Any = tiles - whole
    most_splits = np.minimum(
        -(-maximum(queries.k, 1) // row.tile_k) // MIN_SPLIT_K_TILES,
        MAX_SPLIT_WAVES * sms * tiles_per_sm(row, target) // maximum(rest, 1),
    )
    most_splits *= (0 < rest) & (rest <= WORKSPACE_COUNTERS) & (row.decides_splits > 0)
    most_splits[1] *= whole[1] > 0  # else both split all tiles
    splits = np.array(SPLITS)
    of_whole, at, of_splits = np.nonzero(splits <= most_splits[:, :, None])
    its_row, its = part_of(row, at), part_of(queries, at)
    chosen: Any = splits[of_splits], whole[of_whole, at] // (its_row.cluster_m * its_row.cluster_n)
    options = LaunchOptions(*chosen)
    fits = its_row.workspace_bytes(its.m, its.n, its.batch, options) <= its.workspace_bytes
    if np.all(fits):
        return at, its_row, its, options
    which = np.flatnonzero(fits)
    return at[which], part_of(its_row, which), part_of(its, which), part_of(options, which)


def features(
    row: Row, queries: SelectionQuery, target: Target, clocks: np.ndarray
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return what the trees of a calibration compare, as hgemm.dispatch_table.features_of. Shapes: (query or kernel, feature)."""
    of_all: Any = clocks  # features_of computes with arrays, too
    found = np.empty((len(clocks), len(FEATURES)), np.int64)
    for column, its in enumerate(features_of(row, queries, target, of_all)):
        found[:, column] = its
    return found


@dataclass(frozen=True)
class Candidates:
    """Kernels of one kind whose code runs on a device, the best match first, and then in the order of the dispatch table.

    Shapes: `matches` of the code, `places` in the table, and the arrays of `rows` (kernel,).
    """

    matches: np.ndarray
    places: np.ndarray
    rows: Row

    @classmethod
    def of(cls, found: Iterable[tuple[int, int]], rows: Sequence[Row], fits: bool) -> Candidates:
        """Return one kernel or more by their matches and places. `fits` is `fits_int64` of all queries to come."""
        matches, places = np.array([*found], np.int64).T
        return cls(matches, places, _stacked([rows[place] for place in places], ("tile_m",), fits))

    def __len__(self) -> int:
        return len(self.places)

    def part(self, positions: ArrayLike) -> Candidates:
        """Return those at these positions."""
        at = np.asarray(positions, np.int64)
        return Candidates(self.matches[at], self.places[at], part_of(self.rows, at))

    def supporting(self, query: SelectionQuery, target: Target) -> Candidates:
        """Return those that support a query."""
        return self.part(supported(self.rows, query, target))

    def best_matches(self) -> Candidates:
        """Return those whose code matches best."""
        best = self.matches == self.matches[0]
        return self if best.all() else self.part(np.flatnonzero(best))

    def estimates(self, query: SelectionQuery, target: Target) -> np.ndarray:
        """Return their estimates for a query that they support, as hgemm.dispatch_table.estimate_clocks. Shapes: (kernel,)."""
        return estimates(self.rows, query, target)

    def refined(self, query: SelectionQuery, target: Target, clocks: np.ndarray) -> np.ndarray:
        """Return estimates that the trees of the calibration have refined, as hgemm.dispatch_table.refined_clocks.

        Shapes: clocks (kernel,); the result (kernel,).
        """
        of_all: Any = clocks
        refines: Any = has_trees(self.rows, query, of_all)
        if not np.any(refines):
            return clocks
        factors = calibration().forest.refinements(features(self.rows, query, target, np.maximum(clocks, 1)))
        return np.where(refines, clocks * factors // TREE_ONE, clocks)

    def fastest(
        self, query: SelectionQuery, target: Target, estimated: ArrayLike, factors: Mapping[int, int]
    ) -> tuple[int, int]:
        """Return the place of the kernel with the lowest estimate, and this estimate after the trees.

        Trees refine `estimated`, and `factors` correct the result by places. Both count in the comparison.
        Shapes: estimated (kernel,).
        """
        clocks = np.asarray(estimated)
        of_places = np.array([factors.get(place, FACTOR_ONE) for place in self.places.tolist()])
        least = np.minimum(clocks, 2 * CORRECTED_LIMIT) * (TREE_ONE - MAX_CHANGE) // TREE_ONE
        lowest = of_places * np.minimum(least, CORRECTED_LIMIT)
        by_lowest, found = np.argsort(lowest, kind="stable"), (math.inf, -1, -1)
        for first in range(0, len(by_lowest), REFINED_PER_STEP):
            some = by_lowest[first : first + REFINED_PER_STEP]
            if lowest[some[0]] > found[0]:  # trees cannot make it the best, nor those that follow
                break
            refined = self.part(some).refined(query, target, clocks[some])
            corrected = of_places[some] * np.minimum(refined, CORRECTED_LIMIT)
            found = min(found, *zip(corrected.tolist(), self.places[some].tolist(), refined.tolist(), strict=True))
        return found[1:]
