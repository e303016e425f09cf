"""How many registers a thread will need: an estimate fitted to what ptxas took, from above.

The larger of what the mainloop and what the epilogue need. ptxas reorders and recomputes, so that no sum is exact: of what is
above the limit by this estimate, a third would do without spills all the same.
Source: benchmarks/registers.json (benchmarks/random_specs.py); tests/test_oracle.py samples both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.arch import ARCHS
from generator.families.mma_sync.staging import passes, staged_registers, steps
from generator.layouts import ASYNC_BYTES, OperandTile

if TYPE_CHECKING:
    from generator.families.mma_sync.plan import MmaSyncPlan

BASE = 26
"""Pointers, loop state and temporaries, and some margin."""

FRAGMENT = 1.05
FRAGMENT_AHEAD = 0.5
"""For a register of the second stage of fragments, whose reads ptxas delays."""

COPY_PASS = 0.7
MAX_PASSES = 40
"""Copies beyond so many cost no more registers."""

COPY_ADDRESS = 1.6
ODD_COPY_ADDRESS = 3.5
"""For a place in a stage that is not a constant from another one; of rows that are no power of two, in addition."""

PERSISTENT = 17
PERSISTENT_BY_ALIGN_BYTES = {2: 14, 4: 10, 8: 0, 16: 0}
"""In addition, for each operand."""

SPLIT_K = 6
PROMOTED = -12
"""Half accumulators are free between k-tiles, when much else is alive."""

ONE_K_BLOCK, FOUR_K_BLOCKS = -14, 15
CHANGING_FRAGMENTS = 15
"""Two fragment stages that change places after each k-tile, which has an odd number of k-blocks."""

MMA_K8 = 5
MN_MAJOR = 7
BY_ELEMENT = 8
"""In addition, for an operand that lanes load by the element: of the places of 8 neighbours each is an address of its own."""

FLOAT_OUTPUT = 6

STAGED = 2
"""Beside the registers that hold a k-tile's pieces. Of rows that are not swizzled, the places of those are constants apart."""

FROM_SM100 = -5
"""More of the addresses are in uniform registers."""

EPILOGUE = 48
"""Beside the accumulators, while a piece of a row is finished."""

ACTIVATION = 12
"""In addition, for GELU and SiLU."""

RELAXED_LIMIT = 200
"""Under a tighter limit, ptxas recomputes addresses that it keeps under this one."""


def estimate(plan: MmaSyncPlan) -> int:
    """Return the registers that a thread of the planned kernel needs, in order not to spill."""
    return int(max(_mainloop(plan), _epilogue(plan)))


def _epilogue(plan: MmaSyncPlan) -> float:
    return _sums(plan) + EPILOGUE + ACTIVATION * (plan.spec.activation in ("gelu", "silu"))


def _sums(plan: MmaSyncPlan) -> float:
    """Count the accumulators; those of split-K and stream-K are summed up as floats."""
    doubled = plan.spec.schedule.in_workspace and plan.spec.acc == "f16"
    return plan.accumulator_registers * (2 if doubled else 1)


def _mainloop(plan: MmaSyncPlan) -> float:
    spec = plan.spec
    k_blocks = plan.k_blocks
    ahead = spec.fragment_stages > 1
    persistent = spec.schedule.kind in ("persistent", "stream_k")
    sized = [(tile, tile.chunk * tile.element_bytes) for tile in (plan.a, plan.b)]
    apart = [chunk >= ASYNC_BYTES and not (plan.staged and tile.smem.kind != "xor") for tile, chunk in sized]
    copies = [(passes(tile), _addresses(tile) if differ else 0) for (tile, _), differ in zip(sized, apart)]
    recomputable = (
        min(sum(passes for passes, _ in copies), MAX_PASSES) * COPY_PASS,
        sum(addresses for _, addresses in copies) * (COPY_ADDRESS + ODD_COPY_ADDRESS * (k_blocks == 3)),
        persistent * (PERSISTENT + sum(PERSISTENT_BY_ALIGN_BYTES.get(chunk, 0) for _, chunk in sized)),
        spec.schedule.in_workspace * SPLIT_K,
        (k_blocks == 4) * FOUR_K_BLOCKS,
        (ahead and k_blocks == 3) * CHANGING_FRAGMENTS,
        ((not plan.a.k_major) + (not plan.b.k_major)) * MN_MAJOR,
        ((not plan.a.by_ldmatrix) + (not plan.b.by_ldmatrix)) * BY_ELEMENT,
    )
    terms = (
        BASE,
        plan.accumulator_registers,
        plan.accumulator_registers / 2 * (spec.schedule.in_workspace and spec.acc == "f16"),  # summed up as floats
        _fragments_and_staged(plan),
        sum(recomputable) * min(1.0, plan.max_registers / RELAXED_LIMIT),
        (spec.acc == "f16_promoted") * PROMOTED,
        (k_blocks == 1) * ONE_K_BLOCK,
        (plan.mma_k == 8) * MMA_K8,
        (spec.dtype_d == "f32") * FLOAT_OUTPUT,
        (ARCHS[spec.arch].number >= 100) * FROM_SM100,
    )
    return sum(terms)


def _fragments_and_staged(plan: MmaSyncPlan) -> float:
    """Count the registers of fragments and of a k-tile's pieces, which are alive by turns where nothing is loaded ahead."""
    spec = plan.spec
    fragments = (spec.warp_tile.m // 4 + spec.warp_tile.n // 4) * (
        FRAGMENT + FRAGMENT_AHEAD * (spec.fragment_stages > 1)
    )
    if not plan.staged:
        return fragments
    staged = staged_registers(plan) + STAGED
    return fragments + staged if spec.prefetch else max(fragments, staged)


def _addresses(tile: OperandTile) -> int:
    """Count the places of those chunks that differ modulo the swizzle's period, beside the first.

    Without a swizzle all are constants from the first, but every other one of an odd step between rows padded in pairs.
    """
    step, rows, columns = steps(tile)
    if tile.smem.kind != "xor":
        return int(tile.smem.pair_pad > 0 and step % 2 == 1)
    places = (
        (row * step * tile.pitch + column * tile.threads * tile.chunk)
        for row in range(rows)
        for column in range(columns)
    )
    return len({place % tile.period for place in places}) - 1
