"""Kernels on mma.sync and ldmatrix, with copies by cp.async or through registers. They run on every architecture."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.epilogue import operands_bytes
from generator.families.base import Expectation, Family
from generator.families.mma_sync.defaults import resolve
from generator.families.mma_sync.emit import FORMS
from generator.families.mma_sync.form_rules import CUTE_RULES, DSL_RULES
from generator.families.mma_sync.plan import NAME, REGISTER_COPIES, MmaSyncPlan, stores_per_k_tile
from generator.families.mma_sync.rules import RULES
from generator.layouts import ASYNC_BYTES
from generator.spec import WMMA, Request, Spec
from hgemm.problem import PROBLEM_BYTES

INSTRUCTIONS = ("m16n8k16", "m16n8k8", WMMA)
OTHER_COPIES = {"tma": "mma_sync_tma", "ldg": "mma_sync_direct"}
"""Copies of other families with these instructions."""

CLAIMS = {
    "mma": lambda mma: mma in INSTRUCTIONS,
    "store": lambda store: store == "smem",
    "warp_tile": lambda warp_tile: True,
    "fragment_stages": lambda stages: True,
    "store_spacing": lambda spacing: True,
    "prefetch": lambda prefetch: not prefetch,
    "smem_alloc": lambda alloc: alloc == "static",
    "copy": lambda copy: copy in ("cp_async", *REGISTER_COPIES),
    "form": lambda form: form == "dsl",
}


def objection(request: Request) -> str:
    """Say that a copy is another family's."""
    family = OTHER_COPIES.get(request.get("copy", ""))
    return f"copy {request['copy']} on mma.sync is family {family}" if family else ""


_ACC_LETTERS = {"f32": "s", "f16": "h"}


def alias(spec: Spec) -> str:
    """Return the name that CUTLASS 2.x gives such a kernel. It leaves out types that equal the accumulator's."""
    kind, shape = ("wmma_", "161616") if spec.mma == WMMA else ("", f"168{spec.mma.rpartition('k')[2]}")
    acc = "f16" if spec.acc == "f16" else "f32"
    tile = spec.cta_tile
    return (
        f"cutlass_{kind}tensorop_{f'{spec.dtype_d}_' if spec.dtype_d != acc else ''}{_ACC_LETTERS[acc]}{shape}gemm"
        f"{f'_{spec.dtype_a}' if spec.dtype_a != acc else ''}_{tile.m}x{tile.n}_{tile.k}x{spec.stages}"
        f"_{spec.layout}_align{min(spec.align_a, spec.align_b)}"
    )


def expectation(plan: MmaSyncPlan, allow_spills: bool) -> Expectation:
    """State what inspection must find in the kernel of a plan."""
    reads = sorted({"LDSM" if tile.by_ldmatrix else "LDS" for tile in (plan.a, plan.b)})
    widest = max(plan.a.chunk, plan.b.chunk) * plan.spec.operand_bytes  # narrower copies go through registers
    copies = ("LDGSTS",) if not plan.register_copy and widest >= ASYNC_BYTES else ("LDG", "STS")
    return Expectation(
        arch=plan.spec.arch,
        threads=plan.threads,
        static_smem_bytes=plan.static_smem_bytes,
        smem_bytes=plan.smem_bytes - plan.static_smem_bytes,
        param_bytes=PROBLEM_BYTES + operands_bytes(plan.spec.epilogue),
        max_registers=plan.max_registers,
        mma_opcode=plan.mma_opcode,
        mma_per_k_tile=plan.mma_per_k_tile,
        mma_theory=f"warp {plan.spec.warp_tile}, k {plan.spec.cta_tile.k}, {plan.spec.mma}",
        required=("HMMA", *reads, *copies),
        store_spacing=plan.spec.store_spacing if stores_per_k_tile(plan) > 1 else 0,
        max_k_tiles_in_code=2 if ARCHS[plan.spec.arch].number >= 100 else 1,
        allow_spills=allow_spills,
    )


FAMILY = Family(
    name=NAME,
    mma=INSTRUCTIONS,
    owns=lambda mma, copy: mma in INSTRUCTIONS and copy not in OTHER_COPIES,
    supports=lambda arch: True,
    plan=MmaSyncPlan,
    resolve=resolve,
    rules=(*RULES, *CUTE_RULES, *DSL_RULES),
    alias=alias,
    expectation=expectation,
    forms=FORMS,
    claims=CLAIMS,
    objection=objection,
)
