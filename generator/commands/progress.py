"""Progress on stderr: a line with rate and time left on a terminal, a plain line for each variant elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from generator.pipeline import Outcome

Tell = Callable[[Outcome], None]


@contextmanager
def progress(total: int, quiet: bool) -> Iterator[Tell]:
    """Yield what is to be told of each outcome; at the end, sum up."""
    if quiet:
        yield lambda outcome: None
        return
    start, counts = time.perf_counter(), Counter[str]()
    with _live(total) if total > 1 and sys.stderr.isatty() else _plain(total) as show:

        def tell(outcome: Outcome) -> None:
            counts[outcome.status] += 1
            show(outcome)

        yield tell
    if total > 1:
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        click.echo(f"{total} variants in {time.perf_counter() - start:.1f} s: {told}", err=True)


@contextmanager
def _plain(total: int) -> Iterator[Tell]:
    width, done = len(str(total)), 0

    def show(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        click.echo(f"[{done:{width}}/{total}] {outcome.status} {outcome.symbol}, {outcome.seconds:.2f} s", err=True)

    yield show


@contextmanager
def _live(total: int) -> Iterator[Tell]:
    from rich.console import Console  # 0.1 s, for a terminal only
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    start, done = time.perf_counter(), 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def show(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            rate = done / (time.perf_counter() - start)
            bar.update(task, completed=done, rate=f"{rate:.1f} variants/s")

        yield show
