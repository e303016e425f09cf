"""Changes of a spec on mma.sync that may mend it, nearest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from generator.arch import ARCHS, MMA_SYNC
from generator.families.mma_sync import staging
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.ways_out import Change, archs, clamp
from generator.spec import Smem, Tile, WarpTile

MAX_PAD_PIECES = 8
"""Pieces of 16 bytes that rows may be padded by."""
MAX_K_BLOCKS = 4
MAX_STAGES, MAX_STAGED_STAGES = 16, 2
MAX_SWIZZLE_BITS = 13
"""Address bits of an element offset that a swizzle may reach to: 16 KiB."""

_WARP_TILES_TRIED = 12

# ---- Tiles ----------------------------------------------------------------------------------------------------------


def nearest_cta_tile(tile: Tile, k_block: int) -> Tile:
    """Return the nearest CTA tile of whole atoms in the range that is served."""
    k = clamp(tile.k, k_block, k_block, MAX_K_BLOCKS * k_block)
    return Tile(clamp(tile.m, 16, 16, 256), clamp(tile.n, 16, 16, 256), k)


def warp_extents(extent: int, atom: int) -> list[int]:
    """Return the extents that a warp tile may have along a CTA tile's `extent`."""
    return [size for size in range(atom, 129, atom) if extent % size == 0]


def nearest_warp_tiles(plan: Plan) -> list[Change]:
    """Legal divisions of the CTA tile, by the distance from the warp tile; of equally near ones, the larger first."""
    return [{"warp_tile": str(warp)} for warp in _warp_tiles(plan.spec.cta_tile, plan)]


def _warp_tiles(tile: Tile, plan: Plan) -> list[WarpTile]:
    near, divisors = plan.spec.warp_tile, itertools.product(warp_extents(tile.m, 16), warp_extents(tile.n, plan.mma_n))
    found = itertools.starmap(WarpTile, divisors)
    return sorted(found, key=lambda warp: (abs(warp.m - near.m) + abs(warp.n - near.n), -warp.m * warp.n, -warp.m))


def warp_tiles_that_fit(plan: Plan) -> Iterator[Change]:
    """Other warp tiles, with the most registers a thread where they need them, then those of smaller CTA tiles."""
    frugal = {"fragment_stages": "1", "ctas_per_sm": "1"}
    yield from nearest_warp_tiles(plan)
    yield from (warp | frugal for warp in nearest_warp_tiles(plan))
    yield from smaller_cta_tiles(plan)
    yield from (smaller | frugal for smaller in smaller_cta_tiles(plan))


def nearest_cta_tiles(plan: Plan) -> Iterator[Change]:
    """The nearest legal CTA tile and smaller ones, the warp tile kept where it divides them."""
    near = nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    return _with_warp_tiles(plan, [near, *_smaller(near, plan.k_block)])


def smaller_cta_tiles(plan: Plan) -> Iterator[Change]:
    """Smaller CTA tiles, the largest first."""
    near = nearest_cta_tile(plan.spec.cta_tile, plan.k_block)
    return _with_warp_tiles(plan, _smaller(near, plan.k_block))


def _smaller(tile: Tile, k_block: int) -> list[Tile]:
    """Tiles with m, n or both halved once or more, by what is left of m x n, then of k."""
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


# ---- Types and copies -----------------------------------------------------------------------------------------------


def served_inputs(plan: Plan) -> list[Change]:
    """Inputs in f16, or the nearest architecture that takes others."""
    capable = (change for change in archs(plan, MMA_SYNC) if ARCHS[change["arch"]].has_bf16)
    return [{"dtype_a": "f16", "dtype_b": "f16"}, *itertools.islice(capable, 1)]


def other_copies(plan: Plan) -> Iterator[Change]:
    """Asynchronous copies, or copies by way of registers in stages that those have."""
    yield {"copy": "cp_async"}
    for stages in {min(plan.spec.stages, most): None for most in (MAX_STAGES, MAX_STAGED_STAGES)}:
        yield {"copy": "ldg_sts", "stages": str(stages)}


def narrower_spacings(plan: Plan) -> list[Change]:
    """The widest spacing that has room, and a second stage, which gives more of it."""
    wider = {"copy": "ldg_sts"} if plan.spec.copy == "ldg_sts_unaligned" else {"stages": str(MAX_STAGED_STAGES)}
    return [{"store_spacing": str(staging.widest_spacing(plan))}, wider]


def in_turn_or_ahead(plan: Plan) -> list[Change]:
    """One stage, all of which is stored at once, or loads ahead."""
    return [{"stages": "1", "store_spacing": "0", "fragment_stages": "1"}, {"prefetch": "on"}]


def most_stages(plan: Plan) -> int:
    """Return the most stages that the pipeline has."""
    return MAX_STAGED_STAGES if plan.staged else MAX_STAGES


# ---- Stages and shared memory ---------------------------------------------------------------------------------------


def less_static_memory(plan: Plan) -> Iterator[Change]:
    """Dynamic shared memory, or less of it."""
    yield {"smem_alloc": "dynamic"}
    yield from less_shared_memory(plan)


def fewer_stages(plan: Plan, least: int = 1) -> Iterator[Change]:
    """As many stages as there may be and fewer; with one, fragments are not read ahead."""
    for stages in range(min(plan.spec.stages, most_stages(plan)), least - 1, -1):
        ahead = stages == 1 and plan.spec.fragment_stages > 1
        yield {"stages": str(stages)} | ({"fragment_stages": "1"} if ahead else {})


def fewer_ctas(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs an SM, each with a larger share of it."""
    return ({"ctas_per_sm": str(ctas)} for ctas in range(plan.spec.ctas_per_sm - 1, 0, -1))


def less_shared_memory(plan: Plan) -> Iterator[Change]:
    """Fewer stages, fewer CTAs an SM, no staging of D; then a shallower and a smaller tile."""
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


def nearest_swizzles(plan: Plan) -> list[Change]:
    """The nearest XOR of whole pieces of 16 bytes, else none."""
    nearest = {
        name: str(_nearest_swizzle(smem, plan.piece_bits)) for name, smem in placements(plan) if smem.kind == "xor"
    }
    changed = {name: text for name, text in nearest.items() if text != str(getattr(plan.spec, name))}
    return [changed, dict.fromkeys(changed, "none")]


def _nearest_swizzle(smem: Smem, least_base: int) -> Smem:
    bits, base, shift = smem.swizzle
    bits, base = min(max(bits, 1), 3), min(max(base, least_base), 7)
    return Smem("xor", (bits, base, min(max(shift, bits), MAX_SWIZZLE_BITS - bits - base)))


def nearest_pads(plan: Plan) -> list[Change]:
    """The nearest padding by whole pieces of 16 bytes, else none."""
    piece = plan.piece
    padded = {name: smem for name, smem in placements(plan) if smem.pad_elements}
    pads = {name: clamp(smem.pad_elements, piece, piece, MAX_PAD_PIECES * piece) for name, smem in padded.items()}
    nearest = {name: Smem(padded[name].kind, (pad,)) for name, pad in pads.items()}
    changed = {name: str(smem) for name, smem in nearest.items() if smem != padded[name]}
    return [changed, dict.fromkeys(changed, "none")]


def one_pitch(plan: Plan) -> Iterator[Change]:
    """The least padding instead, else none, else fragments that ldmatrix reads from anywhere."""
    strays = [name for name, smem in placements(plan) if not smem.has_one_pitch]
    yield dict.fromkeys(strays, f"pad:{plan.piece}")
    yield dict.fromkeys(strays, "none")
    yield {"mma": "m16n8k16"}


def placements(plan: Plan) -> tuple[tuple[str, Smem], ...]:
    """The placement of each operand, by its field."""
    return (("smem_a", plan.spec.smem_a), ("smem_b", plan.spec.smem_b))


# ---- Registers ------------------------------------------------------------------------------------------------------


def fewer_registers(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs an SM, fragments not read ahead, both; then a smaller warp tile, then a smaller CTA tile."""
    milder = [*fewer_ctas(plan)]
    if plan.spec.fragment_stages > 1:
        milder += [{"fragment_stages": "1"}, *(fewer | {"fragment_stages": "1"} for fewer in fewer_ctas(plan))]
    yield from milder
    least = {"ctas_per_sm": "1"} if plan.spec.ctas_per_sm > 1 else {}
    yield from (warp | least for warp in nearest_warp_tiles(plan))
    yield from (smaller | least for smaller in smaller_cta_tiles(plan))
    yield from (smaller | least | {"fragment_stages": "1"} for smaller in smaller_cta_tiles(plan))
