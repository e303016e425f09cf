"""Kernels on mma.sync that load fragments from global memory into registers, for few rows. They run from sm_90 on."""

from __future__ import annotations

from typing import Any

from generator.arch import ARCHS
from generator.epilogue import operands_bytes
from generator.families import mma_sync
from generator.families.base import Expectation, Family, Form
from generator.families.common import common_values
from generator.families.mma_sync_direct.plan import MMA, NAME, DirectPlan
from generator.families.mma_sync_direct.rules import RULES, resolve, supports
from generator.spec import Request
from hgemm.problem import PROBLEM_BYTES

COPY = "ldg"


def objection(request: Request) -> str:
    """Say that a kernel with another copy is another family's."""
    return "" if request.get("copy") == COPY else f"only copy {COPY} asks for family {NAME}"


def expectation(plan: DirectPlan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=PROBLEM_BYTES + operands_bytes(plan.spec.epilogue),
        max_registers=plan.max_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"tile {plan.spec.cta_tile}, {plan.warps} warps along k, {plan.spec.mma}",
        required=("HMMA", "LDG", *(() if plan.spec.layout == "tn" else ("MOVM",))),
        forbidden=("LDGSTS", "LDSM"),
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )


def values(plan: DirectPlan, symbol: str) -> dict[str, Any]:
    """Return the template values by name."""
    spec = plan.spec
    return {
        **common_values(plan, symbol),
        "summary": (
            f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
            f"{plan.warps} warps along k, {plan.threads} threads, {plan.smem_bytes} B of shared memory."
        ),
        "warps": plan.warps,
        "ctas_per_sm": spec.ctas_per_sm,
        "a_k_major": spec.a_k_major,
        "b_k_major": spec.b_k_major,
    }


FAMILY = Family(
    name=NAME,
    mma=(MMA,),
    owns=lambda mma, copy: mma in mma_sync.INSTRUCTIONS and copy == COPY,
    supports=supports,
    plan=DirectPlan,
    resolve=resolve,
    rules=tuple(RULES),
    alias=mma_sync.alias,
    expectation=expectation,
    forms={"atoms": Form("mma_sync_direct/instance.cu.j2", "mma_sync_direct/kernel.cuh", values)},
    claims={**mma_sync.CLAIMS, "copy": lambda copy: copy == COPY},
    objection=objection,
)
