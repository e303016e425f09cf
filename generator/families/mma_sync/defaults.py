"""Planning of kernels on mma.sync: what measurements recommend and limits allow, for each field that is open."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from generator.arch import ARCHS
from generator.families.defaults import distinct, problem_fields
from generator.families.mma_sync import cute_rules, dsl_rules, rules
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.mma_sync.plan import mma_columns
from generator.families.mma_sync.staging import STAGED, planned_spacing
from generator.families.mma_sync.ways_out import nearest_cta_tile, warp_extents
from generator.layouts import ASYNC_BYTES, OperandTile, conflict_free
from generator.spec import DTYPE_BYTES, Cluster, Raster, Request, Schedule, Smem, Spec, Tile, WarpTile

# ---- What measurements recommend ------------------------------------------------------------------------------------
# Source: benchmarks/data/mma_sync_h200.json, squares of 2048, 4096 and 8192, and sweep_h200.json. 256x128x32 with 8 warps of
# 64x64 and 4 stages is the best or within 1 % of it for f32, and has the best geometric mean for f16, where 256x256x32 wins
# from 4096 on by 10 % and loses 43 % at 2048; 128x128x32 with two CTAs an SM takes 9 % longer, 3 stages 6 to 13 %, 2 stages 29 %.

ROOMY_SMEM_BYTES = 200 * 1024
"""Shared memory a CTA from which on the large tiles have room for 4 stages; with less, two smaller CTAs share an SM."""

LARGE_TILES = {"f32": (Tile(256, 128, 32),), "f16": (Tile(256, 128, 32),), "f16_promoted": (Tile(128, 64, 64),)}
STAGED_TILES = {
    "f32": (Tile(256, 128, 32),),
    "f16": (Tile(256, 256, 32), Tile(256, 128, 32)),
    "f16_promoted": (Tile(128, 128, 32),),
}
"""The same for copies by way of registers: what that architecture's shared memory and loads can keep up with.

Source: the model and the measurements of the paper that generator.families.mma_sync.staging names: 256x256x32 with warps of
128x64 is bound by its tensor cores, 256x128x32 with 64x64 nearly so.
"""
TILES = tuple(map(Tile.parse, "128x128x32 128x64x32 64x128x32 64x64x32 64x32x32 32x64x32 32x32x32 16x16x16".split()))
SHIFTED_TILES = {**STAGED_TILES, "f16": (Tile(256, 128, 64), Tile(256, 128, 32))}
"""The same where pieces are shifted, which takes twice the registers. Source: benchmarks/data/unaligned_h200.json."""
K_BLOCK_OF_HALVES = 16
"""Tiles are given for operands of 2 bytes; those of 4 bytes are half as deep, which are as many bytes."""

WARP_AREAS = {"f32": 64 * 64, "f16": 64 * 128, "f16_promoted": 64 * 32}
"""Elements of D that a warp computes at best, and leave registers for the fragments."""

WARP_ROWS, STAGED_WARP_ROWS = 64, 128
"""Rows of equally good warp tiles; the more, the fewer registers hold fragments that are not read ahead."""

WARPS = range(4, 9)
"""Warps of a CTA: one at least for each of an SM's four schedulers, and not more than share one large tile well."""

WARPS_PER_SM = 8
STAGES = {2: (4, 3), 1: (5, 4)}
STAGED_STAGES = {2: (2,), 1: (2,)}
SYNCHRONOUS_STAGES = {1: (1,)}
"""Stages by fragment stages, the best first: without fragments read ahead, one more is in use."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`; the result may still be illegal, which the rules judge."""
    problem = {**problem_fields(request), **request}
    decided = {**_of_arch(request["arch"]), **_OF_FORM[request.get("form", "atoms")]}
    fields = {**_PLAIN, "mma": MMAS.get(problem["dtype_a"], "m16n8k16"), **decided, **problem}
    ways = [{**fields, **copy} for copy in _copies(fields, "copy" in request)]
    choices = itertools.chain.from_iterable(_choices(way, tile) for way in ways for tile in _tiles(way))
    found = next(choices, None) or _spec(fields, _modest(fields, _tiles(fields)[0]))
    return replace(found, cta_tile=fields.get("cta_tile", found.cta_tile))


MMAS = {"tf32": "m16n8k8"}
"""Instructions of inputs that m16n8k16 does not take."""

_PLAIN: Request = {
    "copy": "cp_async",
    "mma_order": "zigzag",
    "raster": Raster("group", 8),
    "schedule": Schedule("one_tile"),
    "consumers": 0,
    "cooperation": "cooperative",
    "cluster": Cluster(1, 1),
    "swap_ab": False,
    "form": "atoms",
}
_READ_AHEAD: Request = {"fragment_stages": 2, "store": "smem", "store_spacing": 0}
_OF_FORM: dict[str, Request] = {"atoms": {}, "cute": _READ_AHEAD, "dsl": _READ_AHEAD}
"""What a form decides."""


def _of_arch(name: str) -> Request:
    """Return what an architecture leaves no choice in."""
    arch = ARCHS[name]
    deepest = {} if arch.has_mma_k16 else {"mma": "m16n8k8"}
    return deepest if arch.has_cp_async else {**deepest, "copy": "ldg_sts"}


def _copies(fields: Request, given: bool) -> list[Request]:
    """Return how to copy, the best first: what asynchronous copies cannot move is shifted, in the few stages that this has.

    Source: benchmarks/data/unaligned_h200.json, 2.2 and 2.8 times as fast as by the element.
    """
    narrow = min(fields[f"align_{name}"] * DTYPE_BYTES[fields[f"dtype_{name}"]] for name in "ab") < ASYNC_BYTES
    few = fields.get("stages", 0) <= max(STAGED_STAGES[1]) and not fields.get("store_spacing")
    fits = fields["form"] == "atoms" and few
    return [{"copy": "ldg_sts_unaligned"}, {}] if narrow and fits and not given else [{}]


# ---- Tiles ----------------------------------------------------------------------------------------------------------


def _tiles(fields: Request) -> list[Tile]:
    """Return the CTA tile that is given, or its nearest legal one; or those to try."""
    return [nearest_cta_tile(fields["cta_tile"], _k_block(fields))] if "cta_tile" in fields else [*_cta_tiles(fields)]


def _cta_tiles(fields: Request) -> Iterator[Tile]:
    """CTA tiles to try: the best for the architecture, then smaller ones; of a given warp tile, multiples."""
    k_block = _k_block(fields)
    if "warp_tile" in fields:
        warp = fields["warp_tile"]
        sizes = [Tile(warp.m * m, warp.n * n, 2 * k_block) for m, n in itertools.product(range(1, 9), repeat=2)]
        legal = [tile for tile in sizes if tile == nearest_cta_tile(tile, k_block)]
        yield from sorted(legal, key=lambda tile: (_off_target(tile, warp), abs(tile.m - tile.n)))
    roomy = ARCHS[fields["arch"]].limits.smem_bytes_per_cta >= ROOMY_SMEM_BYTES
    staged = {"ldg_sts_unaligned": SHIFTED_TILES}.get(fields["copy"], STAGED_TILES)
    large = staged if fields["copy"] in STAGED else LARGE_TILES if roomy else {}
    for tile in (*large.get(fields["acc"], ()), *TILES):
        yield replace(tile, k=tile.k * k_block // K_BLOCK_OF_HALVES)


def _k_block(fields: Request) -> int:
    return K_BLOCK_OF_HALVES * DTYPE_BYTES["f16"] // DTYPE_BYTES[fields["dtype_a"]]


def _off_target(tile: Tile, warp: WarpTile) -> int:
    """Count the warps that the CTA has too few or too many."""
    warps = tile.m // warp.m * (tile.n // warp.n)
    return max(WARPS[0] - warps, warps - WARPS[-1], 0)


def warp_tiles(fields: Request, tile: Tile) -> list[WarpTile]:
    """Warp tiles that divide a CTA tile, the best first: 4 to 8 of them, with the most products for a loaded element."""
    area, rows = WARP_AREAS[fields["acc"]], STAGED_WARP_ROWS if fields["copy"] in STAGED else WARP_ROWS
    columns = mma_columns(fields["mma"])
    divisors = itertools.starmap(WarpTile, itertools.product(warp_extents(tile.m, 16), warp_extents(tile.n, columns)))

    def merit(warp: WarpTile) -> tuple:
        too_large = warp.m * warp.n > min(area, 64 * 64)
        return (_off_target(tile, warp), too_large, -warp.m * warp.n / (warp.m + warp.n), abs(warp.m - rows), -warp.m)

    return sorted((warp for warp in divisors if warp.m * warp.n <= area), key=merit)


# ---- Everything else, for a tile ------------------------------------------------------------------------------------

_UNPLACED: Request = {"smem_a": Smem("none"), "smem_b": Smem("none")}

_FITS = (
    rules.warp_tile,
    rules.threads,
    rules.fragment_stages,
    rules.prefetch,
    rules.shared_memory,
    rules.static_memory,
    rules.residency,
    *cute_rules.FITS,
    *dsl_rules.FITS,
)
"""The rules that a choice of the fields below may break, beside that of registers, which placements decide too."""


def _choices(fields: Request, tile: Tile) -> Iterator[Spec]:
    """Specs of a CTA tile that fit, the best first: with enough stages for any warp tile, then with few."""
    warps = [fields["warp_tile"]] if "warp_tile" in fields else warp_tiles(fields, tile)
    fitting = []
    for warp in warps:
        if _fits(fields, _least(fields, tile, warp)):
            fitting.append(warp)
            yield from _legal(fields, _good(fields, tile, warp))
    for warp in fitting:
        yield from _legal(fields, _poor(fields, tile, warp))


def _legal(fields: Request, choices: Iterable[Request]) -> Iterator[Spec]:
    for choice in distinct(choices):
        if _fits(fields, choice):  # without placements, which take longest to choose
            plan = Plan(_spec(fields, choice))
            if not any(rule(plan) for rule in (*_FITS, rules.registers)):
                yield plan.spec


def _good(fields: Request, tile: Tile, warp: WarpTile) -> Iterator[Request]:
    warps = max(1, tile.m // warp.m * (tile.n // warp.n))
    most = max(1, WARPS_PER_SM // warps)
    for ctas in range(most, 0, -1):
        for ahead, several in _stages(fields).items():
            for stages in several:
                yield _choice(fields, tile, warp, stages, ahead, ctas)


def _stages(fields: Request) -> dict[int, tuple[int, ...]]:
    if fields["copy"] not in STAGED:
        return STAGES
    return STAGED_STAGES if fields.get("prefetch", True) else SYNCHRONOUS_STAGES


def _poor(fields: Request, tile: Tile, warp: WarpTile) -> Iterator[Request]:
    fewer = (2, 1) if fields["copy"] in STAGED else (3, 2, 1)
    for store, stages, ahead in itertools.product(("smem", "direct"), fewer, (2, 1)):
        yield _choice(fields, tile, warp, stages, ahead, 1, store)


def _least(fields: Request, tile: Tile, warp: WarpTile) -> Request:
    stages = min(2, fields.get("fragment_stages", 1))  # as many as fragments read ahead need
    return _choice(fields, tile, warp, stages, 1, 1, "direct")


def _modest(fields: Request, tile: Tile) -> Request:
    """A choice for what nothing fits, for the rules to say why."""
    warp = warp_tiles(fields, tile)[0]
    return _choice(fields, tile, warp, min(_stages(fields)[1]), 1, 1)


def _choice(
    fields: Request, tile: Tile, warp: WarpTile, stages: int, ahead: int, ctas: int, store: str = "smem"
) -> Request:
    """Return the choice, except for what the request says."""
    choice = {"warp_tile": warp, "stages": stages, "fragment_stages": ahead, "ctas_per_sm": ctas, "store": store}
    return {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _fits(fields: Request, choice: Request) -> bool:
    plan = Plan(Spec(**{**_UNPLACED, **fields, **choice}))
    return plan.accumulator_registers < plan.max_registers and not any(rule(plan) for rule in _FITS)


def _spec(fields: Request, choice: Request) -> Spec:
    """Return the choice as a spec, with operands placed without bank conflicts; what the request says stands."""
    plan = Plan(Spec(**{**_UNPLACED, **fields, **choice}))
    tiles = {"smem_a": plan.a, "smem_b": plan.b}
    placed = plan.replace(**{name: _placement(tile, plan) for name, tile in tiles.items() if name not in fields})
    if placed.staged and "store_spacing" not in fields:
        placed = placed.replace(store_spacing=planned_spacing(placed))
    return placed.spec


def _placement(tile: OperandTile, plan: Plan) -> Smem:
    shape = tile.rows, tile.columns, tile.chunk, tile.threads, tile.element_bytes
    return conflict_free(tile.k_major, *shape, one_pitch=plan.wmma)
