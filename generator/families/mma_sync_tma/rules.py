"""What is legal of kernels on mma.sync whose tiles come by TMA, and why not."""

from __future__ import annotations

from generator.arch import ARCHS, MMA_SYNC_TMA
from generator.families import rules as shared
from generator.families.mma_sync import rules as mma_sync
from generator.families.mma_sync import ways_out as of_mma_sync
from generator.families.mma_sync.replanned import on_mma_sync
from generator.families.mma_sync_tma import ways_out
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.sm90.tensor_maps import SWIZZLES_BYTES
from generator.families.ways_out import (
    archs,
    fields_as_implied,
    nearest_accumulators,
    nearest_inputs,
    nearest_rasters,
    split_in_workspace,
    whole_pieces,
)
from generator.layouts import PIECE_BYTES
from generator.spec import WMMA

RULES: list[Rule] = []
rule = adder(RULES)

# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule(lambda plan: [*on_mma_sync(plan), *archs(plan, MMA_SYNC_TMA)])
def family(plan: Plan) -> str | None:
    return (
        None
        if MMA_SYNC_TMA in ARCHS[plan.spec.arch].families
        else f"{plan.spec.arch} has no TMA, which copy tma asks for"
    )


same_inputs = rule(nearest_inputs)(shared.same_inputs)
accumulator = rule(nearest_accumulators)(shared.accumulator)


@rule(lambda plan: [{"mma": "m16n8k16"}, {"mma": "m16n8k8"}, *on_mma_sync(plan)])
def mma(plan: Plan) -> str | None:
    if plan.spec.mma != WMMA:
        return mma_sync.mma_depth(plan)
    return f"{WMMA} loads rows that all are one pitch apart, which those that TMA swizzles are not"


@rule(lambda plan: [*on_mma_sync(plan), {"layout": "tn"}])
def layout(plan: Plan) -> str | None:
    if plan.a.by_ldmatrix and plan.b.by_ldmatrix:
        return None
    return (
        f"layout {plan.spec.layout}: ldmatrix reads {plan.spec.dtype_a} by TMA where k is contiguous only, which tn has"
    )


@rule(lambda plan: [*on_mma_sync(plan), *whole_pieces(plan)])
def alignment(plan: Plan) -> str | None:
    least = PIECE_BYTES // plan.spec.operand_bytes
    aligns = (("a", plan.spec.align_a), ("b", plan.spec.align_b))
    short = [f"align_{name} {align}" for name, align in aligns if align < least]
    if not short:
        return None
    return f"{', '.join(short)}: TMA takes pointers and leading dimensions that are multiples of 16 B, {least} elements"


alignment_of_operands = rule(whole_pieces)(shared.alignment_of_operands)
alignment_of_d = rule(lambda plan: [{"align_d": "4"}])(shared.alignment_of_d)
implied_fields = rule(fields_as_implied)(shared.implied_fields)
store = rule(lambda plan: [{"store": "smem"}, {"store": "direct"}])(mma_sync.store)

# ---- Tiles and stages -----------------------------------------------------------------------------------------------

cta_tile = rule(of_mma_sync.nearest_cta_tiles)(mma_sync.cta_tile)
warp_tile = rule(of_mma_sync.warp_tiles_that_fit)(mma_sync.warp_tile)
threads = rule(of_mma_sync.warp_tiles_that_fit)(mma_sync.threads)


@rule(of_mma_sync.warp_tiles_that_fit)
def boxes(plan: Plan) -> str | None:
    least = SWIZZLES_BYTES[-1] // plan.spec.operand_bytes
    sides = (("A", plan.a), ("B", plan.b))
    strays = [
        f"{boxes.warp_extent} of {name}" for name, boxes in sides if not boxes.k_major and boxes.warp_extent % least
    ]
    if not strays:
        return None
    return f"warp tile {plan.spec.warp_tile}: {', '.join(strays)}, whose rows are not along k, are no whole boxes of {least}"


@rule(ways_out.fewer_stages)
def stages(plan: Plan) -> str | None:
    low, high = ways_out.STAGES[0], ways_out.STAGES[-1]
    return None if low <= plan.spec.stages <= high else f"{plan.spec.stages} stages, those by TMA are {low} to {high}"


@rule(lambda plan: [{"fragment_stages": "2"}, {"fragment_stages": "1"}])
def fragment_stages(plan: Plan) -> str | None:
    if plan.spec.fragment_stages in (1, 2):
        return None
    return f"{plan.spec.fragment_stages} fragment stages, 1 or 2 are served"


# ---- Shared memory and registers ------------------------------------------------------------------------------------

shared_memory = rule(ways_out.less_shared_memory)(shared.shared_memory)
residency = rule(of_mma_sync.fewer_ctas)(mma_sync.residency)


@rule(of_mma_sync.fewer_registers)
def registers(plan: Plan) -> str | None:
    found = mma_sync.registers(plan)
    if not found or any(plan.rebalanced) or ARCHS[plan.spec.arch].has_setmaxnreg:
        return found
    return f"{found}, of which a warp that only loads takes its share"


# ---- Order of the work ----------------------------------------------------------------------------------------------

raster = rule(nearest_rasters)(shared.raster)
splits = rule(split_in_workspace)(shared.splits)


@rule(lambda plan: [{"schedule": "persistent"}, *split_in_workspace(plan)])
def schedule(plan: Plan) -> str | None:
    if plan.spec.schedule.kind != "stream_k":
        return mma_sync.schedule(plan)
    return "stream_k shares out k-tiles that a producer for mma.sync does not load: it is given whole tiles or equal splits"
