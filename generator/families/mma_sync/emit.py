"""The values that the template of kernels on mma.sync takes."""

from __future__ import annotations

from typing import Any

from generator.families.emit import boolean, common_values
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import OperandTile

TEMPLATE = "kernel.cu.j2"
ENTRY_HEADER = "hgemm/gemm_sm80.cuh"
STAGED_ENTRY_HEADER = "hgemm/gemm_sm75.cuh"
"""Where copies go by way of registers."""


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return STAGED_ENTRY_HEADER if plan.staged else ENTRY_HEADER


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
        "wmma": ", wmma = true" if plan.wmma else "",
        "prefetch": ", prefetch = false" if plan.staged and not spec.prefetch else "",
        "a": _operand(plan.a, "m", spec.align_a),
        "b": _operand(plan.b, "n", spec.align_b),
        "store_through_shared": boolean(spec.store == "smem"),
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "entry_header": entry_header(plan),
        "store_spacing": f", store_spacing = {spec.store_spacing}" if plan.staged else "",
        "storage": "StagedStorage" if plan.staged else "SharedStorage",
        "mainloop": "StagedMainloop" if plan.staged else "Mainloop",
        "entry": "gemm_sm75" if plan.staged else "gemm_sm80",
        "allocated": ", hgemm::Allocated::statically" if plan.static_smem_bytes else "",
        "mainloop_bytes": spec.stages * plan.stage_bytes,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(tile: OperandTile, extent: str, align: int) -> dict:
    return {
        "k_major": boolean(tile.k_major),
        "contiguous": "k" if tile.k_major else extent,
        "align": tile.chunk,
        "pitch": tile.pitch,
        "pair_pad": f", pair_pad = {tile.smem.pair_pad}" if tile.smem.pair_pad else "",
        "row_align": f", row_align = {align}" if align < tile.chunk else "",
        "swizzle": tile.smem.swizzle,
    }


def summary(plan: Plan) -> str:
    """Say in a line what the kernel is."""
    spec = plan.spec
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"warp tile {spec.warp_tile}, {spec.stages} stages, {plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )
