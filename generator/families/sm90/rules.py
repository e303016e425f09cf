"""What is legal of kernels on wgmma, and why not."""

from __future__ import annotations

from generator.arch import ARCHS, WGMMA_SM90
from generator.families import rules as shared
from generator.families.mma_sync.replanned import on_mma_sync
from generator.families.rules import Rule, adder
from generator.families.sm90 import cute_rules, ways_out
from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.ways_out import (
    archs,
    fields_as_implied,
    nearest_accumulators,
    nearest_inputs,
    whole_pieces,
)
from generator.layouts import ASYNC_BYTES
from generator.spec import DTYPE_BYTES

RULES: list[Rule] = []
rule = adder(RULES)

TMA_ALIGN_BYTES = 16
"""Source: CUDA driver API, cuTensorMapEncodeTiled, globalAddress and globalStrides."""

_ROWS = " or ".join(map(str, ways_out.CONSUMER_ROWS))
CORE_ROWS = 8
"""Rows of a core matrix, of which the swizzles are made: a slice of a stage is whole ones."""


# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule(lambda plan: [*archs(plan, WGMMA_SM90), *on_mma_sync(plan)])
def family(plan: Plan) -> str | None:
    return None if WGMMA_SM90 in ARCHS[plan.spec.arch].families else f"{plan.spec.arch} has no wgmma"


same_inputs = rule(nearest_inputs)(shared.same_inputs)


@rule(lambda plan: [*nearest_accumulators(plan), {"acc": "f16"}, *on_mma_sync(plan)])
def accumulator(plan: Plan) -> str | None:
    if plan.spec.acc == "f16_promoted":
        return "wgmma accumulates in f32 or f16, f16_promoted is for mma.sync"
    return shared.accumulator(plan)


@rule(lambda plan: [*on_mma_sync(plan), {"layout": "tn"}])
def layout(plan: Plan) -> str | None:
    spec = plan.spec
    if plan.takes(spec.dtype_a, spec.layout):
        return None
    return f"layout {spec.layout}: wgmma reads {spec.dtype_a} where k is contiguous only, which tn has"


@rule(lambda plan: [{"copy": "tma"}, {"copy": "cp_async"}])
def copy(plan: Plan) -> str | None:
    if plan.spec.copy in ("tma", "cp_async"):
        return None
    return f"copy {plan.spec.copy} on wgmma: tma or cp_async fills its stages, others are for mma.sync"


@rule(lambda plan: [*ways_out.copied_by_threads(), *on_mma_sync(plan), *whole_pieces(plan)])
def alignment(plan: Plan) -> str | None:
    least_bytes = ASYNC_BYTES if plan.copied else TMA_ALIGN_BYTES
    least = least_bytes // plan.spec.operand_bytes
    short = [
        f"align_{name} {align}" for name, align in (("a", plan.spec.align_a), ("b", plan.spec.align_b)) if align < least
    ]
    if not short:
        return None
    takes = f"{'cp.async' if plan.copied else 'TMA'} takes pointers and leading dimensions that are multiples of"
    return f"{', '.join(short)}: {takes} {least_bytes} B, {least} elements"


alignment_of_operands = rule(whole_pieces)(shared.alignment_of_operands)
alignment_of_d = rule(lambda plan: [{"align_d": "4"}])(shared.alignment_of_d)
implied_fields = rule(fields_as_implied)(shared.implied_fields)


# ---- Tiles and the warpgroups that share them -----------------------------------------------------------------------


@rule(ways_out.nearest_cta_tiles)
def cta_tile(plan: Plan) -> str | None:
    if plan.tile == ways_out.nearest_tile_of(plan):
        return None
    m, n = "nm" if plan.spec.swap_ab else "mn"
    low, middle, high = ways_out.tile_ks(plan.spec.operand_bytes)
    step = "8" if plan.b.k_major else f"16 ({n} is contiguous)"
    told = f"CTA tile {plan.spec.cta_tile}" + (", swapped" if plan.spec.swap_ab else "")
    return f"{told}: {m} is 64, 128, 192 or 256, {n} a multiple of {step} up to 256, k {low}, {middle} or {high}"


@rule(ways_out.other_sharing)
def consumers(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.consumers < 1:
        return "0 consumer warpgroups, a wgmma kernel has 1 to 3"
    if plan.pingpong:
        return None if spec.consumers == 2 else f"ping-pong of {spec.consumers} consumers, it takes 2"
    if plan.tile.m == spec.consumers * plan.consumer_rows and plan.consumer_rows in ways_out.CONSUMER_ROWS:
        return None
    return f"{spec.consumers} consumers of {plan.tile.m} rows, each computes {_ROWS}"


@rule(ways_out.cooperation_that_fits)
def cooperation(plan: Plan) -> str | None:
    spec = plan.spec
    if not plan.pingpong:
        return None
    if spec.schedule.kind not in ("persistent", "stream_k"):
        return f"ping-pong takes tiles in turns, with {spec.schedule} a CTA has one"
    if plan.consumer_rows not in ways_out.CONSUMER_ROWS:
        return f"ping-pong of tiles of {plan.tile.m} rows, each consumer computes {_ROWS}"
    return None


@rule(ways_out.nearest_clusters)
def cluster(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.cluster not in ways_out.CLUSTERS:
        return f"cluster {spec.cluster}, served are {', '.join(map(str, ways_out.CLUSTERS))}"
    if plan.copied and spec.cluster.ctas > 1:
        return f"cluster {spec.cluster} with copy cp_async: threads copy for their own CTA only"
    for name, boxes in zip("BA" if spec.swap_ab else "AB", (plan.a, plan.b)):
        slices = boxes.shared_by
        if slices > 1 and boxes.sliced % (slices * CORE_ROWS):
            what = "k-rows" if not boxes.k_major else "rows"
            return f"cluster {spec.cluster}: {boxes.sliced} {what} of {name} are no {slices} slices of multiples of 8"
    return None


# ---- Shared memory and registers ------------------------------------------------------------------------------------


@rule(ways_out.nearest_stages)
def stages(plan: Plan) -> str | None:
    low, high = ways_out.STAGES[0], ways_out.STAGES[-1]
    return None if low <= plan.spec.stages <= high else f"{plan.spec.stages} stages, the pipeline has {low} to {high}"


shared_memory = rule(ways_out.less_shared_memory)(shared.shared_memory)


@rule(ways_out.fewer_ctas)
def residency(plan: Plan) -> str | None:
    limits, ctas = ARCHS[plan.spec.arch].limits, plan.spec.ctas_per_sm
    most = limits.warps_per_sm * limits.warp_threads // plan.threads
    return None if ctas <= most else f"{ctas} CTAs of {plan.threads} threads an SM, {plan.spec.arch} holds {most}"


@rule(ways_out.fewer_registers)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    return (
        f"about {plan.needed_registers} registers a consumer's thread ({plan.accumulator_registers} of them accumulators) > "
        f"{plan.max_registers} that {plan.spec.ctas_per_sm} x {plan.spec.consumers} consumer warpgroups leave each"
    )


@rule(ways_out.fewer_registers)
def instruction(plan: Plan) -> str | None:
    if plan.instruction_registers <= plan.launch_registers:
        return None
    return (
        f"{plan.spec.mma} takes {plan.instruction_registers} registers a thread > {plan.launch_registers} that "
        f"{plan.spec.ctas_per_sm} x {plan.threads} threads an SM are launched with"
    )


# ---- Order of the work, and D ---------------------------------------------------------------------------------------


@rule(ways_out.rasters_of_clusters)
def raster(plan: Plan) -> str | None:
    spec = plan.spec
    whole = {"group": spec.cluster.m, "panel": spec.cluster.n * max(1, spec.cta_tile.n)}.get(spec.raster.kind, 1)
    if spec.raster.size % whole:
        what = "columns" if spec.raster.kind == "panel" else "tiles"
        return f"{spec.raster.kind} of {spec.raster.size} {what} is not whole clusters of {whole}"
    return shared.raster(plan)


@rule(ways_out.nearest_splits)
def splits(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.schedule.kind != "split_k_cluster":
        return shared.splits(plan)
    if spec.schedule.splits not in ways_out.CLUSTER_SPLITS:
        return f"split_k_cluster by {spec.schedule.splits}, 2 to {ways_out.CLUSTER_SPLITS[-1]} CTAs are a cluster"
    if spec.cluster.ctas > 1:
        return f"{spec.schedule} with cluster {spec.cluster}: CTAs that share a tile share no operand"
    if plan.sums_bytes > plan.mainloop_bytes:
        return f"{spec.schedule}: sums of {plan.sums_bytes:,} B > {plan.mainloop_bytes:,} B of the stages, where they are left"
    return None


@rule(ways_out.aligned_store)
def store(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.store == "smem":
        return "D is stored by tma or direct, smem is for mma.sync"
    size = spec.align_d * DTYPE_BYTES[spec.dtype_d]
    if spec.store == "tma" and spec.swap_ab and DTYPE_BYTES[spec.dtype_d] > 2:
        return f"operands are swapped, TMA then stores f16 and bf16 only, D is {spec.dtype_d}"
    if spec.store == "tma" and size < 16:
        return f"align_d {spec.align_d} is {size} B, TMA stores to pointers and leading dimensions of 16 B"
    return None


@rule(lambda plan: [{"form": "cute"}, {"form": "atoms"}])
def form(plan: Plan) -> str | None:
    if plan.spec.form != "dsl":
        return None
    return "form dsl has no wgmma: CuTe DSL fills its tensor maps by its own run-time library, not from those of a launcher"


RULES += cute_rules.RULES
