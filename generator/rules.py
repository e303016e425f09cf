"""What is legal, why not, and what would be: each rule looks at a plan and says what is wrong with it, or nothing.

All rules are asked, and all violations reported at once, each with a change of the spec that mends all, else with the nearest
that mends it. A change is only named once it was tried: the rule holds after it, and no rule is broken that was not broken before.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90
from generator.defaults import resolve
from generator.errors import RequestError
from generator.families import ways_out
from generator.families.mma_sync import rules as mma_sync
from generator.families.mma_sync_tma import rules as mma_sync_tma
from generator.families.rules import Rule
from generator.families.sm90 import rules as sm90
from generator.families.ways_out import Change
from generator.plan import Plan, plan_of
from generator.spec import Request, parse_field

_RULES = {
    MMA_SYNC: tuple(mma_sync.RULES),
    MMA_SYNC_TMA: tuple(mma_sync_tma.RULES),
    WGMMA_SM90: tuple(sm90.RULES),
}
_SECOND_CHANGES = 4
"""Changes for which a further one is looked for, where none mends a rule alone."""


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


def rules_of(plan: Plan) -> tuple[Rule, ...]:
    """Return the rules of the plan's family."""
    return _RULES[plan.spec.family]


def broken_rules(plan: Plan) -> dict[str, str]:
    """Return what is wrong with the plan's spec, by the rule that it breaks: violations without ways out, which take longest."""
    return {rule.name: message for rule in rules_of(plan) if (message := rule.broken(plan)) is not None}


def violations(plan: Plan, request: Request | None = None) -> tuple[Violation, ...]:
    """Return every rule that the plan's spec breaks; none for a legal one.

    Ways out name fields of the `request` only, where the rest can be planned to suit; without a request, any field.
    """
    found = broken_rules(plan)
    ways = ((rule.name, next(_mending(plan, rule, found), {})) for rule in rules_of(plan) if rule.name in found)
    changes = dict(itertools.islice(ways, 1))
    if not _mends_all(plan, changes.get("family", {})):
        changes |= ways
    given = request or {}
    if common := _for_all(plan, [*changes.values()], given):
        changes = dict.fromkeys(changes, common)
    else:
        changes = {name: _as_asked(change, given, found.keys() - {name}) or change for name, change in changes.items()}
    return tuple(Violation(name, found[name], _advice(plan, change, given), change) for name, change in changes.items())


def told_rules(plan: Plan) -> tuple[str, ...]:
    """Return the rules that `violations` tells of, without the time that ways out take."""
    found = tuple(broken_rules(plan))
    return tuple(violation.rule for violation in violations(plan)) if found[:1] == ("family",) else found


def _mends_all(plan: Plan, change: Change) -> bool:
    """Tell whether what else is broken is of kernels that the architecture does not have, and which nobody may have asked for."""
    after = ways_out.apply(plan, change)
    return bool(change) and not any(rule.broken(after) for rule in rules_of(after))


def _for_all(plan: Plan, changes: Sequence[Change], request: Request) -> Change:
    """Return one change for all rules: the first that mends them all, else all together, if that does and they disagree."""
    known = sorted(filter(None, changes), key=lambda change: ways_out.changes_family(plan, change))
    together = {name: text for change in known for name, text in change.items()}
    agree = all(change.items() <= together.items() for change in known)
    for change in (*known, *[together] * (not agree)):
        if asked := _as_asked(change, request, set()):
            return asked
        if _mends_all(plan, change):
            return change
    return {}


def _as_asked(change: Change, request: Request, left: Set[str]) -> Change:
    """Return the part of a change that was asked for, if no rule but those `left` is broken once the rest is planned anew."""
    asked = {name: text for name, text in change.items() if name in request}
    if not asked:
        return {}
    after = plan_of(resolve({**request, **{name: parse_field(name, text) for name, text in asked.items()}}))
    return asked if broken_rules(after).keys() <= left else {}


def _advice(plan: Plan, change: Change, asked: Collection[str]) -> str:
    if not change:
        return "no single change mends it, leave the other fields to be planned"
    return ways_out.advice(plan, change, asked)


def _mending(plan: Plan, rule: Rule, found: dict[str, str]) -> Iterator[Change]:
    """Yield changes after which the rule holds and none is broken that was not; at last those that take a second one."""
    others = [other for other in rules_of(plan) if other.name not in found]
    further: list[tuple[Change, list[Rule]]] = []
    for proposed in rule.changes(plan):
        change = ways_out.effective(plan, proposed)
        after = ways_out.apply(plan, change)
        if after.spec.family != plan.spec.family:
            if not any(each.broken(after) for each in rules_of(after)):
                yield change
            continue
        if rule.broken(after):
            continue
        broken = [*itertools.islice((other for other in others if other.broken(after)), 2)]
        if not broken:
            yield change
        else:
            further.append((change, broken))
    further.sort(key=lambda way: len(way[1]))
    for change, (other, *_) in further[:_SECOND_CHANGES]:
        for second in other.changes(ways_out.apply(plan, change)):
            after = ways_out.apply(plan, change | second)
            same_family = after.spec.family == plan.spec.family  # whose rules these are
            if same_family and not any(each.broken(after) for each in (rule, *others)):
                yield change | second


def refuse_illegal(plan: Plan, request: Request | None = None, remark: str = "") -> None:
    """Raises: RequestError naming every rule that the plan of a request breaks, where there is one, and the remark."""
    broken = violations(plan, request)
    if broken:
        told = [f"{violation.rule}: {violation}" for violation in broken] + [remark] * bool(remark)
        lines = "".join(f"\n  {line}" for line in told)
        count = f"{len(broken)} rule{'s' if len(broken) > 1 else ''}"
        raise RequestError(f"{plan.spec.arch} {plan.spec.cta_tile} is illegal, it breaks {count}:{lines}")
