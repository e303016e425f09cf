"""What is legal of kernels on mma.sync, and why not."""

from __future__ import annotations

from generator.arch import ARCHS, MMA_SYNC
from generator.families import rules as shared
from generator.families.mma_sync import ways_out
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import (
    archs,
    fields_as_implied,
    nearest_accumulators,
    nearest_inputs,
    nearest_rasters,
    split_in_workspace,
)

RULES: list[Rule] = []
rule = adder(RULES)

# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule(lambda plan: archs(plan, MMA_SYNC))
def family(plan: Plan) -> str | None:
    arch = ARCHS[plan.spec.arch]
    return None if MMA_SYNC in arch.families else f"{arch.name} has no cp.async, which the mainloop needs"


same_inputs = rule(nearest_inputs)(shared.same_inputs)
accumulator = rule(nearest_accumulators)(shared.accumulator)
alignment_of_d = rule(lambda plan: [{"align_d": "4"}])(shared.alignment_of_d)
implied_fields = rule(fields_as_implied)(shared.implied_fields)


@rule(lambda plan: [{"store": "smem"}, {"store": "direct"}])
def store(plan: Plan) -> str | None:
    return None if plan.spec.store in ("smem", "direct") else f"D stored by {plan.spec.store}, which wgmma kernels do"


# ---- Tiles ----------------------------------------------------------------------------------------------------------


@rule(ways_out.nearest_cta_tiles)
def cta_tile(plan: Plan) -> str | None:
    if plan.spec.cta_tile == ways_out.nearest_cta_tile(plan.spec.cta_tile, plan.k_block):
        return None
    k = plan.k_block
    return (
        f"CTA tile {plan.spec.cta_tile}: m and n are multiples of 16 from 16 to 256, "
        f"k of {k} from {k} to {ways_out.MAX_K_BLOCKS * k}"
    )


@rule(ways_out.warp_tiles_that_fit)
def warp_tile(plan: Plan) -> str | None:
    warp, tile = plan.spec.warp_tile, ways_out.nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    if warp.m in ways_out.warp_extents(tile.m, 16) and warp.n in ways_out.warp_extents(tile.n, 8):
        return None
    return f"warp tile {warp} does not divide the CTA tile {tile} in pieces of 16 x 8, at most 128 x 128"


@rule(ways_out.warp_tiles_that_fit)
def threads(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.threads_per_cta
    if plan.threads <= limit:
        return None
    return f"{plan.warps_m}x{plan.warps_n} warps are {plan.threads} threads > {limit} a CTA"


# ---- Pipeline -------------------------------------------------------------------------------------------------------


@rule(ways_out.fewer_stages)
def stages(plan: Plan) -> str | None:
    return None if 1 <= plan.spec.stages <= 8 else f"{plan.spec.stages} stages, the pipeline has 1 to 8"


@rule(lambda plan: [{"fragment_stages": "2"}, {"fragment_stages": "1"}])
def fragment_stages(plan: Plan) -> str | None:
    if plan.spec.fragment_stages not in (1, 2):
        return f"{plan.spec.fragment_stages} fragment stages, 1 or 2 are served"
    if plan.spec.fragment_stages == 2 and plan.spec.stages == 1:
        return "2 fragment stages with 1 stage, whose next k-tile cannot be read ahead"
    return None


# ---- Shared memory --------------------------------------------------------------------------------------------------


@rule(ways_out.nearest_swizzles)
def swizzle(plan: Plan) -> str | None:
    for name in ("smem_a", "smem_b"):
        smem = getattr(plan.spec, name)
        bits, base, shift = smem.swizzle
        whole = base >= plan.piece_bits
        within = 1 <= bits <= 3 and whole and bits <= shift and bits + base + shift <= ways_out.MAX_SWIZZLE_BITS
        if smem.kind == "xor" and not within:
            return (
                f"{name} {smem}: an XOR takes 1 to 3 bits from bit {plan.piece_bits} on, which keeps pieces of 16 B, "
                f"from no fewer bits above, {ways_out.MAX_SWIZZLE_BITS} bits in all"
            )
    return None


@rule(ways_out.nearest_pads)
def padding(plan: Plan) -> str | None:
    for name in ("smem_a", "smem_b"):
        pad, piece = getattr(plan.spec, name).pad_elements, plan.piece
        if pad % piece or pad > ways_out.MAX_PAD_PIECES * piece:
            return (
                f"{name} pads rows by {pad} elements, ldmatrix needs multiples of {piece} (16 B), "
                f"at most {ways_out.MAX_PAD_PIECES * piece}"
            )
    return None


shared_memory = rule(ways_out.less_shared_memory)(shared.shared_memory)


# ---- Registers and residency ----------------------------------------------------------------------------------------


@rule(ways_out.fewer_ctas)
def residency(plan: Plan) -> str | None:
    limits = ARCHS[plan.spec.arch].limits
    ctas, most = plan.spec.ctas_per_sm, min(limits.ctas_per_sm, max(1, limits.warps_per_sm * 32 // plan.threads))
    if ctas <= most:
        return None
    return f"{ctas} CTAs of {plan.threads} threads an SM, {plan.spec.arch} holds {most}"


@rule(ways_out.fewer_registers)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    ctas = plan.spec.ctas_per_sm
    return (
        f"about {plan.needed_registers} registers a thread ({plan.accumulator_registers} of them accumulators) > "
        f"{plan.max_registers} for {ctas} CTA{'s' if ctas > 1 else ''} of {plan.threads} threads an SM"
    )


# ---- Order of the work ----------------------------------------------------------------------------------------------


raster = rule(nearest_rasters)(shared.raster)
splits = rule(split_in_workspace)(shared.splits)


@rule(split_in_workspace)
def schedule(plan: Plan) -> str | None:
    if plan.spec.schedule.kind != "cluster_k":
        return None
    return f"{plan.spec.schedule} takes a cluster, which wgmma kernels have"
