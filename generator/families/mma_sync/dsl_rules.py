"""What of a spec on mma.sync its module in CuTe DSL cannot say, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from generator.families.mma_sync.cute_rules import thread_shape
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import Change

_ATOMS = {"form": "atoms"}
"""The form in which every field is served."""
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
    yield _ATOMS


@rule(lambda plan: [_ATOMS])
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


@rule(lambda plan: [{"schedule": "one_tile"}, _ATOMS])
def dsl_schedule(plan: Plan) -> str | None:
    if plan.spec.form != "dsl" or plan.spec.schedule.kind in ("one_tile", "persistent"):
        return None
    return f"form dsl has no {plan.spec.schedule}: its accumulators stay in one CTA"


@rule(lambda plan: [{"cta_tile": str(plan.spec.cta_tile).rpartition("x")[0] + "x32"}, _ATOMS])
def dsl_k_blocks(plan: Plan) -> str | None:
    if plan.spec.form != "dsl" or plan.k_blocks >= 2:
        return None
    return f"k of {plan.spec.cta_tile.k} is one k-block, form dsl reads the next while it multiplies one"


@rule(lambda plan: [{"align_a": "8", "align_b": "8"}, _ATOMS])
def dsl_alignment(plan: Plan) -> str | None:
    short = [name for name in ("align_a", "align_b") if getattr(plan.spec, name) < 2]
    if plan.spec.form != "dsl" or not short:
        return None
    return f"{' and '.join(short)} 1: form dsl copies by cp.async, 2 elements (4 B) at least"


@rule(lambda plan: [_ATOMS])
def dsl_copies(plan: Plan) -> str | None:
    if plan.spec.form != "dsl":
        return None
    for name, tile in (("A", plan.a), ("B", plan.b)):
        rows, chunks = thread_shape(tile)
        per_row = max(1, tile.columns // tile.chunk)
        if rows * chunks != plan.threads or tile.rows % rows or per_row % chunks:
            return f"{plan.threads} threads do not tile {tile.rows} rows of {per_row} pieces of {name}, as a TiledCopy must"
    return None


@rule(lambda plan: [{"smem_a": "pad:8", "smem_b": "pad:8"}, _ATOMS])
def dsl_placements(plan: Plan) -> str | None:
    if plan.spec.form != "dsl":
        return None
    for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)):
        if tile.smem.kind == "xor" and tile.pitch & (tile.pitch - 1):
            return f"{name} {tile.smem} of rows of {tile.pitch}: CuTe composes swizzles with powers of two"
        if tile.smem.pair_pad:
            return f"{name} {tile.smem}: form dsl lays rows one pitch apart"
    return None


FITS = (dsl_k_blocks, dsl_copies)
"""The rules that a choice of tiles may break."""
