"""What inspection must find in a kernel on mma.sync and TMA."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.build.inspect import Expectation
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.sm90.expectation import param_bytes


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    rebalancing = ("USETMAXREG",) if plan.registers_change_hands else ()
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=param_bytes(plan.spec.arch),
        max_registers=plan.launch_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"warp {plan.spec.warp_tile}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HMMA", "LDSM", "UTMALDG", "SYNCS", *rebalancing),
        forbidden=("LDGSTS",),
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )
