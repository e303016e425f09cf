"""`hgemm report`, after its options were read: what there is to show is read and checked, and the files written."""

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
from hgemm.disk import require_writable, write_atomically
from hgemm.measured import read_sessions


def run(
    library: Library,
    selection: Selection,
    to: Path,
    bench: Sequence[Path],
    ladders: Sequence[Path],
    png: Path | None,
    warn: Callable[[str], None],
) -> Iterator[Path]:
    """Write the report to `to`, and its pictures to the folder `png` where one is given; yield what was written.

    Variants that cannot be trusted are left out: `warn` gets a line for each, and the report says so.
    """
    require_matplotlib()
    require_writable(to, "--to")
    points = [point for path in bench for point in read_bench(path)]
    documents = [read_ladders(path) for path in ladders]
    symbols = [str(row["symbol"]) for row in select_rows(library, selection)]
    if not symbols and selection != Selection():
        raise nothing_matches(library)
    entries: list[Entry] = []
    refused: list[str] = []
    for entry in read_entries(library, symbols):
        if isinstance(entry, HgemmError):
            refused.append(str(entry))
            warn(f"hgemm: {entry}")
        else:
            entries.append(entry)
    left_out = f"{len(refused)} variants were left out, since their files are not what was recorded; the first: "
    report = Report(
        title=f"HGEMM library {library.folder.name}",
        entries=entries,
        points=[*of_sessions(read_sessions(library.folder)), *points],
        ladders=documents,
        told=[left_out + refused[0]] if refused else [],
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
