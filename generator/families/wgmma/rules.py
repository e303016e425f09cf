"""The rules of kernels on wgmma, and the changes that may fix a spec which breaks one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from generator.arch import ARCHS, Arch
from generator.families import common
from generator.families.base import Change, Rule, collector
from generator.families.common import MAX_RASTER_TILES, clamp, fewer_ctas
from generator.families.mma_sync.defaults import on_mma_sync
from generator.families.wgmma.plan import WgmmaPlan as Plan
from generator.layouts import ASYNC_BYTES
from generator.spec import DTYPE_BYTES, Cluster, Raster, Tile
from generator.tables import counted
from hgemm.dtypes import VECTOR_BYTES
from hgemm.problem import LAUNCH
from hgemm.tensor_maps import CORE_ROWS

TILE_M = (64, 128, 192, 256)
CONSUMER_ROWS = (64, 128, 256)
TILE_K_BYTES = (64, 128, 256)
MAX_TILE_N = 256

STAGES = range(2, 17)
"""One more than is multiplied at a time, up to what keeps loads of small tiles in flight."""

CLUSTERS = tuple(Cluster.parse(text) for text in ("1x1", "2x1", "1x2", "4x1", "1x4", "2x2", "4x2", "2x4"))
CLUSTER_SPLITS = range(2, 9)
"""CTAs that may share a tile. Source: CUDA Programming Guide, thread block clusters: 8 are portable."""

_WIDTHS_TRIED = 16
"""Widths that are tried if a tile is too wide."""

_ROWS = " or ".join(map(str, CONSUMER_ROWS))

RULES: list[Rule] = []
rule = collector(RULES)


# ==== Architecture and types ====


def supports(arch: Arch) -> bool:
    """Return whether an architecture has wgmma."""
    return arch.has_wgmma


@rule(lambda plan: itertools.chain(common.nearest_archs(supports, plan), on_mma_sync(plan)))
def family(plan: Plan) -> str | None:
    return None if supports(ARCHS[plan.spec.arch]) else f"mma is {plan.spec.mma}; {plan.spec.arch} has no wgmma"


rule(common.one_input_type)(common.same_inputs)


@rule(lambda plan: [*common.legal_accumulators(plan), {"acc": "f16"}, *on_mma_sync(plan)])
def accumulator(plan: Plan) -> str | None:
    if plan.spec.acc == "f16_promoted":
        return "acc is f16_promoted; wgmma supports f32 and f16"
    return common.accumulator(plan)


@rule(lambda plan: [*on_mma_sync(plan), {"layout": "tn"}])
def layout(plan: Plan) -> str | None:
    spec = plan.spec
    if plan.takes(spec.dtype_a, spec.layout):
        return None
    return f"layout is {spec.layout}; wgmma supports {spec.dtype_a} inputs in layout tn only"


@rule(lambda plan: [{"copy": "tma"}, {"copy": "cp_async"}])
def copy(plan: Plan) -> str | None:
    found = plan.spec.copy
    return None if found in ("tma", "cp_async") else f"copy is {found}; wgmma supports tma and cp_async"


def narrower_copies(plan: Plan) -> list[Change]:
    """The copy with a lower alignment, without clusters; then mma.sync; then a higher alignment."""
    by_threads = [{"copy": "cp_async"}, {"copy": "cp_async", "cluster": "1x1"}]
    return [*by_threads, *on_mma_sync(plan), *common.aligned_to_16_bytes(plan)]


@rule(narrower_copies)
def alignment(plan: Plan) -> str | None:
    least_bytes = ASYNC_BYTES if plan.copied else VECTOR_BYTES
    least = least_bytes // plan.spec.operand_bytes
    aligns = {"align_a": plan.spec.align_a, "align_b": plan.spec.align_b}
    short = [f"{name} is {align}" for name, align in aligns.items() if align < least]
    copier = "cp.async" if plan.copied else "TMA"
    return f"{', '.join(short)}; {copier} requires {counted(least, 'element')} ({least_bytes} B)" if short else None


rule(common.aligned_to_16_bytes)(common.alignment_of_operands)
rule(common.d_aligned_to_16_bytes)(common.alignment_of_d)
rule(common.expression_alone)(common.expression)
rule(common.for_pairs)(common.gated_pair)
rule(common.for_further_results)(common.further_results)
rule(common.as_fixed)(common.fixed_fields)


# ==== Tiles, and the consumers that share them ====


def nearest_tile(tile: Tile, step: int, element_bytes: int) -> Tile:
    """Return the nearest tile, as the kernel sees it, that consumers can share and boxes can hold. n is a multiple of `step`."""
    return Tile(
        _nearest(tile.m, TILE_M), clamp(tile.n, step, step, MAX_TILE_N), _nearest(tile.k, tile_ks(element_bytes))
    )


def column_step(plan: Plan) -> int:
    """Return what a tile's columns must be a multiple of. The narrowest box has 16."""
    return 8 if plan.b.k_major or plan.pads_boxes else 16


def tile_ks(element_bytes: int) -> tuple[int, ...]:
    """Return the depths that a tile may have, in elements."""
    return tuple(size // element_bytes for size in TILE_K_BYTES)


def _nearest_tile_of(plan: Plan) -> Tile:
    return nearest_tile(plan.tile, column_step(plan), plan.spec.operand_bytes)


def _nearest(value: int, choices: tuple[int, ...]) -> int:
    return min(choices, key=lambda choice: (abs(choice - value), choice))


def consumers_of(tile_m: int) -> list[tuple[str, int]]:
    """Return how consumers may share a tile with these rows: (cooperation, consumers), the usual way first."""
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
    """Operands swapped the other way if the tile fits then, the nearest legal CTA tile, and smaller ones."""
    near, turned = _nearest_tile_of(plan), Tile(plan.tile.n, plan.tile.m, plan.tile.k)
    if plan.tile != near and turned == nearest_tile(turned, column_step(plan), plan.spec.operand_bytes):
        for shared in sharing(plan, turned):
            yield {"swap_ab": "off" if plan.spec.swap_ab else "on", **shared}
    yield from _tiles(plan, [near, *_smaller(near, plan)])


def smaller_cta_tiles(plan: Plan) -> Iterator[Change]:
    """Smaller CTA tiles, the largest first."""
    yield from _tiles(plan, _smaller(_nearest_tile_of(plan), plan))


def _smaller(tile: Tile, plan: Plan) -> list[Tile]:
    step = column_step(plan)
    columns = {max(step, tile.n * part // _WIDTHS_TRIED // step * step) for part in range(1, _WIDTHS_TRIED + 1)}
    rows = [m for m in TILE_M if m <= tile.m]
    found = itertools.starmap(
        Tile, itertools.product(rows, columns, [k for k in tile_ks(plan.spec.operand_bytes) if k <= tile.k])
    )
    return sorted({*found} - {tile}, key=lambda t: (-t.m * t.n, -t.k, abs(t.m - t.n), -t.m))


def _tiles(plan: Plan, tiles: list[Tile]) -> Iterator[Change]:
    """Yield changes to tiles, which are given as the kernel sees them."""
    for tile in tiles:
        cta_tile = Tile(tile.n, tile.m, tile.k) if plan.spec.swap_ab else tile
        for shared in sharing(plan, tile):
            change = shared if tile == plan.tile else {"cta_tile": str(cta_tile), **shared}
            yield change
            yield {**change, "cluster": "1x1"}
            yield {**change, "cluster": "1x1", "stages": "2"}


@rule(nearest_cta_tiles)
def cta_tile(plan: Plan) -> str | None:
    if plan.tile == _nearest_tile_of(plan):
        return None
    m, n = "nm" if plan.spec.swap_ab else "mn"
    *first, last = map(str, tile_ks(plan.spec.operand_bytes))
    step = "8" if column_step(plan) == 8 else f"16 in layout {plan.spec.layout}"
    swapped = " with swapped operands" if plan.spec.swap_ab else ""
    return (
        f"tile is {plan.spec.cta_tile}{swapped}; {m} must be 64, 128, 192 or 256, {n} a multiple of {step} up to {MAX_TILE_N}, "
        f"and k {', '.join(first)} or {last}"
    )


def other_sharing(plan: Plan) -> Iterator[Change]:
    """Other ways to share the tile, then other tiles."""
    yield from sharing(plan, plan.tile)
    for shared in sharing(plan, plan.tile):
        yield {**shared, "schedule": "persistent"}
    yield from nearest_cta_tiles(plan)


@rule(other_sharing)
def consumers(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.consumers < 1:
        return "consumers is 0; wgmma supports 1 to 3 consumer warpgroups"
    if plan.pingpong:
        return None if spec.consumers == 2 else f"consumers is {spec.consumers}; cooperation pingpong requires 2"
    if plan.tile.m == spec.consumers * plan.consumer_rows and plan.consumer_rows in CONSUMER_ROWS:
        return None
    return f"consumers is {spec.consumers} for {plan.tile.m} rows; each consumer computes {_ROWS} rows"


def cooperation_that_fits(plan: Plan) -> Iterator[Change]:
    """The schedule of ping-pong, else no ping-pong."""
    yield {"schedule": "persistent"}
    yield from other_sharing(plan)


@rule(cooperation_that_fits)
def cooperation(plan: Plan) -> str | None:
    spec = plan.spec
    if not plan.pingpong or plan.tile.m not in TILE_M:  # the rule of the tile says it
        return None
    if spec.schedule.kind not in ("persistent", "stream_k", LAUNCH):
        return f"cooperation is pingpong with schedule {spec.schedule}; it requires persistent, stream_k or {LAUNCH}"
    if plan.consumer_rows not in CONSUMER_ROWS:
        return f"cooperation is pingpong for {plan.tile.m} rows; each consumer computes {_ROWS} rows"
    return None


def nearest_clusters(plan: Plan) -> list[Change]:
    """Supported clusters, by the distance in CTAs along m and n."""
    near = plan.spec.cluster
    found = sorted(CLUSTERS, key=lambda c: (abs(c.m - near.m) + abs(c.n - near.n), c.ctas))
    return [{"cluster": str(cluster)} for cluster in found if cluster != near]


@rule(nearest_clusters)
def cluster(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.cluster not in CLUSTERS:
        return f"cluster is {spec.cluster}; wgmma supports {', '.join(map(str, CLUSTERS))}"
    if plan.copied and spec.cluster.ctas > 1:
        return f"cluster is {spec.cluster}; copy cp_async requires 1x1, because threads copy for their own CTA only"
    for name, boxes in zip("BA" if spec.swap_ab else "AB", (plan.a, plan.b)):
        if spec.form == "cute" and boxes.slices < boxes.shared_by:
            rows = "rows" if boxes.k_major else "k-rows"
            needed = f"{boxes.shared_by} slices of a multiple of {CORE_ROWS}; form atoms needs none"
            return f"cluster is {spec.cluster}; {boxes.sliced} {rows} of {name} do not have {needed}"
    return None


# ==== Shared memory and registers ====

nearest_stages = partial(common.stages_within, STAGES)


@rule(nearest_stages)
def stages(plan: Plan) -> str | None:
    found = plan.spec.stages
    return None if found in STAGES else f"stages is {found}; wgmma supports {STAGES[0]} to {STAGES[-1]}"


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs per SM, D stored directly, a smaller tile."""
    yield from nearest_stages(plan)
    yield from fewer_ctas(plan)
    yield from ({**stages, "store": "direct"} for stages in nearest_stages(plan))
    yield from ({**tile, "stages": "2", "ctas_per_sm": "1"} for tile in smaller_cta_tiles(plan))


rule(less_shared_memory)(common.shared_memory)


@rule(fewer_ctas)
def residency(plan: Plan) -> str | None:
    limits, ctas = ARCHS[plan.spec.arch].limits, plan.spec.ctas_per_sm
    most = limits.warps_per_sm * limits.warp_threads // plan.threads
    return (
        None if ctas <= most else f"ctas_per_sm is {ctas}; {plan.spec.arch} holds {most} CTAs of {plan.threads} threads"
    )


def fewer_registers(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs per SM, more consumers for the tile, no stream-K, then smaller tiles."""
    yield from fewer_ctas(plan)
    yield from sharing(plan, plan.tile)
    if plan.spec.serial_parts:
        yield {"serial_parts": "off"}
    if plan.streams:
        yield {"schedule": "persistent"}
    yield from smaller_cta_tiles(plan)
    yield from ({**tile, "ctas_per_sm": "1"} for tile in smaller_cta_tiles(plan))


@rule(fewer_registers)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    spec = plan.spec
    return (
        f"tile {spec.cta_tile} needs about {plan.needed_registers} registers per consumer thread "
        f"({plan.accumulator_registers} of them accumulators); the limit is {plan.max_registers} with "
        f"{counted(spec.ctas_per_sm, 'CTA')} of {counted(spec.consumers, 'consumer')} per SM"
    )


@rule(fewer_registers)
def instruction(plan: Plan) -> str | None:
    if plan.instruction_registers <= plan.launch_registers:
        return None
    return (
        f"mma {plan.spec.mma} needs {plan.instruction_registers} registers per thread at launch; the limit is "
        f"{plan.launch_registers} with {counted(plan.spec.ctas_per_sm, 'CTA')} of {plan.threads} threads per SM"
    )


# ==== Schedule and store ====


def rasters_of_clusters(plan: Plan) -> list[Change]:
    """The nearest supported group or panel of whole clusters, else rows."""
    kind, spec = plan.spec.raster.kind, plan.spec
    whole = max(1, spec.cluster.n * spec.cta_tile.n) if kind == "panel" else spec.cluster.m
    size = min(max(1, round(spec.raster.size / whole)), MAX_RASTER_TILES) * whole
    return [{"raster": str(Raster(kind, size))}, {"raster": "row"}]


@rule(rasters_of_clusters)
def raster(plan: Plan) -> str | None:
    spec = plan.spec
    whole = {"group": spec.cluster.m, "panel": spec.cluster.n * max(1, spec.cta_tile.n)}.get(spec.raster.kind, 1)
    if spec.raster.size % whole:
        unit = "columns" if spec.raster.kind == "panel" else "tiles"
        return f"raster is {spec.raster}; cluster {spec.cluster} requires a multiple of {whole} {unit}"
    return common.raster(plan)


def nearest_splits(plan: Plan) -> Iterator[Change]:
    """The nearest supported split in a cluster, with more stages; else a split in a workspace."""
    spec, splits = plan.spec, plan.spec.schedule.splits
    if spec.schedule.kind == "split_k_cluster":
        nearest = {
            "schedule": f"split_k_cluster:{min(max(splits, CLUSTER_SPLITS[0]), CLUSTER_SPLITS[-1])}",
            "cluster": "1x1",
        }
        yield nearest
        yield from ({**nearest, "stages": str(stages)} for stages in STAGES)
    yield from common.split_in_workspace(plan)


@rule(nearest_splits)
def splits(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.schedule.kind != "split_k_cluster":
        return common.splits(plan)
    if spec.schedule.splits not in CLUSTER_SPLITS:
        return f"schedule is {spec.schedule}; a cluster has {CLUSTER_SPLITS[0]} to {CLUSTER_SPLITS[-1]} CTAs"
    if spec.cluster.ctas > 1:
        return f"schedule is {spec.schedule} with cluster {spec.cluster}; it requires cluster 1x1"
    if plan.partial_bytes > plan.mainloop_bytes:
        return (
            f"schedule is {spec.schedule}; partials of {plan.partial_bytes:,} B do not fit into "
            f"{plan.mainloop_bytes:,} B of stages"
        )
    return None


@rule(lambda plan: [{"serial_parts": "off"}, {"schedule": LAUNCH}, {"schedule": LAUNCH, "form": "atoms"}])
def serial_parts(plan: Plan) -> str | None:
    spec = plan.spec
    if not spec.serial_parts or (spec.schedule.kind == LAUNCH and spec.form == "atoms"):
        return None
    return f"serial_parts is on with schedule {spec.schedule} and form {spec.form}; it requires schedule {LAUNCH} and form atoms"


BY_THREADS = {"form": "atoms", "copy": "cp_async", "store": "direct"}
"""Fields of kernels whose threads read addresses that only the GPU knows. TMA needs the addresses before the launch."""


@rule(lambda plan: [{**BY_THREADS, "cluster": "1x1"}, {"pointer_arrays": "off"}])
def pointer_arrays(plan: Plan) -> str | None:
    strays = [
        f"{name} is {getattr(plan.spec, name)}"
        for name, value in BY_THREADS.items()
        if getattr(plan.spec, name) != value
    ]
    if not plan.spec.pointer_arrays or not strays:
        return None
    return f"{', '.join(strays)}; pointer_arrays on requires form atoms, copy cp_async and store direct"


def aligned_store(plan: Plan) -> list[Change]:
    """D stored by threads, else aligned to 16 bytes."""
    return [{"store": "direct"}, {"align_d": str(16 // DTYPE_BYTES[plan.spec.dtype_d])}]


@rule(aligned_store)
def store(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.store == "smem":
        return "store is smem; wgmma supports tma and direct"
    size = spec.align_d * DTYPE_BYTES[spec.dtype_d]
    if spec.store == "tma" and spec.swap_ab and DTYPE_BYTES[spec.dtype_d] > 2:
        return f"store is tma for {spec.dtype_d} output; with swapped operands it supports f16 and bf16"
    if spec.store == "tma" and size < VECTOR_BYTES:
        return f"align_d is {spec.align_d} ({size} B); store tma requires {VECTOR_BYTES} B"
    return None


# ==== Forms ====

_ATOMS: Change = {"form": "atoms"}


@rule(lambda plan: [{"form": "cute"}, _ATOMS])
def form(plan: Plan) -> str | None:
    if plan.spec.form != "dsl":
        return None
    return (
        "form is dsl; wgmma supports atoms and cute, because CuTe DSL encodes tensor maps in its own run-time library"
    )


@rule(lambda plan: [_ATOMS, {"copy": "tma"}])
def cute_copy(plan: Plan) -> str | None:
    return f"copy is {plan.spec.copy}; form cute requires tma" if plan.spec.form == "cute" and plan.copied else None


@rule(common.decided_early)
def cute_at_launch(plan: Plan) -> str | None:
    found = common.fields_at_launch(plan)
    return f"form cute does not support {', '.join(found)}" if plan.spec.form == "cute" and found else None


@rule(lambda plan: [{"schedule": "persistent"}, _ATOMS])
def cute_schedule(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or plan.spec.schedule.kind == "persistent":
        return None
    one_tile = plan.spec.schedule.kind == "one_tile"
    reason = "ptxas serialises wgmma otherwise (C7515)" if one_tile else "one CTA computes a whole tile"
    return f"schedule is {plan.spec.schedule}; form cute requires persistent, because {reason}"
