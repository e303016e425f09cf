"""The values that the template of kernels on mma.sync takes."""

from __future__ import annotations

from typing import Any

from generator.families.emit import boolean, common_values
from generator.families.mma_sync import policy
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import OperandTile

TEMPLATE = "mma_sync/instance.cu.j2"
ENTRY_HEADER = "mma_sync/kernel.cuh"

EPILOGUE_ROWS = 16
"""Rows of a warp tile that go through shared memory at once."""


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return ENTRY_HEADER


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return them by name."""
    spec = plan.spec
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "warp_m": spec.warp_tile.m,
        "warp_n": spec.warp_tile.n,
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "mma_k": plan.mma_k,
        "fragment_stages": spec.fragment_stages,
        "zigzag": boolean(spec.mma_order == "zigzag"),
        "fragment_rows": policy.fragment_rows(plan),
        "wmma": boolean(plan.wmma),
        "static_smem": boolean(plan.static_smem_bytes > 0),
        "copy": spec.copy,
        "register_copy": plan.staged,
        "store_spacing": spec.store_spacing,
        "prefetch": boolean(spec.prefetch),
        "stores_behind_mma": boolean(policy.stores_behind_mma(plan)),
        "copy_placement": policy.copy_placement(plan),
        "reads_first": boolean(policy.reads_first(plan)),
        "a": _operand(plan, plan.a, "m", spec.cta_tile.m, spec.align_a),
        "b": _operand(plan, plan.b, "n", spec.cta_tile.n, spec.align_b),
        **policy.stream_k(plan),
        "store_through_shared": boolean(spec.store == "smem"),
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "epilogue_rows": EPILOGUE_ROWS,
        "mainloop_bytes": spec.stages * plan.stage_bytes,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(plan: Plan, tile: OperandTile, axis: str, extent: int, align: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": boolean(tile.k_major),
        "contiguous": "k" if tile.k_major else axis,
        "align": tile.chunk,
        "row_align": min(align, tile.chunk),
        "pitch": tile.pitch,
        "pair_pad": tile.smem.pair_pad,
        "swizzle": tile.smem.swizzle,
        "copies_in_flight": policy.copies_in_flight(plan, tile.chunk, align),
    }


def summary(plan: Plan) -> str:
    """Say in a line what the kernel is."""
    spec = plan.spec
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"warp tile {spec.warp_tile}, {spec.stages} stages, {plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )
