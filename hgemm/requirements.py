"""Requirements of a kernel on a problem and a device."""

from __future__ import annotations

from collections.abc import Iterator

from hgemm.dispatch_table import Row
from hgemm.launch import MAX_CTAS, WORKSPACE_COUNTERS
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES
from hgemm.selection_query import SelectionQuery, Target

FEWER_TILES = f"fewer CTA tiles ({MAX_CTAS} at most)"
FEWER_SHARED = f"fewer tiles that share k ({WORKSPACE_COUNTERS} at most)"
FEWER_REDUCED = f"fewer rows and columns of tiles that are reduced ({WORKSPACE_COUNTERS} at most)"


def row_supports(row: Row, query: SelectionQuery, target: Target) -> bool:
    """Return whether a kernel supports a query, if its kind fits and its code runs on the device."""
    return next(unmet_requirements(row, query, target), None) is None


def unmet_requirements(row: Row, query: SelectionQuery, target: Target) -> Iterator[str]:
    """Yield each requirement of a kernel that a query does not meet, with the query's value."""
    q = query
    if row.align_a > q.align_a or row.align_b > q.align_b or row.align_d > q.align_d:
        yield f"more alignment (A, B and {q.align_d_of} have {q.align_a}, {q.align_b} and {q.align_d} elements)"
    if row.beta < q.beta:
        yield "beta 0"
    if row.smem_bytes > target.smem_bytes_per_cta:
        yield f"more shared memory (a CTA has {target.smem_bytes_per_cta} B)"
    if row.tensor_maps and (q.k == 0 or not q.mappable):
        yield f"addresses that TMA supports (k above 0, strides below {MAX_MAP_STRIDE_BYTES} B)"
    if row.exact_tiles_only and (q.m % row.tile_m or q.n % row.tile_n or q.k % row.tile_k or q.k == 0):
        yield "extents of whole tiles"
    if row.work(q.m, q.n, q.batch) > MAX_CTAS:
        yield FEWER_TILES
    elif not row.has_counters(q.m, q.n, q.batch):
        yield FEWER_REDUCED if row.reduces else FEWER_SHARED
    elif row.workspace_bytes(q.m, q.n, q.batch) > q.workspace_bytes:
        yield f"more workspace ({q.workspace_bytes} B are given)"
