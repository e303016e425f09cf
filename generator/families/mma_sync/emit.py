"""The template values of kernels on mma.sync, in each form: on CuTe's atoms, in CuTe, and as a module of CuTe DSL."""

from __future__ import annotations

from typing import Any

from generator.families.base import Form
from generator.families.common import (
    CUTE_ELEMENTS,
    STREAM_K_MIN_K_TILES,
    common_values,
    cute_integers,
    cute_layout,
    partials_in_flight,
)
from generator.families.mma_sync.form_rules import thread_shape
from generator.families.mma_sync.plan import MMA_ROWS
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import ASYNC_BYTES, OperandTile

MANY_STEPS = 32
"""Products of a block of k among which reads of the next block hide; with fewer the reads come first."""

FEW_BLOCKS = 2
"""Blocks of k of a k-tile up to which reads may follow products."""

MMA_TO_COPY_FIRST = 128
"""Tensor instructions of a k-tile from which on a single fragment stage copies in the first block: 4 to 9 % faster."""

COPIES_IN_FLIGHT = 8
"""Loads of a copy through registers that are under way at once; an unaligned one holds two vectors each."""


def steps(plan: Plan) -> int:
    """Return how many products of fragments a block of k has."""
    return plan.spec.warp_tile.m // MMA_ROWS * (plan.spec.warp_tile.n // plan.mma_n)


def reads_first(plan: Plan) -> bool:
    """Return whether the reads of a block come before its products."""
    return steps(plan) < MANY_STEPS or plan.k_blocks > FEW_BLOCKS


def copy_placement(plan: Plan) -> str:
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


def stores_behind_mma(plan: Plan) -> bool:
    """Return whether the stores of a copy through registers wait for the last products.

    Unaligned vectors are shifted there and not among the products; among reads of the next block they may be: 6 % faster.
    """
    unaligned = any(is_unaligned(tile.chunk, align) for tile, align in _operands(plan))
    return not plan.spec.prefetch or (unaligned and plan.spec.fragment_stages == 1)


def copies_in_flight(plan: Plan, chunk: int) -> int:
    """Return how many single elements of an operand a thread loads at once, or 0 if it copies wider chunks."""
    return COPIES_IN_FLIGHT if not plan.register_copy and _through_registers(plan, chunk) else 0


def is_unaligned(chunk: int, align: int) -> bool:
    """Return whether rows begin within a chunk."""
    return align < chunk


def stream_k(plan: Plan) -> dict[str, Any]:
    """Return the constants of stream-K by name."""
    warp = plan.spec.warp_tile
    return {
        "persistent": plan.persistent,
        "stream_k_min_k_tiles": STREAM_K_MIN_K_TILES,
        "partials_in_flight": partials_in_flight(warp.m // MMA_ROWS * (warp.n // 8)),
    }


def _operands(plan: Plan) -> tuple:
    return (plan.a, plan.spec.align_a), (plan.b, plan.spec.align_b)


def _through_registers(plan: Plan, chunk: int) -> bool:
    return chunk * plan.spec.operand_bytes < ASYNC_BYTES


# ==== Template values ====


def summary(plan: Plan) -> str:
    """Describe the kernel in one line."""
    spec = plan.spec
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"warp tile {spec.warp_tile}, {spec.stages} stages, {plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )


def _slab_columns(plan: Plan) -> tuple:
    """Return the extent and stride of staged columns. If 16 bytes of D are two words of 4 floats, the odd words follow the even."""
    columns = plan.spec.cta_tile.n
    if not plan.stores_two_words:
        return columns, 1
    return (4, 2, columns // 8), (1, 4 * plan.slab_odd_words, 4)


# ==== Form atoms ====


def atoms_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
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
        "zigzag": spec.mma_order == "zigzag",
        "fragment_rows": plan.fragment_rows,
        "wmma": plan.wmma,
        "static_smem": plan.static_smem_bytes > 0,
        "copy": spec.copy,
        "register_copy": plan.register_copy,
        "store_spacing": spec.store_spacing,
        "prefetch": spec.prefetch,
        "stores_behind_mma": stores_behind_mma(plan),
        "copy_placement": copy_placement(plan),
        "reads_first": reads_first(plan),
        "a": _atoms_operand(plan, plan.a, "m", spec.cta_tile.m, spec.align_a),
        "b": _atoms_operand(plan, plan.b, "n", spec.cta_tile.n, spec.align_b),
        **stream_k(plan),
        "pointer_arrays": spec.pointer_arrays,
        "store_through_shared": spec.store == "smem",
        "epilogue_pitch": plan.epilogue_pitch,
        "epilogue_odd_words": plan.epilogue_odd_words,
        "epilogue_rows": MMA_ROWS,
        "mainloop_bytes": spec.stages * plan.stage_bytes,
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _atoms_operand(plan: Plan, tile: OperandTile, axis: str, extent: int, align: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": tile.k_major,
        "contiguous": "k" if tile.k_major else axis,
        "align": tile.chunk,
        "row_align": min(align, tile.chunk),
        "pitch": tile.pitch,
        "pair_pad": tile.smem.pair_pad,
        "swizzle": tile.smem.swizzle,
        "copies_in_flight": copies_in_flight(plan, tile.chunk),
    }


# ==== Form cute ====

_CUTE_INSTRUCTIONS = {
    ("m16n8k16", "f16", "f32"): "SM80_16x8x16_F32F16F16F32_TN",
    ("m16n8k16", "bf16", "f32"): "SM80_16x8x16_F32BF16BF16F32_TN",
    ("m16n8k16", "f16", "f16"): "SM80_16x8x16_F16F16F16F16_TN",
    ("m16n8k8", "f16", "f32"): "SM75_16x8x8_F32F16F16F32_TN",
}
_CUTE_COPIES = {
    8: "SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>",
    4: "SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint64_t>",
    2: "SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint32_t>",
}
_CUTE_VECTORS = {8: "uint128_t", 4: "uint64_t", 2: "uint32_t", 1: "uint16_t"}
"""Types that move as many elements of 2 bytes at once."""
_LDMATRIX = {
    (True, 4): "SM75_U32x4_LDSM_N",
    (True, 2): "SM75_U32x2_LDSM_N",
    (False, 4): "SM75_U16x8_LDSM_T",
    (False, 2): "SM75_U16x4_LDSM_T",
}
"""Instructions by whether k is contiguous, and by their 8x8 matrices."""


def cute_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec = plan.spec
    wide = spec.warp_tile.n % 16 == 0  # one ldmatrix then reads two atoms along n
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "element": CUTE_ELEMENTS[spec.dtype_a],
        "element_out": CUTE_ELEMENTS[spec.dtype_d],
        "cta_tiler": cute_integers(spec.cta_tile.m, spec.cta_tile.n, spec.cta_tile.k),
        "copy": spec.copy,
        "register_copy": plan.register_copy,
        "instruction": _CUTE_INSTRUCTIONS[spec.mma, spec.dtype_a, spec.acc],
        "mma": spec.mma,
        "warps": cute_integers(plan.warps_m, plan.warps_n, 1),
        "mma_tile": cute_integers(MMA_ROWS * plan.warps_m, (16 if wide else 8) * plan.warps_n, 16),
        "a": _cute_operand(plan, plan.a, 4),
        "b": _cute_operand(plan, plan.b, 4 if wide else 2),
        "epilogue_layout": cute_layout([(plan.slab_rows, plan.slab_pitch), _slab_columns(plan)]),
        "ctas_per_sm": spec.ctas_per_sm,
    }


def _cute_operand(plan: Plan, tile: OperandTile, matrices: int) -> dict[str, Any]:
    rows, vectors = thread_shape(tile)
    row = (tile.rows, tile.pitch)
    if tile.smem.pair_pad:
        row = ((2, tile.rows // 2), (tile.pitch, 2 * tile.pitch + tile.smem.pair_pad))
    modes = [row, (tile.columns, 1)]
    threads, chunk = [(rows, vectors), (vectors, 1)], [1, tile.chunk]
    if not tile.k_major:
        modes, threads, chunk = modes[::-1], threads[::-1], chunk[::-1]
    return {
        "k_major": tile.k_major,
        "swizzled": tile.smem.swizzle[0] > 0,
        "swizzle": tile.smem.swizzle,
        "layout": cute_layout([*modes, (plan.spec.stages, tile.stage_elements)]),
        "elements": plan.spec.stages * tile.stage_elements,
        "cp_async": _CUTE_COPIES.get(tile.chunk),
        "vector": _CUTE_VECTORS[tile.chunk],
        "threads": cute_layout(threads),
        "chunk": cute_integers(*chunk),
        "ldmatrix": _LDMATRIX[tile.k_major, matrices],
    }


# ==== Form dsl ====

_DSL_TYPES = {"f16": "Float16", "bf16": "BFloat16", "f32": "Float32"}
_BIAS_TERMS = {"none": "", "row": " + bias (n,)", "column": " + bias (m,)"}
_BIAS_STRIDES = {"none": (), "row": (0, 1), "column": (1, 0)}
"""Strides of a bias as a matrix (m, n)."""


def dsl_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec = plan.spec
    wide = spec.warp_tile.n % 16 == 0  # one ldmatrix then reads two atoms along n
    outputs = {"gC": spec.beta, "gBias": spec.bias != "none", "gD": True}
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "bias_term": _BIAS_TERMS[spec.bias],
        "bias_strides": _BIAS_STRIDES[spec.bias],
        "outputs": ", ".join(name for name, there in outputs.items() if there),
        "element": _DSL_TYPES[spec.dtype_a],
        "element_out": _DSL_TYPES[spec.dtype_d],
        "accumulator": _DSL_TYPES[spec.acc],
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "ctas_per_sm": spec.ctas_per_sm,
        "mma_tile": (MMA_ROWS * plan.warps_m, (16 if wide else 8) * plan.warps_n, 16),
        "a": _dsl_operand(plan, plan.a, "mk", 4),
        "b": _dsl_operand(plan, plan.b, "nk", 4 if wide else 2),
        "slab_rows": plan.slab_rows,
        "epilogue_layout": _dsl_layout((plan.slab_rows, plan.slab_pitch), _slab_columns(plan)),
    }


def _dsl_operand(plan: Plan, tile: OperandTile, axes: str, matrices: int) -> dict[str, Any]:
    rows, vectors = thread_shape(tile)
    modes = [(tile.rows, tile.pitch), (tile.columns, 1)]
    threads, chunk = [(rows, vectors), (vectors, 1)], [1, tile.chunk]
    if not tile.k_major:
        modes, threads, chunk, axes = modes[::-1], threads[::-1], chunk[::-1], axes[::-1]
    return {
        "k_major": tile.k_major,
        "contiguous": axes[1],
        "across": axes[0],
        "chunk": tile.chunk,
        "swizzled": tile.smem.swizzle[0] > 0,
        "swizzle": tile.smem.swizzle,
        "layout": _dsl_layout(*modes, (plan.spec.stages, tile.stage_elements)),
        "bytes": plan.spec.stages * tile.stage_elements * plan.spec.operand_bytes,
        "bits": tile.chunk * plan.spec.operand_bytes * 8,
        "cache": "GLOBAL" if tile.chunk * plan.spec.operand_bytes == 16 else "ALWAYS",
        "threads": _dsl_layout(*threads),
        "vector": tuple(chunk),
        "matrices": matrices,
    }


def _dsl_layout(*modes: tuple) -> str:
    """Write the arguments of a layout of modes (extent, stride), either of which may be a tuple."""
    extents, strides = zip(*modes)
    return f"{extents}, stride={strides}"


# ==== The forms ====

FORMS = {
    "atoms": Form("mma_sync/instance.cu.j2", "mma_sync/kernel.cuh", atoms_values),
    "cute": Form("mma_sync/cute_instance.cu.j2", "mma_sync/cute_kernel.cuh", cute_values),
    "dsl": Form("mma_sync/dsl_instance.py.j2", "", dsl_values),
}
