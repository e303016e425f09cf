"""Defaults of kernels on mma.sync: for each open field, the value that measurements recommend and limits allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from generator.arch import ARCHS
from generator.families import common
from generator.families.base import Change, Plan, distinct, problem_fields
from generator.families.mma_sync import form_rules, rules
from generator.families.mma_sync.plan import MMA_ROWS, REGISTER_COPIES, MmaSyncPlan, mma_columns, planned_spacing
from generator.families.mma_sync.rules import nearest_cta_tile, warp_extents
from generator.layouts import ASYNC_BYTES, OperandTile, conflict_free
from generator.spec import DTYPE_BYTES, Raster, Request, Schedule, Smem, Spec, Tile, WarpTile
from hgemm.epilogue import parse_epilogue

# ==== What measurements recommend ====
#
# Source: benchmarks/data/mma_sync_h200.json, squares of 2048, 4096 and 8192, and sweep_h200.json. For f32, 256x128x32 with 8 warps
# of 64x64 and 4 stages is the best or within 1 % of it. For f16 it has the best geometric mean: 256x256x32 is 10 % faster from
# 4096 on and 43 % slower at 2048. 128x128x32 with two CTAs per SM takes 9 % longer, 3 stages 6 to 13 %, 2 stages 29 %.

ROOMY_SMEM_BYTES = 200 * 1024
"""Shared memory of a CTA that is enough for large tiles with 4 stages. With less, two smaller CTAs share an SM."""

LARGE_TILES = {"f32": (Tile(256, 128, 32),), "f16": (Tile(256, 128, 32),), "f16_promoted": (Tile(128, 64, 64),)}
REGISTER_COPY_TILES = {
    "f32": (Tile(256, 128, 32),),
    "f16": (Tile(256, 256, 32), Tile(256, 128, 32)),
    "f16_promoted": (Tile(128, 128, 32),),
}
"""The same for copies through registers, for the shared memory and loads of their architecture.

Source: the model and the measurements of the paper cited at CPI_STS. 256x256x32 with warps of 128x64 is bound by the tensor
cores, 256x128x32 with warps of 64x64 nearly so.
"""
UNALIGNED_TILES = {**REGISTER_COPY_TILES, "f16": (Tile(256, 128, 64), Tile(256, 128, 32))}
"""The same for unaligned vectors, which take twice the registers. Source: benchmarks/data/unaligned_h200.json."""
TILES = tuple(map(Tile.parse, "128x128x32 128x64x32 64x128x32 64x64x32 64x32x32 32x64x32 32x32x32 16x16x16".split()))
K_BLOCK_OF_HALVES = 16
"""Tiles here are for operands of 2 bytes. For 4 bytes they have half the depth, which is as many bytes."""

WARP_AREAS = {"f32": 64 * 64, "f16": 64 * 128, "f16_promoted": 64 * 32}
"""The most elements of D that a warp can compute with registers left for fragments."""

WARP_ROWS, REGISTER_COPY_WARP_ROWS = 64, 128
"""Preferred rows among equally good warp tiles. More rows need fewer registers for fragments that are not read ahead."""

WARPS = range(4, 9)
"""Warps of a CTA: one for each of an SM's four schedulers, up to the most that share one large tile well."""

WARPS_PER_SM = 8
STAGES = {2: (4, 3), 1: (5, 4)}
REGISTER_COPY_STAGES = {2: (2,), 1: (2,)}
NO_PREFETCH_STAGES = {1: (1,)}
"""Stages by fragment stages, the best first. Without fragments read ahead, one more stage is in use."""

MMAS = {"tf32": "m16n8k8"}
"""Instructions of inputs that m16n8k16 does not support."""

_PLAIN: Request = {
    "copy": "cp_async",
    "mma_order": "zigzag",
    "raster": Raster("group", 8),
    "schedule": Schedule("one_tile"),
    **common.OF_MMA_SYNC,
    "pointer_arrays": False,
    "form": "atoms",
}
_READ_AHEAD: Request = {"fragment_stages": 2, "store": "smem", "store_spacing": 0}
_OF_FORM: dict[str, Request] = {"atoms": {}, "cute": _READ_AHEAD, "dsl": _READ_AHEAD}
"""Fields that a form decides."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`. The result may still be illegal; the rules decide that."""
    problem = {**problem_fields(request), **request}
    decided = {
        **_of_arch(request["arch"]),
        **_OF_FORM[request.get("form", "atoms")],
        **_of_epilogue(problem.get("epilogue", "none")),
    }
    fields = {**_PLAIN, "mma": MMAS.get(problem["dtype_a"], "m16n8k16"), **decided, **problem}
    ways = [{**fields, **copy} for copy in _copies(fields, "copy" in request)]
    choices = itertools.chain.from_iterable(_choices(way, tile) for way in ways for tile in _tiles(way))
    found = next(choices, None) or _spec(fields, _fallback_choice(fields, _tiles(fields)[0]))
    return replace(found, cta_tile=fields.get("cta_tile", found.cta_tile))


def _of_epilogue(text: str) -> Request:
    """Return the fields that an epilogue decides: one that reduces columns stores from registers, and needs more of them."""
    found = parse_epilogue(text)
    return {"store": "direct", "ctas_per_sm": 1} if found and found.column_reductions else {}


def _of_arch(name: str) -> Request:
    """Return the fields that an architecture decides."""
    arch = ARCHS[name]
    deepest = {} if arch.has_mma_k16 else {"mma": "m16n8k8"}
    return deepest if arch.has_cp_async else {**deepest, "copy": "ldg_sts"}


def _copies(fields: Request, given: bool) -> list[Request]:
    """Return how to copy, the best first. Elements too narrow for cp.async are copied in unaligned vectors if the stages suffice.

    Source: benchmarks/data/unaligned_h200.json, 2.2 and 2.8 times as fast as single elements.
    """
    narrow = min(fields[f"align_{name}"] * DTYPE_BYTES[fields[f"dtype_{name}"]] for name in "ab") < ASYNC_BYTES
    few = fields.get("stages", 0) <= max(REGISTER_COPY_STAGES[1]) and not fields.get("store_spacing")
    fits = fields["form"] == "atoms" and few
    return [{"copy": "ldg_sts_unaligned"}, {}] if narrow and fits and not given else [{}]


# ==== Tiles ====


def _tiles(fields: Request) -> list[Tile]:
    """Return the nearest legal tile to the given one, or the tiles to try."""
    return [nearest_cta_tile(fields["cta_tile"], _k_block(fields))] if "cta_tile" in fields else [*_cta_tiles(fields)]


def _cta_tiles(fields: Request) -> Iterator[Tile]:
    """Yield CTA tiles to try: multiples of a given warp tile, then the best for the architecture, then smaller ones."""
    k_block = _k_block(fields)
    if "warp_tile" in fields:
        warp = fields["warp_tile"]
        sizes = [Tile(warp.m * m, warp.n * n, 2 * k_block) for m, n in itertools.product(range(1, 9), repeat=2)]
        legal = [tile for tile in sizes if tile == nearest_cta_tile(tile, k_block)]
        yield from sorted(legal, key=lambda tile: (_off_target(tile, warp), abs(tile.m - tile.n)))
    roomy = ARCHS[fields["arch"]].limits.smem_bytes_per_cta >= ROOMY_SMEM_BYTES
    through_registers = {"ldg_sts_unaligned": UNALIGNED_TILES}.get(fields["copy"], REGISTER_COPY_TILES)
    large = through_registers if fields["copy"] in REGISTER_COPIES else LARGE_TILES if roomy else {}
    for tile in (*large.get(fields["acc"], ()), *TILES):
        yield replace(tile, k=tile.k * k_block // K_BLOCK_OF_HALVES)


def _k_block(fields: Request) -> int:
    return K_BLOCK_OF_HALVES * DTYPE_BYTES["f16"] // DTYPE_BYTES[fields["dtype_a"]]


def _off_target(tile: Tile, warp: WarpTile) -> int:
    """Return how many warps the CTA has too few or too many."""
    warps = tile.m // warp.m * (tile.n // warp.n)
    return max(WARPS[0] - warps, warps - WARPS[-1], 0)


def warp_tiles(fields: Request, tile: Tile) -> list[WarpTile]:
    """Return warp tiles that divide a CTA tile, the best first: 4 to 8 warps, with the most products per loaded element."""
    area, rows = WARP_AREAS[fields["acc"]], REGISTER_COPY_WARP_ROWS if fields["copy"] in REGISTER_COPIES else WARP_ROWS
    columns = mma_columns(fields["mma"])
    divisors = itertools.starmap(
        WarpTile, itertools.product(warp_extents(tile.m, MMA_ROWS), warp_extents(tile.n, columns))
    )

    def merit(warp: WarpTile) -> tuple:
        too_large = warp.m * warp.n > min(area, 64 * 64)
        return (_off_target(tile, warp), too_large, -warp.m * warp.n / (warp.m + warp.n), abs(warp.m - rows), -warp.m)

    return sorted((warp for warp in divisors if warp.m * warp.n <= area), key=merit)


# ==== The other fields, for a tile ====

_UNPLACED: Request = {"smem_a": Smem("none"), "smem_b": Smem("none")}

_CHECKS = (
    rules.warp_tile,
    rules.threads,
    rules.fragment_stages,
    rules.prefetch,
    common.shared_memory,
    rules.static_memory,
    rules.residency,
    *form_rules.TILE_CHECKS,
)
"""The checks that a choice of the fields below may violate. Registers are checked later, because placements count, too."""


def _choices(fields: Request, tile: Tile) -> Iterator[Spec]:
    """Yield specs of a CTA tile that fit, the best first: all warp tiles with enough stages, then with fewer."""
    warps = [fields["warp_tile"]] if "warp_tile" in fields else warp_tiles(fields, tile)
    fitting = []
    for warp in warps:
        if _fits(fields, _smallest_choice(fields, tile, warp)):
            fitting.append(warp)
            yield from _legal_specs(fields, _preferred_choices(fields, tile, warp))
    for warp in fitting:
        yield from _legal_specs(fields, _smaller_choices(fields, tile, warp))


def _legal_specs(fields: Request, choices: Iterable[Request]) -> Iterator[Spec]:
    for choice in distinct(choices):
        if _fits(fields, choice):  # without placements, which take longest to choose
            plan = MmaSyncPlan(_spec(fields, choice))
            if not any(check(plan) for check in (*_CHECKS, rules.registers)):
                yield plan.spec


def _preferred_choices(fields: Request, tile: Tile, warp: WarpTile) -> Iterator[Request]:
    warps = max(1, tile.m // warp.m * (tile.n // warp.n))
    most = max(1, WARPS_PER_SM // warps)
    for ctas in range(most, 0, -1):
        for ahead, several in _stages(fields).items():
            for stages in several:
                yield _choice(fields, tile, warp, stages, ahead, ctas)


def _stages(fields: Request) -> dict[int, tuple[int, ...]]:
    if fields["copy"] not in REGISTER_COPIES:
        return STAGES
    return REGISTER_COPY_STAGES if fields.get("prefetch", True) else NO_PREFETCH_STAGES


def _smaller_choices(fields: Request, tile: Tile, warp: WarpTile) -> Iterator[Request]:
    fewer = (2, 1) if fields["copy"] in REGISTER_COPIES else (3, 2, 1)
    for store, stages, ahead in itertools.product(("smem", "direct"), fewer, (2, 1)):
        yield _choice(fields, tile, warp, stages, ahead, 1, store)


def _smallest_choice(fields: Request, tile: Tile, warp: WarpTile) -> Request:
    stages = min(2, fields.get("fragment_stages", 1))  # as many as fragments read ahead need
    return _choice(fields, tile, warp, stages, 1, 1, "direct")


def _fallback_choice(fields: Request, tile: Tile) -> Request:
    """Return a choice for a request that nothing fits. The rules then say why."""
    warp = warp_tiles(fields, tile)[0]
    return _choice(fields, tile, warp, min(_stages(fields)[1]), 1, 1)


def _choice(
    fields: Request, tile: Tile, warp: WarpTile, stages: int, ahead: int, ctas: int, store: str = "smem"
) -> Request:
    """Return the choice. Fields that the request sets stay."""
    choice = {"warp_tile": warp, "stages": stages, "fragment_stages": ahead, "ctas_per_sm": ctas, "store": store}
    return {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _fits(fields: Request, choice: Request) -> bool:
    plan = MmaSyncPlan(Spec(**{**_UNPLACED, **fields, **choice}))
    return plan.accumulator_registers < plan.max_registers and not any(check(plan) for check in _CHECKS)


def _spec(fields: Request, choice: Request) -> Spec:
    """Return the choice as a spec, with operands placed without bank conflicts. Fields that the request sets stay."""
    plan = MmaSyncPlan(Spec(**{**_UNPLACED, **fields, **choice}))
    tiles = {"smem_a": plan.a, "smem_b": plan.b}
    placed = plan.replace(**{name: _placement(tile, plan) for name, tile in tiles.items() if name not in fields})
    if placed.register_copy and "store_spacing" not in fields:
        placed = placed.replace(store_spacing=planned_spacing(placed))
    return placed.spec


def _placement(tile: OperandTile, plan: MmaSyncPlan) -> Smem:
    shape = tile.rows, tile.columns, tile.chunk, tile.threads, tile.element_bytes
    return conflict_free(tile.k_major, *shape, one_pitch=plan.wmma)


# ==== A fix for other families: the same problem on mma.sync ====

_PROBLEM_FIELDS = (
    "arch dtype_a dtype_b acc dtype_d layout beta bias activation epilogue align_a align_b align_d schedule".split()
)
_KEPT = (("form", "cta_tile", "raster"), ("form",), ())
"""Further fields to keep, tried in this order."""


def on_mma_sync(plan: Plan) -> Iterator[Change]:
    """Yield changes to mma.sync, which supports every alignment and size. The first keeps form and tile."""
    for names in _KEPT:
        old, new = plan.spec.to_dict(), resolve(_problem(plan, names)).to_dict()
        yield {name: str(value) for name, value in new.items() if value != old[name]}


def _problem(plan: Plan, names: tuple[str, ...]) -> Request:
    spec = plan.spec
    kept = {name: getattr(spec, name) for name in (*_PROBLEM_FIELDS, *names)}
    if spec.schedule.kind == "split_k_cluster":
        kept["schedule"] = Schedule("split_k", spec.schedule.splits)
    return kept
