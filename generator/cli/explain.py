"""Explanations of requests, and hints about them: shared by `generate` and the verbs that take its options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from generator.arch import ARCHS, WGMMA_SM90
from generator.defaults import deciding_field, sole_family
from generator.spec import option_of
from generator.sweep import Candidate, Sweep


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
    """Yield what takes long; that there is wgmma, where sm_90 alone is asked for; what asks sm_90a for mma.sync, or needs it."""
    if any(candidate.plan.spec.form == "cute" and not candidate.rules for candidate in asked.candidates):
        yield "form cute takes 15 s a kernel or more, nearly all of it in CuTe's headers"
    archs = {candidate.plan.spec.arch for candidate in asked.candidates}
    for candidate in asked.candidates:
        spec, field = candidate.plan.spec, _deciding(candidate)
        sole = sole_family(candidate.request)
        if sole and not field and WGMMA_SM90 in ARCHS[spec.arch].families:
            yield f"{sole} on {spec.arch}, too"
        kin = f"{spec.arch}a"
        if not sole and not field and kin not in archs and kin in ARCHS and WGMMA_SM90 in ARCHS[kin].families:
            yield f"{kin} has kernels of wgmma for the same GPUs: --arch {kin}"
        if field not in ("", "mma") and spec.family != WGMMA_SM90 and WGMMA_SM90 in ARCHS[spec.arch].families:
            flag = option_of(field).flag
            yield f"warning: {flag} asks for mma.sync on {spec.arch}: leave it out for wgmma, or add --mma {spec.mma}"


def _deciding(candidate: Candidate) -> str:
    return deciding_field(candidate.request)
