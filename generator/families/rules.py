"""What a rule is, and the rules that kernels of all families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from generator.arch import ARCHS
from generator.families.plan import Plan
from generator.families.ways_out import MAX_RASTER_TILES, Change, word
from generator.layouts import PIECE_BYTES

Broken = Callable[[Plan], "str | None"]
Changes = Callable[[Plan], Iterable[Change]]


@dataclass(frozen=True)
class Rule:
    """A rule by name: what it says of a plan that breaks it (None of others), and the changes that may mend one, nearest first."""

    name: str
    broken: Broken
    changes: Changes


def adder(rules: list[Rule]) -> Callable[[Changes], Callable[[Broken], Broken]]:
    """Return the decorator that adds functions to `rules`, in the order of their file, with the changes that may mend each."""

    def rule(changes: Changes) -> Callable[[Broken], Broken]:
        def add(broken: Broken) -> Broken:
            rules.append(Rule(broken.__name__, broken, changes))
            return broken

        return add

    return rule


def implied_fields(plan: Plan) -> str | None:
    """Find fields that the family leaves no choice in."""
    strays = [name for name, value in plan.implied.items() if getattr(plan.spec, name) != value]
    if not strays:
        return None
    told = ", ".join(f"{name} {word(getattr(plan.spec, name))} (not {word(plan.implied[name])})" for name in strays)
    return f"kernels on {plan.spec.mma} with copy {plan.spec.copy} have no choice in {told}"


def same_inputs(plan: Plan) -> str | None:
    a, b = plan.spec.dtype_a, plan.spec.dtype_b
    return None if a == b else f"A is {a} and B is {b}, {plan.instruction} takes one type"


def accumulator(plan: Plan) -> str | None:
    wide = [dtype for dtype in (plan.spec.dtype_a, plan.spec.dtype_b) if dtype in ("bf16", "tf32")]
    if not wide or plan.spec.acc == "f32":
        return None
    return f"{wide[0]} inputs accumulate in f32 only, the spec says {plan.spec.acc}"


def alignment_of_operands(plan: Plan) -> str | None:
    most = PIECE_BYTES // plan.spec.operand_bytes
    long = [f"align_{name} is {align}" for name, align in _aligns(plan) if align > most]
    if not long:
        return None
    return f"{plan.spec.dtype_a} inputs move {most} elements (16 B) at once, {', '.join(long)}"


def _aligns(plan: Plan) -> tuple[tuple[str, int], ...]:
    return ("a", plan.spec.align_a), ("b", plan.spec.align_b)


def alignment_of_d(plan: Plan) -> str | None:
    if plan.spec.dtype_d != "f32" or plan.spec.align_d <= 4:
        return None
    return f"f32 output moves 4 elements (16 B) at once, align_d is {plan.spec.align_d}"


def shared_memory(plan: Plan) -> str | None:
    if plan.smem_bytes <= plan.max_smem_bytes:
        return None
    spec, limits = plan.spec, ARCHS[plan.spec.arch].limits
    shared = plan.max_smem_bytes < limits.smem_bytes_per_cta
    return (
        f"smem {plan.smem_bytes:,} B > {plan.max_smem_bytes:,} B of {spec.arch}"
        f"{f' for {spec.ctas_per_sm} CTAs an SM' if shared else ''}"
    )


def raster(plan: Plan) -> str | None:
    kind, size, tile_n = plan.spec.raster.kind, plan.spec.raster.size, max(1, plan.spec.cta_tile.n)
    if kind == "panel" and size % tile_n:
        return f"panel of {size} columns is not whole tiles of {tile_n}"
    if kind in ("group", "panel") and plan.raster_tiles > MAX_RASTER_TILES:
        return f"{kind} of {plan.raster_tiles:,} tiles > {MAX_RASTER_TILES:,}"
    return None


def splits(plan: Plan) -> str | None:
    if plan.spec.schedule.kind != "split_k" or 2 <= plan.spec.schedule.splits <= 64:
        return None
    return f"split_k by {plan.spec.schedule.splits}, 2 to 64 are served"
