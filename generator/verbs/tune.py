"""`hgemm tune`: the best variant for each problem, found by measuring, recorded, and gone by afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import click

from generator.arch import parse_arch_list
from generator.commands.common_options import library_option
from generator.store.library import Library
from generator.store.selection import Selection, select_rows
from generator.tuning.space import archs_of
from generator.tuning.supply import Generating, Search
from hgemm.target import Target
from hgemm.tune.options import tune, tune_options
from hgemm.tune.runner import Plan
from hgemm.tune.supply import Supply

_HELP = """Find the best variant for each problem by measuring, and record what was measured in the library, which from then
on selects by it, as do its exports.

Of the variants that the library has, and those of a table of specs that it has not, a problem's candidates are those of
least estimate, and of least estimate corrected by what was measured at near problems. What is missing is made by worker
processes while the GPU measures. Candidates are halved until a few are left, each time with twice as many samples; their
numbers are checked, and they are timed in paired rounds, forwards and backwards. One takes the place of another only where
it wins beyond the spread; else what stood before stays, or the plainer variant. Nothing is ever overwritten: a later
session counts where it measured what stood, too.

\b
Examples:
  hgemm tune --suite public --group llm
  hgemm tune --m 512:8192:512 --n 4096 --k 4096 --budget 600 --seed 1
  hgemm tune --suite public --no-generate --fresh --seed 2 --gpus 4

Exit status 1 says that a problem was not tuned.
"""


@click.command("tune", help=_HELP)
@library_option
@click.option(
    "--arch", default="", metavar="ARCHS", help="Of what is made and measured; all of this GPU, if not given."
)
@click.option("--kernels", default="", metavar="GLOBS", help="Of the library's variants, only these.")
@click.option("--space", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Specs to search, TOML.")
@click.option("--generate/--no-generate", default=True, show_default=True, help="Make variants that are missing.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    metavar="N",
    help="Processes, for all GPUs.",
)
@tune_options
@click.pass_context
def command(
    ctx: click.Context,
    library: Path,
    arch: str,
    kernels: str,
    space: Path | None,
    generate: bool,
    jobs: int,
    **options,
) -> None:
    def supply(plan: Plan, target: Target) -> Supply:
        opened = Library(library)
        archs = parse_arch_list(arch) if arch else archs_of(target)
        works = plan.works if generate else ()
        library.mkdir(parents=True, exist_ok=True)
        rows = select_rows(opened, Selection(arch=",".join(archs), kernels=kernels))
        search = Search(works, plan.candidates, archs, space, max(1, jobs // plan.part[1]))
        return Generating(opened, [str(row["symbol"]) for row in rows], search, target, tell)

    def tell(text: str) -> None:
        click.echo(text, err=True)

    ctx.exit(tune(library, supply, options))
