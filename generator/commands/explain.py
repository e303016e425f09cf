"""What a request comes to: each field and where it is from, the numbers that follow, what bounds it, the rules that it breaks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from generator.commands.hints import tell_hints
from generator.commands.model import Question, model_lines, model_of
from generator.commands.table import cell
from generator.naming import alias_of, symbol_of
from generator.plan import Plan
from generator.sweep import Candidate, Sweep

_WIDTH = 26


def print_explanations(asked: Sweep, as_json: bool, question: Question | None = None) -> int:
    """Print what each combination comes to; the status is that of an illegal request where none is legal."""
    explanations = [explain(candidate, question or Question()) for candidate in asked.candidates]
    tell_hints(asked)
    if as_json:
        click.echo(json.dumps(explanations, indent=1))
    else:
        click.echo("\n".join(map(explanation_text, explanations)), nl=False)
    return 0 if asked.plans else 2


def explain(candidate: Candidate, question: Question) -> dict[str, Any]:
    """Return the explanation of one combination as JSON values; `model` is of a legal one, and answers `question`."""
    plan = candidate.plan
    spec = plan.spec.to_dict()
    return {
        "symbol": symbol_of(plan.spec),
        "alias": alias_of(plan.spec),
        "spec": spec,
        "planned": [name for name in spec if name not in candidate.request],
        "plan": plan.numbers() | ({} if candidate.broken else _layout_numbers(plan)),
        "model": None if candidate.broken else model_of(plan, question),
        "legal": not candidate.broken,
        "broken": [asdict(violation) for violation in candidate.broken],
    }


def _layout_numbers(plan: Plan) -> dict[str, Any]:
    """Return what only a legal placement has."""
    workspace = plan.traits()["workspace"]
    per_cta = workspace.pop("partial_bytes_per_cta", 0)
    return {
        **plan.placements(),
        "bank_conflicts": plan.bank_conflicts,
        "workspace_bytes_per_tile": sum(workspace.values()),
        **({"workspace_bytes_beside": per_cta * plan.max_ctas} if per_cta else {}),
    }


def explanation_text(explanation: dict[str, Any]) -> str:
    """Write an explanation for reading; planned fields are marked with a star."""
    planned = {*explanation["planned"]}
    lines = [explanation["symbol"], f"  alias {explanation['alias']}", "  spec, * is planned"]
    lines += [
        f"  {'*' if name in planned else ' '} {name:<{_WIDTH}}{_value(value)}"
        for name, value in explanation["spec"].items()
    ]
    lines += ["  plan", *(f"    {name:<{_WIDTH}}{cell(value)}" for name, value in explanation["plan"].items())]
    if explanation["legal"]:
        lines += model_lines(explanation["model"], _WIDTH)
        return "\n".join([*lines, "  legal"]) + "\n"
    lines += [f"  illegal, breaks {len(explanation['broken'])}:"]
    lines += [f"    {broken['rule']}: {broken['message']}: {broken['way_out']}" for broken in explanation["broken"]]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else cell(value)
