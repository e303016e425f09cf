"""The symbol of a variant, which says its spec in a fixed order, and the name that CUTLASS would give it."""

from __future__ import annotations

from generator.spec import Spec

_ACC = {"f32": "f32", "f16": "f16", "f16_promoted": "f16p"}
_BIAS = {"none": "", "row": "_biasrow", "column": "_biascol"}


def symbol_of(spec: Spec) -> str:
    """Return the kernel's `extern "C"` name. Specs that differ have symbols that differ."""
    tile, warp = spec.cta_tile, spec.warp_tile
    words = [
        "hgemm",
        spec.arch.replace("_", ""),
        spec.layout,
        f"{spec.dtype_a}{spec.dtype_b if spec.dtype_b != spec.dtype_a else ''}",
        _ACC[spec.acc],
        spec.dtype_d,
        f"{tile.m}x{tile.n}x{tile.k}",
        f"w{warp.m}x{warp.n}",
        spec.mma.replace("m16n8", ""),
        f"s{spec.stages}f{spec.fragment_stages}",
        _short(str(spec.smem_a)),
        _short(str(spec.smem_b)),
        "zigzag" if spec.mma_order == "zigzag" else "inorder",
        _short(str(spec.raster)),
        _short(str(spec.schedule)).replace("onetile", "one"),
        f"c{spec.ctas_per_sm}",
        f"a{spec.align_a}{spec.align_b}{spec.align_d}",
        spec.store,
    ]
    extras = ("_beta" if spec.beta else "") + _BIAS[spec.bias]
    return "_".join(words) + extras + (f"_{spec.activation}" if spec.activation != "none" else "")


def _short(text: str) -> str:
    return text.replace(":", "").replace(",", "").replace("_", "")


def alias_of(spec: Spec) -> str:
    """Return the name in the style of CUTLASS's library, for filters that users know; variants may share it."""
    depth = spec.mma.rpartition("k")[2]
    letter = {"f32": "s", "f16": "h", "f16_promoted": "s"}[spec.acc]
    tile = spec.cta_tile
    align = min(spec.align_a, spec.align_b)
    return (
        f"cutlass_tensorop_{letter}168{depth}gemm_{spec.dtype_a}_{tile.m}x{tile.n}_{tile.k}x{spec.stages}"
        f"_{spec.layout}_align{align}"
    )
