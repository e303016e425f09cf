"""Which rows of a table serve a problem on a device."""

from __future__ import annotations

from hgemm.checks import MAX_CTAS
from hgemm.table import Row
from hgemm.target import Target
from hgemm.wanted import Wanted


def row_serves(row: Row, wanted: Wanted, target: Target) -> bool:
    """Tell whether a variant of the right kind takes a problem on a device that its code runs on."""
    w = wanted
    if row.align_a > w.align_a or row.align_b > w.align_b or row.align_d > w.align_d or row.beta < w.beta:
        return False
    if row.smem_bytes > target.smem_bytes_per_cta or (row.tensor_maps and (w.k == 0 or not w.mappable)):
        return False
    if row.exact_tiles_only and (w.m % row.tile_m or w.n % row.tile_n or w.k % row.tile_k or w.k == 0):
        return False
    if row.work(w.m, w.n, w.batch) > MAX_CTAS:
        return False
    return row.workspace_bytes(w.m, w.n, w.batch) <= w.workspace_bytes
