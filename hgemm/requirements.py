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
    return not any(violations(row, query, target))


def violations(row: Row, query: SelectionQuery, target: Target) -> tuple[bool, ...]:
    """Return whether a query violates each requirement of a kernel, in the order of `unmet_requirements`.

    The numbers of the row or of the query may be arrays: see hgemm.estimates.
    """
    q = query
    has_ctas, has_counters = row.work(q.m, q.n, q.batch) <= MAX_CTAS, row.has_counters(q.m, q.n, q.batch)
    whole_tiles = (q.m % row.tile_m == 0) & (q.n % row.tile_n == 0) & (q.k % row.tile_k == 0) & (q.k > 0)
    return (
        (row.align_a > q.align_a) | (row.align_b > q.align_b) | (row.align_d > q.align_d),
        row.beta < q.beta,
        row.smem_bytes > target.smem_bytes_per_cta,
        row.tensor_maps > (q.k > 0) * q.mappable,
        row.exact_tiles_only > whole_tiles,
        has_ctas < 1,
        has_ctas > has_counters,
        has_ctas & has_counters & (row.workspace_bytes(q.m, q.n, q.batch) > q.workspace_bytes),
    )


def unmet_requirements(row: Row, query: SelectionQuery, target: Target) -> Iterator[str]:
    """Yield each requirement of a kernel that a query does not meet, with the query's value."""
    q = query
    texts = (
        f"more alignment (A, B and {q.align_d_of} have {q.align_a}, {q.align_b} and {q.align_d} elements)",
        "beta 0",
        f"more shared memory (a CTA has {target.smem_bytes_per_cta} B)",
        f"addresses that TMA supports (k above 0, strides below {MAX_MAP_STRIDE_BYTES} B)",
        "extents of whole tiles",
        FEWER_TILES,
        FEWER_REDUCED if row.reduces else FEWER_SHARED,
        f"more workspace ({q.workspace_bytes} B are given)",
    )
    yield from (text for text, violated in zip(texts, violations(row, query, target), strict=True) if violated)
