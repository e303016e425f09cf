"""Defaults of kernels on mma.sync with copies by TMA: for each open field, what measurements recommend and limits allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from generator.families.base import distinct, problem_fields
from generator.families.common import OF_MMA_SYNC
from generator.families.mma_sync.defaults import K_BLOCK_OF_HALVES, MMAS, warp_tiles
from generator.families.mma_sync.rules import nearest_cta_tile
from generator.families.mma_sync_tma.plan import TmaPlan as Plan
from generator.families.mma_sync_tma.rules import RULES
from generator.spec import DTYPE_BYTES, Raster, Request, Schedule, Smem, Spec, Tile

TILES = {
    "f32": tuple(map(Tile.parse, "256x128x64 128x128x64 128x64x64 64x64x64 64x32x32 32x32x32".split())),
    "f16": tuple(map(Tile.parse, "256x256x64 256x128x64 128x128x64 128x64x64 64x64x64 32x32x32".split())),
    "f16_promoted": tuple(map(Tile.parse, "128x64x64 64x64x64 32x32x32".split())),
}
"""CTA tiles of operands of 2 bytes, the best first."""

WARPS_PER_SM = 8
STAGES = (3, 4, 2)
"""The best first. With 3 stages of 256x128x64, 16 staged rows of D fit.

Source: benchmarks/data/tma_prototype_h200.json, its kernels of the generator.
"""
_PLAIN: Request = {
    "copy": "tma",
    "mma_order": "zigzag",
    "raster": Raster("group", 8),
    "schedule": Schedule("persistent"),
    **OF_MMA_SYNC,
    "pointer_arrays": False,
    "smem_alloc": "dynamic",
    "form": "atoms",
    "store_spacing": 0,
    "smem_a": Smem("none"),
    "smem_b": Smem("none"),
}


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`. The result may still be illegal; the rules decide that."""
    problem = {**problem_fields(request), **request}
    fields = {**_PLAIN, "mma": MMAS.get(problem["dtype_a"], "m16n8k16"), **problem}
    tiles = [nearest_cta_tile(fields["cta_tile"], _k_block(fields))] if "cta_tile" in fields else [*_tiles(fields)]
    plans = (_plan(request, fields, choice) for tile in tiles for choice in distinct(_choices(fields, tile)))
    first = next(plans)
    legal = (plan for plan in itertools.chain((first,), plans) if not any(rule.check(plan) for rule in RULES))
    found = next(legal, first)
    asked = {name: request[name] for name in ("cta_tile", *found.fixed_fields) if name in request}
    return found.replace(**asked).spec


def _plan(request: Request, fields: Request, choice: Request) -> Plan:
    """Return the plan of a choice, with fixed fields at their value unless the request sets them."""
    plan = Plan(Spec(**{**fields, **choice}))
    return plan.replace(**{name: value for name, value in plan.fixed_fields.items() if name not in request})


def _choices(fields: Request, tile: Tile) -> Iterator[Request]:
    """Yield values of the open fields for a tile, the best first: fragments read ahead, and as many stages as fit."""
    for warp in [fields["warp_tile"]] if "warp_tile" in fields else warp_tiles(fields, tile):
        most = max(1, WARPS_PER_SM // max(1, tile.m // max(1, warp.m) * (tile.n // max(1, warp.n))))
        ways = itertools.product(range(most, 0, -1), ("smem", "direct"), (2, 1), STAGES)
        for ctas, store, ahead, stages in ways:
            choice = {
                "warp_tile": warp,
                "ctas_per_sm": ctas,
                "store": store,
                "fragment_stages": ahead,
                "stages": stages,
            }
            yield {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _tiles(fields: Request) -> Iterator[Tile]:
    for tile in TILES[fields["acc"]]:
        yield Tile(tile.m, tile.n, tile.k * _k_block(fields) // K_BLOCK_OF_HALVES)


def _k_block(fields: Request) -> int:
    return K_BLOCK_OF_HALVES * DTYPE_BYTES["f16"] // DTYPE_BYTES[fields["dtype_a"]]
