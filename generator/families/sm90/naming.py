"""How kernels on wgmma are named."""

from __future__ import annotations

from generator.families.naming import short
from generator.spec import Spec

_COOPERATION = {"cooperative": "co", "pingpong": "pp"}


def words(spec: Spec) -> list[str]:
    """Return what a symbol says between the tile and the order of the work."""
    swapped = ["swapped"] if spec.swap_ab else []
    return [
        "wgmma",
        *([] if spec.copy == "tma" else [short(spec.copy)]),
        *swapped,
        f"{_COOPERATION[spec.cooperation]}{spec.consumers}",
        f"cl{spec.cluster}",
        f"s{spec.stages}",
        *([] if spec.form == "atoms" else [spec.form]),
    ]


def residency_words(spec: Spec) -> list[str]:
    """Return what a symbol says after the order of the work."""
    return [f"c{spec.ctas_per_sm}"]


def alias(spec: Spec) -> str:
    """Return the name that CUTLASS 3.x would give it, whose third letter of a layout is that of D.

    Of operands that are not swapped, D is row-major there too. Swapped, it is column-major: CUTLASS's instructions run their m
    along the rows of what it computes, and that is D transposed.
    """
    tile, cluster, layout, d = spec.cta_tile, spec.cluster, spec.layout, "t"
    m, n, cluster_m, cluster_n = tile.m, tile.n, cluster.m, cluster.n
    if spec.swap_ab:
        m, n, cluster_m, cluster_n, layout, d = n, m, cluster_n, cluster_m, exchanged_layout(layout), "n"
    c = spec.dtype_d if spec.beta else "void"
    streams = "_stream_k" if spec.schedule.kind == "stream_k" else ""
    copied = "_cpasync" if spec.copy == "cp_async" else ""
    sharing = "" if spec.consumers == 1 else f"_{spec.cooperation}"
    store = "_epi_tma" if spec.store == "tma" else "_epi_nosmem"
    return (
        f"cutlass3x_sm90_tensorop_gemm_{spec.dtype_a}_{spec.dtype_b}_{spec.acc}_{c}_{spec.dtype_d}"
        f"_{m}x{n}x{tile.k}_{cluster_m}x{cluster_n}x1_{spec.stages}_{layout}{d}_align{min(spec.align_a, spec.align_b)}"
        f"{streams}{copied}_warpspecialized{sharing}{store}"
    )


def exchanged_layout(layout: str) -> str:
    """Return the letters of B^T and A^T for those of A and B: a transposed matrix has the other letter."""
    return layout[::-1].translate(str.maketrans("nt", "tn"))
