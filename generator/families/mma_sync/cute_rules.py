"""What of a spec on mma.sync its kernel in CuTe cannot say, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from generator.arch import ARCHS
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import Change
from generator.layouts import OperandTile

_ATOMS = {"form": "atoms"}
"""The other form, in which every field is served."""


RULES: list[Rule] = []
rule = adder(RULES)

_SERVED = {
    "dtype_a": ("f16", "bf16"),
    "copy": ("cp_async", "vector"),
    "mma": ("m16n8k16", "m16n8k8"),
    "acc": ("f32", "f16"),
    "prefetch": (True,),
    "fragment_stages": (2,),
    "mma_order": ("zigzag",),
    "store": ("smem",),
    "smem_alloc": ("dynamic",),
}
_REASONS = {
    "dtype_a": "the TiledMMA is of half-precision numbers",
    "copy": "the TiledCopy is of cp.async or of whole pieces",
    "mma": "the TiledMMA is of mma.sync",
    "acc": "a TiledMMA adds up in one type",
    "prefetch": "the next k-tile is loaded while one is multiplied",
    "fragment_stages": "a k-block is read while another is multiplied",
    "mma_order": "cute::gemm goes through a warp's atoms in its own order, a zigzag",
    "store": "the epilogue's TiledMMA writes to shared memory",
    "smem_alloc": "its SharedStorage is laid over dynamic shared memory",
}


def _as_served(plan: Plan) -> Iterator[Change]:
    first = {name: _word(served[0]) for name, served in _SERVED.items()}
    if not ARCHS[plan.spec.arch].has_cp_async:
        first |= {"copy": "vector", "mma": "m16n8k8"}
    yield {name: first[name] for name, served in _SERVED.items() if getattr(plan.spec, name) not in served}
    yield _ATOMS


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


@rule(_as_served)
def cute_fields(plan: Plan) -> str | None:
    if plan.spec.form != "cute":
        return None
    strays = [name for name, served in _SERVED.items() if getattr(plan.spec, name) not in served]
    told = "; ".join(f"{name} {_word(getattr(plan.spec, name))}: {_REASONS[name]}" for name in strays)
    return f"form cute cannot say {told}" if strays else None


@rule(lambda plan: [{"mma": "m16n8k16"}, {"copy": "vector", "stages": "2"}, {"acc": "f32"}, _ATOMS])
def cute_depth(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.form != "cute" or spec.mma != "m16n8k8" or (plan.staged and (spec.dtype_a, spec.acc) == ("f16", "f32")):
        return None
    fed = "" if plan.staged else f" fed by {spec.copy}"
    return f"form cute has no m16n8k8 of {spec.dtype_a} that adds up in {spec.acc}{fed}: of f16 in f32 by way of registers only"


@rule(lambda plan: [{"store_spacing": "0"}, _ATOMS])
def cute_spacing(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or not plan.spec.store_spacing:
        return None
    return f"store_spacing {plan.spec.store_spacing}: form cute stores all pieces of a k-tile side by side"


@rule(lambda plan: [{"schedule": "one_tile"}, _ATOMS])
def cute_schedule(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or plan.spec.schedule.kind in ("one_tile", "persistent"):
        return None
    return f"form cute has no {plan.spec.schedule}: its accumulators stay in one CTA"


@rule(lambda plan: [{"cta_tile": str(plan.spec.cta_tile).rpartition("x")[0] + "x32"}, _ATOMS])
def cute_k_blocks(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or plan.k_blocks >= 2:
        return None
    return f"k of {plan.spec.cta_tile.k} is one k-block, form cute reads the next while it multiplies one"


@rule(lambda plan: [{"align_a": "8", "align_b": "8"}, _ATOMS])
def cute_alignment(plan: Plan) -> str | None:
    short = [name for name in ("align_a", "align_b") if getattr(plan.spec, name) < 2]
    if plan.spec.form != "cute" or plan.staged or not short:
        return None
    return f"{' and '.join(short)} 1: form cute copies by cp.async, 2 elements (4 B) at least"


@rule(lambda plan: [_ATOMS])
def cute_copies(plan: Plan) -> str | None:
    if plan.spec.form != "cute":
        return None
    for name, tile in (("A", plan.a), ("B", plan.b)):
        rows, chunks = thread_shape(tile)
        per_row = max(1, tile.columns // tile.chunk)
        if rows * chunks != plan.threads or tile.rows % rows or per_row % chunks:
            return f"{plan.threads} threads do not tile {tile.rows} rows of {per_row} pieces of {name}, as a TiledCopy must"
    return None


@rule(lambda plan: [{"smem_a": "pad:8", "smem_b": "pad:8"}, _ATOMS])
def cute_swizzles(plan: Plan) -> str | None:
    for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)):
        if plan.spec.form == "cute" and tile.smem.kind == "xor" and tile.pitch & (tile.pitch - 1):
            return f"{name} {tile.smem} of rows of {tile.pitch}: CuTe composes swizzles with powers of two"
    return None


@rule(lambda plan: [{"smem_a": "pad:8", "smem_b": "pad:8"}, _ATOMS])
def cute_padding(plan: Plan) -> str | None:
    padded = [f"{name} {tile.smem}" for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)) if tile.smem.pair_pad]
    if plan.spec.form != "cute" or not padded:
        return None
    return f"{' and '.join(padded)}: form cute lays rows one pitch apart"


def thread_shape(tile: OperandTile) -> tuple[int, int]:
    """Return the rows, and the pieces of each, that a CTA's threads copy at once."""
    chunks = min(max(1, tile.columns // tile.chunk), tile.threads)
    return max(1, tile.threads // chunks), chunks


FITS = (cute_k_blocks, cute_copies)
"""The rules that a choice of tiles may break."""
