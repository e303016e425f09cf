"""What is legal of kernels on mma.sync, and why not."""

from __future__ import annotations

from generator.arch import ARCHS
from generator.families import rules as shared
from generator.families.mma_sync import cute_rules, dsl_rules, staging, ways_out
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import (
    fields_as_implied,
    nearest_accumulators,
    nearest_inputs,
    nearest_rasters,
    split_in_workspace,
    whole_pieces,
)

RULES: list[Rule] = []
rule = adder(RULES)

# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule(ways_out.served_inputs)
def inputs(plan: Plan) -> str | None:
    found = sorted({plan.spec.dtype_a, plan.spec.dtype_b} - {"f16"})
    if not found or ARCHS[plan.spec.arch].has_bf16:
        return None
    return f"{plan.spec.arch} multiplies f16 only, its mma.sync takes no {found[0]}"


@rule(lambda plan: [{"mma": "m16n8k8"}])
def mma(plan: Plan) -> str | None:
    if plan.spec.mma != "m16n8k16" or ARCHS[plan.spec.arch].has_mma_k16:
        return None
    return f"{plan.spec.arch} has no mma.sync of m16n8k16, 8 of k is its deepest"


same_inputs = rule(nearest_inputs)(shared.same_inputs)
accumulator = rule(nearest_accumulators)(shared.accumulator)
alignment_of_operands = rule(whole_pieces)(shared.alignment_of_operands)
alignment_of_d = rule(lambda plan: [{"align_d": "4"}])(shared.alignment_of_d)
implied_fields = rule(fields_as_implied)(shared.implied_fields)


@rule(lambda plan: [{"mma": "m16n8k8"}])
def mma_depth(plan: Plan) -> str | None:
    if plan.mma_k <= plan.k_block:
        return None
    return f"{plan.spec.mma} is of elements of 2 bytes, {plan.spec.dtype_a} is multiplied by m16n8k8"


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
    if warp.m in ways_out.warp_extents(tile.m, 16) and warp.n in ways_out.warp_extents(tile.n, plan.mma_n):
        return None
    return f"warp tile {warp} does not divide the CTA tile {tile} in pieces of 16 x {plan.mma_n}, at most 128 x 128"


@rule(ways_out.warp_tiles_that_fit)
def threads(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.threads_per_cta
    if plan.threads <= limit:
        return None
    return f"{plan.warps_m}x{plan.warps_n} warps are {plan.threads} threads > {limit} a CTA"


# ---- Pipeline -------------------------------------------------------------------------------------------------------


@rule(ways_out.other_copies)
def copy(plan: Plan) -> str | None:
    if plan.spec.copy == "cp_async" and not ARCHS[plan.spec.arch].has_cp_async:
        return f"{plan.spec.arch} has no cp.async: copies go by way of registers"
    if plan.spec.copy == "ldg_sts_unaligned" and min(plan.spec.align_a, plan.spec.align_b) >= plan.piece:
        return f"copy ldg_sts_unaligned: A and B are aligned to {plan.piece} elements, 16 bytes, and nothing is shifted"
    return None


@rule(ways_out.fewer_stages)
def stages(plan: Plan) -> str | None:
    most = ways_out.most_stages(plan)
    if 1 <= plan.spec.stages <= most:
        return None
    if plan.staged:
        return f"{plan.spec.stages} stages, copy {plan.spec.copy} has one k-tile in registers and 1 or {most} stages"
    return f"{plan.spec.stages} stages, the pipeline has 1 to {most}"


@rule(ways_out.narrower_spacings)
def store_spacing(plan: Plan) -> str | None:
    if not plan.staged or plan.spec.store_spacing <= staging.widest_spacing(plan):
        return None
    if plan.spec.copy == "ldg_sts_unaligned":
        return f"store_spacing {plan.spec.store_spacing}: what is shifted is stored at once, behind a k-tile's products"
    return (
        f"store_spacing {plan.spec.store_spacing}: {staging.pieces(plan)} stores of a thread for a k-tile, among the "
        f"{staging.room(plan)} tensor instructions that have room for them, are {staging.widest_spacing(plan)} apart at most"
    )


@rule(ways_out.in_turn_or_ahead)
def prefetch(plan: Plan) -> str | None:
    if not plan.staged or plan.spec.prefetch or (plan.spec.stages, plan.spec.store_spacing) == (1, 0):
        return None
    return (
        f"prefetch off takes 1 stage and store_spacing 0, not {plan.spec.stages} and {plan.spec.store_spacing}: a k-tile that "
        f"is loaded after the products of the one before it replaces that at once"
    )


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


@rule(ways_out.one_pitch)
def one_pitch(plan: Plan) -> str | None:
    if not plan.wmma:
        return None
    strays = [f"{name} {smem}" for name, smem in ways_out.placements(plan) if not smem.has_one_pitch]
    return f"{' and '.join(strays)}: {plan.spec.mma} loads rows that all are one pitch apart" if strays else None


shared_memory = rule(ways_out.less_shared_memory)(shared.shared_memory)


@rule(ways_out.less_static_memory)
def static_memory(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.smem_static_bytes_per_cta
    if plan.static_smem_bytes <= limit:
        return None
    return f"static smem {plan.static_smem_bytes:,} B > {limit:,} B, which a CTA may have without asking for more"


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
    if plan.spec.schedule.kind != "split_k_cluster":
        return None
    return f"{plan.spec.schedule} takes a cluster, which wgmma kernels have"


# ---- Forms ----------------------------------------------------------------------------------------------------------

RULES += cute_rules.RULES + dsl_rules.RULES
