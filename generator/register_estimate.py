"""How many registers a thread will need: an estimate fitted to what ptxas took, from above.

ptxas reorders and recomputes, so that no sum is exact. Kernels of a random sample that need more than they may have by this
estimate spill in the main; of those that do not, fewer than one in a hundred does, by some bytes, and inspection refuses it.
Source: benchmarks/registers.json (benchmarks/calibrate_registers.py); tests/test_oracle.py samples both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.layouts import OperandTile

if TYPE_CHECKING:
    from generator.plan import Plan

BASE = 27
"""Pointers, loop state and temporaries, and 12 of margin."""

FRAGMENT = 1.25
"""Registers that a fragment register takes: the next k-block's arrive while it is in use."""

FRAGMENT_AHEAD = 0.5
"""The same for the second stage of fragments, whose reads ptxas delays."""

FRAGMENT_ADDRESS = 2.5
COPY_PASS = 0.5
MAX_COPY_PASSES = 40
PERSISTENT = 18
PERSISTENT_THROUGH_REGISTERS = 14
PROMOTED = -13
"""Half accumulators are free between k-tiles, when much else is alive."""

ONE_K_BLOCK = -15
MMA_K8 = 7
ODD_K_BLOCKS = 10
"""Fragments that change places after each k-tile."""

MN_MAJOR = 4
FLOAT_OUTPUT = 5


def estimate(plan: Plan) -> int:
    """Return the registers that a thread of the planned kernel needs, in order not to spill."""
    spec = plan.spec
    k_blocks = spec.cta_tile.k // 16
    ahead = spec.fragment_stages > 1
    fragments = spec.warp_tile.m // 4 + spec.warp_tile.n // 4
    through_registers = 1 in (spec.align_a, spec.align_b)
    addresses = _fragment_addresses(plan.a, spec.warp_tile.m) + _fragment_addresses(plan.b, spec.warp_tile.n)
    terms = (
        BASE,
        plan.accumulator_registers,
        plan.accumulator_registers / 2 * (spec.schedule.kind == "split_k" and spec.acc == "f16"),  # summed up as floats
        FRAGMENT * fragments + FRAGMENT_AHEAD * fragments * ahead,
        FRAGMENT_ADDRESS * addresses,
        COPY_PASS * min(_copy_passes(plan.a) + _copy_passes(plan.b), MAX_COPY_PASSES),
        PERSISTENT * (spec.schedule.kind == "persistent"),
        PERSISTENT_THROUGH_REGISTERS * (spec.schedule.kind == "persistent" and through_registers),
        PROMOTED * (spec.acc == "f16_promoted"),
        ONE_K_BLOCK * (k_blocks == 1),
        MMA_K8 * (plan.mma_k == 8),
        ODD_K_BLOCKS * (ahead and k_blocks == 3),
        MN_MAJOR * ((not plan.a.k_major) + (not plan.b.k_major)),
        FLOAT_OUTPUT * (spec.dtype_d == "f32"),
    )
    return int(sum(terms))


def _fragment_addresses(tile: OperandTile, extent: int) -> int:
    """Count the addresses that reading a warp tile takes beside one: offsets that differ modulo the swizzle's period."""
    if tile.smem.kind != "xor":
        return 0
    along_extent, along_k = (tile.pitch, 1) if tile.k_major else (1, tile.pitch)
    depth = tile.columns if tile.k_major else tile.rows
    offsets = {i * along_extent + k * along_k for i in range(0, extent, 16) for k in range(0, depth, 16)}
    return len({offset % tile.period for offset in offsets}) - 1 if offsets else 0


def _copy_passes(tile: OperandTile) -> int:
    """Count the chunks that a thread copies of a stage."""
    per_row = max(1, tile.columns // tile.chunk)
    rows = max(1, tile.threads // per_row)
    return -(-tile.rows // rows) * -(-per_row // tile.threads)
