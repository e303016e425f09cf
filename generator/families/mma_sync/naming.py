"""How kernels on mma.sync are named."""

from __future__ import annotations

from generator.families.mma_sync.staging import STAGED
from generator.families.naming import short
from generator.spec import WMMA, Spec

_ACC_LETTERS = {"f32": "s", "f16": "h"}


def words(spec: Spec) -> list[str]:
    """Return what a symbol says between the tile and the order of the work."""
    return [
        f"w{spec.warp_tile.m}x{spec.warp_tile.n}",
        spec.mma.replace("m16n8", ""),
        f"s{spec.stages}f{spec.fragment_stages}",
        short(spec.smem_a),
        short(spec.smem_b),
        "zigzag" if spec.mma_order == "zigzag" else "inorder",
        *_copy(spec),
        *([spec.smem_alloc] if spec.smem_alloc != "dynamic" else []),
        *([] if spec.form == "atoms" else [spec.form]),
    ]


def _copy(spec: Spec) -> list[str]:
    """Return what says of copies that are not asynchronous how they are made, how far apart their stores are, and when."""
    if spec.copy not in STAGED:
        return [short(spec.copy)] if spec.copy != "cp_async" else []
    words = {"ldg_sts": "vector", "ldg_sts_scalar": "scalar", "ldg_sts_unaligned": "shifted"}
    return [f"{words[spec.copy]}{spec.store_spacing}", *([] if spec.prefetch else ["sync"])]


def residency_words(spec: Spec) -> list[str]:
    """Return what a symbol says after the order of the work."""
    return [f"c{spec.ctas_per_sm}"]


def alias(spec: Spec) -> str:
    """Return the name that CUTLASS 2.x would give it, which leaves out the types that are the accumulator's."""
    kind, shape = ("wmma_", "161616") if spec.mma == WMMA else ("", f"168{spec.mma.rpartition('k')[2]}")
    acc = "f16" if spec.acc == "f16" else "f32"
    tile = spec.cta_tile
    return (
        f"cutlass_{kind}tensorop_{f'{spec.dtype_d}_' if spec.dtype_d != acc else ''}{_ACC_LETTERS[acc]}{shape}gemm"
        f"{f'_{spec.dtype_a}' if spec.dtype_a != acc else ''}_{tile.m}x{tile.n}_{tile.k}x{spec.stages}"
        f"_{spec.layout}_align{min(spec.align_a, spec.align_b)}"
    )
