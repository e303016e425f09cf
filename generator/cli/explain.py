"""Explanations of requests, and hints about them: shared by `generate` and the verbs that take its options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from generator.arch import ARCHS
from generator.families import family_of
from generator.planner import deciding_field, default_family
from generator.spec import option_of
from generator.sweep import Sweep


def print_explanations(asked: Sweep, as_json: bool, question: Any = None) -> int:
    """Print an explanation of each combination. Return the exit status: 2 if no combination is legal."""
    from generator.explain import Question, explain, explanation_text  # loads the cost model

    explanations = [explain(candidate, question or Question()) for candidate in asked.candidates]
    note_hints(asked)
    if as_json:
        click.echo(json.dumps(explanations, indent=1))
    else:
        click.echo("\n".join(map(explanation_text, explanations)), nl=False)
    return 0 if asked.plans else 2


def note_hints(asked: Sweep) -> None:
    """Print the hints to a request on stderr, each once."""
    program = click.get_current_context().find_root().info_name
    for hint in dict.fromkeys(hints(asked)):
        click.echo(f"{program}: {hint}", err=True)


def hints(asked: Sweep) -> Iterator[str]:
    """Yield hints about slow builds, and about requests that do not get the best family of their GPUs."""
    if any(candidate.plan.spec.form == "cute" and not candidate.rules for candidate in asked.candidates):
        yield "form cute takes 15 s or more for each kernel; CuTe's headers take nearly all of it"
    archs = {candidate.plan.spec.arch for candidate in asked.candidates}
    for candidate in asked.candidates:
        spec, field, request = candidate.plan.spec, deciding_field(candidate.request), candidate.request
        best, kin = default_family(spec.arch), f"{spec.arch}a"
        if not field and (objection := best.objection(request)):
            yield f"{objection} on {spec.arch}"
        better = default_family(kin) if kin in ARCHS and kin not in archs else best
        if not field and better is not best and not better.objection(request):
            yield f"{kin} has {better.name} kernels for the same GPUs: use --arch {kin}"
        if field not in ("", "mma") and family_of(spec) is not best:
            flag, name = option_of(field).flag, family_of(spec).name
            yield f"warning: {flag} selects {name} on {spec.arch}: omit it for {best.name}, or add --mma {spec.mma}"
