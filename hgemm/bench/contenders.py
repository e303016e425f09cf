"""Names of contenders, and the launch options to measure for kernels that leave some open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hgemm.bench.work import Work
from hgemm.dispatch_table import (
    GROUPS,
    Row,
    candidate_options,
    default_options,
    has_gpcs,
    launch_clocks,
    orders_of_waves,
    sms_used,
    with_default_raster,
)
from hgemm.launch_traits import LaunchTraits
from hgemm.measured_options import usable
from hgemm.problem import LaunchOptions
from hgemm.selection_query import SelectionQuery, Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

ORDERS_TRIED = 3
"""Orders of one or two waves of tiles, with the default one."""


def contender_name(traits: LaunchTraits, options: LaunchOptions | None) -> str:
    """Return the name of a kernel with launch options: the symbol, then the options that it leaves open."""
    text = options.text(traits.decides_splits, traits.decides_raster) if options else ""
    return f"{traits.symbol} {text}".rstrip()


def symbol_of(name: str) -> str:
    """Return the symbol of a contender's name."""
    return name.partition(" ")[0]


def query_of(work: Work) -> SelectionQuery:
    """Return the query of a problem with the automatic workspace."""
    return SelectionQuery.dense(work.kind, work.extents, DEFAULT_WORKSPACE_BYTES)


def options_to_try(
    row: Row, work: Work, target: Target, count: int, known: LaunchOptions | None = None
) -> list[LaunchOptions | None]:
    """Return at most `count` options of launches of a kernel, the most promising first; [None] if it leaves none open.

    `known` are the best ones of earlier measurements. They and the default come first, then no splits, then the lowest estimates.
    """
    if not (row.decides_splits or row.decides_raster):
        return [None]
    query = query_of(work)
    default = default_options(row, query, target)
    estimated = sorted(candidate_options(row, query, target), key=lambda one: launch_clocks(row, query, target, one))
    others = [with_default_raster(row, query, target, one) for one in estimated]
    unsplit = [one for one in others if one.splits == 1]
    first: list[LaunchOptions | None] = [known] if known and usable(known, row, query) else []
    return list(dict.fromkeys([*first, default, *unsplit, *others]))[:count]


def rasters_to_try(row: Row, work: Work, target: Target, options: LaunchOptions) -> list[LaunchOptions]:
    """Return the options with other orders of tiles: groups of half and twice as many rows, and panels of as many columns.

    In one or two waves, they are the best orders by what the GPCs read. In one wave there are none if that is unknown.
    """
    query, default = query_of(work), options.raster_tiles
    if not row.decides_raster:
        return []
    sign, width = (1 if default > 0 else -1), options.width
    tried: Sequence[int] = (width, -width, *(sign * other for other in (2 * width, width // 2) if other in GROUPS))
    if options.splits == 1 and has_gpcs(row, query, target):
        tried = orders_of_waves(row, query)[:ORDERS_TRIED]
    elif row.tiles(work.m, work.n) * work.batch <= sms_used(row, target) * row.tiles_per_sm:
        return []
    return [replace(options, raster_tiles=one) for one in tried if one != options.raster_tiles]


def one_per_kernel(names: Sequence[str]) -> list[str]:
    """Return the first contender of each kernel."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(symbol_of(name), name)
    return list(found.values())
