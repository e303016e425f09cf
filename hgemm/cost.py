"""How long a variant is thought to take, in clocks of an SM: whole numbers only, so that C counts the same.

What depends on the variant alone is worked out once, from its record, into three numbers. What depends on the problem
and the device too is `clocks`, which templates/c/src/select.c has line by line.

The model: an SM computes its CTAs' k-tiles one after the other, each as long as its tensor instructions, its shared
memory or its share of L2 takes, whichever is longest, and a part of what else it does. It ranks variants of one library
where nothing was measured; it does not predict times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hgemm.dtypes import DTYPES
from hgemm.facts import Facts

if TYPE_CHECKING:
    from hgemm.table import Row
    from hgemm.target import Target

LIMIT = 2**62
"""The cost of what would cost more."""
SMEM_RESERVED_BYTES_PER_CTA = 1024
"""What the system takes of each CTA's shared memory. Source: CUDA C++ Programming Guide 12.6, "Compute Capability 8.x"."""

PRODUCTS_PER_CLOCK = {75: 512, 80: 1024, 86: 512, 87: 512, 88: 512, 89: 512, 90: 1300, 120: 512, 121: 512}
"""f16 products with mma.sync an SM and clock. Source: whitepapers of TU102, GA100, GA102 and AD102 (dense, f32 accumulation of the
server cards), of tf32 half as many; sm_90's is what benchmarks/data/mma_rate_h200.json measured."""
USUAL_PRODUCTS_PER_CLOCK = 1024
WGMMA_PRODUCTS_PER_CLOCK = 2048
"""Source: NVIDIA H100 white paper, table 2: 989 TFLOP/s of 132 SMs at 1.83 GHz."""
WARPGROUP_ROWS = 64
"""Rows of a wgmma, each of which reads all columns. Source: PTX ISA 8.8, "wgmma.mma_async", shapes."""
SMEM_BYTES_PER_CLOCK = 128
L2_BYTES_PER_CLOCK = 48
STORE_BYTES_PER_CLOCK = 32

K_TILE_CLOCKS = 30
"""A barrier and its wait."""
OVERLAP = 4
"""One in so many clocks of what is hidden behind the longest shows."""
COPY_CLOCKS = 4
"""An instruction of a warp that copies, of any width."""
ASYNC_BYTES = 4
REGISTER_COPY_CLOCKS = 8
"""One that loads and one that stores, where elements go through registers: staged copies, and pieces of less than `ASYNC_BYTES`."""
FIRST_TILE_CLOCKS = 1500
"""From the start of a CTA to its first product."""
MEMSET_CLOCKS = 5000
"""The counters' zeroing, before the launch on the same stream, of 3 us."""


@dataclass(frozen=True)
class Clocks:
    """What a variant takes, whatever the problem. Units: clocks of an SM that works on one CTA at a time."""

    k_tile: int
    tile: int
    launch: int


def clocks_of(facts: Facts, record: Mapping[str, Any]) -> Clocks:
    """Return the three numbers of a variant."""
    split = facts.partial_bytes_per_tile > 0  # by way of a workspace
    out = facts.tile_m * facts.tile_n * (4 if facts.dtype_d == "f32" else 2)
    partial = 2 * 4 * facts.tile_m * facts.tile_n if split else 0  # written, and read again by one of the splits
    store = (out + partial) // STORE_BYTES_PER_CLOCK
    tile = FIRST_TILE_CLOCKS + (store // OVERLAP if facts.grid_rule == "persistent" else store)
    return Clocks(_k_tile(facts, record["spec"]), tile, MEMSET_CLOCKS if split else 0)


def _k_tile(facts: Facts, spec: Mapping[str, Any]) -> int:
    m, n, k, size = facts.tile_m, facts.tile_n, facts.tile_k, DTYPES[facts.dtype_a].bytes
    bytes_filled = size * (m + n) * k
    if facts.tensor_maps:
        rate, copies = WGMMA_PRODUCTS_PER_CLOCK, 0
        rows, columns = (n, m) if spec.get("swapped") else (m, n)
        bytes_read = size * (rows + columns * -(-rows // WARPGROUP_ROWS)) * k
    else:
        rate = PRODUCTS_PER_CLOCK.get(_number(facts.arch), USUAL_PRODUCTS_PER_CLOCK)
        warp_m, warp_n = (int(word) for word in str(spec["warp_tile"]).split("x"))
        bytes_read = size * (m // warp_m) * (n // warp_n) * (warp_m + warp_n) * k
        aligns = (1, 1) if spec["copy"] == "scalar" else (facts.align_a, facts.align_b)
        staged = spec["copy"] != "cp_async"
        copies = sum(_copies(extent * k, align, size, staged) for extent, align in zip((m, n), aligns))
    work = [
        -(-m * n * k * size // (2 * rate)),
        (bytes_filled + bytes_read) // SMEM_BYTES_PER_CLOCK,
        bytes_filled // L2_BYTES_PER_CLOCK // facts.cluster_ctas,
        copies,
    ]
    return max(work) + (sum(work) - max(work)) // OVERLAP + K_TILE_CLOCKS


def _copies(elements: int, align: int, element_bytes: int, staged: bool) -> int:
    """Return the clocks that a warp's instructions take which copy a tile of one operand."""
    through_registers = staged or align * element_bytes < ASYNC_BYTES
    return elements // align // 32 * (REGISTER_COPY_CLOCKS if through_registers else COPY_CLOCKS)


def _number(arch: str) -> int:
    return int("".join(digit for digit in arch if digit.isdigit()))


def clocks(row: Row, work: int, k: int, target: Target) -> int:
    """Estimate a launch of `work` CTA tiles, splits and batches counted, at most 2^31 - 1.

    Of the last wave, an SM that has fewer CTAs than it could hold takes as long as half those that are missing as well.
    """
    k_tiles = (max(k, 1) + row.tile_k - 1) // row.tile_k
    k_tiles = (k_tiles + row.splits - 1) // row.splits
    tile = k_tiles * row.k_tile_clocks + row.tile_clocks
    fitting = (target.smem_bytes_per_cta + SMEM_RESERVED_BYTES_PER_CTA) // (
        row.smem_bytes + SMEM_RESERVED_BYTES_PER_CTA
    )
    resident = max(1, min(row.ctas_per_sm, fitting))
    waves, rest = divmod(work, resident * target.sms)
    halves = 2 * waves * resident + (-(-rest // target.sms) + resident if rest else 0)
    if tile > LIMIT // halves:
        return LIMIT
    return row.launch_clocks + tile * halves // 2
