"""The template values of kernels on mma.sync with copies by TMA."""

from __future__ import annotations

from typing import Any

from generator.families.base import Form
from generator.families.common import common_values, partials_in_flight
from generator.families.mma_sync.emit import summary
from generator.families.mma_sync.plan import MMA_ROWS
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.tensor_maps import OperandBoxes


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec = plan.spec
    producer, consumer = plan.rebalanced
    return {
        **common_values(plan, symbol),
        "persistent": plan.persistent,
        "partials_in_flight": partials_in_flight(spec.warp_tile.m // MMA_ROWS * (spec.warp_tile.n // 8)),
        "summary": summary(plan),
        "warp_m": spec.warp_tile.m,
        "warp_n": spec.warp_tile.n,
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "mma_k": plan.mma_k,
        "fragment_stages": spec.fragment_stages,
        "fragment_rows": plan.fragment_rows,
        "zigzag": spec.mma_order == "zigzag",
        "producer_registers": producer,
        "consumer_registers": consumer,
        "a": _operand(plan.a, "m", spec.cta_tile.m),
        "b": _operand(plan.b, "n", spec.cta_tile.n),
        "store_through_shared": spec.store == "smem",
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "epilogue_rows": plan.epilogue_rows,
        "mainloop_bytes": plan.mainloop_bytes,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(boxes: OperandBoxes, axis: str, extent: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": boxes.k_major,
        "contiguous": "k" if boxes.k_major else axis,
        "swizzle_bytes": boxes.swizzle_bytes,
    }


FORMS = {"atoms": Form("mma_sync_tma/instance.cu.j2", "mma_sync_tma/kernel.cuh", values)}
