"""Changes of a spec on wgmma that may mend it, nearest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.sm90.tensor_maps import OperandBoxes
from generator.families.ways_out import MAX_RASTER_TILES, Change, clamp, split_in_workspace
from generator.spec import DTYPE_BYTES, Cluster, Raster, Tile

TILE_M = (64, 128, 192, 256)
CONSUMER_ROWS = (64, 128, 256)
TILE_K_BYTES = (64, 128, 256)
MAX_TILE_N = 256
PARTS = 16
"""Widths that are tried of a tile that is too wide."""

STAGES = range(2, 17)
"""One more than is multiplied at a time, up to what keeps the small tiles' loads in flight."""

CLUSTERS = tuple(Cluster.parse(text) for text in ("1x1", "2x1", "1x2", "4x1", "1x4", "2x2"))
CLUSTER_SPLITS = range(2, 9)
"""CTAs that may share a tile. Source: CUDA Programming Guide, thread block clusters: 8 are portable."""


def copied_by_threads() -> list[Change]:
    """The copy that takes less alignment, without clusters."""
    return [{"copy": "cp_async"}, {"copy": "cp_async", "cluster": "1x1"}]


# ---- Tiles and the warpgroups that share them -----------------------------------------------------------------------


def nearest_tile(tile: Tile, b_k_major: bool, element_bytes: int) -> Tile:
    """Return the nearest tile, as the kernel sees it, that warpgroups can share and TMA can bring."""
    step = 8 if b_k_major else 16
    return Tile(
        _nearest(tile.m, TILE_M), clamp(tile.n, step, step, MAX_TILE_N), _nearest(tile.k, tile_ks(element_bytes))
    )


def tile_ks(element_bytes: int) -> tuple[int, ...]:
    """Return the depths that a tile may have, in elements."""
    return tuple(size // element_bytes for size in TILE_K_BYTES)


def nearest_tile_of(plan: Plan) -> Tile:
    """Return the nearest legal tile of a plan, as the kernel sees it."""
    return nearest_tile(plan.tile, plan.b.k_major, plan.spec.operand_bytes)


def _nearest(value: int, choices: tuple[int, ...]) -> int:
    return min(choices, key=lambda choice: (abs(choice - value), choice))


def consumers_of(tile_m: int) -> list[tuple[str, int]]:
    """Return how consumers may share tiles of so many rows: (cooperation, consumers), the usual way first."""
    return {
        64: [("cooperative", 1), ("pingpong", 2)],
        128: [("cooperative", 2), ("pingpong", 2), ("cooperative", 1)],
        192: [("cooperative", 3)],
        256: [("cooperative", 2), ("pingpong", 2), ("cooperative", 1)],
    }.get(tile_m, [])


def sharing(plan: Plan, tile: Tile) -> Iterator[Change]:
    """The ways in which consumers share a tile, the present one first."""
    spec = plan.spec
    present = (spec.cooperation, spec.consumers)
    for cooperation, consumers in sorted(consumers_of(tile.m), key=lambda way: (way != present, way[0] != present[0])):
        yield {
            name: str(value)
            for name, value in {"consumers": consumers, "cooperation": cooperation}.items()
            if value != getattr(spec, name)
        }


def nearest_cta_tiles(plan: Plan) -> Iterator[Change]:
    """The nearest legal CTA tile, then smaller ones, shared as they can be."""
    near = nearest_tile_of(plan)
    yield from _tiles(plan, [near, *_smaller(near, plan.b)])


def smaller_cta_tiles(plan: Plan) -> Iterator[Change]:
    """Smaller CTA tiles, the largest first."""
    yield from _tiles(plan, _smaller(nearest_tile_of(plan), plan.b))


def _smaller(tile: Tile, b: OperandBoxes) -> list[Tile]:
    step = 8 if b.k_major else 16
    columns = {max(step, tile.n * part // PARTS // step * step) for part in range(1, PARTS + 1)}
    rows = [m for m in TILE_M if m <= tile.m]
    found = itertools.starmap(
        Tile, itertools.product(rows, columns, [k for k in tile_ks(b.element_bytes) if k <= tile.k])
    )
    return sorted({*found} - {tile}, key=lambda t: (-t.m * t.n, -t.k, abs(t.m - t.n), -t.m))


def _tiles(plan: Plan, tiles: list[Tile]) -> Iterator[Change]:
    """Write tiles, as the kernel sees them, as the spec does."""
    for tile in tiles:
        cta_tile = Tile(tile.n, tile.m, tile.k) if plan.spec.swap_ab else tile
        for shared in sharing(plan, tile):
            change = shared if tile == plan.tile else {"cta_tile": str(cta_tile), **shared}
            yield change
            yield {**change, "cluster": "1x1"}
            yield {**change, "cluster": "1x1", "stages": "2"}


def other_sharing(plan: Plan) -> Iterator[Change]:
    """Other ways to share the tile, then other tiles."""
    yield from sharing(plan, plan.tile)
    for shared in sharing(plan, plan.tile):
        yield {**shared, "schedule": "persistent"}
    yield from nearest_cta_tiles(plan)


def cooperation_that_fits(plan: Plan) -> Iterator[Change]:
    """Ping-pong's schedule, else no ping-pong."""
    yield {"schedule": "persistent"}
    yield from other_sharing(plan)


def rasters_of_clusters(plan: Plan) -> list[Change]:
    """The nearest group or panel of whole clusters, of 1,024 at most; then the same without a cluster."""
    kind, spec = plan.spec.raster.kind, plan.spec
    whole = max(1, spec.cluster.n * spec.cta_tile.n) if kind == "panel" else spec.cluster.m
    size = min(max(1, round(spec.raster.size / whole)), MAX_RASTER_TILES) * whole
    return [{"raster": str(Raster(kind, size))}, {"raster": "row"}]


def nearest_splits(plan: Plan) -> Iterator[Change]:
    """The nearest number of splits that is served, without a cluster of tiles, with more stages; else in a workspace."""
    spec, splits = plan.spec, plan.spec.schedule.splits
    if spec.schedule.kind == "split_k_cluster":
        nearest = {
            "schedule": f"split_k_cluster:{min(max(splits, CLUSTER_SPLITS[0]), CLUSTER_SPLITS[-1])}",
            "cluster": "1x1",
        }
        yield nearest
        yield from ({**nearest, "stages": str(stages)} for stages in STAGES)
    yield from split_in_workspace(plan)


def nearest_clusters(plan: Plan) -> list[Change]:
    """Served clusters, by the distance in CTAs along m and n."""
    near = plan.spec.cluster
    served = sorted(CLUSTERS, key=lambda c: (abs(c.m - near.m) + abs(c.n - near.n), c.ctas))
    return [{"cluster": str(cluster)} for cluster in served if cluster != near]


# ---- Shared memory, registers and D ---------------------------------------------------------------------------------


def fewer_ctas(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs an SM, each with a larger share of it."""
    return ({"ctas_per_sm": str(ctas)} for ctas in range(plan.spec.ctas_per_sm - 1, 0, -1))


def nearest_stages(plan: Plan) -> Iterator[Change]:
    """The most stages that there may be, and fewer."""
    most = min(max(plan.spec.stages, STAGES[0]), STAGES[-1])
    return ({"stages": str(stages)} for stages in range(most, STAGES[0] - 1, -1))


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs an SM, no staging of D, a smaller tile."""
    yield from nearest_stages(plan)
    yield from fewer_ctas(plan)
    yield from ({**stages, "store": "direct"} for stages in nearest_stages(plan))
    yield from ({**tile, "stages": "2", "ctas_per_sm": "1"} for tile in smaller_cta_tiles(plan))


def fewer_registers(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs an SM, more consumers for the tile, sums that nobody shares, then smaller tiles."""
    yield from fewer_ctas(plan)
    yield from sharing(plan, plan.tile)
    if plan.spec.schedule.kind == "stream_k":
        yield {"schedule": "persistent"}
    yield from smaller_cta_tiles(plan)
    yield from ({**tile, "ctas_per_sm": "1"} for tile in smaller_cta_tiles(plan))


def aligned_store(plan: Plan) -> list[Change]:
    """D stored by threads, else whole pieces of 16 bytes."""
    return [{"store": "direct"}, {"align_d": str(16 // DTYPE_BYTES[plan.spec.dtype_d])}]
