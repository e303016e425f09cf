"""What is legal, and why not: each rule is a function from a plan to the violation that it found, or None.

All rules are asked, and all violations reported at once. A rule that needs a sensible tile stays silent where a more basic
one has already spoken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from generator.arch import ARCHS, MMA_SYNC_SM80
from generator.errors import RequestError
from generator.plan import Plan
from generator.values import Tile


@dataclass(frozen=True)
class Violation:
    """A rule that a spec breaks: what is wrong in numbers, and the nearest way out."""

    rule: str
    message: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.message}: {self.way_out}"


Rule = Callable[[Plan], "Violation | None"]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Add a rule to those that `violations` asks, in the order of this file."""
    RULES.append(function)
    return function


def violations(plan: Plan) -> tuple[Violation, ...]:
    """Return every rule that the plan's spec breaks; none for a legal one."""
    return tuple(found for ask in RULES if (found := ask(plan)) is not None)


def refuse_illegal(plan: Plan) -> None:
    """Raises: RequestError naming every broken rule, where there is one."""
    broken = violations(plan)
    if broken:
        lines = "".join(f"\n  {violation.rule}: {violation}" for violation in broken)
        count = f"{len(broken)} rule{'s' if len(broken) > 1 else ''}"
        raise RequestError(f"{plan.spec.arch} {plan.spec.cta_tile} is illegal, it breaks {count}:{lines}")


# ---- Architecture and types -----------------------------------------------------------------------------------------


@rule
def family(plan: Plan) -> Violation | None:
    arch = ARCHS[plan.spec.arch]
    if MMA_SYNC_SM80 in arch.families:
        return None
    served = ", ".join(name for name, known in ARCHS.items() if MMA_SYNC_SM80 in known.families)
    return Violation("family", f"{arch.name} has no cp.async, which the mainloop needs", f"use one of {served}")


@rule
def same_inputs(plan: Plan) -> Violation | None:
    a, b = plan.spec.dtype_a, plan.spec.dtype_b
    if a == b:
        return None
    return Violation("same_inputs", f"A is {a} and B is {b}, mma.sync takes one type", f"use {a} or {b} for both")


@rule
def accumulator(plan: Plan) -> Violation | None:
    if plan.spec.dtype_a != "bf16" or plan.spec.acc == "f32":
        return None
    message = f"bf16 inputs accumulate in f32 only, the spec says {plan.spec.acc}"
    return Violation("accumulator", message, "use acc f32, or f16 inputs")


# ---- Tiles ----------------------------------------------------------------------------------------------------------


def _nearest(value: int, step: int, low: int, high: int) -> int:
    return min(max(round(value / step) * step, low), high)


@rule
def cta_tile(plan: Plan) -> Violation | None:
    tile = plan.spec.cta_tile
    near = Tile(_nearest(tile.m, 16, 16, 256), _nearest(tile.n, 16, 16, 256), _nearest(tile.k, 16, 16, 64))
    if tile == near:
        return None
    message = f"CTA tile {tile}: m and n are multiples of 16 from 16 to 256, k of 16 from 16 to 64"
    return Violation("cta_tile", message, f"use {near}")


@rule
def warp_tile(plan: Plan) -> Violation | None:
    warp, tile = plan.spec.warp_tile, plan.spec.cta_tile
    legal_m = [m for m in range(16, 129, 16) if tile.m % m == 0]
    legal_n = [n for n in range(8, 129, 8) if tile.n % n == 0]
    if warp.m in legal_m and warp.n in legal_n:
        return None
    message = f"warp tile {warp} does not divide the CTA tile {tile} in pieces of 16 x 8"
    if not legal_m or not legal_n:
        return Violation("warp_tile", message, "mend the CTA tile first")
    near_m, near_n = (min(legal, key=lambda x: (abs(x - now), -x)) for legal, now in ((legal_m, warp.m), (legal_n, warp.n)))
    return Violation("warp_tile", message, f"use {near_m}x{near_n}")


@rule
def threads(plan: Plan) -> Violation | None:
    limit = ARCHS[plan.spec.arch].limits.threads_per_cta
    if plan.threads <= limit:
        return None
    message = f"{plan.warps_m}x{plan.warps_n} warps are {plan.threads} threads > {limit} a CTA"
    return Violation("threads", message, "use larger warp tiles or a smaller CTA tile")


@rule
def alignment_of_rows(plan: Plan) -> Violation | None:
    for name, tile in (("A", plan.a), ("B", plan.b)):
        if tile.columns % tile.chunk:
            message = f"rows of {name}'s tile are {tile.columns} elements, not whole copies of {tile.chunk}"
            return Violation("alignment_of_rows", message, "use a tile that is a multiple of 16")
    return None


# ---- Pipeline -------------------------------------------------------------------------------------------------------


@rule
def stages(plan: Plan) -> Violation | None:
    if 1 <= plan.spec.stages <= 8:
        return None
    return Violation("stages", f"{plan.spec.stages} stages, the pipeline has 1 to 8", "use 8")


@rule
def fragment_stages(plan: Plan) -> Violation | None:
    if plan.spec.fragment_stages not in (1, 2):
        return Violation("fragment_stages", f"{plan.spec.fragment_stages} fragment stages, 1 or 2 are served", "use 2")
    if plan.spec.fragment_stages == 2 and plan.spec.stages == 1:
        message = "fragments cannot be read ahead of the only stage of 1"
        return Violation("fragment_stages", message, "use 2 stages, or 1 fragment stage")
    return None


# ---- Shared memory --------------------------------------------------------------------------------------------------


@rule
def swizzle(plan: Plan) -> Violation | None:
    for name, smem in (("a", plan.spec.smem_a), ("b", plan.spec.smem_b)):
        bits, base, shift = smem.swizzle
        if smem.kind == "xor" and not (1 <= bits <= 3 and base >= 3 and bits <= shift and bits + base + shift <= 13):
            message = f"smem_{name} {smem} would break 16-byte pieces or overlap its own bits"
            return Violation("swizzle", message, f"use xor:{min(max(bits, 1), 3)},3,{max(shift, bits, 3)} or auto")
    return None


@rule
def padding(plan: Plan) -> Violation | None:
    for name, smem in (("a", plan.spec.smem_a), ("b", plan.spec.smem_b)):
        if smem.pad_elements % 8 or smem.pad_elements > 64:
            message = f"smem_{name} pads rows by {smem.pad_elements} elements, ldmatrix needs multiples of 8, at most 64"
            return Violation("padding", message, f"use pad:{_nearest(smem.pad_elements, 8, 8, 64)}")
    return None


@rule
def shared_memory(plan: Plan) -> Violation | None:
    limits = ARCHS[plan.spec.arch].limits
    ctas = plan.spec.ctas_per_sm
    share = limits.smem_bytes_per_sm // ctas - limits.smem_reserved_bytes_per_cta
    room = min(limits.smem_bytes_per_cta, share)
    if plan.smem_bytes <= room:
        return None
    whose = plan.spec.arch if room == limits.smem_bytes_per_cta else f"{plan.spec.arch} for {ctas} CTAs an SM"
    message = f"smem {plan.smem_bytes:,} B > {room:,} B of {whose}"
    fitting = room // max(1, plan.stage_bytes)
    if plan.epilogue_bytes > room:
        return Violation("shared_memory", message, "use store direct, or larger warp tiles")
    if fitting >= 1 and fitting < plan.spec.stages:
        return Violation("shared_memory", message, f"use {fitting} stage{'s' if fitting > 1 else ''}")
    return Violation("shared_memory", message, f"use a smaller tile: one stage of this one takes {plan.stage_bytes:,} B")


# ---- Registers and residency ----------------------------------------------------------------------------------------


@rule
def residency(plan: Plan) -> Violation | None:
    limits = ARCHS[plan.spec.arch].limits
    ctas = plan.spec.ctas_per_sm
    most = min(limits.ctas_per_sm, limits.warps_per_sm * 32 // plan.threads)
    if ctas <= most:
        return None
    message = f"{ctas} CTAs of {plan.threads} threads an SM, {plan.spec.arch} holds {most}"
    return Violation("residency", message, f"use ctas_per_sm {max(1, most)}" if most else "use fewer warps")


@rule
def registers(plan: Plan) -> Violation | None:
    if plan.needed_registers <= plan.max_registers:
        return None
    spec = plan.spec
    message = (
        f"about {plan.needed_registers} registers a thread ({plan.accumulator_registers} of them accumulators) > "
        f"{plan.max_registers} for {spec.ctas_per_sm} CTA{'s' if spec.ctas_per_sm > 1 else ''} of {plan.threads} threads an SM"
    )
    for fields, words in (
        ({"ctas_per_sm": 1}, "use ctas_per_sm 1"),
        ({"fragment_stages": 1}, "use 1 fragment stage"),
        ({"fragment_stages": 1, "ctas_per_sm": 1}, "use 1 fragment stage and ctas_per_sm 1"),
    ):
        other = plan.having(**fields)
        if other.needed_registers <= other.max_registers:
            return Violation("registers", message, words)
    return Violation("registers", message, "use a smaller warp tile or CTA tile" + (", or acc f16" if spec.acc == "f32" else ""))


# ---- Epilogue and schedule ------------------------------------------------------------------------------------------


@rule
def panel(plan: Plan) -> Violation | None:
    raster, tile = plan.spec.raster, plan.spec.cta_tile
    if raster.kind != "panel" or raster.size % max(1, tile.n) == 0:
        return None
    near = max(1, round(raster.size / max(1, tile.n))) * tile.n
    return Violation("panel", f"panel of {raster.size} columns is not whole tiles of {tile.n}", f"use panel:{near}")


@rule
def splits(plan: Plan) -> Violation | None:
    if plan.spec.schedule.kind != "split_k" or 2 <= plan.spec.schedule.splits <= 64:
        return None
    return Violation("splits", f"split_k by {plan.spec.schedule.splits}, 2 to 64 are served", "use split_k:2 or one_tile")


@rule
def alignment_of_d(plan: Plan) -> Violation | None:
    spec = plan.spec
    if spec.dtype_d != "f32" or spec.align_d <= 4:
        return None
    return Violation("alignment_of_d", f"f32 output moves 4 elements (16 B) at once, align_d is {spec.align_d}", "use align_d 4")
