"""How kernels on TMA and wgmma are named."""

from __future__ import annotations

from generator.spec import Spec

_COOPERATION = {"cooperative": "co", "pingpong": "pp"}


def words(spec: Spec) -> list[str]:
    """Return what a symbol says between the tile and the order of the work."""
    swapped = ["swapped"] if spec.swapped else []
    return [
        "wgmma",
        *swapped,
        f"{_COOPERATION[spec.cooperation]}{spec.consumers}",
        f"cl{spec.cluster}",
        f"s{spec.stages}",
    ]


def residency_words(spec: Spec) -> list[str]:
    """Return what a symbol says after the order of the work."""
    return [f"c{spec.ctas_per_sm}"]


def alias(spec: Spec) -> str:
    """Return the name that CUTLASS 3.x would give it, whose third letter of a layout is that of C and D, here row-major."""
    letter = {"f32": "s", "f16": "h", "f16_promoted": "s"}[spec.acc]
    tile, cluster = spec.cta_tile, spec.cluster
    atom = spec.mma.removeprefix("m").replace("n", "x").replace("k", "x")
    c = spec.dtype_d if spec.beta else "void"
    store = "_epi_tma" if spec.store == "tma" else "_epi_nosmem"
    return (
        f"cutlass3x_sm90_tensorop_{letter}{atom}gemm_{spec.dtype_a}_{spec.dtype_b}_{spec.acc}_{c}_{spec.dtype_d}"
        f"_{tile}_{cluster}x1_{spec.stages}_{spec.layout}t_align{min(spec.align_a, spec.align_b)}"
        f"_warpspecialized_{spec.cooperation}{store}"
    )
