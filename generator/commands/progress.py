"""Progress on stderr: a line with rate and time left on a terminal, a plain line for each variant elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from generator.pipeline import Outcome

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
