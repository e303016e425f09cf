"""What the command line writes beside its answer: progress, notes and hints on stderr; one variant as a card."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from generator.arch import ARCHS, WGMMA_SM90
from generator.build.pipeline import Outcome
from generator.defaults import deciding_field, sole_family
from generator.spec import option_of
from generator.store.index import Measurement
from generator.store.library import Library
from generator.store.query import Selection, left_out
from generator.sweep import Candidate, Sweep
from generator.tables import cell, counted
from hgemm.errors import library_suffix
from hgemm.library import Variant

if TYPE_CHECKING:
    from rich.console import Console

SIGN_OF_LIFE_S = 10.0
"""After so long without a variant, a line says that one is being made: all of CuTe takes 15 s and more."""
PLANNING_LINE_S = 1.0
"""After so long of planning, a terminal shows how far it is; most requests are planned before."""
Tell = Callable[[Outcome], None]
Planned = Callable[[int, int], None]
_AT_ONCE = ("cached", "present")


class _Pace:
    """How fast variants come that are work, and how long the rest takes; what is there already comes at once, and first.

    Several that were worked at by one come together: where it is known how many work at a time, the rate is from what
    each took, else from when they come.
    """

    def __init__(self, total: int, workers: int) -> None:
        self._left, self._workers = total, workers
        self._worked, self._took, self._start = 0, 0.0, time.perf_counter()

    def after(self, outcome: Outcome) -> str:
        """Count an outcome and say the rate and the time left, or nothing where there is none."""
        self._left -= 1
        if outcome.status in _AT_ONCE and not self._worked:
            self._start = time.perf_counter()
            return ""
        if not self._worked:
            self._workers = min(self._workers, self._left + 1)
        self._worked += 1
        self._took += outcome.seconds
        passed = self._took / self._workers if self._workers else time.perf_counter() - self._start
        seconds_each = passed / self._worked
        return f"{1 / max(seconds_each, 1e-9):.3g} variants/s, {_duration(seconds_each * self._left)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def progress(total: int, quiet: bool, workers: int = 0) -> Iterator[Tell]:
    """Yield what is to be told of each outcome; at the end, and where it is interrupted, sum up.

    `workers` is how many are worked at at a time, or 0 where that is not known.
    """
    if quiet:
        yield lambda outcome: None
        return
    start, counts = time.perf_counter(), Counter[str]()
    console = _terminal() if total > 1 else None

    def tell(outcome: Outcome) -> None:
        counts[outcome.status] += 1
        show(outcome)

    def sum_up(done: str) -> None:
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        click.echo(f"{done} in {time.perf_counter() - start:.1f} s: {told or 'none filed'}", err=True)

    pace = _Pace(total, workers)
    try:
        with _live(console, total, pace) if console else _plain(total, pace) as show:
            yield tell
    except KeyboardInterrupt:
        sum_up(f"{sum(counts.values())} of {total} variants")
        raise
    if total > 1:
        sum_up(f"{total} variants")


@contextmanager
def _plain(total: int, pace: _Pace) -> Iterator[Tell]:
    width, done, came = len(str(total)), 0, threading.Event()

    def show(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        came.set()
        told = pace.after(outcome)
        click.echo(
            f"[{done:{width}}/{total}] {outcome.status} {outcome.symbol}, {outcome.seconds:.2f} s"
            + (f" ({told})" if told and total > 1 else ""),
            err=True,
        )

    def show_life() -> None:
        waited_s = 0.0
        while not over:
            waited_s = 0.0 if came.wait(SIGN_OF_LIFE_S) else waited_s + SIGN_OF_LIFE_S
            came.clear()
            if waited_s and not over:
                click.echo(f"[{done:{width}}/{total}] at work, {waited_s:.0f} s", err=True)

    over = False
    life = threading.Thread(target=show_life, daemon=True)
    life.start()
    try:
        yield show
    finally:
        over = True
        came.set()
        life.join()


def _terminal() -> Console | None:
    """Return the terminal that stderr is if its lines can be written again; one that is dumb gets plain lines, as a file does."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # 0.1 s, for a terminal only

    console = Console(stderr=True)
    return console if console.is_interactive else None


@contextmanager
def _live(console: Console, total: int, pace: _Pace) -> Iterator[Tell]:
    with _bar(console, total) as update:
        yield lambda outcome: update(advance=1, pace=pace.after(outcome))


@contextmanager
def planning(quiet: bool) -> Iterator[Planned]:
    """Yield what is to be told how many of how many are planned: a line on a terminal, a plain line now and then elsewhere."""
    start = time.perf_counter()
    due = start + (PLANNING_LINE_S if sys.stderr.isatty() else SIGN_OF_LIFE_S)
    update: Callable[..., None] | None = None
    with ExitStack() as line:

        def planned(done: int, total: int) -> None:
            nonlocal due, update
            now = time.perf_counter()
            if quiet or now < due:
                return
            seconds_each = (now - start) / done
            pace = f"{1 / seconds_each:.3g} plans/s, {_duration(seconds_each * (total - done))} left"
            if update is None and (console := _terminal()):
                update = line.enter_context(_bar(console, total))
            if update:
                update(completed=done, pace=pace)
            else:
                due = now + SIGN_OF_LIFE_S
                click.echo(f"[{done:{len(str(total))}}/{total}] planned ({pace})", err=True)

        yield planned


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[..., None]]:
    """Show a line with a bar while it lasts, and yield what changes it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task("", total=total, pace=""))


# ==== The note of what `--arch` leaves out unawares ====


def tell_left_out(library: Library, selection: Selection, names: Collection[str] = ()) -> None:
    """Say on stderr how many variants --arch keeps out that run on the GPUs it names, and what takes them in."""
    for arch, count in left_out(library, names, selection).items():
        both = f"{selection.arch},{arch.removeprefix('sm_')}"
        click.echo(f"hgemm: {counted(count, 'variant')} for {arch} left out: --arch {both}", err=True)


# ==== What a request for sm_90 or sm_90a may not know of ====


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


# ==== One variant as a card for reading ====


_INDENT = 2
_NAME_WIDTH = 18
_MAX_MEASUREMENTS = 12
_PLANNED = ("bank_conflicts", "mma_per_tile", "mma_between_stores")
"""What a record's `proof` has before the kernel was run: as planned, and held against the machine code where that tells."""


def card(variant: Variant, measurements: list[Measurement]) -> str:
    """Write what a record says of a variant, section by section, and its fastest measurement of each problem."""
    data = variant.record.data
    launch, traits = data["launch"], data["traits"]
    heads = {"alias": data["alias"], "arch": data["arch"], "key": data["key"], "folder": str(variant.folder)}
    shown_launch = {**launch, "cluster": "x".join(map(str, launch["cluster"])), **_prefixed("grid", launch["grid"])}
    shown_traits = {
        **{name: value for name, value in traits.items() if name not in ("workspace", "min_align")},
        **_prefixed("min_align", traits["min_align"]),
        **_prefixed("workspace", traits["workspace"]),
    }
    seconds = {name: f"{value:.3f} s" for name, value in data["seconds"].items()}
    files = {name: f"{file['bytes']} B, sha256 {file['sha256'][:16]}..." for name, file in data["files"].items()}
    planned = {name: data["proof"][name] for name in _PLANNED if name in data["proof"]}
    proof = {name: value for name, value in data["proof"].items() if name not in planned}
    sections: list[tuple[str, Mapping[str, Any]]] = [
        (variant.symbol + ("  SPILLED" if data["spilled"] else ""), heads),
        ("spec", data["spec"]),
        ("launch", {name: value for name, value in shown_launch.items() if name != "grid"}),
        ("resources", data["resources"]),
        ("sass", dict(sorted(data["sass"].items(), key=lambda item: (-item[1], item[0])))),
        ("traits", shown_traits),
        ("plan", planned),
        ("proof", proof or {"none yet": f"hgemm verify --emulate{library_suffix(variant.folder.parent)}"}),
        ("toolchain", {**data["toolchain"], "options": " ".join(data["toolchain"]["options"])}),
        ("seconds", seconds),
        ("files", files),
        ("measured", _fastest(measurements)),
    ]
    return "\n".join(_section(title, values) for title, values in sections if values)


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in values.items()}


def _section(title: str, values: Mapping[str, Any]) -> str:
    width = max(_NAME_WIDTH, *map(len, values))
    lines = [f"{' ' * _INDENT}{name.ljust(width)}  {_value(value)}".rstrip() for name, value in values.items()]
    return "\n".join([title, *lines]) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) or value is None else cell(value)


def _fastest(measurements: list[Measurement]) -> dict[str, str]:
    """Return the fastest time of each problem, as many as fit a card, the latest problems last."""
    best: dict[str, Measurement] = {}
    for measurement in measurements:
        if measurement.problem not in best or measurement.time_us < best[measurement.problem].time_us:
            best[measurement.problem] = measurement
    shown = list(best.items())[-_MAX_MEASUREMENTS:]
    return {cell(problem): f"{one.time_us:.4g} us  {cell(one.device)}  {cell(one.date)}" for problem, one in shown}


# ==== Explanations ====


def print_explanations(asked: Sweep, as_json: bool, question: Any = None) -> int:
    """Print what each combination comes to; the status is that of an illegal request where none is legal."""
    from generator.explain import Question, explain, explanation_text  # loads the cost model

    explanations = [explain(candidate, question or Question()) for candidate in asked.candidates]
    tell_hints(asked)
    if as_json:
        click.echo(json.dumps(explanations, indent=1))
    else:
        click.echo("\n".join(map(explanation_text, explanations)), nl=False)
    return 0 if asked.plans else 2
