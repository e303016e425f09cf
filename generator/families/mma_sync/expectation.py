"""What inspection must find in a kernel on mma.sync."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.build.inspect import Expectation
from generator.families.mma_sync import staging
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import ASYNC_BYTES
from hgemm.problem import PROBLEM_BYTES


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    reads = sorted({"LDSM" if tile.by_ldmatrix else "LDS" for tile in (plan.a, plan.b)})
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=plan.static_smem_bytes,
        smem_bytes=plan.smem_bytes - plan.static_smem_bytes,
        param_bytes=PROBLEM_BYTES,
        max_registers=plan.max_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"warp {plan.spec.warp_tile}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HMMA", *reads, *_copies(plan)),
        store_spacing=plan.spec.store_spacing if staging.pieces(plan) > 1 else 0,
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )


def _copies(plan: Plan) -> tuple[str, ...]:
    """Name what copies: what is narrower than cp.async goes by way of registers in any kernel."""
    by_cp_async = not plan.staged and max(plan.a.chunk, plan.b.chunk) * plan.spec.operand_bytes >= ASYNC_BYTES
    return ("LDGSTS",) if by_cp_async else ("LDG", "STS")
