"""Which rows of a table serve a problem on a device, and what the others need."""

from __future__ import annotations

from collections.abc import Iterator

from hgemm.checks import MAX_CTAS
from hgemm.facts import MAX_MAP_STRIDE_BYTES
from hgemm.table import Row
from hgemm.target import Target
from hgemm.wanted import Wanted

FEWER_TILES = f"fewer CTA tiles ({MAX_CTAS} at most)"


def row_serves(row: Row, wanted: Wanted, target: Target) -> bool:
    """Tell whether a variant of the right kind takes a problem on a device that its code runs on."""
    return next(needs(row, wanted, target), None) is None


def needs(row: Row, wanted: Wanted, target: Target) -> Iterator[str]:
    """Yield what a variant would need to take a problem, and what there is of it; nothing where it serves."""
    w = wanted
    if row.align_a > w.align_a or row.align_b > w.align_b or row.align_d > w.align_d:
        yield f"more alignment (A, B and D have {w.align_a}, {w.align_b} and {w.align_d} elements)"
    if row.beta < w.beta:
        yield "beta 0"
    if row.smem_bytes > target.smem_bytes_per_cta:
        yield f"more shared memory (a CTA has {target.smem_bytes_per_cta} B)"
    if row.tensor_maps and (w.k == 0 or not w.mappable):
        yield f"addresses that TMA supports (k above 0, strides below {MAX_MAP_STRIDE_BYTES} B)"
    if row.exact_tiles_only and (w.m % row.tile_m or w.n % row.tile_n or w.k % row.tile_k or w.k == 0):
        yield "extents of whole tiles"
    if row.work(w.m, w.n, w.batch) > MAX_CTAS:
        yield FEWER_TILES
    elif row.workspace_bytes(w.m, w.n, w.batch) > w.workspace_bytes:
        yield f"more workspace ({w.workspace_bytes} B are given)"
