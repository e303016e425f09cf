"""The rules and defaults of kernels on mma.sync that load fragments from global memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from generator.arch import ARCHS, Arch
from generator.families import common
from generator.families.base import Change, Rule, collector, problem_fields
from generator.families.common import clamp, fewer_ctas
from generator.families.mma_sync.defaults import on_mma_sync
from generator.families.mma_sync_direct.plan import COLUMNS, K_BLOCK
from generator.families.mma_sync_direct.plan import DirectPlan as Plan
from generator.spec import Raster, Request, Spec, Tile, WarpTile
from generator.tables import counted

TILE_M = (8, 16)
MAX_TILE_N = 64
STAGES = range(1, 17)
WARPS = range(1, 33)

DEFAULT_STAGES, DEFAULT_CTAS = 4, 3
DEFAULT_TILES = {8: Tile(8, 16, 1024), 16: Tile(16, 16, 1024)}
"""CTA tiles by rows: 8 warps, of which 24 on an SM keep 96 KiB of B in flight.

Source: benchmarks/data/few_rows_h100.json.
"""

RULES: list[Rule] = []
rule = collector(RULES)


# ==== Defaults ====


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`. The result may still be illegal; the rules decide that."""
    tile = request.get("cta_tile", DEFAULT_TILES[8])
    fields = {
        **problem_fields(request),
        "cta_tile": tile,
        "stages": DEFAULT_STAGES,
        "ctas_per_sm": DEFAULT_CTAS,
        "copy": "ldg",
        "raster": Raster("column"),
        "warp_tile": WarpTile(tile.m, tile.n),
    }
    plan = Plan(Spec(**{**fields, **_PLACEHOLDERS, **request}))
    while "ctas_per_sm" not in request and fields["ctas_per_sm"] > 1 and plan.needed_registers > plan.max_registers:
        fields["ctas_per_sm"] -= 1
        plan = Plan(replace(plan.spec, ctas_per_sm=fields["ctas_per_sm"]))
    return Spec(**{**fields, **plan.fixed_fields, **request})


_PLACEHOLDERS: Request = {
    "mma": "",
    "fragment_stages": 1,
    "smem_a": None,
    "smem_b": None,
    "mma_order": "",
    "schedule": None,
    "store": "",
}


# ==== Architecture, types and operands ====

CP_ASYNC_TILE = Tile(16, 64, 64)
"""The tile of `cp.async` that replaces one of this family, with the same columns if possible."""


def on_cp_async(plan: Plan) -> Iterator[Change]:
    """Yield changes to `cp.async` with few rows, then those of `on_mma_sync`."""
    for columns in (plan.spec.cta_tile.n, CP_ASYNC_TILE.n):
        tile = replace(CP_ASYNC_TILE, n=columns)
        change = next(iter(on_mma_sync(Plan(replace(plan.spec, cta_tile=tile)))))
        yield {"cta_tile": str(tile), **change}
    yield from on_mma_sync(plan)


def supports(arch: Arch) -> bool:
    """Return whether an architecture has programmatic dependent launch, which kernels wait for."""
    return arch.has_tma


@rule(lambda plan: itertools.chain(on_cp_async(plan), common.nearest_archs(supports, plan)))
def family(plan: Plan) -> str | None:
    if supports(ARCHS[plan.spec.arch]):
        return None
    return f"copy is ldg; {plan.spec.arch} has no programmatic dependent launch"


rule(common.one_input_type)(common.same_inputs)


@rule(lambda plan: [*on_cp_async(plan), {"dtype_a": "f16", "dtype_b": "f16"}])
def inputs(plan: Plan) -> str | None:
    found = plan.spec.dtype_a
    return None if found in ("f16", "bf16") else f"inputs are {found}; copy ldg supports f16 and bf16"


@rule(lambda plan: [*common.legal_accumulators(plan), *on_cp_async(plan)])
def accumulator(plan: Plan) -> str | None:
    return None if plan.spec.acc == "f32" else f"acc is {plan.spec.acc}; copy ldg supports f32"


@rule(lambda plan: [*on_cp_async(plan), *common.aligned_to_16_bytes(plan)])
def alignment(plan: Plan) -> str | None:
    return common.off_16_bytes(plan, "copy ldg")


rule(common.aligned_to_16_bytes)(common.alignment_of_operands)
rule(common.d_aligned_to_16_bytes)(common.alignment_of_d)
rule(common.expression_alone)(common.expression)
rule(common.for_pairs)(common.gated_pair)
rule(lambda plan: [{"form": "atoms"}, *on_cp_async(plan)])(common.further_results)
rule(common.as_fixed)(common.fixed_fields)


# ==== Tile ====


def nearest_tiles(plan: Plan) -> Iterator[Change]:
    """The nearest legal tile with the stages of the plan, then with fewer."""
    tile = plan.spec.cta_tile
    m = min(TILE_M, key=lambda rows: abs(rows - tile.m))
    n = clamp(tile.n, COLUMNS, COLUMNS, MAX_TILE_N)
    for columns in dict.fromkeys((n, *(count for count in (32, 16, 8) if count < n))):
        for stages in sorted(STAGES, key=lambda count: abs(count - plan.spec.stages)):
            k = clamp(tile.k, K_BLOCK * stages, K_BLOCK * stages * WARPS[0], K_BLOCK * stages * WARPS[-1])
            yield {"cta_tile": f"{m}x{columns}x{k}", "warp_tile": f"{m}x{columns}", "stages": str(stages)}


@rule(nearest_tiles)
def cta_tile(plan: Plan) -> str | None:
    tile = plan.spec.cta_tile
    if tile.m in TILE_M and tile.n % COLUMNS == 0 and tile.n in range(COLUMNS, MAX_TILE_N + 1):
        return None
    return f"tile is {tile}; m must be 8 or 16, and n a multiple of {COLUMNS} up to {MAX_TILE_N}"


@rule(nearest_tiles)
def warps(plan: Plan) -> str | None:
    tile, stages = plan.spec.cta_tile, plan.spec.stages
    if stages in STAGES and tile.k % plan.warp_k == 0 and tile.k // plan.warp_k in WARPS:
        return None
    return (
        f"tile is {tile} with {counted(stages, 'stage')}; k must be {K_BLOCK} times the stages, from {STAGES[0]} to "
        f"{STAGES[-1]}, times the warps, from {WARPS[0]} to {WARPS[-1]}"
    )


# ==== Shared memory and registers ====


def smaller(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs per SM, then smaller tiles."""
    yield from fewer_ctas(plan)
    yield from nearest_tiles(plan)
    yield from ({**change, "ctas_per_sm": "1"} for change in nearest_tiles(plan))


rule(smaller)(common.shared_memory)


@rule(smaller)
def residency(plan: Plan) -> str | None:
    limits, ctas = ARCHS[plan.spec.arch].limits, plan.spec.ctas_per_sm
    most = limits.warps_per_sm * limits.warp_threads // plan.threads
    if ctas <= most:
        return None
    return f"ctas_per_sm is {ctas}; {plan.spec.arch} holds {most} CTAs of {plan.threads} threads"


@rule(smaller)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    return (
        f"tile {plan.spec.cta_tile} with {counted(plan.spec.stages, 'stage')} needs about {plan.needed_registers} "
        f"registers per thread; the limit is {plan.max_registers} with {counted(plan.spec.ctas_per_sm, 'CTA')} of "
        f"{plan.threads} threads per SM"
    )


rule(common.nearest_rasters)(common.raster)
