"""Tuned constants of the Policy of a kernel on mma.sync. The headers read them and decide nothing themselves."""

from __future__ import annotations

from generator.families.common import STREAM_K_MIN_K_TILES, partials_in_flight
from generator.families.mma_sync.plan import MMA_ROWS, MmaSyncPlan
from generator.layouts import ASYNC_BYTES

MANY_STEPS = 32
"""Products of a block of k among which reads of the next block hide; with fewer the reads come first."""

FEW_BLOCKS = 2
"""Blocks of k of a k-tile up to which reads may follow products."""

MMA_TO_COPY_FIRST = 128
"""Tensor instructions of a k-tile from which on a single fragment stage copies in the first block: 4 to 9 % faster."""

COPIES_IN_FLIGHT = 8
UNALIGNED_COPIES_IN_FLIGHT = 4
"""Loads of a copy through registers that are under way at once; an unaligned one holds two vectors each."""


def steps(plan: MmaSyncPlan) -> int:
    """Return how many products of fragments a block of k has."""
    return plan.spec.warp_tile.m // MMA_ROWS * (plan.spec.warp_tile.n // plan.mma_n)


def reads_first(plan: MmaSyncPlan) -> bool:
    """Tell whether the reads of a block come before its products."""
    return steps(plan) < MANY_STEPS or plan.k_blocks > FEW_BLOCKS


def copy_placement(plan: MmaSyncPlan) -> str:
    """Return where a k-tile issues the cp.async of a later one, by the name in common/policy.cuh.

    A k-tile that is waited for before another one is copied has the less time the later it is copied, so all of it is copied
    before the products.
    """
    ahead = plan.spec.fragment_stages == 2
    in_use = 1 if plan.spec.stages == 1 or ahead else 2
    one_ahead = plan.spec.stages <= in_use + 1
    if one_ahead and not any(_through_registers(plan, tile.chunk) for tile in (plan.a, plan.b)):
        return "before_last_block"
    copies_first = not ahead and plan.k_blocks > 1 and plan.mma_per_k_tile >= MMA_TO_COPY_FIRST
    return "in_first_block" if copies_first else "in_last_block"


def stores_behind_mma(plan: MmaSyncPlan) -> bool:
    """Tell whether the stores of a copy through registers wait for the last products.

    Unaligned vectors are shifted there and not among the products; among reads of the next block they may be: 6 % faster.
    """
    unaligned = any(is_unaligned(tile.chunk, align) for tile, align in _operands(plan))
    return not plan.spec.prefetch or (unaligned and plan.spec.fragment_stages == 1)


def copies_in_flight(plan: MmaSyncPlan, chunk: int, align: int) -> int:
    """Return how many loads of an operand are under way at once, or 0 where cp.async copies it."""
    if plan.register_copy:
        return UNALIGNED_COPIES_IN_FLIGHT if is_unaligned(chunk, align) else COPIES_IN_FLIGHT
    return COPIES_IN_FLIGHT if _through_registers(plan, chunk) else 0


def is_unaligned(chunk: int, align: int) -> bool:
    """Tell whether rows begin within a chunk."""
    return align < chunk


def stream_k(plan: MmaSyncPlan) -> dict[str, int]:
    """Return the constants of stream-K by name."""
    warp = plan.spec.warp_tile
    return {
        "stream_k_min_k_tiles": STREAM_K_MIN_K_TILES,
        "partials_in_flight": partials_in_flight(warp.m // MMA_ROWS * (warp.n // 8)),
    }


def _operands(plan: MmaSyncPlan) -> tuple:
    return (plan.a, plan.spec.align_a), (plan.b, plan.spec.align_b)


def _through_registers(plan: MmaSyncPlan, chunk: int) -> bool:
    return chunk * plan.spec.operand_bytes < ASYNC_BYTES
