"""What of a spec on mma.sync its module in CuTe DSL cannot say, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from generator.families.mma_sync import form_rules
from generator.families.mma_sync.form_rules import ATOMS, of_form
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import Change

ARCHS = "sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_103 sm_120 sm_121".split()
"""Architectures that the DSL writes PTX for; of sm_110 it makes sm_101, which is what CUDA 12 called it.

Source: `cutlass.base_dsl.enums.Arch` of nvidia-cutlass-dsl 4.8.1, and a test that asks it.
"""

RULES: list[Rule] = []
rule = adder(RULES)

_SERVED = {
    "dtype_a": ("f16", "bf16"),
    "copy": ("cp_async",),
    "mma": ("m16n8k16",),
    "acc": ("f32", "f16"),
    "fragment_stages": (2,),
    "mma_order": ("zigzag",),
    "store": ("smem",),
    "smem_alloc": ("dynamic",),
}
_REASONS = {
    "dtype_a": "the MmaOp is of half-precision numbers",
    "copy": "the TiledCopy is of cp.async",
    "mma": "the MmaOp is of m16n8k16",
    "acc": "a TiledMma adds up in one type",
    "fragment_stages": "a k-block is read while another is multiplied",
    "mma_order": "cute.gemm goes through a warp's atoms in an order of its own",
    "store": "the epilogue goes by way of shared memory",
    "smem_alloc": "its SmemAllocator hands out dynamic shared memory",
}


def _as_served(plan: Plan) -> Iterator[Change]:
    yield {name: str(served[0]) for name, served in _SERVED.items() if getattr(plan.spec, name) not in served}
    yield ATOMS


@rule(lambda plan: [ATOMS])
def dsl_arch(plan: Plan) -> str | None:
    if plan.spec.form != "dsl" or plan.spec.arch in ARCHS:
        return None
    return f"{plan.spec.arch}: CuTe DSL writes PTX for {', '.join(ARCHS)}"


@rule(_as_served)
def dsl_fields(plan: Plan) -> str | None:
    if plan.spec.form != "dsl":
        return None
    strays = [name for name, served in _SERVED.items() if getattr(plan.spec, name) not in served]
    told = "; ".join(f"{name} {getattr(plan.spec, name)}: {_REASONS[name]}" for name in strays)
    return f"form dsl cannot say {told}" if strays else None


rule(form_rules.at_once)(of_form("dsl", form_rules.schedule))
rule(form_rules.in_pieces)(of_form("dsl", form_rules.alignment))
rule(form_rules.padded)(of_form("dsl", form_rules.swizzles))
rule(form_rules.padded)(of_form("dsl", form_rules.padding))
dsl_k_blocks = rule(form_rules.deeper)(of_form("dsl", form_rules.k_blocks))
dsl_copies = rule(form_rules.on_atoms)(of_form("dsl", form_rules.copies))

FITS = (dsl_k_blocks, dsl_copies)
"""The rules that a choice of tiles may break."""
