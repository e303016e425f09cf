"""`hgemm report`: a library as one HTML file: table, rates, ratios, rooflines, resources, ladders, a page for each variant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from generator.commands.common_options import filter_options, library_option
from generator.commands.left_out import tell_left_out
from generator.store.library import Library
from generator.store.selection import Selection

_HELP = """Write a library as one HTML file that asks nothing of any network.

It has the table of the variants with filters; TFLOP/s against size and the ratio to cuBLASLt over m and n; the rooflines
of the cards; registers, shared memory, occupancy; ladders; and for each variant a page with its source, its machine
code counted, its operands among the banks, its proof and its times. What was measured is read from the library, where
`hgemm bench --record` and `hgemm tune` file it, and from the files given. Needs matplotlib (the extra plots).

\b
Examples:
  hgemm report --to report.html
  hgemm report --to hopper.html --arch 90,90a --bench measured.json --ladder ladders.json --png pictures

FILE.html#variant=SYMBOL is the page of a variant, FILE.html#q=128x128&arch=sm_90a a table that is filtered.
"""
_READ = click.Path(path_type=Path, dir_okay=False)


@click.command("report", help=_HELP)
@library_option
@filter_options
@click.option("--to", type=_READ, required=True, metavar="FILE", help="Write there: report.html.")
@click.option(
    "--bench", type=_READ, multiple=True, metavar="FILE", help="What `hgemm bench --keep` wrote; may be repeated."
)
@click.option(
    "--ladder", type=_READ, multiple=True, metavar="FILE", help="What `hgemm ladder --keep` wrote; may be repeated."
)
@click.option(
    "--png", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write every picture there, too."
)
def command(
    library: Path, to: Path, bench: Sequence[Path], ladder: Sequence[Path], png: Path | None, **filters: str
) -> None:
    from generator.commands.report import run  # loads the stages, which --help does not need

    opened, selection = Library(library), Selection(**filters)
    tell_left_out(opened, selection)
    for path in run(opened, selection, to, bench, ladder, png):
        click.echo(path)
