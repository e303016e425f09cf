"""`hgemm bench`: variants timed beside cuBLASLt, in pairs, in one process."""

from __future__ import annotations

from pathlib import Path

import click

from generator.commands.common_options import Symbol, filter_options, library_option
from generator.commands.device_check import CODES, open_kernel
from generator.commands.left_out import tell_left_out
from generator.store.library import Library
from generator.store.selection import Selection, choose
from hgemm.bench.options import bench, bench_options

_HELP = """Measure variants on many problems beside cuBLASLt, and print rates and paired ratios.

SYMBOLS are symbols, aliases, beginnings or globs; none means all that the filters choose. A problem is measured with the
variants of its layout and types: all are screened for some milliseconds each, the fastest few whose numbers are right
go on, and so do the fastest of what cuBLASLt proposes and its first guess. These are timed in rounds, forwards and
backwards, as graphs of launches on operands of random numbers that fill the L2 cache three times. A ratio is the
baseline's time over ours, round by round: more than 1 is faster. "ours" and "best" are each the fastest of their
finalists in the rounds.

\b
Examples:
  hgemm bench --suite public --group square --arch 90a
  hgemm bench 'hgemm_sm90a_tn_f16_f32_f16_128x256x64*' --m 1024:8192:1024 --keep out.json --budget 300
  hgemm bench --suite public --acc f16 --state steady,burst --csv out.csv
  hgemm bench --suite mine.json --arch 90a --record

Steady is after seconds of load and without a pause, burst is after a rest each time, solo is one contender alone, for
its own clock and power: there the ratios are not paired. Exit status 1 says that a problem
was not measured, or that the numbers of what is fastest are wrong.
"""


@click.command("bench", help=_HELP)
@click.argument("symbols", nargs=-1, type=Symbol())
@library_option
@filter_options
@click.option(
    "--code", type=click.Choice(CODES), default="auto", help="What is loaded; auto: PTX where the cubin does not run."
)
@bench_options
@click.pass_context
def command(
    ctx: click.Context,
    symbols: tuple[str, ...],
    library: Path,
    code: str,
    arch: str,
    tile: str,
    layout: str,
    kernels: str,
    where: str,
    **options,
) -> None:
    opened, selection = Library(library), Selection(arch, tile, layout, kernels, where)
    tell_left_out(opened, selection, symbols)
    names = choose(opened, symbols, selection)
    ctx.exit(bench([open_kernel(opened, name, code) for name in names], options, library))
