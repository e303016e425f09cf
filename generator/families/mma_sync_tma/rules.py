"""The rules of kernels on mma.sync with copies by TMA, and the changes that may fix a spec which breaks one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from generator.arch import ARCHS, Arch
from generator.families import common
from generator.families.base import Change, Rule, collector
from generator.families.common import fewer_ctas
from generator.families.mma_sync import rules as mma_sync
from generator.families.mma_sync.defaults import on_mma_sync
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.spec import WMMA
from hgemm.tensor_maps import SWIZZLES_BYTES

STAGES = range(2, 17)
"""One stage is read while another is filled. More keep loads in flight."""

RULES: list[Rule] = []
rule = collector(RULES)


# ==== Architecture and types ====


def supports(arch: Arch) -> bool:
    """Return whether an architecture has TMA."""
    return arch.has_tma


@rule(lambda plan: itertools.chain(on_mma_sync(plan), common.nearest_archs(supports, plan)))
def family(plan: Plan) -> str | None:
    return None if supports(ARCHS[plan.spec.arch]) else f"copy is tma; {plan.spec.arch} has no TMA"


rule(common.one_input_type)(common.same_inputs)
rule(common.legal_accumulators)(common.accumulator)


@rule(lambda plan: [{"mma": "m16n8k16"}, {"mma": "m16n8k8"}, *on_mma_sync(plan)])
def mma(plan: Plan) -> str | None:
    if plan.spec.mma != WMMA:
        return mma_sync.mma_depth(plan)
    return f"mma is {WMMA}; it requires rows at one distance, and TMA swizzles them"


@rule(lambda plan: [*on_mma_sync(plan), {"layout": "tn"}])
def layout(plan: Plan) -> str | None:
    if plan.a.by_ldmatrix and plan.b.by_ldmatrix:
        return None
    return f"layout is {plan.spec.layout}; with copy tma, {plan.spec.dtype_a} inputs require layout tn for ldmatrix"


@rule(lambda plan: [*on_mma_sync(plan), *common.aligned_to_16_bytes(plan)])
def alignment(plan: Plan) -> str | None:
    return common.off_16_bytes(plan, "TMA")


rule(common.aligned_to_16_bytes)(common.alignment_of_operands)
rule(common.d_aligned_to_16_bytes)(common.alignment_of_d)
rule(common.expression_alone)(common.expression)
rule(common.for_pairs)(common.gated_pair)
rule(common.for_further_results)(common.further_results)
rule(common.as_fixed)(common.fixed_fields)
rule(lambda plan: [{"store": "smem"}, {"store": "direct"}])(mma_sync.store)

# ==== Tiles and stages ====

rule(mma_sync.nearest_cta_tiles)(mma_sync.cta_tile)
rule(mma_sync.warp_tiles_that_fit)(mma_sync.warp_tile)
rule(mma_sync.warp_tiles_that_fit)(mma_sync.threads)


@rule(mma_sync.warp_tiles_that_fit)
def boxes(plan: Plan) -> str | None:
    least = SWIZZLES_BYTES[-1] // plan.spec.operand_bytes
    sides = (("A", plan.a), ("B", plan.b))
    strays = [
        f"{boxes.row_extent} elements of {name}"
        for name, boxes in sides
        if not boxes.k_major and boxes.row_extent % least
    ]
    if not strays:
        return None
    found = f"warp tile {plan.spec.warp_tile} has {' and '.join(strays)}"
    return f"{found}; in layout {plan.spec.layout}, TMA requires multiples of {least}"


fewer_stages = partial(common.stages_within, STAGES)


@rule(fewer_stages)
def stages(plan: Plan) -> str | None:
    found = plan.spec.stages
    return None if found in STAGES else f"stages is {found}; copy tma supports {STAGES[0]} to {STAGES[-1]}"


rule(common.one_or_two_fragment_stages)(common.fragment_stages)

# ==== Shared memory and registers ====


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs per SM, D stored directly; then a smaller tile."""
    yield from fewer_stages(plan)
    fewer = [*fewer_ctas(plan)]
    yield from fewer
    yield from ({**change, "store": "direct"} for change in [{}, *fewer_stages(plan)])
    yield from ({**change, "stages": str(STAGES[0])} for change in fewer)
    smaller = mma_sync.smaller_cta_tiles(plan)
    yield from ({**tile, "stages": str(STAGES[0]), "ctas_per_sm": "1"} for tile in smaller)


rule(less_shared_memory)(common.shared_memory)
rule(fewer_ctas)(mma_sync.residency)


@rule(mma_sync.fewer_registers)
def registers(plan: Plan) -> str | None:
    found = mma_sync.registers(plan)
    if not found or any(plan.rebalanced) or ARCHS[plan.spec.arch].has_setmaxnreg:
        return found
    return f"{found}, because the producer's warp takes a share"


# ==== Schedule ====

rule(common.nearest_rasters)(common.raster)
rule(common.split_in_workspace)(common.splits)


@rule(lambda plan: [{"schedule": "persistent"}, *common.split_in_workspace(plan)])
def schedule(plan: Plan) -> str | None:
    if plan.spec.schedule.kind != "stream_k":
        return mma_sync.schedule(plan)
    return "schedule is stream_k; the producer for mma.sync loads whole tiles or equal splits only"
