"""What is legal, why not, and what would be: each rule looks at a plan and says what is wrong with it, or nothing.

All rules are asked, and all violations reported at once, each with the nearest change of the spec that mends it. A change is
only named once it was tried: the rule holds after it, and no rule is broken that was not broken before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from generator import ways_out
from generator.arch import ARCHS, MMA_SYNC_SM80
from generator.errors import RequestError
from generator.plan import Plan
from generator.values import Schedule
from generator.ways_out import Change

MAX_RASTER_TILES = 1024
"""The widest group or panel: a group's tiles, counted in 32 bits, then suffice for any n that launches."""


@dataclass(frozen=True)
class Violation:
    """A rule that a spec breaks: what is wrong in numbers, and the nearest way out, in words and as fields with their texts.

    `change` is empty where a rule has no way out that leaves the rest of the spec as it is.
    """

    rule: str
    message: str
    way_out: str
    change: Change

    def __str__(self) -> str:
        return f"{self.message}: {self.way_out}"


@dataclass(frozen=True)
class Rule:
    """A rule by name: what it says of a plan that breaks it (None of others), and the changes that may mend one, nearest first."""

    name: str
    broken: Callable[[Plan], str | None]
    changes: Callable[[Plan], Iterable[Change]]


RULES: list[Rule] = []
_SECOND_CHANGES = 4
"""Changes for which a further one is looked for, where none mends a rule alone."""


def rule(changes: Callable[[Plan], Iterable[Change]]) -> Callable:
    """Add the function below to the rules, in the order of this file, with the changes that may mend what it finds."""

    def add(broken: Callable[[Plan], str | None]) -> Callable[[Plan], str | None]:
        RULES.append(Rule(broken.__name__, broken, changes))
        return broken

    return add


def violations(plan: Plan) -> tuple[Violation, ...]:
    """Return every rule that the plan's spec breaks; none for a legal one."""
    found = {rule.name: message for rule in RULES if (message := rule.broken(plan)) is not None}
    return tuple(_violation(plan, rule, found) for rule in RULES if rule.name in found)


def _violation(plan: Plan, rule: Rule, found: dict[str, str]) -> Violation:
    change = next(_mending(plan, rule, found), {})
    advice = ways_out.words(change) if change else "no single change mends it, leave the other fields to be planned"
    return Violation(rule.name, found[rule.name], advice, change)


def _mending(plan: Plan, rule: Rule, found: dict[str, str]) -> Iterator[Change]:
    """Yield changes after which the rule holds and none is broken that was not; at last those that take a second one."""
    others = [other for other in RULES if other.name not in found]
    further: list[tuple[Change, Rule]] = []
    for change in rule.changes(plan):
        after = ways_out.apply(plan, change)
        if rule.broken(after):
            continue
        broken = [other for other in others if other.broken(after)]
        if not broken:
            yield change
        elif len(broken) == 1:
            further.append((change, broken[0]))
    for change, other in further[:_SECOND_CHANGES]:
        for second in other.changes(ways_out.apply(plan, change)):
            after = ways_out.apply(plan, change | second)
            if not any(each.broken(after) for each in (rule, *others)):
                yield change | second


def refuse_illegal(plan: Plan) -> None:
    """Raises: RequestError naming every broken rule, where there is one."""
    broken = violations(plan)
    if broken:
        lines = "".join(f"\n  {violation.rule}: {violation}" for violation in broken)
        count = f"{len(broken)} rule{'s' if len(broken) > 1 else ''}"
        raise RequestError(f"{plan.spec.arch} {plan.spec.cta_tile} is illegal, it breaks {count}:{lines}")


# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule(lambda plan: ways_out.archs(plan, MMA_SYNC_SM80))
def family(plan: Plan) -> str | None:
    arch = ARCHS[plan.spec.arch]
    return None if MMA_SYNC_SM80 in arch.families else f"{arch.name} has no cp.async, which the mainloop needs"


@rule(lambda plan: [{"dtype_b": plan.spec.dtype_a}, {"dtype_a": plan.spec.dtype_b}])
def same_inputs(plan: Plan) -> str | None:
    a, b = plan.spec.dtype_a, plan.spec.dtype_b
    return None if a == b else f"A is {a} and B is {b}, mma.sync takes one type"


@rule(lambda plan: [{"acc": "f32"}, {"dtype_a": "f16", "dtype_b": "f16"}])
def accumulator(plan: Plan) -> str | None:
    if "bf16" not in (plan.spec.dtype_a, plan.spec.dtype_b) or plan.spec.acc == "f32":
        return None
    return f"bf16 inputs accumulate in f32 only, the spec says {plan.spec.acc}"


@rule(lambda plan: [{"align_d": "4"}])
def alignment_of_d(plan: Plan) -> str | None:
    if plan.spec.dtype_d != "f32" or plan.spec.align_d <= 4:
        return None
    return f"f32 output moves 4 elements (16 B) at once, align_d is {plan.spec.align_d}"


# ---- Tiles ----------------------------------------------------------------------------------------------------------


@rule(ways_out.nearest_cta_tiles)
def cta_tile(plan: Plan) -> str | None:
    if plan.spec.cta_tile == ways_out.nearest_cta_tile(plan.spec.cta_tile):
        return None
    return f"CTA tile {plan.spec.cta_tile}: m and n are multiples of 16 from 16 to 256, k of 16 from 16 to 64"


@rule(ways_out.warp_tiles_that_fit)
def warp_tile(plan: Plan) -> str | None:
    warp, tile = plan.spec.warp_tile, ways_out.nearest_cta_tile(plan.spec.cta_tile)
    if warp.m in ways_out.warp_extents(tile.m, 16) and warp.n in ways_out.warp_extents(tile.n, 8):
        return None
    return f"warp tile {warp} does not divide the CTA tile {tile} in pieces of 16 x 8, at most 128 x 128"


@rule(ways_out.warp_tiles_that_fit)
def threads(plan: Plan) -> str | None:
    limit = ARCHS[plan.spec.arch].limits.threads_per_cta
    if plan.threads <= limit:
        return None
    return f"{plan.warps_m}x{plan.warps_n} warps are {plan.threads} threads > {limit} a CTA"


# ---- Pipeline -------------------------------------------------------------------------------------------------------


@rule(ways_out.fewer_stages)
def stages(plan: Plan) -> str | None:
    return None if 1 <= plan.spec.stages <= 8 else f"{plan.spec.stages} stages, the pipeline has 1 to 8"


@rule(lambda plan: [{"fragment_stages": "2"}, {"fragment_stages": "1"}])
def fragment_stages(plan: Plan) -> str | None:
    if plan.spec.fragment_stages not in (1, 2):
        return f"{plan.spec.fragment_stages} fragment stages, 1 or 2 are served"
    if plan.spec.fragment_stages == 2 and plan.spec.stages == 1:
        return "2 fragment stages with 1 stage, whose next k-tile cannot be read ahead"
    return None


# ---- Shared memory --------------------------------------------------------------------------------------------------


@rule(ways_out.nearest_swizzles)
def swizzle(plan: Plan) -> str | None:
    for name in ("smem_a", "smem_b"):
        smem = getattr(plan.spec, name)
        bits, base, shift = smem.swizzle
        within = 1 <= bits <= 3 and base >= 3 and bits <= shift and bits + base + shift <= ways_out.MAX_SWIZZLE_BITS
        if smem.kind == "xor" and not within:
            return (
                f"{name} {smem}: an XOR takes 1 to 3 bits from bit 3 on, which keeps pieces of 16 B, from no fewer bits above, "
                f"{ways_out.MAX_SWIZZLE_BITS} bits in all"
            )
    return None


@rule(ways_out.nearest_pads)
def padding(plan: Plan) -> str | None:
    for name in ("smem_a", "smem_b"):
        pad = getattr(plan.spec, name).pad_elements
        if pad % 8 or pad > ways_out.MAX_PAD:
            return (
                f"{name} pads rows by {pad} elements, ldmatrix needs multiples of 8 (16 B), at most {ways_out.MAX_PAD}"
            )
    return None


@rule(ways_out.less_shared_memory)
def shared_memory(plan: Plan) -> str | None:
    if plan.smem_bytes <= plan.max_smem_bytes:
        return None
    spec, limits = plan.spec, ARCHS[plan.spec.arch].limits
    shared = plan.max_smem_bytes < limits.smem_bytes_per_cta
    return (
        f"smem {plan.smem_bytes:,} B > {plan.max_smem_bytes:,} B of {spec.arch}"
        f"{f' for {spec.ctas_per_sm} CTAs an SM' if shared else ''}"
    )


# ---- Registers and residency ----------------------------------------------------------------------------------------


@rule(ways_out.fewer_ctas)
def residency(plan: Plan) -> str | None:
    limits = ARCHS[plan.spec.arch].limits
    ctas, most = plan.spec.ctas_per_sm, min(limits.ctas_per_sm, max(1, limits.warps_per_sm * 32 // plan.threads))
    if ctas <= most:
        return None
    return f"{ctas} CTAs of {plan.threads} threads an SM, {plan.spec.arch} holds {most}"


@rule(ways_out.fewer_registers)
def registers(plan: Plan) -> str | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    ctas = plan.spec.ctas_per_sm
    return (
        f"about {plan.needed_registers} registers a thread ({plan.accumulator_registers} of them accumulators) > "
        f"{plan.max_registers} for {ctas} CTA{'s' if ctas > 1 else ''} of {plan.threads} threads an SM"
    )


# ---- Order of the work ----------------------------------------------------------------------------------------------


@rule(ways_out.nearest_rasters)
def raster(plan: Plan) -> str | None:
    kind, size, tile_n = plan.spec.raster.kind, plan.spec.raster.size, max(1, plan.spec.cta_tile.n)
    if kind == "panel" and size % tile_n:
        return f"panel of {size} columns is not whole tiles of {tile_n}"
    if kind in ("group", "panel") and plan.raster_tiles > MAX_RASTER_TILES:
        return f"{kind} of {plan.raster_tiles:,} tiles > {MAX_RASTER_TILES:,}"
    return None


@rule(lambda plan: [{"schedule": str(Schedule("split_k", min(max(plan.spec.schedule.splits, 2), 64)))}])
def splits(plan: Plan) -> str | None:
    if plan.spec.schedule.kind != "split_k" or 2 <= plan.spec.schedule.splits <= 64:
        return None
    return f"split_k by {plan.spec.schedule.splits}, 2 to 64 are served"
