"""What a request for sm_90 or sm_90a may not know of: which of the two families of kernels it gets, and by which option."""

from __future__ import annotations

from collections.abc import Iterator

import click

from generator.arch import ARCHS, WGMMA_SM90
from generator.commands.options import option_of
from generator.defaults import deciding_field, sole_family
from generator.sweep import Candidate, Sweep


def tell_hints(asked: Sweep) -> None:
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
