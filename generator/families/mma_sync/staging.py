"""Copies by way of registers: how many stores a thread makes for a k-tile, and how far apart they may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from generator.layouts import PIECE_BYTES, OperandTile

if TYPE_CHECKING:
    from generator.families.mma_sync.plan import MmaSyncPlan

STAGED = ("ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned")
"""Copies whose pieces are loaded to registers and stored from there: pieces of `align` elements, single elements, or pieces of
16 bytes, each cut out of two aligned ones."""

CPI_HMMA = 8.06
CPI_STS = {16: 10.00, 8: 6.00, 4: 4.06, 2: 4.06}
"""Clocks from one instruction of a scheduler to the next, of stores by the bytes that a lane stores.

Source: Yan, Wang, Chu, "Demystifying Tensor Cores to Optimize Half-Precision Matrix Multiply", IPDPS 2020, on an RTX 2070;
STS of 2 bytes is taken to be as that of 4.
"""
SCHEDULERS = 4
"""Of an SM, which share its one path to shared memory."""

MAX_SPACING = 64


def steps(tile: OperandTile) -> tuple[int, int, int]:
    """Return the row step, row passes and column passes of a thread's copies of one stage."""
    per_row = max(1, tile.columns // tile.chunk)
    row_step = max(1, tile.threads // per_row)
    return row_step, -(-tile.rows // row_step), -(-per_row // tile.threads)


def passes(tile: OperandTile) -> int:
    """Count the chunks that a thread copies of a stage."""
    _, rows, columns = steps(tile)
    return rows * columns


def pieces(plan: MmaSyncPlan) -> int:
    """Count the pieces that a thread stages of a k-tile: one load and one store each."""
    return passes(plan.a) + passes(plan.b)


def staged_registers(plan: MmaSyncPlan) -> int:
    """Count the registers that hold a thread's pieces, of which each takes whole ones, and a shifted one twice as many."""
    return sum(
        passes(tile) * -(-tile.chunk * tile.element_bytes // 4) * (2 if align < tile.chunk else 1)
        for tile, align in ((plan.a, plan.spec.align_a), (plan.b, plan.spec.align_b))
    )


def hidden_spacing(plan: MmaSyncPlan) -> int:
    """Return the spacing that hides stores: while the schedulers issue so many products each, one store of each is served."""
    widest = min(max(plan.a.chunk, plan.b.chunk) * plan.spec.operand_bytes, PIECE_BYTES)  # more is no legal alignment
    return math.ceil(SCHEDULERS * CPI_STS[widest] / CPI_HMMA)


def a_rows(plan: MmaSyncPlan) -> int:
    """Return the rows of A's fragments that a warp keeps in registers."""
    mma_m, rows = plan.spec.warp_tile.m // 16, plan.spec.warp_tile.m // 16 * plan.k_blocks
    if plan.spec.fragment_stages == 2:
        return mma_m
    return next((count for count in (3, 4) if mma_m > count and rows % count == 0), mma_m)


def room(plan: MmaSyncPlan) -> int:
    """Count the tensor instructions of a warp between which stores may stand.

    With one stage those after which no warp reads the k-tile any more, with two all of a k-tile.
    """
    mma_m, mma_n = plan.spec.warp_tile.m // 16, plan.spec.warp_tile.n // plan.mma_n
    products = plan.k_blocks * mma_m * mma_n - 1  # after the first
    if plan.spec.stages == 1:
        products = min(products, a_rows(plan) * mma_n)
    return products * plan.mma_per_product


def widest_spacing(plan: MmaSyncPlan) -> int:
    """Return the most tensor instructions that there may be between two stores, which follow whole blocks of k.

    What is shifted is stored at once: behind its last piece single elements may follow, where the matrix ends.
    """
    if plan.spec.copy == "ldg_sts_unaligned":
        return 0
    per_product = plan.mma_per_product
    return min(MAX_SPACING, max(0, room(plan)) // per_product // max(1, pieces(plan) - 1) * per_product)


def planned_spacing(plan: MmaSyncPlan) -> int:
    """Return the spacing that hides stores, where they then take no more than half of a k-tile with two stages.

    Single elements are too many to be placed one by one, and what is not loaded ahead comes after the products.
    """
    if plan.spec.copy == "ldg_sts_scalar" or not plan.spec.prefetch:
        return 0
    share = 2 if plan.spec.stages > 1 else 1
    return min(hidden_spacing(plan), widest_spacing(plan) // share)
