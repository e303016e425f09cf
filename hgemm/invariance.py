"""Batch-invariant selection: one accumulation order for all products with the same n and k.

The bits of a row of D then do not depend on m, on the batch, or on the place of the row. The exported C library chooses the same
orders with the same numbers (templates/capi/src/select.c).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hgemm.dispatch_table import Row, launch_clocks, sms_used
from hgemm.dtypes import DTYPES
from hgemm.launch import WORKSPACE_COUNTERS
from hgemm.model.predict import SECTOR_BYTES
from hgemm.octave_grid import CORRECTED_LIMIT
from hgemm.problem import LaunchOptions
from hgemm.requirements import row_supports
from hgemm.selection_query import MAX_ALIGN, SelectionQuery, Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

ROWS_MIX = tuple(1 << power for power in range(14))
"""The rows for which orders are compared: the powers of 2 from 1 to 8192. Each counts as much as the others."""
SCORE_ONE = 1 << 12
"""Ratios of times are fixed-point numbers. This is 1.0."""
PART_PERCENT, MIN_PERCENT = 1, 5
"""An order that splits k gets PART_PERCENT added to its sum of ratios for each part, and at least MIN_PERCENT. Few kernels compute
many parts for many rows, so the best one is more often slower than its estimate. Source: docs/performance-notes.md."""
MAX_ORDERS = 64
"""Orders of one n and k that are compared."""

Candidate = tuple[int, Row]
"""How the code of a kernel runs on a device, and its row."""


@dataclass(frozen=True)
class KOrder:
    """The accumulation order of a launch.

    Units: elements of k.
    Fields: `order` is that of an unsplit launch (Row.order). `splits` parts of k are summed separately, and then added in order.
        Each has `part` elements, but for the last one; 0 if there is one part. `longer` is 0, or the k-tile by which the first
        parts are longer than the others.
    """

    order: int
    splits: int = 1
    part: int = 0
    longer: int = 0
    is_cublas: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        unsplit = f"order_{self.order:08x}"
        return f"{unsplit}, k unsplit" if self.splits == 1 else f"k in {self.splits} parts, each in {unsplit}"


def order_of(row: Row, k: int, splits: int) -> KOrder | None:
    """Return the order of a kernel's launches with so many splits, or None if it is not fixed."""
    k_tiles = -(-max(k, 1) // row.tile_k)
    if not row.order or splits > k_tiles or not (row.decides_splits or row.splits == splits):
        return None
    if splits == 1:
        return KOrder(row.order, is_cublas=bool(row.cublas_order))
    each, more = divmod(k_tiles, splits)
    return KOrder(row.order, splits, each * row.tile_k, row.tile_k if more else 0)


def keeps_order(row: Row, order: KOrder, query: SelectionQuery) -> bool:
    """Return whether a kernel that supports a query can compute it in an order, with the query's workspace."""
    return order_of(row, query.k, order.splits) == order and (
        bool(row.serial_parts) or _has_workspace(row, LaunchOptions(order.splits), query)
    )


def order_options(row: Row, order: KOrder, query: SelectionQuery, target: Target) -> list[LaunchOptions]:
    """Return the options that a launch with an order may take, without its raster: those whose workspace fits.

    The first one splits all tiles. If whole tiles add k in the same parts, others split those after the last full wave, or none.
    """
    found = [LaunchOptions(order.splits)]
    if row.serial_parts and order.splits > 1:
        tiles, sms = row.tiles(query.m, query.n) * query.batch, sms_used(row, target)
        wholes = dict.fromkeys((tiles // sms * sms, tiles))
        found += [LaunchOptions(order.splits, whole // (row.cluster_m * row.cluster_n)) for whole in wholes if whole]
    return [one for one in found if _has_workspace(row, one, query)]


def order_clocks(row: Row, order: KOrder, query: SelectionQuery, target: Target) -> int:
    """Return the estimated time of a launch with an order. Units: SM clocks."""
    return min(launch_clocks(row, query, target, one) for one in order_options(row, order, query, target))


def has_order(options: LaunchOptions | None, row: Row, order: KOrder) -> bool:
    """Return whether a launch with options adds k as an order does. Whole tiles among split ones may not."""
    if options is None:
        return False
    return (options.whole_tiles == 0 or bool(row.serial_parts)) and options.splits == order.splits


def _has_workspace(row: Row, options: LaunchOptions, query: SelectionQuery) -> bool:
    """Return whether a query's workspace suffices for splits that the launch decides."""
    if options.splits == 1 or not row.decides_splits:
        return True
    sizes = (query.m, query.n, query.batch)
    shared = _shared_tiles(row, options, query)
    return shared <= WORKSPACE_COUNTERS and row.workspace_bytes(*sizes, options) <= query.workspace_bytes


def _shared_tiles(row: Row, options: LaunchOptions, query: SelectionQuery) -> int:
    return row.tiles(query.m, query.n) * query.batch - options.whole_tiles * row.cluster_m * row.cluster_n


# ==== The choice of the order ====


def order_key(query: SelectionQuery) -> Hashable:
    """Return what the order of a query depends on, besides the device and the library."""
    return query.kind.code, query.n, query.k, query.cublas_order


def chosen_order(candidates: Iterable[Candidate], query: SelectionQuery, target: Target) -> KOrder | None:
    """Return the order of all products with the n and k of a query, or None if no kernel has a fixed one.

    The candidates are all kernels whose kind fits and whose code runs on the device. The choice depends on no other property of
    the query than n, k, its kind, and whether it prefers cuBLAS's order.
    """
    candidates = [*candidates]
    beta, orders = True, possible_orders(candidates, query, target, True)
    if not orders:
        beta, orders = False, possible_orders(candidates, query, target, False)
    if query.cublas_order:
        orders = [order for order in orders if order.is_cublas] or orders
    if len(orders) <= 1:
        return orders[0] if orders else None
    keeping = [[one for one in candidates if order_of(one[1], query.k, order.splits) == order] for order in orders]
    totals = [0] * len(orders)
    for m in ROWS_MIX:
        typical = typical_query(query, m, beta)
        times = [_clocks(keep, order, typical, target) for order, keep in zip(orders, keeping, strict=True)]
        fastest = max(min(times), 1)
        totals = [total + time * SCORE_ONE // fastest for total, time in zip(totals, times, strict=True)]
    totals = [total + total * _percent(order) // 100 for total, order in zip(totals, orders, strict=True)]
    return orders[totals.index(min(totals))]


def _percent(order: KOrder) -> int:
    return max(order.splits * PART_PERCENT, MIN_PERCENT) if order.splits > 1 else 0


def possible_orders(candidates: Sequence[Candidate], query: SelectionQuery, target: Target, beta: bool) -> list[KOrder]:
    """Return the orders in which some kernel computes any number of rows without a workspace.

    Only the best way in which such kernels run on the device counts.
    """
    least = least_aligned_query(query, beta)
    found: dict[KOrder, None] = {}
    best = None
    for match, row in candidates:
        order = order_of(row, query.k, row.splits)
        if order is None or row.exact_tiles_only or (row.partial_bytes and not row.decides_splits):
            continue
        if (best is None or match == best) and len(found) < MAX_ORDERS and row_supports(row, least, target):
            best = match
            found.setdefault(order)
    return [*found]


def least_aligned_query(query: SelectionQuery, beta: bool) -> SelectionQuery:
    """Return the typical query that requires most of a kernel for all m: a single row, and the alignment that every m has."""
    typical = typical_query(query, 1, beta)
    # In this layout the rows of A are as long as m, which may have any alignment.
    return replace(typical, align_a=1) if query.kind.layout[0] == "n" else typical


def typical_query(query: SelectionQuery, m: int, beta: bool) -> SelectionQuery:
    """Return a query with other rows, without gaps between the rows of A, B and D, and with the usual workspace."""
    kind, n, k = query.kind, query.n, query.k
    rows_a, rows_b = (k if kind.layout[0] == "t" else 0), (k if kind.layout[1] == "n" else n)
    straddling = [rows_a * DTYPES[kind.dtype_a].bytes, rows_b * DTYPES[kind.dtype_b].bytes]
    return replace(
        query,
        m=m,
        batch=1,
        beta=beta,
        align_a=_alignment(rows_a),
        align_b=_alignment(rows_b),
        align_d=_alignment(n),
        workspace_bytes=DEFAULT_WORKSPACE_BYTES,
        mappable=True,
        straddling=sum(row_bytes % SECTOR_BYTES > 0 for row_bytes in straddling),
    )


def _alignment(extent: int) -> int:
    return (extent | MAX_ALIGN) & -(extent | MAX_ALIGN)


def _clocks(candidates: Sequence[Candidate], order: KOrder, query: SelectionQuery, target: Target) -> int:
    """Return the lowest estimate of kernels that have an order, among those whose code runs best."""
    found = CORRECTED_LIMIT
    best = None
    for match, row in candidates:
        if best is not None and match != best:
            break
        if row_supports(row, query, target) and keeps_order(row, order, query):
            best = match
            found = min(found, order_clocks(row, order, query, target))
    return found
