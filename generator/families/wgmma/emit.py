"""The template values of kernels on wgmma, in each form: on CuTe's atoms and in CuTe."""

from __future__ import annotations

from typing import Any

from generator.families.base import Form
from generator.families.common import (
    CUTE_ELEMENTS,
    STREAM_K_MIN_K_TILES,
    common_values,
    cute_integers,
    partials_in_flight,
)
from generator.families.tensor_maps import OperandBoxes
from generator.families.wgmma.plan import WgmmaPlan as Plan
from generator.spec import DTYPE_BYTES
from hgemm.dispatch_table import MIN_SHARING_SPLITS
from hgemm.epilogue import accumulators_of
from hgemm.tensor_maps import ROWS_PER_WARPGROUP

NARROW_TILE_COLUMNS, NARROW_SHARE_COLUMNS, SHARE_COLUMNS = 96, 16, 32
"""Tiles of up to so many columns have narrow shares, so that more CTAs finish one."""


def stream_k(plan: Plan) -> dict[str, Any]:
    """Return the constants of stream-K by name.

    `scheduler_per_role`: beside producers that copy, consumers have fewer registers, and values that live across the
    producer/consumer split would spill. `reduce_by_blocks`: halves become floats 64 rows at a time, because all rows may need
    more registers than there are.
    """
    blocks = plan.consumer_rows // ROWS_PER_WARPGROUP
    to_floats = DTYPE_BYTES[plan.spec.dtype_d] == 4
    return {
        "persistent": plan.persistent,
        "stream_k_min_k_tiles": STREAM_K_MIN_K_TILES,
        "partials_in_flight": partials_in_flight(blocks * (plan.tile.n // 8), plan.copied, to_floats),
        "min_sharing_splits": MIN_SHARING_SPLITS,
        "share_columns": share_columns(plan),
        "scheduler_per_role": plan.copied,
        "reduce_by_blocks": plan.spec.acc == "f16" and blocks > 1,
    }


def share_columns(plan: Plan) -> int:
    """Return the columns of D that a CTA finishes at a time if several CTAs share a tile through the workspace."""
    columns = plan.tile.n // accumulators_of(plan.spec.epilogue)
    return min(columns, NARROW_SHARE_COLUMNS if columns <= NARROW_TILE_COLUMNS else SHARE_COLUMNS)


# ==== Template values ====


def wgmma_name(plan: Plan) -> str:
    """Return CuTe's name of the instruction: shape, types of D, A and B, and SS for both operands in shared memory."""
    spec = plan.spec
    types = "".join(dtype.upper() for dtype in (spec.acc, spec.dtype_a, spec.dtype_b))
    return f"64x{plan.tile.n}x{plan.mma_k}_{types}_SS{_only_layout(plan)}"


def _only_layout(plan: Plan) -> str:
    """Return the suffix of instructions that support one layout only."""
    return "" if plan.takes(plan.spec.dtype_a, "nt") else "_TN"


def summary(plan: Plan) -> str:
    """Describe the kernel in one line."""
    spec = plan.spec
    swapped = "operands swapped, " if spec.swap_ab else ""
    copied = "copies by threads, " if plan.copied else ""
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"{swapped}{copied}{spec.consumers} {spec.cooperation} consumers, cluster {spec.cluster}, {spec.stages} stages, "
        f"{plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )


# ==== Form atoms ====


def atoms_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec = plan.spec
    producer, consumer = plan.rebalanced
    aligns = (spec.align_b, spec.align_a) if spec.swap_ab else (spec.align_a, spec.align_b)
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "k_major_only": bool(_only_layout(plan)),
        "wgmma": wgmma_name(plan),
        "consumers": spec.consumers,
        "consumer_m": plan.consumer_rows,
        "pingpong": plan.pingpong,
        "swap_ab": spec.swap_ab,
        "producer_registers": producer,
        "consumer_registers": consumer,
        "tile_m": plan.tile.m,
        "tile_n": plan.tile.n,
        "cluster_m": plan.cluster.m,
        "cluster_n": plan.cluster.n,
        "cluster_size": plan.launch_cluster,
        "ctas_per_sm": spec.ctas_per_sm,
        "copy": spec.copy,
        "a": _atoms_operand(plan.a, "n" if spec.swap_ab else "m", plan.tile.m, aligns[0]),
        "b": _atoms_operand(plan.b, "m" if spec.swap_ab else "n", plan.tile.n, aligns[1]),
        "has_maps": bool(plan.tensor_maps),
        "edge_maps": plan.has_edge_maps,
        "maps": "TensorMapsWithEdges" if plan.has_edge_maps else "TensorMaps",
        "unroll_epilogue": plan.unrolls_epilogue,
        **stream_k(plan),
        "serial_parts": spec.serial_parts,
        "pointer_arrays": spec.pointer_arrays,
        "store": spec.store,
        "store_columns": plan.d.width,
        "epilogue_columns": plan.d.subtile_columns,
        "epilogue_stages": plan.epilogue_stages,
        "mainloop_bytes": plan.mainloop_bytes,
    }


def _atoms_operand(boxes: OperandBoxes, axis: str, extent: int, align: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": boxes.k_major,
        "contiguous": "k" if boxes.k_major else axis,
        "swizzle_bytes": boxes.swizzle_bytes,
        "align": align,
    }


# ==== Form cute ====

_FIRST_SHAPES = (8, 16, 32, 64, 96, 128, 192, 256)
"""Columns of the instructions that CuTe always declares. Source: cute/arch/mma_sm90_gmma.hpp."""

_SWIZZLED = {128: "SW128", 64: "SW64", 32: "SW32", 16: "INTER"}
"""CuTe's names of layouts by the bytes of their rows."""
_STMATRIX = {
    (False, 4): "SM90_U32x4_STSM_N",
    (False, 2): "SM90_U32x2_STSM_N",
    (True, 4): "SM90_U16x8_STSM_T",
    (True, 2): "SM90_U16x4_STSM_T",
}
"""Instructions by whether operands are swapped, and by their 8x8 matrices."""


def cute_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec, tile = plan.spec, plan.tile
    producer, consumer = plan.rebalanced
    rows, columns, stages = _staged(plan)
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "extended_shapes": tile.n not in _FIRST_SHAPES,
        "element": CUTE_ELEMENTS[spec.dtype_a],
        "element_out": CUTE_ELEMENTS[spec.dtype_d],
        "cta_tiler": cute_integers(tile.m, tile.n, tile.k),
        "cluster_shape": cute_integers(plan.cluster.m, plan.cluster.n),
        "cluster_size": plan.launch_cluster,
        "swap_ab": spec.swap_ab,
        "consumers": spec.consumers,
        "pingpong": plan.pingpong,
        "producer_registers": producer,
        "consumer_registers": consumer,
        "mma": spec.mma,
        "wgmma": wgmma_name(plan),
        "k_major_only": bool(_only_layout(plan)),
        "warpgroups": cute_integers(1 if plan.pingpong else spec.consumers, 1, 1),
        "a": _cute_operand(plan, plan.a),
        "b": _cute_operand(plan, plan.b),
        "epilogue_tile": cute_integers(rows, columns),
        "d": _cute_result(plan, rows, columns, stages),
        "stmatrix": _stmatrix(plan, columns),
        "store": spec.store,
        "unroll_epilogue": plan.unrolls_epilogue,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _cute_operand(plan: Plan, boxes: OperandBoxes) -> dict[str, Any]:
    return {
        "k_major": boxes.k_major,
        "major": "K" if boxes.k_major else "MN",
        "swizzle": _SWIZZLED[boxes.row_bytes],
        "shape": cute_integers(boxes.extent, boxes.k, plan.spec.stages),
        "multicast": boxes.shared_by > 1,
        "box": boxes.box[0] * boxes.sliced,
    }


def _staged(plan: Plan) -> tuple[int, int, int]:
    """Return the rows and columns of a box of D, and how many boxes a consumer can stage."""
    columns = plan.d.subtile_columns if plan.spec.swap_ab else plan.d.width
    size = ROWS_PER_WARPGROUP * columns * DTYPE_BYTES[plan.spec.dtype_d]
    return ROWS_PER_WARPGROUP, columns, max(1, plan.epilogue_bytes // (plan.spec.consumers * size))


def _cute_result(plan: Plan, rows: int, columns: int, stages: int) -> dict[str, str]:
    """Return the values of D's boxes in shared memory."""
    major, width = ("MN", ROWS_PER_WARPGROUP) if plan.spec.swap_ab else ("K", plan.d.width)
    swizzle = _SWIZZLED[width * DTYPE_BYTES[plan.spec.dtype_d]] if plan.spec.store == "tma" else ""
    return {"major": major, "swizzle": swizzle, "shape": cute_integers(rows, columns, stages)}


def _stmatrix(plan: Plan, columns: int) -> str:
    """Return the instruction that stores 2-byte accumulators to shared memory; "" if plain stores do."""
    if plan.spec.store == "direct" or DTYPE_BYTES[plan.spec.dtype_d] > 2:
        return ""
    return _STMATRIX[plan.spec.swap_ab, 4 if columns % 16 == 0 else 2]


# ==== The forms ====

FORMS = {
    "atoms": Form("wgmma/instance.cu.j2", "wgmma/kernel.cuh", atoms_values),
    "cute": Form("wgmma/cute_instance.cu.j2", "wgmma/cute_kernel.cuh", cute_values),
}
