"""Defaults of kernels on wgmma: for each open field, the value that measurements recommend and limits allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from generator.families.base import distinct, problem_fields
from generator.families.wgmma.plan import WgmmaPlan as Plan
from generator.families.wgmma.rules import CLUSTERS, RULES, STAGES, TILE_M, consumers_of, nearest_tile
from generator.spec import DTYPE_BYTES, WGMMA, Cluster, Raster, Request, Schedule, Smem, Spec, Tile, WarpTile
from hgemm.dtypes import VECTOR_BYTES
from hgemm.problem import LAUNCH

TILES = tuple(map(Tile.parse, "128x256x64 256x128x64 192x192x64 128x128x64 64x256x64 64x128x64 64x64x64".split()))
"""CTA tiles of operands of 2 bytes, the best first. For 4 bytes they have half the depth."""

MAX_STAGES = 8
"""More stages have no measurable effect."""

STAGES_FOR_D = 6
"""With so many stages or more, a tile has one stage less if D can then have more than one.

Measured on an H100 in the state `model`: 128x64 with 8 stages in place of 9 takes 0.96 of the time, 160x128 with 5 in place of 6
0.97, 80x128 with 7 in place of 8 0.99, but 192x128 with 4 in place of 5 1.01. Ping-pong kernels store D while another warpgroup
multiplies, so they keep all stages: with 6 in place of 7 of 128x112, an MLP with gelu took 1.02 of the time, in different runs.
"""

COPIED_STAGES, COPIED_SMEM_BYTES = 3, 163 * 1024
"""Stages with cp_async, unless more fit into this much shared memory. Copies of 4 and 8 bytes need the rest for L1.

Measured on an H200, 4096 x 4096 x 4100, 128x256x64: 276 us with 3 stages, 325 with 4, 425 with 2.
"""

SMS = 132
"""SMs of an H100 SXM or H200, for which the raster is chosen. Source: NVIDIA H100 white paper, table 3."""

GROUPS = (4, 8, 16, 32)

PINGPONG_TILE_N = {64: range(8, 257), 128: range(72, 129)}
"""Columns of tiles for ping-pong, by rows: one consumer stores its tile while the other multiplies."""

PAIRED_AREA = 128 * 128
"""Elements of a CTA tile that are enough for pairs of CTAs to share B. Smaller ones lose more by waiting for each other."""

_PLACEHOLDERS: Request = {
    "mma": "m64n8k16",
    "warp_tile": WarpTile(64, 8),
    "fragment_stages": 1,
    "smem_a": Smem("none"),
    "smem_b": Smem("none"),
    "mma_order": "row",
    "form": "atoms",
}
"""Placeholders of fixed fields, until the other fields are known."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`. The result may still be illegal; the rules decide that."""
    request = {name: value for name, value in request.items() if (name, value) != ("mma", WGMMA)}
    fields = {**problem_fields(request), "schedule": Schedule("persistent"), "ctas_per_sm": 1, **request}
    fields = {"copy": _copy(fields), **fields}
    if fields["arch"] == "sm_90":
        fields["arch"] = "sm_90a"  # which alone has the instructions
    size = DTYPE_BYTES[fields["dtype_a"]]
    planned = [replace(tile, k=tile.k * DTYPE_BYTES["f16"] // size) for tile in TILES]
    tiles = [fields["cta_tile"]] if "cta_tile" in fields else planned
    choices = (choice for tile in tiles for choice in distinct(_choices(fields, tile)))
    plans = (_with_most_stages(fields, choice) for choice in choices)
    first = next(plans)
    legal = (plan for plan in itertools.chain([first], plans) if not any(rule.check(plan) for rule in RULES))
    return next(legal, first).spec


def _choices(fields: Request, tile: Tile) -> Iterator[Request]:
    """Yield values of the open fields for a CTA tile, the best first: store, sharing, cluster."""
    swap_ab = fields.get("swap_ab", tile.m not in TILE_M and tile.n in TILE_M)
    own = Tile(tile.n, tile.m, tile.k) if swap_ab else tile
    stores = ("tma", "direct") if _stores_by_tma(fields, swap_ab) else ("direct",)
    near = nearest_tile(own, 8, DTYPE_BYTES[fields["dtype_a"]])
    sharings = _sharing(near, fields["schedule"])
    clusters = _clusters(tile, fields["schedule"]) if fields["copy"] == "tma" else [Cluster(1, 1)]
    # A field of the request replaces all choices of it, so one is enough.
    stores = stores[:1] if "store" in fields else stores
    clusters = clusters[:1] if "cluster" in fields else clusters
    for store, (cooperation, consumers), cluster in itertools.product(stores, sharings, clusters):
        choice = {
            "swap_ab": swap_ab,
            "store": store,
            "cooperation": cooperation,
            "consumers": consumers,
            "cluster": cluster,
            "raster": fields.get("raster") or _raster(tile),
        }
        yield {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _copy(fields: Request) -> str:
    """Return tma if the operands are aligned for it, and their addresses are known before the launch."""
    least = min(fields["align_a"] * DTYPE_BYTES[fields["dtype_a"]], fields["align_b"] * DTYPE_BYTES[fields["dtype_b"]])
    return "tma" if least >= VECTOR_BYTES and not fields.get("pointer_arrays") else "cp_async"


def _stores_by_tma(fields: Request, swap_ab: bool) -> bool:
    size = DTYPE_BYTES[fields["dtype_d"]]
    return fields["align_d"] * size >= 16 and not (swap_ab and size > 2) and not fields.get("pointer_arrays")


def _sharing(tile: Tile, schedule: Schedule) -> list[tuple[str, int]]:
    """Return how consumers share a tile: ping-pong first if the schedule and the registers of one consumer allow it."""
    ways = consumers_of(tile.m)
    pingpong = schedule.kind in ("persistent", LAUNCH) and tile.n in PINGPONG_TILE_N.get(tile.m, ())
    return sorted(ways, key=lambda way: way[0] != "pingpong") if pingpong else ways


def _clusters(tile: Tile, schedule: Schedule) -> list[Cluster]:
    """Return the clusters: first pairs of CTAs that share B, if the tile is large and tall and no cluster splits k."""
    large = tile.m >= 128 and tile.m * tile.n >= PAIRED_AREA
    pairs = [Cluster(2, 1)] if large and schedule.kind != "split_k_cluster" else []
    return [*pairs, *(cluster for cluster in CLUSTERS if cluster not in pairs)]


def _raster(tile: Tile) -> Raster:
    """Return the groups of tiles for which all SMs together load the least."""
    return Raster("group", min(GROUPS, key=lambda group: group * tile.m + -(-SMS // group) * tile.n))


def _with_most_stages(fields: Request, choice: Request) -> Plan:
    """Return the plan of a choice with as many stages as fit, or one less for D, unless the request sets them."""
    spec = Spec(**{**_PLACEHOLDERS, "stages": STAGES[0], **fields, **choice})
    fixed = {name: value for name, value in Plan(spec).fixed_fields.items() if name not in fields}
    plan = Plan(spec.replace(**fixed))  # no fixed field depends on another one
    fitting = min(MAX_STAGES, plan.max_smem_bytes // max(1, plan.stage_bytes))  # an upper bound
    deeper = () if "stages" in fields else range(fitting, STAGES[0], -1)
    more = (Plan(plan.spec.replace(stages=stages)) for stages in deeper)  # no fixed field depends on stages
    most = next((deep for deep in more if deep.smem_bytes <= _most_smem_bytes(deep)), plan)
    if not deeper or most.spec.stages < STAGES_FOR_D:
        return most
    if most.subtiles == 1 or most.pingpong or most.spec.schedule.kind == "split_k_cluster":
        return most
    fewer = Plan(most.spec.replace(stages=most.spec.stages - 1))
    return fewer if most.epilogue_stages == 1 < fewer.epilogue_stages else most


def _most_smem_bytes(plan: Plan) -> int:
    sparing = plan.copied and plan.spec.stages > COPIED_STAGES
    return min(plan.max_smem_bytes, COPIED_SMEM_BYTES) if sparing else plan.max_smem_bytes
