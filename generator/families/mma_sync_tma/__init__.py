"""Kernels on mma.sync and ldmatrix, with copies by TMA. They run on architectures with TMA, from sm_90 on."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.epilogue import operands_bytes
from generator.families import mma_sync
from generator.families.base import Expectation, Family
from generator.families.mma_sync_tma.defaults import resolve
from generator.families.mma_sync_tma.emit import FORMS
from generator.families.mma_sync_tma.plan import NAME, TmaPlan
from generator.families.mma_sync_tma.rules import RULES, supports
from generator.families.tensor_maps import param_bytes
from generator.spec import Request


def objection(request: Request) -> str:
    """Say that another copy on mma.sync is another family's."""
    return "" if request.get("copy") == "tma" else "other copies than tma are family mma_sync"


def expectation(plan: TmaPlan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    rebalancing = ("USETMAXREG",) if plan.rebalances_registers else ()
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=param_bytes(plan.spec.arch, operands_bytes(plan.spec.epilogue)),
        max_registers=plan.launch_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"warp {plan.spec.warp_tile}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HMMA", "LDSM", "UTMALDG", "SYNCS", *rebalancing),
        forbidden=("LDGSTS",),
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )


FAMILY = Family(
    name=NAME,
    mma=mma_sync.INSTRUCTIONS,
    owns=lambda mma, copy: mma in mma_sync.INSTRUCTIONS and copy == "tma",
    supports=supports,
    plan=TmaPlan,
    resolve=resolve,
    rules=tuple(RULES),
    alias=mma_sync.alias,
    expectation=expectation,
    forms=FORMS,
    claims=mma_sync.CLAIMS,
    objection=objection,
)
