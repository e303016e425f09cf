"""`hgemm ladder`: a published ladder of kernels climbed: made, run step by step, and held against its published figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from generator.commands.common_options import json_option
from generator.commands.scratch import scratch_library_option

_HELP = """Climb a published ladder of kernels: make the kernel of each step, run them beside cuBLASLt in the same rounds, and
print what changed, the rate, the speed over the step before and the part of cuBLASLt's, beside the published figures.

SYSTEMS are names or globs, s3 or 's*', or files of your own, written as those in generator/catalog/recipes; without one, the
systems and their steps are listed. Without a GPU, or with --static, what is known before a run is printed: registers, shared
memory, bank conflicts, what the model allows, and, where this machine has a C++ compiler, the sectors that the kernels move
when they are run on the CPU.

\b
Examples:
  hgemm ladder s3
  hgemm ladder s1 s3 --shapes 4096x4096x4096 --keep ladders.json --to ladders.svg
  hgemm ladder s3 --from ladders.json --to s3.png

Kernels are made for the device's architecture, or where a step is illegal there for that of the publication, whose PTX the
driver compiles; `generate --recipe` makes them to be kept. Exit
status 1 says that a step could not be made or measured, or that its numbers are wrong.
"""
_FILE = click.Path(path_type=Path, dir_okay=False)


class _Systems(click.ParamType):
    name = "systems"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from generator.catalog.recipes import system_names

        return [CompletionItem(name) for name in system_names() if name.startswith(incomplete)]


@click.command("ladder", help=_HELP)
@click.argument("systems", nargs=-1, type=_Systems())
@scratch_library_option
@click.option("--arch", default="", metavar="ARCH", help="Make the kernels for it; the device's, if not given.")
@click.option("--shapes", default="", metavar="SHAPES", help="MxNxK, instead of the publication's.")
@click.option("--m", default="", metavar="RANGE", help="4096, 512,1024 or 1024:4096:1024, instead of --shapes.")
@click.option("--n", default="", metavar="RANGE", help="The same for n; m's values, one by one, if not given.")
@click.option("--k", default="", metavar="RANGE", help="The same for k.")
@click.option("--static", is_flag=True, help="Run nothing on a GPU.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), metavar="X", default=2.0, show_default=True, help="Of rounds a ladder."
)
@click.option("--rounds", type=click.IntRange(3), metavar="N", default=15, show_default=True, help="At least.")
@click.option(
    "--warm-up", type=click.FloatRange(min=0), metavar="X", default=3.0, show_default=True, help="Seconds of load."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Of the operands.")
@click.option("--from", "source", type=_FILE, metavar="FILE", help="Print what --keep kept; make and run nothing.")
@click.option("--keep", type=_FILE, metavar="FILE", help="Write the JSON document there after every ladder.")
@click.option("--csv", type=_FILE, metavar="FILE", help="Write a row a step there.")
@click.option("--to", type=_FILE, metavar="FILE", help="Draw the curve there: file.svg or file.png.")
@click.option("-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes that compile; the cores.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
@click.pass_context
def command(ctx: click.Context, systems: Sequence[str], as_json: bool, **options: Any) -> None:
    from generator.commands import climb  # loads the stages, which --help does not need

    if not systems and not options["source"]:
        click.echo(climb.listing(as_json), nl=False)
    else:
        ctx.exit(climb.run(systems, options, as_json))
