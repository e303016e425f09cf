"""What inspection must find in a kernel on wgmma."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.build.inspect import Expectation
from generator.families.sm90.plan import WgmmaPlan as Plan
from hgemm.launch import MAP_BYTES
from hgemm.problem import PROBLEM_BYTES

MAPS = 3
MAPS_ALIGNMENT_BYTES = 64
"""Source: CUDA driver API, CUtensorMap."""

PARAM_BASE_BYTES = {90: 0x210}
LATER_PARAM_BASE_BYTES = 0x380
"""Where parameters begin in a kernel's constant bank, whose addresses are what is aligned (found in its SASS)."""


def param_bytes(arch: str) -> int:
    """Return the bytes of the problem and, after it, of the maps of A, B and D, of a kernel that takes any."""
    base = PARAM_BASE_BYTES.get(ARCHS[arch].number, LATER_PARAM_BASE_BYTES)
    end = base + PROBLEM_BYTES
    maps_at = -(-end // MAPS_ALIGNMENT_BYTES) * MAPS_ALIGNMENT_BYTES - base
    return maps_at + MAPS * MAP_BYTES


MAINLOOP_COPIES = 1
"""Times that a k-tile's instructions stand in the code: the k loop is neither peeled nor unrolled."""


def expectation_of(plan: Plan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    store = ("UTMASTG",) if plan.spec.store == "tma" else ("STG",)
    rebalancing = ("USETMAXREG",) if any(plan.rebalanced) else ()
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=0,
        smem_bytes=plan.smem_bytes,
        param_bytes=param_bytes(plan.spec.arch) if plan.tensor_maps else PROBLEM_BYTES,
        max_registers=plan.launch_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"consumer {plan.consumer_rows}x{plan.tile.n}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HGMMA", "LDGSTS" if plan.copied else "UTMALDG", "SYNCS", *rebalancing, *store),
        forbidden=("UTMALDG",) if plan.copied else ("LDGSTS",),
        max_k_tiles_in_code=MAINLOOP_COPIES,
        allow_spills=allow_spills,
    )
