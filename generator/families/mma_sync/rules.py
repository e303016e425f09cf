"""The rules of kernels on mma.sync, and the changes that may fix a spec which breaks one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from generator.arch import ARCHS
from generator.families import common
from generator.families.base import Change, Rule, collector
from generator.families.common import clamp, fewer_ctas
from generator.families.mma_sync.plan import MMA_ROWS, instructions_between_stores, stores_per_k_tile, widest_spacing
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.spec import Smem, Tile, WarpTile
from generator.tables import counted

MAX_TILE = 256
MAX_WARP_TILE = 128
MAX_K_BLOCKS = 4
MAX_STAGES, MAX_REGISTER_COPY_STAGES = 16, 2
MAX_PAD_VECTORS = 8
"""Padding of a row, in vectors of 16 bytes."""
MAX_SWIZZLE_BITS = 13
"""Address bits of an element's offset that a swizzle may use: 16 KiB."""

_WARP_TILES_TRIED = 12

RULES: list[Rule] = []
rule = collector(RULES)


# ==== Architecture and types ====


def supported_inputs(plan: Plan) -> list[Change]:
    """Inputs in f16, or the nearest architecture that multiplies others."""
    capable = (change for change in common.nearest_archs(lambda arch: arch.has_bf16, plan))
    return [{"dtype_a": "f16", "dtype_b": "f16"}, *itertools.islice(capable, 1)]


@rule(supported_inputs)
def inputs(plan: Plan) -> str | None:
    found = sorted({plan.spec.dtype_a, plan.spec.dtype_b} - {"f16"})
    if not found or ARCHS[plan.spec.arch].has_bf16:
        return None
    return f"inputs are {found[0]}; mma.sync of {plan.spec.arch} multiplies f16 only"


@rule(lambda plan: [{"mma": "m16n8k8"}])
def mma(plan: Plan) -> str | None:
    if plan.spec.mma != "m16n8k16" or ARCHS[plan.spec.arch].has_mma_k16:
        return None
    return f"mma is m16n8k16; {plan.spec.arch} supports m16n8k8"


rule(common.one_input_type)(common.same_inputs)
rule(common.legal_accumulators)(common.accumulator)
rule(common.aligned_to_16_bytes)(common.alignment_of_operands)
rule(common.d_aligned_to_16_bytes)(common.alignment_of_d)
rule(common.expression_alone)(common.expression)
rule(common.for_pairs)(common.gated_pair)
rule(common.for_further_results)(common.further_results)
rule(common.as_fixed)(common.fixed_fields)


@rule(lambda plan: [{"mma": "m16n8k8"}])
def mma_depth(plan: Plan) -> str | None:
    if plan.mma_k <= plan.k_block:
        return None
    return f"mma is {plan.spec.mma}, for elements of 2 bytes; {plan.spec.dtype_a} inputs require m16n8k8"


@rule(lambda plan: [{"store": "smem"}, {"store": "direct"}])
def store(plan: Plan) -> str | None:
    found = plan.spec.store
    return None if found in ("smem", "direct") else f"store is {found}; kernels on mma.sync support smem and direct"


# ==== Tiles ====


def nearest_cta_tile(tile: Tile, k_block: int) -> Tile:
    """Return the nearest supported CTA tile of whole atoms."""
    k = clamp(tile.k, k_block, k_block, MAX_K_BLOCKS * k_block)
    return Tile(clamp(tile.m, MMA_ROWS, MMA_ROWS, MAX_TILE), clamp(tile.n, 16, 16, MAX_TILE), k)


def warp_extents(extent: int, atom: int) -> list[int]:
    """Return the extents that a warp tile may have along a CTA tile's `extent`."""
    return [size for size in range(atom, MAX_WARP_TILE + 1, atom) if extent % size == 0]


def nearest_warp_tiles(plan: Plan) -> list[Change]:
    """Legal divisions of the CTA tile, by the distance from the warp tile; of equally near ones, the larger first."""
    return [{"warp_tile": str(warp)} for warp in _warp_tiles(plan.spec.cta_tile, plan)]


def _warp_tiles(tile: Tile, plan: Plan) -> list[WarpTile]:
    near = plan.spec.warp_tile
    divisors = itertools.product(warp_extents(tile.m, MMA_ROWS), warp_extents(tile.n, plan.mma_n))
    found = itertools.starmap(WarpTile, divisors)
    return sorted(found, key=lambda warp: (abs(warp.m - near.m) + abs(warp.n - near.n), -warp.m * warp.n, -warp.m))


def warp_tiles_that_fit(plan: Plan) -> Iterator[Change]:
    """Other warp tiles, then with more registers per thread, then the warp tiles of smaller CTA tiles."""
    frugal = {"fragment_stages": "1", "ctas_per_sm": "1"}
    yield from nearest_warp_tiles(plan)
    yield from (warp | frugal for warp in nearest_warp_tiles(plan))
    yield from smaller_cta_tiles(plan)
    yield from (smaller | frugal for smaller in smaller_cta_tiles(plan))


def nearest_cta_tiles(plan: Plan) -> Iterator[Change]:
    """The nearest legal CTA tile and smaller ones. The warp tile stays if it divides them."""
    near = nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    return _with_warp_tiles(plan, [near, *_smaller(near, plan.k_block)])


def smaller_cta_tiles(plan: Plan) -> Iterator[Change]:
    """Smaller CTA tiles, the largest first."""
    near = nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    return _with_warp_tiles(plan, _smaller(near, plan.k_block))


def _smaller(tile: Tile, k_block: int) -> list[Tile]:
    """Return tiles with m, n or both halved once or more, by what remains of m x n, then of k."""
    steps = ((tile.m, 16), (tile.n, 16), (tile.k, k_block))
    halves = [[max(step, value >> shift) // step * step for shift in range(5)] for value, step in steps]
    found = {Tile(*extents) for extents in itertools.product(*halves)} - {tile}
    return sorted(found, key=lambda t: (-t.m * t.n, -t.k, abs(t.m - t.n), -t.m))


def _with_warp_tiles(plan: Plan, tiles: Iterable[Tile]) -> Iterator[Change]:
    for tile in tiles:
        warps = _warp_tiles(tile, plan)
        if plan.spec.warp_tile in warps:
            yield {"cta_tile": str(tile)}
        for warp in warps[:_WARP_TILES_TRIED]:
            yield {"cta_tile": str(tile), "warp_tile": str(warp)}


@rule(nearest_cta_tiles)
def cta_tile(plan: Plan) -> str | None:
    tile, k = plan.spec.cta_tile, plan.k_block
    if tile == nearest_cta_tile(tile, k):
        return None
    return f"tile is {tile}; m and n must be multiples of 16 up to {MAX_TILE}, and k a multiple of {k} up to {MAX_K_BLOCKS * k}"


@rule(warp_tiles_that_fit)
def warp_tile(plan: Plan) -> str | None:
    warp, tile = plan.spec.warp_tile, nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    if warp.m in warp_extents(tile.m, MMA_ROWS) and warp.n in warp_extents(tile.n, plan.mma_n):
        return None
    return (
        f"warp tile is {warp}; it must divide tile {tile}, in multiples of {MMA_ROWS}x{plan.mma_n} "
        f"up to {MAX_WARP_TILE}x{MAX_WARP_TILE}"
    )


@rule(warp_tiles_that_fit)
def threads(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.threads_per_cta
    if plan.threads <= limit:
        return None
    return f"{plan.warps_m}x{plan.warps_n} warps have {plan.threads} threads; a CTA allows {limit}"


# ==== Pipeline ====


def other_copies(plan: Plan) -> Iterator[Change]:
    """Asynchronous copies, or copies through registers with as many stages as those support."""
    yield {"copy": "cp_async"}
    for stages in {min(plan.spec.stages, most): None for most in (MAX_STAGES, MAX_REGISTER_COPY_STAGES)}:
        yield {"copy": "ldg_sts", "stages": str(stages)}


@rule(other_copies)
def copy(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.copy == "cp_async" and not ARCHS[spec.arch].has_cp_async:
        return f"copy is cp_async; {spec.arch} copies through registers only"
    if spec.copy == "ldg_sts_unaligned" and min(spec.align_a, spec.align_b) >= plan.vector_elements:
        return f"copy is ldg_sts_unaligned; A and B are aligned to {plan.vector_elements} elements (16 B) and need no shift"
    return None


def fewer_stages(plan: Plan, least: int = 1) -> Iterator[Change]:
    """The most supported stages and fewer. With one stage, fragments are not read ahead."""
    for stages in range(min(plan.spec.stages, _max_stages(plan)), least - 1, -1):
        ahead = stages == 1 and plan.spec.fragment_stages > 1
        yield {"stages": str(stages)} | ({"fragment_stages": "1"} if ahead else {})


def _max_stages(plan: Plan) -> int:
    return MAX_REGISTER_COPY_STAGES if plan.register_copy else MAX_STAGES


@rule(fewer_stages)
def stages(plan: Plan) -> str | None:
    most = _max_stages(plan)
    if 1 <= plan.spec.stages <= most:
        return None
    return f"stages is {plan.spec.stages}; copy {plan.spec.copy} supports 1 to {most}"


def narrower_spacings(plan: Plan) -> list[Change]:
    """The widest spacing, or a second stage, which allows a wider one."""
    wider = {"copy": "ldg_sts"} if plan.spec.copy == "ldg_sts_unaligned" else {"stages": str(MAX_REGISTER_COPY_STAGES)}
    return [{"store_spacing": str(widest_spacing(plan))}, wider]


@rule(narrower_spacings)
def store_spacing(plan: Plan) -> str | None:
    found, most = plan.spec.store_spacing, widest_spacing(plan)
    if not plan.register_copy or found <= most:
        return None
    if plan.spec.copy == "ldg_sts_unaligned":
        return f"store_spacing is {found}; copy ldg_sts_unaligned requires 0, because it stores a k-tile at once"
    return (
        f"store_spacing is {found}; {stores_per_k_tile(plan)} stores per thread among "
        f"{instructions_between_stores(plan)} tensor instructions allow {most}"
    )


def one_stage_or_prefetch(plan: Plan) -> list[Change]:
    """One stage, which is stored at once, or prefetch."""
    return [{"stages": "1", "store_spacing": "0", "fragment_stages": "1"}, {"prefetch": "on"}]


@rule(one_stage_or_prefetch)
def prefetch(plan: Plan) -> str | None:
    found = plan.spec.stages, plan.spec.store_spacing
    if not plan.register_copy or plan.spec.prefetch or found == (1, 0):
        return None
    return (
        f"prefetch is off with stages {found[0]} and store_spacing {found[1]}; it requires stages 1 and store_spacing 0"
    )


@rule(common.one_or_two_fragment_stages)
def fragment_stages(plan: Plan) -> str | None:
    if plan.spec.fragment_stages == 2 and plan.spec.stages == 1:
        return "fragment_stages is 2 with stages 1; reading ahead requires 2 stages"
    return common.fragment_stages(plan)


# ==== Shared memory ====


def placements(plan: Plan) -> tuple[tuple[str, Smem], ...]:
    """Return the placement of each operand, by its field."""
    return (("smem_a", plan.spec.smem_a), ("smem_b", plan.spec.smem_b))


def nearest_swizzles(plan: Plan) -> list[Change]:
    """The nearest legal swizzle, else none."""
    nearest = {
        name: str(_nearest_swizzle(smem, plan.vector_bits)) for name, smem in placements(plan) if smem.kind == "xor"
    }
    changed = {name: text for name, text in nearest.items() if text != str(getattr(plan.spec, name))}
    return [changed, dict.fromkeys(changed, "none")]


def _nearest_swizzle(smem: Smem, least_base: int) -> Smem:
    bits, base, shift = smem.swizzle
    bits, base = min(max(bits, 1), 3), min(max(base, least_base), 7)
    return Smem("xor", (bits, base, min(max(shift, bits), MAX_SWIZZLE_BITS - bits - base)))


@rule(nearest_swizzles)
def swizzle(plan: Plan) -> str | None:
    for name, smem in placements(plan):
        bits, base, shift = smem.swizzle
        whole = base >= plan.vector_bits
        within = 1 <= bits <= 3 and whole and bits <= shift and bits + base + shift <= MAX_SWIZZLE_BITS
        if smem.kind == "xor" and not within:
            return (
                f"{name} is {smem}; xor:B,M,S requires B from 1 to 3, M of {plan.vector_bits} or more (16 B stay together), "
                f"S of B or more, and B+M+S of {MAX_SWIZZLE_BITS} or less"
            )
    return None


def nearest_pads(plan: Plan) -> list[Change]:
    """The nearest padding in vectors of 16 bytes, else none."""
    vector = plan.vector_elements
    padded = {name: smem for name, smem in placements(plan) if smem.pad_elements}
    pads = {name: clamp(smem.pad_elements, vector, vector, MAX_PAD_VECTORS * vector) for name, smem in padded.items()}
    nearest = {name: Smem(padded[name].kind, (pad,)) for name, pad in pads.items()}
    changed = {name: str(smem) for name, smem in nearest.items() if smem != padded[name]}
    return [changed, dict.fromkeys(changed, "none")]


@rule(nearest_pads)
def padding(plan: Plan) -> str | None:
    for name, smem in placements(plan):
        pad, vector = smem.pad_elements, plan.vector_elements
        if pad % vector or pad > MAX_PAD_VECTORS * vector:
            return (
                f"{name} pads rows by {pad} elements; ldmatrix requires a multiple of {vector} (16 B) "
                f"up to {MAX_PAD_VECTORS * vector}"
            )
    return None


def one_distance(plan: Plan) -> Iterator[Change]:
    """The least padding, else none, else fragments that ldmatrix reads from any address."""
    strays = [name for name, smem in placements(plan) if not smem.has_one_pitch]
    yield dict.fromkeys(strays, f"pad:{plan.vector_elements}")
    yield dict.fromkeys(strays, "none")
    yield {"mma": "m16n8k16"}


@rule(one_distance)
def one_pitch(plan: Plan) -> str | None:
    strays = [f"{name} is {smem}" for name, smem in placements(plan) if not smem.has_one_pitch]
    return f"{', '.join(strays)}; mma {plan.spec.mma} requires rows at one distance" if plan.wmma and strays else None


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs per SM, D stored directly; then a shallower tile, then a smaller one."""
    yield from fewer_stages(plan, least=2)
    yield from fewer_ctas(plan)
    yield from (fewer | stages for fewer, stages in itertools.product(fewer_ctas(plan), fewer_stages(plan, least=2)))
    yield {"store": "direct"}
    tile = plan.spec.cta_tile
    for k in range(tile.k - plan.k_block, 0, -plan.k_block):
        shallower = {"cta_tile": str(Tile(tile.m, tile.n, k))}
        yield from (shallower | stages for stages in fewer_stages(plan, least=2))
    yield from fewer_stages(plan)
    yield from (smaller | {"ctas_per_sm": "1", "store": "direct"} for smaller in smaller_cta_tiles(plan))
    plain = {
        "smem_a": "none",
        "smem_b": "none",
        "ctas_per_sm": "1",
        "store": "direct",
        "stages": "1",
        "fragment_stages": "1",
    }
    yield plain
    yield from (smaller | plain for smaller in smaller_cta_tiles(plan))


rule(less_shared_memory)(common.shared_memory)


def less_static_memory(plan: Plan) -> Iterator[Change]:
    """Dynamic shared memory, or less of it."""
    yield {"smem_alloc": "dynamic"}
    yield from less_shared_memory(plan)


@rule(less_static_memory)
def static_memory(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.smem_static_bytes_per_cta
    if plan.static_smem_bytes <= limit:
        return None
    return f"tile {plan.spec.cta_tile} needs {plan.static_smem_bytes:,} B of static shared memory; a CTA allows {limit:,} B"


# ==== Registers and residency ====


@rule(fewer_ctas)
def residency(plan: Plan) -> str | None:
    limits = ARCHS[plan.spec.arch].limits
    ctas, most = plan.spec.ctas_per_sm, min(limits.ctas_per_sm, max(1, limits.warps_per_sm * 32 // plan.threads))
    if ctas <= most:
        return None
    return f"ctas_per_sm is {ctas}; {plan.spec.arch} holds {most} CTAs of {plan.threads} threads"


def fewer_registers(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs per SM, fragments not read ahead, both; then a smaller warp tile, then a smaller CTA tile."""
    milder = [*fewer_ctas(plan)]
    if plan.spec.fragment_stages > 1:
        milder += [{"fragment_stages": "1"}, *(fewer | {"fragment_stages": "1"} for fewer in fewer_ctas(plan))]
    yield from milder
    least = {"ctas_per_sm": "1"} if plan.spec.ctas_per_sm > 1 else {}
    yield from (warp | least for warp in nearest_warp_tiles(plan))
    yield from (smaller | least for smaller in smaller_cta_tiles(plan))
    yield from (smaller | least | {"fragment_stages": "1"} for smaller in smaller_cta_tiles(plan))


@rule(fewer_registers)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    return (
        f"warp tile {plan.spec.warp_tile} needs about {plan.needed_registers} registers per thread "
        f"({plan.accumulator_registers} of them accumulators); the limit is {plan.max_registers} with "
        f"{counted(plan.spec.ctas_per_sm, 'CTA')} of {plan.threads} threads per SM"
    )


# ==== Schedule ====

rule(common.nearest_rasters)(common.raster)
rule(common.split_in_workspace)(common.splits)


def workspace_or_no_split(plan: Plan) -> list[Change]:
    return [*common.split_in_workspace(plan), {"schedule": "one_tile"}, {"schedule": "persistent"}]


@rule(workspace_or_no_split)
def schedule(plan: Plan) -> str | None:
    found = plan.spec.schedule
    return (
        f"schedule is {found}; it requires a cluster, and mma.sync kernels have none"
        if found.kind == "split_k_cluster"
        else None
    )
