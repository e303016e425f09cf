"""Estimates of a kernel on many problems at once, as arrays. They equal those of hgemm.dispatch_table.

The functions of hgemm.dispatch_table and hgemm.requirements compute with numbers and with arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hgemm.dispatch_table import (
    MAX_SPLIT_WAVES,
    MIN_SPLIT_K_TILES,
    SPLITS,
    Row,
    features_of,
    launch_clocks,
    maximum,
    sms_used,
    tiles_per_sm,
)
from hgemm.launch import WORKSPACE_COUNTERS
from hgemm.problem import LaunchOptions
from hgemm.requirements import violations
from hgemm.selection_query import SelectionQuery, Target

NUMBERS = tuple(one.name for one in fields(SelectionQuery) if one.type in ("int", "bool") and one.compare)
"""The fields of a query that may be arrays in a stacked one."""
MAX_PRODUCTS = 2**48
"""Multiplications of a problem whose estimate fits in int64. Those of larger ones are computed with Python's integers."""
LARGEST_CLUSTER = 2048
"""Rows, columns or k of a cluster of tiles, at most. Incomplete ones add to a problem."""


def stacked(queries: Sequence[SelectionQuery]) -> SelectionQuery:
    """Return queries of one kind as one query. Its extents are arrays, and so are other numbers that differ. Shapes: (query,)."""
    extents = ((one.m, one.n, one.k, one.batch) for one in queries)
    products = max(math.prod(extent + LARGEST_CLUSTER for extent in its[:3]) * its[3] for its in extents)
    dtype = np.int64 if products <= MAX_PRODUCTS else object
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        values = [getattr(one, name) for one in queries]
        if name in ("m", "n", "k") or len({*values}) > 1:
            columns[name] = np.array(values, dtype)
    return replace(queries[0], **columns)


def part_of(queries: SelectionQuery, places: np.ndarray) -> SelectionQuery:
    """Return the queries at these places. Shapes: (place,)."""
    columns = {name: getattr(queries, name) for name in NUMBERS}
    arrays: dict[str, Any] = {name: one[places] for name, one in columns.items() if isinstance(one, np.ndarray)}
    return replace(queries, **arrays)


def supported(row: Row, queries: SelectionQuery, target: Target) -> np.ndarray:
    """Return the places of the queries that a kernel supports, as hgemm.requirements.row_supports."""
    violated: Any = violations(row, queries, target)  # each is an array, or one for all queries
    return np.flatnonzero(~np.any(np.broadcast_arrays(*violated, queries.m > 0)[:-1], axis=0))


def estimates(row: Row, queries: SelectionQuery, target: Target) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the estimates of launches with their default options, as hgemm.dispatch_table.estimate_clocks."""
    unsplit: Any = launch_clocks(row, queries, target, LaunchOptions(row.splits))
    found: np.ndarray[Any, np.dtype[np.int64]] = unsplit
    if row.decides_splits:
        at, options = split_options(row, queries, target)
        np.minimum.at(found, at, launch_clocks(row, part_of(queries, at), target, options))
    return found


def split_options(row: Row, queries: SelectionQuery, target: Target) -> tuple[np.ndarray, LaunchOptions]:
    """Return the options that split k, as hgemm.dispatch_table.candidate_options. Shapes: places of queries, splits and whole tiles
    (option,)."""
    sms, cluster = sms_used(row, target), row.cluster_m * row.cluster_n
    tiles: Any = row.tiles(queries.m, queries.n) * queries.batch
    whole = np.stack([0 * tiles, tiles // sms * sms])
    rest: Any = tiles - whole
    most_splits = np.minimum(
        -(-maximum(queries.k, 1) // row.tile_k) // MIN_SPLIT_K_TILES,
        MAX_SPLIT_WAVES * sms * tiles_per_sm(row, target) // maximum(rest, 1),
    )
    most_splits *= (0 < rest) & (rest <= WORKSPACE_COUNTERS)
    splits = np.array(SPLITS)
    of_whole, at, of_splits = np.nonzero(splits <= most_splits[:, :, None])
    chosen: Any = splits[of_splits], whole[of_whole, at] // cluster
    its = part_of(queries, at)
    fits: Any = row.workspace_bytes(its.m, its.n, its.batch, LaunchOptions(*chosen)) <= its.workspace_bytes
    return at[fits], LaunchOptions(*(one[fits] for one in chosen))


def features(
    row: Row, queries: SelectionQuery, target: Target, clocks: np.ndarray
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return what the trees of a calibration compare, as hgemm.dispatch_table.features_of. Shapes: (query, feature)."""
    of_all: Any = clocks  # features_of computes with arrays, too
    its: Any = features_of(row, queries, target, of_all)
    return np.stack(np.broadcast_arrays(*its), axis=1)
