"""Planning of kernels on wgmma: what measurements recommend and limits allow, for each field that is open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from generator.families.defaults import distinct, problem_fields
from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.sm90.rules import RULES, TMA_ALIGN_BYTES
from generator.families.sm90.ways_out import CLUSTERS, STAGES, TILE_M, consumers_of, nearest_tile
from generator.spec import DTYPE_BYTES, WGMMA, Cluster, Raster, Request, Schedule, Smem, Spec, Tile, WarpTile

TILES = tuple(map(Tile.parse, "128x256x64 256x128x64 192x192x64 128x128x64 64x256x64 64x128x64 64x64x64".split()))
"""CTA tiles of operands of 2 bytes, the best first; those of 4 bytes are half as deep."""

MAX_STAGES = 8
"""Stages beyond so many bring nothing that is measurable."""

COPIED_STAGES, COPIED_SMEM_BYTES = 3, 163 * 1024
"""Stages that threads copy, unless more fit in so much: copies of 4 and 8 bytes pass through L1, which has what is left.

Measured on an H200, 4096 x 4096 x 4100, 128x256x64: 276 us with 3 stages, 325 with 4, 425 with 2.
"""

SMS = 132
"""SMs of an H100 SXM or H200, which the raster is chosen for. Source: NVIDIA H100 white paper, table 3."""

GROUPS = (4, 8, 16, 32)

TURNS_TILE_N = {64: range(8, 257), 128: range(72, 129)}
"""Columns of tiles that two consumers take in turn, by rows: one finishes its tile while the other one multiplies."""

PAIRED_AREA = 128 * 128
"""Elements of a CTA tile from which on pairs of CTAs share B; smaller ones lose more by waiting for one another."""

_UNIMPLIED: Request = {
    "mma": "m64n8k16",
    "warp_tile": WarpTile(64, 8),
    "fragment_stages": 1,
    "smem_a": Smem("none"),
    "smem_b": Smem("none"),
    "mma_order": "row",
    "form": "atoms",
}
"""Stands for what the family decides until the rest is known."""


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`; the result may still be illegal, which the rules judge."""
    request = {name: value for name, value in request.items() if (name, value) != ("mma", WGMMA)}
    fields = {**problem_fields(request), "schedule": Schedule("persistent"), "ctas_per_sm": 1, **request}
    fields = {"copy": _copy(fields), **fields}
    if fields["arch"] == "sm_90":
        fields["arch"] = "sm_90a"  # which alone has the instructions
    size = DTYPE_BYTES[fields["dtype_a"]]
    planned = [replace(tile, k=tile.k * DTYPE_BYTES["f16"] // size) for tile in TILES]
    tiles = [fields["cta_tile"]] if "cta_tile" in fields else planned
    first, *others = (choice for tile in tiles for choice in distinct(_choices(fields, tile)))
    plan = _with_most_stages(fields, first)
    plans = itertools.chain([plan], (_with_most_stages(fields, choice) for choice in others))
    return next((legal for legal in plans if not any(rule.broken(legal) for rule in RULES)), plan).spec


def _choices(fields: Request, tile: Tile) -> Iterator[Request]:
    """The open fields of a CTA tile, the best values first: how D is stored, how it is shared, and by how large a cluster."""
    swap_ab = fields.get("swap_ab", tile.m not in TILE_M and tile.n in TILE_M)
    own = Tile(tile.n, tile.m, tile.k) if swap_ab else tile
    stores = ("tma", "direct") if _stores_by_tma(fields, swap_ab) else ("direct",)
    near = nearest_tile(own, True, DTYPE_BYTES[fields["dtype_a"]])
    sharings = _sharing(near, fields["schedule"])
    clusters = _clusters(tile, fields["schedule"]) if fields["copy"] == "tma" else [Cluster(1, 1)]
    for store, (cooperation, consumers), cluster in itertools.product(stores, sharings, clusters):
        choice = {
            "swap_ab": swap_ab,
            "store": store,
            "cooperation": cooperation,
            "consumers": consumers,
            "cluster": cluster,
            "raster": _raster(tile),
        }
        yield {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _copy(fields: Request) -> str:
    """By TMA, if operands are so aligned."""
    least = min(fields["align_a"] * DTYPE_BYTES[fields["dtype_a"]], fields["align_b"] * DTYPE_BYTES[fields["dtype_b"]])
    return "tma" if least >= TMA_ALIGN_BYTES else "cp_async"


def _stores_by_tma(fields: Request, swap_ab: bool) -> bool:
    size = DTYPE_BYTES[fields["dtype_d"]]
    return fields["align_d"] * size >= 16 and not (swap_ab and size > 2)


def _sharing(tile: Tile, schedule: Schedule) -> list[tuple[str, int]]:
    """Two consumers in turn where there are turns and one of them can hold a tile, else as many as share it by rows."""
    ways = consumers_of(tile.m)
    takes_turns = schedule.kind == "persistent" and tile.n in TURNS_TILE_N.get(tile.m, ())
    return sorted(ways, key=lambda way: way[0] != "pingpong") if takes_turns else ways


def _clusters(tile: Tile, schedule: Schedule) -> list[Cluster]:
    """Pairs of CTAs that share B, where the tile is so large and tall that m has two of them, and no clusters split k."""
    large = tile.m >= 128 and tile.m * tile.n >= PAIRED_AREA
    pairs = [Cluster(2, 1)] if large and schedule.kind != "split_k_cluster" else []
    return [*pairs, *(cluster for cluster in CLUSTERS if cluster not in pairs)]


def _raster(tile: Tile) -> Raster:
    """Return the groups of tiles whose operands, of all that SMs compute at once, are the least."""
    return Raster("group", min(GROUPS, key=lambda group: group * tile.m + -(-SMS // group) * tile.n))


def _with_most_stages(fields: Request, choice: Request) -> Plan:
    """Return the plan of a choice with as many stages as fit, unless the request says how many."""
    spec = Spec(**{**_UNIMPLIED, "stages": STAGES[0], **fields, **choice})
    plan = Plan(spec).replace(**{name: value for name, value in Plan(spec).implied.items() if name not in fields})
    deeper = () if "stages" in fields else range(MAX_STAGES, STAGES[0], -1)
    more = (Plan(plan.spec.replace(stages=stages)) for stages in deeper)  # from stages, the family decides nothing
    return next((deep for deep in more if deep.smem_bytes <= _most_smem_bytes(deep)), plan)


def _most_smem_bytes(plan: Plan) -> int:
    sparing = plan.copied and plan.spec.stages > COPIED_STAGES
    return min(plan.max_smem_bytes, COPIED_SMEM_BYTES) if sparing else plan.max_smem_bytes
