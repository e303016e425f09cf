"""Output of several verbs: progress and notes on stderr, and a record as text."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from generator import epilogue
from generator.store.files import failures_of
from generator.store.index import Measurement
from generator.store.library import Library
from generator.store.query import KernelFilter, left_out
from generator.tables import cell, counted
from hgemm.epilogue import NONE, parse_epilogue
from hgemm.library import StoredKernel, reject_file, without_record
from hgemm.locations import library_suffix
from hgemm.options import FOLDER
from hgemm.record import RECORD_NAME

if TYPE_CHECKING:  # slow to load
    from rich.console import Console

    from generator.build.pipeline import Outcome

HEARTBEAT_S = 10.0
"""A plain line reports that work goes on after this long without a kernel. A kernel of form cute takes 15 s or more."""
PLANNING_LINE_S = 1.0
"""A terminal shows the progress of planning after this long. Most requests are planned sooner."""
OnOutcome = Callable[["Outcome"], None]
OnPlanned = Callable[[int, int], None]
_NO_WORK = ("cached", "present")


# ==== Progress ====


class _BuildRate:
    """The rate of built kernels, and the time left. Kernels that exist already arrive first and are not counted.

    If the number of workers is known, the rate comes from the seconds of each build. Otherwise it comes from the clock.
    """

    def __init__(self, total: int, workers: int) -> None:
        self._left, self._workers = total, workers
        self._built, self._build_s, self._start = 0, 0.0, time.perf_counter()

    def after(self, outcome: Outcome) -> str:
        """Count an outcome. Return the rate and the time left, or an empty text before the first build."""
        self._left -= 1
        if outcome.status in _NO_WORK and not self._built:
            self._start = time.perf_counter()
            return ""
        if not self._built:
            self._workers = min(self._workers, self._left + 1)
        self._built += 1
        self._build_s += outcome.seconds
        passed = self._build_s / self._workers if self._workers else time.perf_counter() - self._start
        seconds_each = passed / self._built
        return f"{1 / max(seconds_each, 1e-9):.3g} kernels/s, {_duration(seconds_each * self._left)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def progress(total: int, quiet: bool, workers: int = 0) -> Iterator[OnOutcome]:
    """Yield a function to call with each outcome. Print a summary at the end, and when interrupted.

    `workers` is the number of builds at a time, or 0 if unknown.
    """
    if quiet:
        yield lambda outcome: None
        return
    start, counts = time.perf_counter(), Counter[str]()
    console = _terminal() if total > 1 else None

    def on_outcome(outcome: Outcome) -> None:
        counts[outcome.status] += 1
        show(outcome)

    def summarize(done: str) -> None:
        by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
        click.echo(f"{done} in {time.perf_counter() - start:.1f} s: {by_status or 'none stored'}", err=True)

    pace = _BuildRate(total, workers)
    try:
        with _live(console, total, pace) if console else _plain(total, pace) as show:
            yield on_outcome
    except KeyboardInterrupt:
        summarize(f"{sum(counts.values())} of {total} kernels")
        raise
    if total > 1:
        summarize(f"{total} kernels")


@contextmanager
def _plain(total: int, pace: _BuildRate) -> Iterator[OnOutcome]:
    """Print a line for each outcome, and a heartbeat during long builds."""
    width, done, came = len(str(total)), 0, threading.Event()

    def show(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        came.set()
        rate = pace.after(outcome)
        click.echo(
            f"[{done:{width}}/{total}] {outcome.status} {outcome.symbol}, {outcome.seconds:.2f} s"
            + (f" ({rate})" if rate and total > 1 else ""),
            err=True,
        )

    def show_heartbeat() -> None:
        waited_s = 0.0
        while not over:
            waited_s = 0.0 if came.wait(HEARTBEAT_S) else waited_s + HEARTBEAT_S
            came.clear()
            if waited_s and not over:
                click.echo(f"[{done:{width}}/{total}] at work, {waited_s:.0f} s", err=True)

    over = False
    heartbeat = threading.Thread(target=show_heartbeat, daemon=True)
    heartbeat.start()
    try:
        yield show
    finally:
        over = True
        came.set()
        heartbeat.join()


def _terminal() -> Console | None:
    """Return the terminal behind stderr if it can redraw a line; None for a file or a dumb terminal, which get plain lines."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # 0.1 s, for a terminal only

    console = Console(file=getattr(sys.stderr, "stream", sys.stderr))  # the bar consists of control characters
    return console if console.is_interactive else None


@contextmanager
def _live(console: Console, total: int, pace: _BuildRate) -> Iterator[OnOutcome]:
    with _bar(console, total) as update:
        yield lambda outcome: update(advance=1, pace=pace.after(outcome))


@contextmanager
def planning(quiet: bool) -> Iterator[OnPlanned]:
    """Yield a function to call with the number of planned specs and their total. It shows a bar or, rarely, a plain line."""
    start = time.perf_counter()
    due = start + (PLANNING_LINE_S if sys.stderr.isatty() else HEARTBEAT_S)
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
                due = now + HEARTBEAT_S
                click.echo(f"[{done:{len(str(total))}}/{total}] planned ({pace})", err=True)

        yield planned


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar, and yield the function that updates it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task("", total=total, pace=""))


# ==== Notes ====


def note_left_out(library: Library, kernel_filter: KernelFilter, names: Collection[str] = ()) -> None:
    """Note on stderr the kernels that --arch leaves out although they run on its GPUs: those of sm_90a, for sm_90."""
    for arch, count in left_out(library, names, kernel_filter).items():
        both = f"{kernel_filter.arch},{arch.removeprefix('sm_')}"
        click.echo(f"hgemm: {counted(count, 'kernel')} for {arch} left out: use --arch {both}", err=True)


def note_incomplete(library: Path) -> None:
    """Note on stderr the folders with code but without a record, which are no kernels."""
    if incomplete := without_record(library):
        has, it = ("have", "them") if len(incomplete) > 1 else ("has", "it")
        click.echo(
            f"hgemm: {counted(len(incomplete), 'folder')} of {library} {has} no {RECORD_NAME}, such as {incomplete[0]}: "
            f"build {it} again",
            err=True,
        )


# ==== The card of a kernel ====

_INDENT = 2
_NAME_WIDTH = 18
_MAX_MEASUREMENTS = 12
_PLANNED = ("bank_conflicts", "mma_per_k_tile", "mma_between_stores")
"""Fields of a record's `proof` that are planned, and checked against the machine code. They need no run of the kernel."""


def record_text(stored: StoredKernel, measurements: list[Measurement]) -> str:
    """Return a record as text, section by section, with the fastest measurement of each problem."""
    data = stored.record.data
    launch, traits = data["launch"], data["traits"]
    head = {"alias": data["alias"], "arch": data["arch"], "key": data["key"], "folder": str(stored.folder)}
    shown_launch = {**launch, "cluster": "x".join(map(str, launch["cluster"])), **_prefixed("grid", launch["grid"])}
    shown_traits = {
        **{name: value for name, value in traits.items() if name not in ("workspace", "min_align")},
        **_prefixed("min_align", traits["min_align"]),
        **_prefixed("workspace", traits["workspace"]),
    }
    seconds = {name: f"{value:.3f} s" for name, value in data["seconds"].items()}
    files = {name: f"{file['bytes']} B, sha256 {file['sha256'][:16]}..." for name, file in data["files"].items()}
    planned = {name: data["proof"][name] for name in _PLANNED if name in data["proof"]}
    proof = {name: value for name, value in data["proof"].items() if name not in (*planned, "coverage")}
    covered = {
        name: ", ".join(value) if isinstance(value, list) else value
        for name, value in data["proof"].get("coverage", {}).items()
    }
    sections: list[tuple[str, Mapping[str, Any]]] = [
        (stored.symbol + ("  SPILLED" if data["spilled"] else ""), head),
        ("spec", {**data["spec"], **_expression(data["spec"].get("epilogue", NONE), data["spec"]["dtype_d"])}),
        ("launch", {name: value for name, value in shown_launch.items() if name != "grid"}),
        ("resources", data["resources"]),
        ("sass", dict(sorted(data["sass"].items(), key=lambda item: (-item[1], item[0])))),
        ("traits", shown_traits),
        ("plan", planned),
        ("accumulation order", data.get("accumulation_order", {})),
        ("proof", proof or {"none yet": f"hgemm verify --emulate{library_suffix(stored.folder.parent)}"}),
        ("coverage", covered),
        ("toolchain", {**data["toolchain"], "options": " ".join(data["toolchain"]["options"])}),
        ("seconds", seconds),
        ("files", files),
        ("measured", _fastest(measurements)),
    ]
    return "\n".join(_section(title, values) for title, values in sections if values)


def _expression(text: str, dtype_d: str) -> dict[str, str]:
    """Return the epilogue of a spec as people write it, its hash, and what C programs pass in `aux`."""
    found = parse_epilogue(text)
    if not found:
        return {}
    inputs = [(one, "f32" if one.kind == "scalar" else one.of(dtype_d)) for one in found.operands]
    further = [(one, f"{one.of(dtype_d)}, a result") for one in found.outputs]
    aux = {
        f"aux[{at}]": f"{one.name}: {one.kind.capitalize()} {dtype}"
        for at, (one, dtype) in enumerate([*inputs, *further])
    }
    return {**epilogue.shown(text), **aux}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in values.items()}


def _section(title: str, values: Mapping[str, Any]) -> str:
    width = max(_NAME_WIDTH, *map(len, values))
    lines = [f"{' ' * _INDENT}{name.ljust(width)}  {_value(value)}".rstrip() for name, value in values.items()]
    return "\n".join([title, *lines]) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) or value is None else cell(value)


def _fastest(measurements: list[Measurement]) -> dict[str, str]:
    """Return the fastest time of each of the latest problems."""
    best: dict[str, Measurement] = {}
    for measurement in measurements:
        if measurement.problem not in best or measurement.time_us < best[measurement.problem].time_us:
            best[measurement.problem] = measurement
    shown = list(best.items())[-_MAX_MEASUREMENTS:]
    return {cell(problem): f"{one.time_us:.4g} us  {cell(one.device)}  {cell(one.date)}" for problem, one in shown}


# ==== The library of verbs that build kernels to examine them ====


scratch_library_option = click.option(
    "--library",
    type=FOLDER,
    metavar="DIR",
    help="Reuse and keep kernels in this library. Default: a temporary one.",
)


_REMOVALS, _REMOVAL_PAUSE_S = 40, 0.05


@contextmanager
def scratch_library(folder: Path | None) -> Iterator[Library]:
    """Open the library in a folder. Without a folder, create a temporary library and remove it at the end.

    A temporary library that holds the log of a failed build is kept.
    Raises: LibraryError if `folder` is a file.
    """
    if folder is not None:
        reject_file(folder)
        yield Library(folder)
        return
    with _exit_on_sigterm():
        place = Path(tempfile.gettempdir()) / f"hgemm-{secrets.token_hex(8)}"
        try:
            place.mkdir(mode=0o700)  # within `try`, so that a signal right after it still leads to the removal
            yield Library(place)
        finally:
            if not failures_of(place):
                _remove(place)


def _remove(place: Path) -> None:
    """Remove a folder. A process that ends at this moment may still write a file, so try again for a while."""
    for _ in range(_REMOVALS):
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(_REMOVAL_PAUSE_S)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that cleanup runs. Other threads than the main one cannot do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
    sys.exit(128 + number)
