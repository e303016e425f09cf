"""`hgemm explain`: what a request or a variant comes to: planned fields, numbers, what bounds it, every rule that it breaks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.cli.explain import print_explanations
from generator.cli.generate import requested
from generator.cli.options import (
    SIZE,
    GroupedCommand,
    Symbol,
    filter_options,
    json_option,
    library_option,
    model_options,
    spec_options,
    texts_of,
)
from generator.cli.output import note_left_out, progress
from generator.cli.scratch import scratch_library, scratch_library_option
from generator.compare import build, buildable, columns, in_every_form, run_on_cpu, run_on_device, side_by_side
from generator.errors import RequestError
from generator.explain import Question
from generator.plan import plan_of
from generator.proof.jobs import NOT_IN_CPP, host_toolchain
from generator.report.draw import picture_of
from generator.spec import Spec
from generator.store.library import Library
from generator.store.query import Selection, resolve_one
from generator.sweep import Sweep, sweep_of
from generator.tables import to_text
from hgemm.disk import write_atomically
from hgemm.errors import DeviceError

_EXPLAIN_HELP = """Explain what a request, or a variant of a library, comes to, and build nothing.

The options are those of `generate`, lists and ranges too; a SYMBOL, as `hgemm show` reads it, stands for all of them. Of
a legal one it is told what bounds it on a card: cycles of an SM that a k-tile takes on the tensor cores, to be copied and
to be read as fragments, from a table of the card's figures that says whether they were measured. With --m, also how its
tiles fill the card. Exit status 2 says that nothing of it is legal.

\b
Examples:
  hgemm explain --arch sm_89 --tile 256x256x64 --stages 4
  hgemm explain --arch sm_89 --tile 128x128x32 --device 'RTX 4090' --m 4096
  hgemm explain --arch sm_90a --m 4096 --n 7168 --k 16384 --json
  hgemm explain hgemm_sm89_tn_f16_f32_f16_128x128x32 --m 4096
"""


@click.command("explain", cls=GroupedCommand, help=_EXPLAIN_HELP)
@click.argument("symbol", type=Symbol(), required=False)
@spec_options
@model_options
@library_option
@json_option
@click.pass_context
def explain_command(ctx: click.Context, symbol: str | None, library: Path, as_json: bool, **options: Any) -> None:
    asked = _variant(symbol, library, options) if symbol else requested(options)
    ctx.exit(print_explanations(asked, as_json, Question.of(options)))


def _variant(symbol: str, library: Path, options: dict[str, Any]) -> Sweep:
    """Return a variant of a library as what is asked for. Raises: RequestError where a request stands beside it."""
    from generator.store.library import Library  # only where one is named
    from generator.store.query import resolve_one

    beside = [*texts_of(options), *(["spec"] if options["spec_file"] else [])]
    if beside:
        raise RequestError(f"{symbol!a} is a variant, whose spec is whole: leave --{beside[0].replace('_', '-')} out")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    return sweep_of(Spec.from_dict(record.data["spec"]))


# ==== `hgemm compare`: one spec in every form, built and run side by side ====


_COMPARE_HELP = """Build one spec in every form and print side by side what each came to.

The options are those of `generate`, and name one spec. With a GPU, each form is timed on one problem and checked against the
reference, and D is compared bit by bit; with --emulate, D is computed on the CPU, for a few ragged tiles. Exit
status 1 says that a form was not built, or is wrong.

\b
Example:
  hgemm compare --arch sm_90 --mma m16n8k16 --tile 128x128x32 --m 4096
"""


@click.command("compare", cls=GroupedCommand, help=_COMPARE_HELP)
@spec_options
@scratch_library_option
@click.option("--m", type=SIZE, metavar="N", default=4096, show_default=True, help="Rows of A and D.")
@click.option("--n", type=SIZE, metavar="N", help="Columns of B and D; as --m, if not given.")
@click.option("--k", type=SIZE, metavar="N", help="Columns of A, rows of B; as --m, if not given.")
@click.option(
    "--repeat", type=click.IntRange(1, 10000), metavar="N", default=20, show_default=True, help="Samples of the time."
)
@click.option("--emulate", is_flag=True, help="Compute D on the CPU, and do not look for a GPU.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
@click.pass_context
def compare_command(
    ctx: click.Context,
    library: Path | None,
    m: int,
    n: int | None,
    k: int | None,
    repeat: int,
    emulate: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    if options.get("form") is not None:
        raise RequestError("every form is compared: leave --form out")
    said = in_every_form(lambda form: requested({**options, "form": form}).candidates)
    for one in said:
        for violation in one.broken:
            click.echo(f"hgemm: form {one.form} is left out, {violation.rule}: {violation.message}", err=True)
        if one.lacking and not one.broken:
            click.echo(f"hgemm: form {one.form} is left out: {one.lacking}", err=True)
    host = host_toolchain() if emulate else None
    settings = Settings(ctx.with_resource(scratch_library(library)), templates_folder())
    forms = buildable(said)
    with progress(len(forms), quiet) as tell:
        built, errors = build(forms, settings, 1, tell)
    for error in errors:
        click.echo(f"hgemm: error: {error}", err=True)
    try:
        if host:
            built = [run_on_cpu(one, settings, host) for one in built]
            for one in built:
                if not one.ran:
                    click.echo(f"hgemm: form {one.form} is not run: {NOT_IN_CPP}", err=True)
        else:
            built = [run_on_device(one, settings, (m, n or m, k or m), repeat) for one in built]
    except DeviceError as error:
        click.echo(f"hgemm: nothing is run ({error}): --emulate compares results on the CPU", err=True)
    found = columns(built)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif found:
        rows = side_by_side(found)
        click.echo(to_text(rows, [*rows[0]]), nl=False)
    ctx.exit(int(bool(errors) or any(not one.ran.passed for one in built if one.ran)))


next(option for option in compare_command.params if option.name == "form").hidden = True  # since every form is compared


# ==== `hgemm draw`: a picture of a variant's shared memory and fragments, as SVG ====


_DRAW_HELP = """Draw how a variant's operands lie among the banks of shared memory, before and after the swizzle, with the lanes
of one ldmatrix or the matrices that wgmma reads, and which lane holds which elements of the tensor instruction.

SYMBOL is a variant's symbol or alias, a unique beginning of one, or a glob that one variant matches.

\b
Example:
  hgemm draw hgemm_sm89_tn_f16_f32_f16_128x128x32 --to tile.svg
"""


@click.command("draw", help=_DRAW_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write there, not to stdout: tile.svg.",
)
def draw_command(symbol: str, library: Path, to: Path | None) -> None:
    if to and to.suffix.lower() not in ("", ".svg"):
        raise RequestError(f"a variant is drawn as SVG, not as {to.suffix[1:]!a}: name a file.svg")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    picture = picture_of(plan_of(Spec.from_dict(record.data["spec"])), record.symbol)
    if to is None:
        click.echo(picture, nl=False)
    else:
        write_atomically(to, picture.encode(), "--to")
        click.echo(to)


# ==== `hgemm ladder` ====


_LADDER_HELP = """Climb a published ladder of kernels: make the kernel of each step, run them beside cuBLASLt in the same rounds, and
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
        from generator.ladders.recipes import system_names

        return [CompletionItem(name) for name in system_names() if name.startswith(incomplete)]


@click.command("ladder", help=_LADDER_HELP)
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
def ladder_command(ctx: click.Context, systems: Sequence[str], as_json: bool, **options: Any) -> None:
    from generator.cli import ladder as climb  # loads the stages, which --help does not need

    if not systems and not options["source"]:
        click.echo(climb.listing(as_json), nl=False)
    else:
        ctx.exit(climb.run(systems, options, as_json))


# ==== `hgemm report` ====


_REPORT_HELP = """Write a library as one HTML file that asks nothing of any network.

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


@click.command("report", help=_REPORT_HELP)
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
def report_command(
    library: Path, to: Path, bench: Sequence[Path], ladder: Sequence[Path], png: Path | None, **filters: str
) -> None:
    from generator.report.write import run  # loads the stages, which --help does not need

    opened, selection = Library(library), Selection(**filters)
    note_left_out(opened, selection)
    warn = partial(click.echo, err=True)
    for path in run(opened, selection, to, bench, ladder, png, warn):
        click.echo(path)
