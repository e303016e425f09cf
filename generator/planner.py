"""Planning: a request to a spec, a spec to its plan, and an illegal plan to its violations with fixes.

Families are known through their registry only. Every violated rule is reported with a fix that was tried: the rule then holds, and
no other rule is violated that was not violated before.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass

from generator.arch import ARCHS
from generator.errors import RequestError
from generator.families import FAMILIES, family_of, owner_of, supported_by
from generator.families.base import CLAIMING_FIELDS, Change, Family, Plan, Rule
from generator.families.common import text_of
from generator.spec import Request, Spec, option_of, parse_field

# ==== A request to a spec ====


def resolve(request: Request) -> Spec:
    """Fill in every open field of a request. The spec may be illegal; `violations` decides that.

    Raises: RequestError if no architecture is named, or for an instruction that no family has.
    """
    if "arch" not in request:
        raise RequestError("arch is missing: name one or more, as in --arch sm_89 or --arch sm_80,sm_90")
    return requested_family(request).resolve(request)


def requested_family(request: Request) -> Family:
    """Return the family that a request asks for, else the first one that its architecture and its problem allow."""
    if "mma" in request:
        owner_of(request["mma"], request.get("copy", ""))  # for its error
    field = deciding_field(request)
    if field:
        found = _claimants(field, request)
        return next((family for family in found if not family.objection(request)), found[0])
    candidates = (*supported_by(ARCHS[request["arch"]]), *reversed(FAMILIES))
    return next(family for family in candidates if not family.objection(request))


def default_family(arch: str) -> Family:
    """Return the family of an architecture's default kernel."""
    return supported_by(ARCHS[arch])[0]


def deciding_field(request: Request) -> str:
    """Return the field by which a request asks for a family; "" if there is none."""
    return next((name for name in CLAIMING_FIELDS if name in request and _claimants(name, request)), "")


def _claimants(name: str, request: Request) -> list[Family]:
    """Return the families that a field of a request asks for."""
    return [family for family in FAMILIES if name in family.claims and family.claims[name](request[name])]


# ==== A spec to its plan ====


def plan_of(spec: Spec) -> Plan:
    """Return the plan of a spec, in the class of its family.

    Raises: RequestError for an instruction that no family has.
    """
    return family_of(spec).plan(spec)


def require_implemented(plan: Plan) -> None:
    """Raises: RequestError if the plan's family has no kernel in the form of its spec."""
    if missing := not_implemented(plan):
        raise RequestError(missing)


def not_implemented(plan: Plan) -> str:
    """Return why no kernel can be emitted: the plan's family has none in the form of its spec. Empty if there is one."""
    family = family_of(plan.spec)
    if not family.forms:
        return f"family {family.name} is not implemented yet: {family.missing or 'it has no template'}"
    if plan.spec.form not in family.forms:
        return f"family {family.name} has no form {plan.spec.form}. Try --form with one of: {', '.join(family.forms)}."
    return ""


# ==== A plan to its violations ====


@dataclass(frozen=True)
class Violation:
    """A rule that a spec violates: the numbers, and a fix in words and as fields with their new texts.

    `change` is empty if no change of a few fields fixes the spec.
    """

    rule: str
    message: str
    fix: str
    change: Change

    def __str__(self) -> str:
        return f"{self.message}. {self.fix}"


_SECOND_CHANGES = 4
"""Changes to which a second one is added, if no change fixes a rule alone."""


def rules_of(plan: Plan) -> tuple[Rule, ...]:
    """Return the rules of the plan's family."""
    return family_of(plan.spec).rules


def broken_rules(plan: Plan) -> dict[str, str]:
    """Return the messages of violated rules by name, without fixes, which take most of the time."""
    return {rule.name: message for rule in rules_of(plan) if (message := rule.check(plan)) is not None}


def violations(plan: Plan, request: Request | None = None) -> tuple[Violation, ...]:
    """Return every rule that the plan's spec violates, with a fix; none for a legal spec.

    Fixes change fields of the `request` only, if the other fields can be planned again to suit. Without a request, any field.
    """
    found = broken_rules(plan)
    if "family" in found and (unsupported := _unsupported(plan, request or {})):
        return (unsupported,)
    fixes = ((rule.name, next(_fixes(plan, rule, found), {})) for rule in rules_of(plan) if rule.name in found)
    changes = dict(itertools.islice(fixes, 1))
    if not _fixes_all(plan, changes.get("family", {})):
        changes |= fixes
    given = request or {}
    if common := _common_fix(plan, [*changes.values()], given):
        changes = dict.fromkeys(changes, common)
    else:
        changes = {name: _as_asked(change, given, found.keys() - {name}) or change for name, change in changes.items()}
    return tuple(Violation(name, found[name], _advice(plan, change, given), change) for name, change in changes.items())


def _unsupported(plan: Plan, request: Request) -> Violation | None:
    """Return the violation of a request that is legal without the fields by which it asks for the plan's family.

    None for a request that names the instruction or the copy, and for one that stays illegal.
    """
    family, arch = family_of(plan.spec), plan.spec.arch
    asking = [name for name, asks in family.claims.items() if name in request and asks(request[name])]
    if not asking or {"mma", "copy"} & request.keys():
        return None
    without = plan_of(resolve({name: request[name] for name in request if name not in asking}))
    if broken_rules(without):
        return None
    values = " and ".join(f"{name} {text_of(request[name])}" for name in asking)
    omit = f"Omit {' and '.join(option_of(name).flag for name in asking)}"
    archs = (other for other in ARCHS if family.supports(ARCHS[other]))
    served = [name for name in archs if not broken_rules(plan_of(resolve({**request, "arch": name})))]
    return Violation(
        rule="family",
        message=f"{arch} does not support {family.name}, which is required by {values}",
        fix=f"{omit}, or use --arch {served[0]}." if served else f"{omit}.",
        change={name: text_of(getattr(without.spec, name)) for name in asking},
    )


def reported_rules(plan: Plan) -> tuple[str, ...]:
    """Return the names of the rules that `violations` reports, without the time for fixes."""
    found = tuple(broken_rules(plan))
    return tuple(violation.rule for violation in violations(plan)) if found[:1] == ("family",) else found


def reject_illegal(plan: Plan, request: Request | None = None, remark: str = "") -> None:
    """Raises: RequestError with every violation of the plan of a request, and the remark, if there is a violation."""
    found = violations(plan, request)
    if found:
        reported = [f"{violation.rule}: {violation}" for violation in found] + [remark] * bool(remark)
        lines = "".join(f"\n  {line}" for line in reported)
        count = f"{len(found)} rule{'s' if len(found) > 1 else ''}"
        raise RequestError(f"{plan.spec.arch} {plan.spec.cta_tile} is illegal, it violates {count}:{lines}")


# ---- Fixes ----------------------------------------------------------------------------------------------------------


def _fixes(plan: Plan, rule: Rule, found: dict[str, str]) -> Iterator[Change]:
    """Yield changes after which the rule holds and no further rule is violated; last those that need a second change."""
    others = [other for other in rules_of(plan) if other.name not in found]
    further: list[tuple[Change, list[Rule]]] = []
    for proposed in rule.fixes(plan):
        change = effective(plan, proposed)
        after = apply(plan, change)
        if not _same_family(plan, after):
            if not any(each.check(after) for each in rules_of(after)):
                yield change
            continue
        if rule.check(after):
            continue
        broken = [*itertools.islice((other for other in others if other.check(after)), 2)]
        if not broken:
            yield change
        else:
            further.append((change, broken))
    further.sort(key=lambda way: len(way[1]))
    for change, (other, *_) in further[:_SECOND_CHANGES]:
        for second in other.fixes(apply(plan, change)):
            after = apply(plan, change | second)
            if _same_family(plan, after) and not any(each.check(after) for each in (rule, *others)):
                yield change | second


def _fixes_all(plan: Plan, change: Change) -> bool:
    """Return whether a change makes the spec legal. Other violations then need not be reported."""
    return bool(change) and not broken_rules(apply(plan, change))


def _common_fix(plan: Plan, changes: Sequence[Change], request: Request) -> Change:
    """Return one change that fixes all rules: a single one, else all of them together; {} if there is none."""
    known = sorted(filter(None, changes), key=lambda change: changes_family(plan, change))
    together = {name: text for change in known for name, text in change.items()}
    agree = all(change.items() <= together.items() for change in known)
    for change in (*known, *[together] * (not agree)):
        if asked := _as_asked(change, request, set()):
            return asked
        if _fixes_all(plan, change):
            return change
    return {}


def _as_asked(change: Change, request: Request, left: Set[str]) -> Change:
    """Return a field of a change, or all its fields that the request sets, if only the rules `left` are violated after planning.

    {} if other rules are.
    """
    asked = {name: text for name, text in change.items() if name in request}
    alone = [{name: text} for name, text in asked.items()] if len(asked) > 1 else []
    for part in (*alone, *[asked] * bool(asked)):
        after = plan_of(resolve({**request, **{name: parse_field(name, text) for name, text in part.items()}}))
        if broken_rules(after).keys() <= left:
            return part
    return {}


def apply(plan: Plan, change: Change) -> Plan:
    """Return the plan of the changed spec. Fixed fields follow, unless the family changes."""
    values = {name: parse_field(name, text) for name, text in change.items()}
    if changes_family(plan, change):
        return plan_of(plan.spec.replace(**values))
    return plan.replace(**values)


def effective(plan: Plan, change: Change) -> Change:
    """Return the part of a change that differs from the spec."""
    return {name: text for name, text in change.items() if parse_field(name, text) != getattr(plan.spec, name)}


def changes_family(plan: Plan, change: Change) -> bool:
    """Return whether a change leads to another family."""
    spec = plan.spec
    return owner_of(change.get("mma", spec.mma), change.get("copy", spec.copy)) is not family_of(spec)


def _same_family(plan: Plan, other: Plan) -> bool:
    return family_of(plan.spec) is family_of(other.spec)


# ---- A kernel that spilled, although no rule is violated ------------------------------------------------------------

SPILL_HEADROOM = 24
"""Registers that a fix for a kernel that spilled must free, by the estimate."""


def advice_on_spills(plan: Plan) -> str:
    """Return the nearest legal change after which the estimate is SPILL_HEADROOM registers lower, as options; "" if none is."""
    wanted = plan.max_registers - plan.needed_registers + SPILL_HEADROOM
    proposals = (change for rule in rules_of(plan) if rule.name == "registers" for change in rule.fixes(plan))
    for change in (effective(plan, proposal) for proposal in proposals):
        after = apply(plan, change)
        if after.max_registers - after.needed_registers >= wanted and not broken_rules(after):
            return _advice(plan, change, ())
    return ""


_SMALL_CHANGES = ({"raster": "row"}, {"fragment_stages": "1"}, {"schedule": "one_tile"})
"""Changes of a kernel that spilled, tried before the fixes of the rule of registers: they keep its tile."""


def spill_fallbacks(plan: Plan, request: Request) -> Iterator[tuple[Plan, str]]:
    """Yield legal plans for a kernel that spilled, nearest first, each with its change as options.

    Fields that the request sets are kept. The other fields are planned again. No plan needs more registers by the estimate.
    """
    fixes = (change for rule in rules_of(plan) if rule.name == "registers" for change in rule.fixes(plan))
    seen = {plan}
    for change in (effective(plan, proposed) for proposed in (*_SMALL_CHANGES, *fixes)):
        if not change or change.keys() & request.keys():
            continue
        after = plan_of(resolve({**request, **{name: parse_field(name, text) for name, text in change.items()}}))
        if after in seen or not _same_family(plan, after) or broken_rules(after):
            continue
        seen.add(after)
        if after.max_registers - after.needed_registers >= plan.max_registers - plan.needed_registers:
            yield after, options_of(change)


# ---- Fixes in words -------------------------------------------------------------------------------------------------

_TOLD = ("mma", "copy", "form", "cta_tile", "acc", "dtype_d", "align_a", "align_b", "align_d", "schedule")
"""Fields to name in a change of family. The others are planned again."""


def _advice(plan: Plan, change: Change, asked: Collection[str]) -> str:
    """Write a change as options to try; if it leads to another family, only those that ask for it and those `asked` for."""
    if not change:
        return "No change of one or two fields fixes it. Leave the other fields open."
    if not changes_family(plan, change):
        return f"Try {options_of(change)}."
    instruction_decides = owner_of(plan.spec.mma, "") is not owner_of(change.get("mma", plan.spec.mma), "")
    follows = {"copy"} if instruction_decides else set()
    named = [
        name for name in dict.fromkeys((*_TOLD, *asked)) if name in change and (name in asked or name not in follows)
    ]
    return f"Try {options_of({name: change[name] for name in named})} and leave the other fields open."


def options_of(change: Change) -> str:
    """Write a change as options: `--stages 3 --fragment-stages 1`."""
    if "dtype_a" in change and change["dtype_a"] == change.get("dtype_b"):
        change = {
            "dtype": change["dtype_a"],
            **{name: change[name] for name in change if name not in ("dtype_a", "dtype_b")},
        }
    return " ".join(f"{option_of(name).flag} {text}" for name, text in change.items())
