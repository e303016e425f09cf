"""A kernel on TMA and wgmma in CuTe's vocabulary: the layouts, copies and products that its template spells out."""

from __future__ import annotations

from typing import Any

from generator.families.cute_text import ELEMENTS, integers, layout
from generator.families.emit import boolean, common_values
from generator.families.sm90 import policy
from generator.families.sm90.emit import summary, wgmma_name
from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.sm90.tensor_maps import ROWS_PER_WARPGROUP, OperandBoxes
from generator.spec import DTYPE_BYTES

TEMPLATE = "wgmma/cute_instance.cu.j2"
ENTRY_HEADER = "wgmma/cute_kernel.cuh"

_FIRST_SHAPES = (8, 16, 32, 64, 96, 128, 192, 256)
"""Columns of the instructions that CuTe declares in any case. Source: cute/arch/mma_sm90_gmma.hpp."""

_SWIZZLED = {128: "SW128", 64: "SW64", 32: "SW32", 16: "INTER"}
"""How CuTe names the layouts whose rows are so many bytes."""
_STMATRIX = {
    (False, 4): "SM90_U32x4_STSM_N",
    (False, 2): "SM90_U32x2_STSM_N",
    (True, 4): "SM90_U16x8_STSM_T",
    (True, 2): "SM90_U16x4_STSM_T",
}
"""By whether operands are swapped, and the 8x8 matrices of an instruction."""
_FLOATS = "hgemm::cute_form::StoreShared<uint64_t>"


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return ENTRY_HEADER


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the values of the template by name."""
    spec, tile = plan.spec, plan.tile
    producer, consumer = plan.rebalanced
    rows, columns, stages = _staged(plan)
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "extended_shapes": tile.n not in _FIRST_SHAPES,
        "element": ELEMENTS[spec.dtype_a],
        "element_out": ELEMENTS[spec.dtype_d],
        "cta_tiler": integers(tile.m, tile.n, tile.k),
        "cluster_shape": integers(plan.cluster.m, plan.cluster.n),
        "cluster_size": plan.launch_cluster,
        "swap_ab": boolean(spec.swap_ab),
        "consumers": spec.consumers,
        "pingpong": boolean(plan.pingpong),
        "producer_registers": producer,
        "consumer_registers": consumer,
        "mma": spec.mma,
        "instruction": _instruction(plan),
        "warpgroups": integers(1 if plan.pingpong else spec.consumers, 1, 1),
        "a": _operand(plan, plan.a),
        "b": _operand(plan, plan.b),
        "epilogue_tile": integers(rows, columns),
        "epilogue_layout": _epilogue_layout(plan) if spec.store == "tma" else layout([(1, 0), (1, 0), (1, 0)]),
        "smem_store": _smem_store(plan, columns),
        "store": spec.store,
        "unroll_epilogue": boolean(policy.unroll_epilogue(plan)),
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(plan: Plan, boxes: OperandBoxes) -> dict[str, str | int]:
    order, major = ("", "K") if boxes.k_major else (", Step<_2, _1, _3>{}", "MN")
    shape = integers(boxes.extent, boxes.k, plan.spec.stages)
    swizzled = f"GMMA::Layout_{major}_{_SWIZZLED[boxes.swizzle_bytes]}_Atom<Element>"
    return {
        "k_major": boolean(boxes.k_major),
        "layout": f"decltype(tile_to_shape({swizzled}{{}}, Shape<{shape}>{{}}{order}))",
        "instruction": "SM90_TMA_LOAD_OP" if boxes.shared_by == 1 else "SM90_TMA_LOAD_MULTICAST_OP",
        "box": boxes.box[0] * boxes.sliced,
    }


def _instruction(plan: Plan) -> str:
    name = f"SM90_{wgmma_name(plan)}"
    if name.endswith("_TN"):
        return f"{name}<>"
    majors = (f"GMMA::Major::{'K' if boxes.k_major else 'MN'}" for boxes in (plan.a, plan.b))
    return f"{name}<{', '.join(majors)}>"


# ---- What a consumer stages of D: the boxes that the TMA stores -----------------------------------------------------


def _staged(plan: Plan) -> tuple[int, int, int]:
    """Return the rows and columns of sums in a box, and the boxes that a consumer has room for."""
    columns = plan.d.turn_columns if plan.spec.swap_ab else plan.d.width
    size = ROWS_PER_WARPGROUP * columns * DTYPE_BYTES[plan.spec.dtype_d]
    return ROWS_PER_WARPGROUP, columns, max(1, plan.epilogue_bytes // (plan.spec.consumers * size))


def _epilogue_layout(plan: Plan) -> str:
    major, width = ("MN", ROWS_PER_WARPGROUP) if plan.spec.swap_ab else ("K", plan.d.width)
    swizzled = f"GMMA::Layout_{major}_{_SWIZZLED[width * DTYPE_BYTES[plan.spec.dtype_d]]}_Atom<ElementOut>"
    return f"decltype(tile_to_shape({swizzled}{{}}, Shape<{integers(*_staged(plan))}>{{}}))"


def _smem_store(plan: Plan, columns: int) -> str:
    if plan.spec.store == "direct" or DTYPE_BYTES[plan.spec.dtype_d] > 2:
        return _FLOATS
    return _STMATRIX[plan.spec.swap_ab, 4 if columns % 16 == 0 else 2]
