"""The values that the template of kernels on mma.sync and TMA takes."""

from __future__ import annotations

from typing import Any

from generator.families.emit import boolean, common_values
from generator.families.mma_sync.emit import summary
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.mma_sync_tma.plan import WarpBoxes

TEMPLATE = "mma_sync_tma/instance.cu.j2"
ENTRY_HEADER = "mma_sync_tma/kernel.cuh"


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return ENTRY_HEADER


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return them by name."""
    spec = plan.spec
    producer, consumer = plan.rebalanced
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "warp_m": spec.warp_tile.m,
        "warp_n": spec.warp_tile.n,
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "mma_k": plan.mma_k,
        "fragment_stages": spec.fragment_stages,
        "fragment_rows": plan.a_rows,
        "zigzag": boolean(spec.mma_order == "zigzag"),
        "producer_registers": producer,
        "consumer_registers": consumer,
        "a": _operand(plan.a, "m", spec.cta_tile.m),
        "b": _operand(plan.b, "n", spec.cta_tile.n),
        "store_through_shared": boolean(spec.store == "smem"),
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "epilogue_rows": plan.staged_rows,
        "mainloop_bytes": plan.mainloop_bytes,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(boxes: WarpBoxes, axis: str, extent: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": boolean(boxes.k_major),
        "contiguous": "k" if boxes.k_major else axis,
        "swizzle_bytes": boxes.swizzle_bytes,
    }
