"""Kernels on wgmma, with a producer and consumer warpgroups, and copies by TMA or cp.async. They run on sm_90a."""

from __future__ import annotations

import re

from generator.epilogue import operands_bytes
from generator.families.base import Expectation, Family, problem_fields
from generator.families.tensor_maps import param_bytes
from generator.families.wgmma.defaults import resolve
from generator.families.wgmma.emit import FORMS
from generator.families.wgmma.plan import NAME, WgmmaPlan
from generator.families.wgmma.rules import RULES, supports
from generator.layouts import ASYNC_BYTES
from generator.spec import DTYPE_BYTES, WGMMA, Request, Spec
from hgemm.problem import PROBLEM_BYTES

_ATOM = re.compile(r"m64n\d{1,3}k(?:16|8)", re.ASCII)

MAINLOOP_COPIES = 1
"""Copies of a k-tile's instructions in the code: the k loop is neither peeled nor unrolled."""

CLAIMS = {
    "mma": lambda mma: is_wgmma(mma),
    "store": lambda store: store == "tma",
    "consumers": lambda consumers: consumers > 0,
    "cluster": lambda cluster: cluster.ctas > 1,
    "cooperation": lambda cooperation: cooperation == "pingpong",
    "swap_ab": lambda swap_ab: swap_ab,
    "serial_parts": lambda serial_parts: serial_parts,
}


def is_wgmma(mma: str) -> bool:
    """Return whether an instruction is wgmma, with or without its shape."""
    return mma == WGMMA or _ATOM.fullmatch(mma) is not None


def objection(request: Request) -> str:
    """Say why wgmma cannot multiply the operands of a request; "" if it can."""
    problem = {**problem_fields(request), **request}
    dtype, layout = problem["dtype_a"], problem["layout"]
    if not WgmmaPlan.takes(dtype, layout):
        return f"wgmma reads {dtype} in layout tn only; layout {layout} uses mma.sync"
    least = ASYNC_BYTES // DTYPE_BYTES[dtype]
    short = [f"{name} {problem[name]}" for name in ("align_a", "align_b") if problem[name] < least]
    return f"wgmma requires A and B aligned to {ASYNC_BYTES} B; {', '.join(short)} uses mma.sync" if short else ""


def alias(spec: Spec) -> str:
    """Return the name that CUTLASS 3.x gives such a kernel. The third letter of its layout is D's.

    D is row-major, except with swapped operands: CUTLASS's instructions run their m along the rows of D transposed.
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


def expectation(plan: WgmmaPlan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    store = ("UTMASTG",) if plan.spec.store == "tma" else ("STG",)
    operands = operands_bytes(plan.spec.epilogue)
    rebalancing = ("USETMAXREG",) if plan.rebalances_registers else ()
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=param_bytes(plan.spec.arch, operands, plan.has_edge_maps)
        if plan.tensor_maps
        else PROBLEM_BYTES + operands,
        max_registers=plan.launch_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"consumer {plan.consumer_rows}x{plan.tile.n}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HGMMA", "LDGSTS" if plan.copied else "UTMALDG", "SYNCS", *rebalancing, *store),
        forbidden=("UTMALDG",) if plan.copied else ("LDGSTS",),
        max_k_tiles_in_code=MAINLOOP_COPIES,
        allow_spills=allow_spills,
    )


FAMILY = Family(
    name=NAME,
    mma=(WGMMA, "m64nNk16", "m64nNk8"),
    owns=lambda mma, copy: is_wgmma(mma),
    supports=supports,
    plan=WgmmaPlan,
    resolve=resolve,
    rules=tuple(RULES),
    alias=alias,
    expectation=expectation,
    forms=FORMS,
    claims=CLAIMS,
    objection=objection,
)
