"""A kernel on mma.sync in CuTe's vocabulary: the layouts, copies and products that its template spells out."""

from __future__ import annotations

from typing import Any

from generator.families.cute_text import ELEMENTS, integers, layout
from generator.families.emit import boolean, common_values
from generator.families.mma_sync.emit import summary
from generator.families.mma_sync.form_rules import thread_shape
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import OperandTile

TEMPLATE = "mma_sync/cute_instance.cu.j2"
ENTRY_HEADER = "mma_sync/cute_kernel.cuh"

_INSTRUCTIONS = {
    ("m16n8k16", "f16", "f32"): "SM80_16x8x16_F32F16F16F32_TN",
    ("m16n8k16", "bf16", "f32"): "SM80_16x8x16_F32BF16BF16F32_TN",
    ("m16n8k16", "f16", "f16"): "SM80_16x8x16_F16F16F16F16_TN",
    ("m16n8k8", "f16", "f32"): "SM75_16x8x8_F32F16F16F32_TN",
}
_COPIES = {
    8: "SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>",
    4: "SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint64_t>",
    2: "SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint32_t>",
}
_HERE = "hgemm::cute_form::"
_WORDS = {8: "uint128_t", 4: "uint64_t", 2: "uint32_t", 1: "uint16_t"}
"""What moves so many elements of 2 bytes at once."""
_LDMATRIX = {
    (True, 4): "SM75_U32x4_LDSM_N",
    (True, 2): "SM75_U32x2_LDSM_N",
    (False, 4): "SM75_U16x8_LDSM_T",
    (False, 2): "SM75_U16x4_LDSM_T",
}
"""By whether k is contiguous, and the 8x8 matrices of an instruction."""


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return ENTRY_HEADER


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the values of the template by name."""
    spec = plan.spec
    wide = spec.warp_tile.n % 16 == 0  # two of a warp's atoms along n have one ldmatrix
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "element": ELEMENTS[spec.dtype_a],
        "element_out": ELEMENTS[spec.dtype_d],
        "cta_tiler": integers(spec.cta_tile.m, spec.cta_tile.n, spec.cta_tile.k),
        "copy": spec.copy,
        "register_copy": plan.staged,
        "instruction": _INSTRUCTIONS[spec.mma, spec.dtype_a, spec.acc],
        "mma": spec.mma,
        "warps": integers(plan.warps_m, plan.warps_n, 1),
        "mma_tile": integers(16 * plan.warps_m, (16 if wide else 8) * plan.warps_n, 16),
        "a": _operand(plan, plan.a, 4),
        "b": _operand(plan, plan.b, 4 if wide else 2),
        "epilogue_layout": layout([(plan.slab_rows, plan.slab_pitch), _slab_columns(plan)]),
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _operand(plan: Plan, tile: OperandTile, matrices: int) -> dict[str, str | int]:
    rows, pieces = thread_shape(tile)
    row = (tile.rows, tile.pitch)
    if tile.smem.pair_pad:
        row = ((2, tile.rows // 2), (tile.pitch, 2 * tile.pitch + tile.smem.pair_pad))
    modes = [row, (tile.columns, 1)]
    threads, chunk = [(rows, pieces), (pieces, 1)], [1, tile.chunk]
    if not tile.k_major:
        modes, threads, chunk = modes[::-1], threads[::-1], chunk[::-1]
    return {
        "k_major": boolean(tile.k_major),
        "layout": _swizzled(tile.smem.swizzle, [*modes, (plan.spec.stages, tile.stage_elements)]),
        "elements": plan.spec.stages * tile.stage_elements,
        "instruction": f"{_HERE}LoadGlobal<{_WORDS[tile.chunk]}>" if plan.staged else _COPIES[tile.chunk],
        "smem_store": f"{_HERE}StoreShared<{_WORDS[tile.chunk]}>",
        "threads": layout(threads),
        "chunk": integers(*chunk),
        "ldmatrix": _LDMATRIX[tile.k_major, matrices],
    }


def _slab_columns(plan: Plan) -> tuple:
    """Return the extent and stride of staged columns: of pieces of two words of 4 floats, the odd words lie behind the even."""
    columns = plan.spec.cta_tile.n
    if not plan.epilogue_pieces_of_two_words:
        return columns, 1
    return (4, 2, columns // 8), (1, 4 * plan.slab_odd_words, 4)


def _swizzled(swizzle: tuple[int, int, int], modes: list[tuple]) -> str:
    bits, base, shift = swizzle
    plain = layout(modes)
    return f"decltype(composition(Swizzle<{bits}, {base}, {shift}>{{}}, {plain}{{}}))" if bits else plain
