"""What inspection must find in a kernel on mma.sync."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.binary.inspect import Expectation
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import ASYNC_BYTES
from hgemm.problem import PROBLEM_BYTES


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    copies_by_cp_async = max(plan.a.chunk, plan.b.chunk) * plan.spec.operand_bytes >= ASYNC_BYTES
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=PROBLEM_BYTES,
        max_registers=plan.max_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"warp {plan.spec.warp_tile}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HMMA", "LDSM", "LDGSTS") if copies_by_cp_async else ("HMMA", "LDSM"),
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )
