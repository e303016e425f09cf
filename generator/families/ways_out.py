"""Changes of a spec that may mend it, nearest first, of any family: what generator.rules tries before it names one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from generator.arch import ARCHS
from generator.families.plan import Plan
from generator.layouts import PIECE_BYTES
from generator.plan import plan_of
from generator.spec import Raster, Schedule, family_of, family_of_mma, parse_field

Change = dict[str, str]
"""Fields of a spec with the texts of their new values."""

MAX_RASTER_TILES = 1024
"""The widest group or panel: a group's tiles, counted in 32 bits, then suffice for any n that launches."""

_PHRASES = {"stages": "{} stage", "fragment_stages": "{} fragment stage", "cta_tile": "tile {}"}
_TOLD = ("mma", "copy", "form", "cta_tile", "acc", "dtype_d", "align_a", "align_b", "align_d", "schedule")
"""What a change of family is told by; the other fields are planned anew."""


def apply(plan: Plan, change: Change) -> Plan:
    """Return the plan of the changed spec; what the family decides follows, unless the family changes."""
    values = {name: parse_field(name, text) for name, text in change.items()}
    if changes_family(plan, change):
        return plan_of(plan.spec.replace(**values))
    return plan.replace(**values)


def effective(plan: Plan, change: Change) -> Change:
    """Return what a change would change."""
    return {name: text for name, text in change.items() if parse_field(name, text) != getattr(plan.spec, name)}


def changes_family(plan: Plan, change: Change) -> bool:
    """Tell whether the changed spec is of another family."""
    spec = plan.spec
    return family_of(change.get("mma", spec.mma), change.get("copy", spec.copy)) != spec.family


def words(change: Change) -> str:
    """Write a change as advice: `use 3 stages and 1 fragment stage`."""
    phrases = [_PHRASES.get(name, name + " {}").format(text) for name, text in change.items()]
    plural = [
        phrase + "s" if phrase.endswith("stage") and not phrase.startswith("1 ") else phrase for phrase in phrases
    ]
    return "use " + " and ".join([", ".join(plural[:-1]), plural[-1]] if plural[1:] else plural)


def advice(plan: Plan, change: Change, asked: Collection[str] = ()) -> str:
    """Write the change of a plan's spec; of one to another family, what asks for it, and what it changes of the `asked` fields."""
    if not changes_family(plan, change):
        return words(change)
    before, after = plan.spec.mma, change.get("mma", plan.spec.mma)
    implied = {"copy"} if family_of_mma(before) != family_of_mma(after) else set()
    told = [
        name for name in dict.fromkeys((*_TOLD, *asked)) if name in change and (name in asked or name not in implied)
    ]
    return words({name: change[name] for name in told}) + ", the rest planned anew"


def archs(plan: Plan, family: str) -> list[Change]:
    """The architectures that a family serves, by the distance of their numbers."""
    number = ARCHS[plan.spec.arch].number
    served = [arch for arch in ARCHS.values() if family in arch.families]
    return [{"arch": arch.name} for arch in sorted(served, key=lambda arch: abs(arch.number - number))]


def clamp(value: int, step: int, low: int, high: int) -> int:
    """Return the multiple of `step` nearest to `value` between `low` and `high`."""
    return min(max((value + step // 2) // step * step, low), high)


def word(value: object) -> str:
    """Return a field's value as an option says it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def fields_as_implied(plan: Plan) -> Iterator[Change]:
    """What the family leaves no choice in, as it decides it."""
    strays = {name: word(value) for name, value in plan.implied.items() if getattr(plan.spec, name) != value}
    if [*strays] == ["prefetch"]:
        yield {"copy": "ldg_sts", "stages": "1", "fragment_stages": "1"}
    yield strays


def nearest_inputs(plan: Plan) -> list[Change]:
    """One type for both."""
    return [{"dtype_b": plan.spec.dtype_a}, {"dtype_a": plan.spec.dtype_b}]


def nearest_accumulators(plan: Plan) -> list[Change]:
    """Sums in f32, or inputs in f16."""
    return [{"acc": "f32"}, {"dtype_a": "f16", "dtype_b": "f16"}]


def whole_pieces(plan: Plan) -> list[Change]:
    """A and B aligned to 16 bytes."""
    align = str(PIECE_BYTES // plan.spec.operand_bytes)
    return [{"align_a": align, "align_b": align}]


def nearest_rasters(plan: Plan) -> list[Change]:
    """The nearest whole number of tiles that is served."""
    tile_n = max(1, plan.spec.cta_tile.n) if plan.spec.raster.kind == "panel" else 1
    size = min(max(1, round(plan.spec.raster.size / tile_n)), MAX_RASTER_TILES) * tile_n
    return [{"raster": str(Raster(plan.spec.raster.kind, size))}]


def split_in_workspace(plan: Plan) -> list[Change]:
    """Split-K by way of a workspace, with the nearest number of splits that is served."""
    return [{"schedule": str(Schedule("split_k", min(max(plan.spec.schedule.splits, 2), 64)))}]
