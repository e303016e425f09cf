"""Planning of kernels on TMA and wgmma: what measurements recommend and limits allow, for each field that is open."""

from __future__ import annotations

from collections.abc import Iterator

from generator.families.defaults import problem_fields
from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.sm90.rules import RULES
from generator.families.sm90.ways_out import CLUSTERS, STAGES, consumers_of, nearest_cta_tile
from generator.spec import DTYPE_BYTES, WGMMA, Request, Spec
from generator.values import Cluster, Raster, Schedule, Smem, Tile, WarpTile

TILES = tuple(map(Tile.parse, "128x256x64 256x128x64 192x192x64 128x128x64 64x256x64 64x128x64 64x64x64".split()))
"""CTA tiles, the best first."""

MAX_STAGES = 8
"""Stages beyond so many bring nothing that is measurable."""

SMS = 132
"""SMs of an H100 SXM or H200, which the raster is chosen for. Source: NVIDIA H100 white paper, table 3."""

GROUPS = (4, 8, 16, 32)
_UNIMPLIED: Request = {"mma": "m64n8k16", "copy": "tma", "warp_tile": WarpTile(64, 8), "fragment_stages": 1}
_PLACEHOLDERS: Request = {**_UNIMPLIED, "smem_a": Smem("none"), "smem_b": Smem("none"), "mma_order": "row"}


def resolve(request: Request) -> Spec:
    """Fill in every open field of `request`; the result may still be illegal, which the rules judge."""
    request = {name: value for name, value in request.items() if (name, value) != ("mma", WGMMA)}
    fields = {**problem_fields(request), "schedule": Schedule("persistent"), "ctas_per_sm": 1, **request}
    if fields["arch"] == "sm_90":
        fields["arch"] = "sm_90a"  # which alone has the instructions
    fields.setdefault("store", "tma" if fields["align_d"] * DTYPE_BYTES[fields["dtype_d"]] >= 16 else "direct")
    tiles = [fields["cta_tile"]] if "cta_tile" in fields else TILES
    plans = [_with_most_stages(fields, choice) for tile in tiles for choice in _choices(fields, tile)]
    legal = (plan for plan in plans if not any(rule.broken(plan) for rule in RULES))
    return next(legal, plans[0]).spec


def _choices(fields: Request, tile: Tile) -> Iterator[Request]:
    """The open fields of a CTA tile, the best values first: how it is shared, and by how large a cluster."""
    near = nearest_cta_tile(tile, fields["layout"][1] == "n")
    for cooperation, consumers in _sharing(near, fields["schedule"]):
        for cluster in _clusters(near):
            choice = {"cooperation": cooperation, "consumers": consumers, "cluster": cluster, "raster": _raster(near)}
            yield {"cta_tile": tile, **{name: fields.get(name, value) for name, value in choice.items()}}


def _sharing(tile: Tile, schedule: Schedule) -> list[tuple[str, int]]:
    """Two consumers of one warpgroup's rows each where the tile has so many, else in turns where there are turns."""
    ways = consumers_of(tile.m)
    takes_turns = tile.m == 64 and schedule.kind == "persistent"
    return sorted(ways, key=lambda way: way[0] != "pingpong") if takes_turns else ways


def _clusters(tile: Tile) -> list[Cluster]:
    """Pairs of CTAs that share B, where the tile is tall enough for m to have two of them."""
    pairs = [Cluster(2, 1)] if tile.m >= 128 else []
    return [*pairs, *(cluster for cluster in CLUSTERS if cluster not in pairs)]


def _raster(tile: Tile) -> Raster:
    """Return the groups of tiles whose operands, of all that SMs compute at once, are the least."""
    return Raster("group", min(GROUPS, key=lambda group: group * tile.m + -(-SMS // group) * tile.n))


def _with_most_stages(fields: Request, choice: Request) -> Plan:
    """Return the plan of a choice with as many stages as fit, unless the request says how many."""
    least = {**_PLACEHOLDERS, "stages": STAGES[0], **fields, **choice}
    plan = _implying(Plan(Spec(**least)), fields)
    for stages in range(MAX_STAGES, STAGES[0], -1):
        more = plan.having(stages=stages)
        if "stages" not in fields and more.smem_bytes <= more.max_smem_bytes:
            return more
    return plan


def _implying(plan: Plan, fields: Request) -> Plan:
    """Set what the family decides, except for what the request says."""
    return plan.having(**{name: value for name, value in plan.implied.items() if name not in fields})
