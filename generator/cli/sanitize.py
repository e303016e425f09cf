"""The verb `sanitize`: checks a kernel of any origin by its PTX."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from generator.build.workers import cores
from generator.cli.options import json_option
from generator.cli.output import HEARTBEAT_S
from generator.device_check import CheckOutcome, json_of
from generator.errors import RequestError, unknown_word
from generator.proof.jobs import host_toolchain
from generator.sanitize.check import (
    DEFAULT_SCHEDULES,
    KINDS,
    TIMEOUT_S,
    SanitizerCheck,
    cost_lines,
    finding_lines,
    junit_suite,
    summary_line,
)
from generator.sanitize.description import kernel_of, read_module
from generator.sanitize.starter import launch_file
from hgemm.disk import require_writable, write_atomically
from hgemm.junit import junit_option, write_junit
from hgemm.options import FILE, FiniteRange

_HELP = """Check a kernel of any origin by its PTX, on the CPU. No GPU is needed.

FILE.ptx comes from nvcc -ptx, NVRTC, Triton or CuTe DSL. A TOML file says how it is launched and what its buffers are.
--init writes a first one from the PTX.

The check finds races, accesses out of bounds, reads of uninitialised memory, misuse of barriers and mbarriers, deadlocks and,
with a reference, wrong results. It counts bank conflicts and sectors of global memory, which do not fail the check.

\b
Examples:
  hgemm sanitize kernel.ptx --init
  hgemm sanitize kernel.ptx
  hgemm sanitize softmax.ptx --reference softmax_reference.py:expected --schedules 16 --json

Exit status: 0 no finding, 1 findings, wrong results or a build that failed, 2 the PTX or the launch file is not understood.
"""


@click.command("sanitize", help=_HELP)
@click.argument("ptx", type=FILE, metavar="FILE.ptx")
@click.option("--launch", type=FILE, metavar="FILE.toml", help="The launch file. Default: FILE.toml beside FILE.ptx.")
@click.option("--init", is_flag=True, help="Write a first launch file from the PTX, and run nothing.")
@click.option("--kernel", default="", metavar="NAME", help="With --init: the kernel, if the PTX has several.")
@click.option(
    "--reference",
    default="",
    metavar="FILE.py:FUNCTION",
    help="Your function that computes the results with NumPy. The file is run.",
)
@click.option(
    "--ignore",
    default="",
    metavar="KINDS",
    help=f"Kinds of findings that do not fail the check: {', '.join(KINDS)}.",
)
@click.option(
    "--schedules",
    type=click.IntRange(1, 10000),
    default=DEFAULT_SCHEDULES,
    show_default=True,
    metavar="N",
    help="Runs with different orders of warps and times of asynchronous copies.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Seed of the data and the schedules."
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Schedules at a time. Default: one per core."
)
@click.option(
    "--timeout",
    type=FiniteRange(min=1),
    default=TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Time limit of one schedule, in seconds.",
)
@junit_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
def sanitize_command(ctx: click.Context, **options) -> None:
    path: Path = options["ptx"]
    launch = options["launch"] or path.with_suffix(".toml")
    if options["init"]:
        _write_launch_file(path, launch, options["kernel"])
        return
    if options["kernel"]:
        raise RequestError("--kernel is for --init; otherwise write `kernel = NAME` in the launch file")
    require_writable(options["junit"], "--junit")
    check = SanitizerCheck(
        ptx=path,
        launch=launch,
        toolchain=host_toolchain(),
        schedules=options["schedules"],
        seed=options["seed"],
        jobs=options["jobs"] or cores(),
        timeout_s=options["timeout"],
        reference=options["reference"],
        ignored=_kinds(options["ignore"]),
    )
    with _progress(options["schedules"], options["quiet"]) as show:
        verdict = check.run(show)
    if options["junit"]:
        write_junit(options["junit"], "hgemm sanitize", [junit_suite(verdict)])
    if options["as_json"]:
        click.echo(json.dumps({**json_of(verdict), "passed": verdict.passed}, indent=1))
    else:
        for line in (*finding_lines(verdict), *cost_lines(verdict), summary_line(verdict)):
            click.echo(line)
    ctx.exit(0 if verdict.passed else 1)


def _kinds(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in KINDS:
            raise unknown_word("--ignore", word, KINDS)
    return words


def _write_launch_file(path: Path, launch: Path, name: str) -> None:
    _, module = read_module(path)
    kernel = kernel_of(module, name or (module.kernels[0].name if module.kernels else ""), str(path))
    if launch.exists():
        raise RequestError(f"{launch} exists: remove it, or name another file with --launch")
    write_atomically(launch, launch_file(path, kernel, module).encode(), "--launch")
    other = "" if launch == path.with_suffix(".toml") else f" --launch {shlex.quote(str(launch))}"
    command = f"hgemm sanitize {shlex.quote(str(path))}{other}"
    click.echo(f"{launch} written: change the lines with CHANGE, then run `{command}`")


@contextmanager
def _progress(count: int, quiet: bool) -> Iterator[Callable[[int, CheckOutcome], None]]:
    """Yield a function to call after each schedule. A line tells that work goes on if none ends for a while."""
    over, began = threading.Event(), time.monotonic()
    done = 0

    def show(place: int, outcome: CheckOutcome) -> None:
        nonlocal done
        done = place + 1
        if quiet:
            return
        for check in outcome.checks:
            kinds = ", ".join(dict.fromkeys(one["kind"] for one in check["findings"]))
            found = kinds or ("wrong result" if check["reason"] else "clean")
            click.echo(f"[{done}/{count}] {check['case']}: {found}, {outcome.seconds:.1f} s", err=True)
        if outcome.error:
            click.echo(f"[{done}/{count}] {outcome.error}", err=True)

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            click.echo(f"[{done}/{count}] at work, {time.monotonic() - began:.0f} s", err=True)

    heartbeat = threading.Thread(target=beat, daemon=True)
    if not quiet:
        heartbeat.start()
    try:
        yield show
    finally:
        over.set()
        if not quiet:
            heartbeat.join()
