"""A kernel on mma.sync as a module of CuTe DSL: the layouts, copies and products that its template spells out."""

from __future__ import annotations

from typing import Any

from generator.families.emit import common_values
from generator.families.mma_sync.emit import summary
from generator.families.mma_sync.form_rules import thread_shape
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import OperandTile

TEMPLATE = "mma_sync/dsl_instance.py.j2"

_TYPES = {"f16": "Float16", "bf16": "BFloat16", "f32": "Float32"}
_BIAS_TERMS = {"none": "", "row": " + bias (n,)", "column": " + bias (m,)"}
_BIAS_STRIDES = {"none": (), "row": (0, 1), "column": (1, 0)}
"""Of a bias seen as a matrix (m, n)."""


def entry_header(plan: Plan) -> str:
    """Return no header's name: a module includes none."""
    return ""


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the values of the template by name."""
    spec = plan.spec
    wide = spec.warp_tile.n % 16 == 0  # two of a warp's atoms along n have one ldmatrix
    outputs = {"gC": spec.beta, "gBias": spec.bias != "none", "gD": True}
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "beta": spec.beta,
        "bias_term": _BIAS_TERMS[spec.bias],
        "bias_strides": _BIAS_STRIDES[spec.bias],
        "outputs": ", ".join(name for name, there in outputs.items() if there),
        "element": _TYPES[spec.dtype_a],
        "element_out": _TYPES[spec.dtype_d],
        "accumulator": _TYPES[spec.acc],
        "warps_m": plan.warps_m,
        "warps_n": plan.warps_n,
        "ctas_per_sm": spec.ctas_per_sm,
        "mma_tile": (16 * plan.warps_m, (16 if wide else 8) * plan.warps_n, 16),
        "a": _operand(plan, plan.a, "mk", 4),
        "b": _operand(plan, plan.b, "nk", 4 if wide else 2),
        "slab_rows": plan.slab_rows,
        "epilogue_layout": _layout((plan.slab_rows, plan.slab_pitch), _slab_columns(plan)),
    }


def _operand(plan: Plan, tile: OperandTile, axes: str, matrices: int) -> dict[str, Any]:
    rows, pieces = thread_shape(tile)
    modes = [(tile.rows, tile.pitch), (tile.columns, 1)]
    threads, chunk = [(rows, pieces), (pieces, 1)], [1, tile.chunk]
    if not tile.k_major:
        modes, threads, chunk, axes = modes[::-1], threads[::-1], chunk[::-1], axes[::-1]
    return {
        "k_major": tile.k_major,
        "contiguous": axes[1],
        "across": axes[0],
        "chunk": tile.chunk,
        "swizzled": tile.smem.swizzle[0] > 0,
        "swizzle": tile.smem.swizzle,
        "layout": _layout(*modes, (plan.spec.stages, tile.stage_elements)),
        "bytes": plan.spec.stages * tile.stage_elements * plan.spec.operand_bytes,
        "bits": tile.chunk * plan.spec.operand_bytes * 8,
        "cache": "GLOBAL" if tile.chunk * plan.spec.operand_bytes == 16 else "ALWAYS",
        "threads": _layout(*threads),
        "vector": tuple(chunk),
        "matrices": matrices,
    }


def _slab_columns(plan: Plan) -> tuple:
    """Return the extent and stride of staged columns: of pieces of two words of 4 floats, the odd words lie behind the even."""
    columns = plan.spec.cta_tile.n
    if not plan.epilogue_pieces_of_two_words:
        return columns, 1
    return (4, 2, columns // 8), (1, 4 * plan.slab_odd_words, 4)


def _layout(*modes: tuple) -> str:
    """Write the arguments that make a layout of modes (extent, stride), either of which may be several."""
    extents, strides = zip(*modes)
    return f"{extents}, stride={strides}"
