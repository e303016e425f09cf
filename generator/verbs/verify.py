"""`hgemm verify`: variants checked against a float64 reference, on the GPU, or proved by running them on the CPU."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from generator.commands.common_options import Symbol, filter_options, json_option, library_option
from generator.commands.device_check import CODES, TIMEOUT_S, Outcome, Request, Workers
from generator.commands.junit import write_junit
from generator.commands.left_out import tell_left_out
from generator.commands.table import counted
from generator.errors import RequestError
from generator.executor import COSTS_CASE
from generator.store.library import Library
from generator.store.selection import Selection, choose
from generator.workers.cores import cores
from hgemm.cases import Shape
from hgemm.device import open_device
from hgemm.disk import require_writable

_HELP = """Check variants: numbers within what their arithmetic allows, every element written, nothing else touched,
the same bits twice.

With --emulate the emitted source itself, compiled by this machine's C++ compiler (CXX), runs on the CPU, every thread of it,
under schedules and copies chosen to do harm: races, missing waits, accesses out of bounds and reads of what nobody wrote
are found too, and bank conflicts counted. What is proved is filed in the variant's record.

SYMBOLS are symbols, aliases, beginnings or globs; none means all that the filters choose. Each variant is checked on
shapes made from its own tile (whole, ragged, tiny, batched, with unused elements after rows), or on those of --shapes.
Variants that the GPU cannot run are left out and told of.

\b
Examples:
  hgemm verify --emulate
  hgemm verify --device '*128x128x32*' --shapes 128x128x64,33x65x17@3
"""


@click.command("verify", help=_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@click.option("--device", "on_device", is_flag=True, help="Run on this machine's GPU.")
@click.option("--emulate", is_flag=True, help="Run on this machine's CPU; needs no GPU.")
@library_option
@filter_options
@click.option("--shapes", default="", metavar="SHAPES", help="MxNxK or MxNxK@BATCH: 128x128x64,33x65x17@3.")
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of operands and schedules.")
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Processes; half the cores, at most 8, if not given; all with --emulate.",
)
@click.option("--timeout", type=click.FloatRange(min=1), metavar="S", help="For one variant, in seconds.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a JUnit file too."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    on_device: bool,
    emulate: bool,
    library: Path,
    shapes: str,
    seed: int,
    code: str,
    jobs: int | None,
    timeout: float | None,
    junit: Path | None,
    as_json: bool,
    **filters: str,
) -> None:
    if on_device == emulate:
        first = "choose one" if emulate else "say where to verify"
        raise RequestError(f"{first}: --device checks on this machine's GPU, --emulate on its CPU")
    if shapes:
        Shape.parse_list(shapes)
    require_writable(junit, "--junit")
    opened = Library(library)
    tell_left_out(opened, Selection(**filters), symbols)
    chosen = choose(opened, symbols, Selection(**filters))
    if emulate:
        found = _emulated(opened, chosen, shapes, seed, jobs, timeout)
    else:
        found = _on_device(library, chosen, shapes, seed, jobs, timeout, code)
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        click.echo(line_of(outcome), err=as_json)
    if junit:
        write_junit(junit, outcomes)
    if as_json:
        click.echo(json.dumps([plain(asdict(outcome)) for outcome in outcomes], indent=1))
    else:
        click.echo(summary_of(outcomes))
    if junit:
        click.echo(f"hgemm: wrote {junit}", err=True)
    ctx.exit(int(any(outcome.failed for outcome in outcomes) or not any(outcome.passed for outcome in outcomes)))


def _on_device(
    library: Path, symbols: list[str], shapes: str, seed: int, jobs: int | None, timeout: float | None, code: str
) -> Iterator[Outcome]:
    open_device()
    requests = [Request(str(library.resolve()), symbol, shapes, code, seed) for symbol in symbols]
    workers = Workers(jobs or max(1, min(8, (os.cpu_count() or 1) // 2)), timeout or TIMEOUT_S)
    for outcome, _ in workers.check_all(requests):
        yield outcome


def _emulated(
    library: Library, symbols: list[str], shapes: str, seed: int, jobs: int | None, timeout: float | None
) -> Iterator[Outcome]:
    from generator.commands import emulate  # only where it is asked for

    emulation = emulate.Emulation(library, emulate.workshop(), shapes, seed, jobs or cores())
    return replace(emulation, timeout_s=timeout or emulation.timeout_s).outcomes(symbols)


def line_of(outcome: Outcome) -> str:
    """Write what was found of one variant as one line."""
    if outcome.skipped:
        return f"skip  {outcome.symbol}  {outcome.skipped}"
    cases = f"{outcome.passed_shapes}/{len(outcome.shapes)} shapes"
    if not outcome.passed:
        return f"FAIL  {outcome.symbol}  {cases}  {outcome.reason}"
    cases += f" and the {COSTS_CASE}" * (outcome.shapes != outcome.checks)
    worst, proof = f"worst error/bound {outcome.worst_ratio:.2f}", outcome.proof
    if proof:
        conflicts = proof["read_conflicts_per_k_tile"] + proof["copy_conflicts_per_k_tile"]
        worst += f", no race, {conflicts:g} bank conflicts"
    return f"ok    {outcome.symbol}  {cases}  {worst}, {outcome.seconds:.1f} s"


def summary_of(outcomes: list[Outcome]) -> str:
    """Write how many variants and shapes passed."""
    passed, failed = sum(outcome.passed for outcome in outcomes), sum(outcome.failed for outcome in outcomes)
    cases = sum(outcome.passed_shapes for outcome in outcomes)
    skipped = len(outcomes) - passed - failed
    found = f"{counted(passed, 'variant')} passed, {failed} failed, {skipped} left out"
    return f"{found}; {counted(cases, 'shape')} passed"


def plain(value: object) -> object:
    """Return a value that JSON can say: infinities and NaN become null."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
