"""Writes a report: reads and checks a library, measurements and ladders, then writes the HTML file and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from generator.errors import HgemmError
from generator.ladders.results import read as read_ladders
from generator.ladders.results import require_matplotlib
from generator.report.page import Entry, Report, read_entries
from generator.report.points import of_sessions, read_bench
from generator.store.files import disk_errors
from generator.store.library import Library
from generator.store.query import Selection, nothing_matches, select_rows
from generator.tables import counted
from hgemm.disk import require_writable, write_atomically
from hgemm.measured import read_sessions


def write_report(
    library: Library,
    selection: Selection,
    to: Path,
    bench: Sequence[Path],
    ladders: Sequence[Path],
    png: Path | None,
    warn: Callable[[str], None],
) -> Iterator[Path]:
    """Write the report to `to`, and its pictures to the folder `png` if given. Yield each written path.

    Variants that fail their checks are skipped. `warn` is called with a line for each, and the report says so.
    """
    require_matplotlib()
    require_writable(to, "--to")
    points = [point for path in bench for point in read_bench(path)]
    documents = [read_ladders(path) for path in ladders]
    symbols = [str(row["symbol"]) for row in select_rows(library, selection)]
    if not symbols and selection != Selection():
        raise nothing_matches(library)
    entries: list[Entry] = []
    rejected: list[str] = []
    for entry in read_entries(library, symbols):
        if isinstance(entry, HgemmError):
            rejected.append(str(entry))
            warn(f"hgemm: {entry}")
        else:
            entries.append(entry)
    skipped = f"Skipped {counted(len(rejected), 'variant')}, because the files fail the checks. The first: "
    report = Report(
        title=f"HGEMM library {library.folder.name}",
        entries=entries,
        points=[*of_sessions(read_sessions(library.folder)), *points],
        ladders=documents,
        notes=[skipped + rejected[0]] if rejected else [],
    )
    write_atomically(to, report.html().encode(), "--to")
    yield to
    if png is not None:
        yield from _pictures(report, png)


def _pictures(report: Report, folder: Path) -> Iterator[Path]:
    with disk_errors("write", folder, "--png"):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in report.figures:
        path = folder / f"{figure.name}.png"
        write_atomically(path, figure.png(), "--png")
        yield path
