"""What kernels on mma.sync in the vocabulary of CuTe, in C++ or in its DSL, cannot say alike, and why not."""

from __future__ import annotations

from collections.abc import Callable

from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.ways_out import Change
from generator.layouts import OperandTile

Judge = Callable[[Plan], "str | None"]

ATOMS: Change = {"form": "atoms"}
"""The form in which every field is served."""


def of_form(form: str, judge: Judge) -> Judge:
    """Return a rule named after the form that judges its plans only."""

    def judge_of_form(plan: Plan) -> str | None:
        return judge(plan) if plan.spec.form == form else None

    judge_of_form.__name__ = f"{form}_{judge.__name__}"
    return judge_of_form


def at_once(plan: Plan) -> list[Change]:
    return [{"schedule": "one_tile"}, ATOMS]


def schedule(plan: Plan) -> str | None:
    if plan.spec.schedule.kind in ("one_tile", "persistent"):
        return None
    return f"form {plan.spec.form} has no {plan.spec.schedule}: its accumulators stay in one CTA"


def deeper(plan: Plan) -> list[Change]:
    return [{"cta_tile": str(plan.spec.cta_tile).rpartition("x")[0] + "x32"}, ATOMS]


def k_blocks(plan: Plan) -> str | None:
    if plan.k_blocks >= 2:
        return None
    return f"k of {plan.spec.cta_tile.k} is one k-block, form {plan.spec.form} reads the next while it multiplies one"


def in_pieces(plan: Plan) -> list[Change]:
    return [{"align_a": "8", "align_b": "8"}, ATOMS]


def alignment(plan: Plan) -> str | None:
    short = [name for name in ("align_a", "align_b") if getattr(plan.spec, name) < 2]
    if plan.staged or not short:
        return None
    return f"{' and '.join(short)} 1: form {plan.spec.form} copies by cp.async, 2 elements (4 B) at least"


def on_atoms(plan: Plan) -> list[Change]:
    return [ATOMS]


def copies(plan: Plan) -> str | None:
    for name, tile in (("A", plan.a), ("B", plan.b)):
        rows, chunks = thread_shape(tile)
        per_row = max(1, tile.columns // tile.chunk)
        if rows * chunks != plan.threads or tile.rows % rows or per_row % chunks:
            return f"{plan.threads} threads do not tile {tile.rows} rows of {per_row} pieces of {name}, as a TiledCopy must"
    return None


def thread_shape(tile: OperandTile) -> tuple[int, int]:
    """Return the rows, and the pieces of each, that a CTA's threads copy at once."""
    chunks = min(max(1, tile.columns // tile.chunk), tile.threads)
    return max(1, tile.threads // chunks), chunks


def padded(plan: Plan) -> list[Change]:
    return [{"smem_a": "pad:8", "smem_b": "pad:8"}, ATOMS]


def swizzles(plan: Plan) -> str | None:
    for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)):
        if tile.smem.kind == "xor" and tile.pitch & (tile.pitch - 1):
            return f"{name} {tile.smem} of rows of {tile.pitch}: CuTe composes swizzles with powers of two"
    return None


def padding(plan: Plan) -> str | None:
    pairs = [f"{name} {tile.smem}" for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)) if tile.smem.pair_pad]
    return f"{' and '.join(pairs)}: form {plan.spec.form} lays rows one pitch apart" if pairs else None
