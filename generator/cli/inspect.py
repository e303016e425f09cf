"""The verbs that examine kernels: explain, compare, draw, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from generator.build.pipeline import Settings
from generator.build.toolchain import templates_folder
from generator.cli.generate import print_explanations, requested
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
from generator.cli.output import note_left_out, progress, scratch_library, scratch_library_option
from generator.compare import (
    FormPlan,
    build,
    buildable,
    columns,
    junit_suite,
    plan_every_form,
    run_on_cpu,
    run_on_device,
    side_by_side,
)
from generator.errors import RequestError
from generator.explain import Question
from generator.planner import plan_of
from generator.proof.jobs import host_toolchain
from generator.report.draw import picture_of, png_of
from generator.spec import Spec
from generator.store.library import Library
from generator.store.query import KernelFilter, resolve_one
from generator.sweep import Sweep, sweep_of
from generator.tables import to_text
from hgemm.disk import require_writable, write_atomically
from hgemm.errors import DeviceError
from hgemm.junit import junit_option, write_junit
from hgemm.options import FILE, NonEmptyPath

# ==== explain ====

_EXPLAIN_HELP = """Explain a request, or a kernel of a library. Build nothing.

The options are those of `generate`, including lists and ranges. Instead of them, give a SYMBOL, as for `hgemm show`.

For a legal spec, the answer includes what limits it on a card: the cycles that one k-tile takes on an SM, for tensor
instructions, copies and fragment reads. They come from a table of the card's figures, and the answer says which were
measured. With --m, it also predicts the time of a problem.

Exit status 2: no combination is legal.

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
    asked = _spec_of_kernel(symbol, library, options) if symbol else requested(options)
    ctx.exit(print_explanations(asked, as_json, Question.of(options)))


def _spec_of_kernel(symbol: str, library: Path, options: dict[str, Any]) -> Sweep:
    """Return the spec of a kernel as a request. Raises: RequestError if options of a spec are given as well."""
    given = [*texts_of(options), *(["spec"] if options["spec_file"] else [])]
    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise RequestError(f"{symbol!a} is a kernel with a complete spec: omit {flag}")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    return sweep_of(Spec.from_dict(record.data["spec"]))


# ==== compare ====

_COMPARE_HELP = """Build one spec in every form (atoms, CuTe, CuTe DSL), and print the results side by side.

The options are those of `generate`, and must request one spec. With a GPU, each form is timed on one problem and checked
against the reference, and D is compared bit by bit. With --emulate, D is computed on the CPU for a few ragged tiles.

Exit status 1: a form was not built, or its result is wrong.

\b
Examples:
  hgemm compare --arch sm_90 --mma m16n8k16 --tile 128x128x32 --m 4096
  hgemm compare --arch sm_89 --tile 128x128x32 --emulate
"""


@click.command("compare", cls=GroupedCommand, help=_COMPARE_HELP)
@spec_options
@scratch_library_option
@click.option("--m", type=SIZE, metavar="N", default=4096, show_default=True, help="Rows of A and D.")
@click.option("--n", type=SIZE, metavar="N", help="Columns of B and D. Default: equal to --m.")
@click.option("--k", type=SIZE, metavar="N", help="Columns of A, rows of B. Default: equal to --m.")
@click.option(
    "--repeat", type=click.IntRange(1, 10000), metavar="N", default=20, show_default=True, help="Samples of the time."
)
@click.option("--emulate", is_flag=True, help="Compute D on the CPU. Do not look for a GPU.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@junit_option
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
    junit: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    require_writable(junit, "--junit")
    if options.get("form") is not None:
        raise RequestError("compare builds every form: omit --form")
    forms = plan_every_form(lambda form: requested({**options, "form": form}).candidates)
    for form in forms:
        _note_skipped(form)
    host = host_toolchain() if emulate else None
    settings = Settings(ctx.with_resource(scratch_library(library)), templates_folder())
    with progress(len(buildable(forms)), quiet) as on_outcome:
        built, errors = build(buildable(forms), settings, 1, on_outcome)
    for error in errors:
        click.echo(f"hgemm: error: {error}", err=True)
    try:
        if host:
            built = [run_on_cpu(one, settings, host) for one in built]
        else:
            built = [run_on_device(one, settings, (m, n or m, k or m), repeat) for one in built]
    except DeviceError as error:
        click.echo(f"hgemm: nothing was run ({error}): to compare results on the CPU, use --emulate", err=True)
    if junit:
        write_junit(junit, "hgemm compare", [junit_suite(built, errors)])
    found = columns(built)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif found:
        rows = side_by_side(found)
        click.echo(to_text(rows, [*rows[0]]), nl=False)
    ctx.exit(int(bool(errors) or any(not one.result.passed for one in built if one.result)))


next(option for option in compare_command.params if option.name == "form").hidden = True  # every form is compared


def _note_skipped(form: FormPlan) -> None:
    for violation in form.violations:
        click.echo(f"hgemm: form {form.form} is skipped, {violation.rule}: {violation.message}", err=True)
    if form.missing and not form.violations:
        click.echo(f"hgemm: form {form.form} is skipped: {form.missing}", err=True)


# ==== draw ====

_DRAW_HELP = """Draw the shared memory and the fragments of a kernel, as SVG.

The picture shows the banks of shared memory that hold each operand, before and after the swizzle. It marks the lanes of one
ldmatrix, or the matrices that wgmma reads. It also shows which lane holds which elements of the tensor instruction.

SYMBOL is a symbol or its hash, an alias, a unique prefix, or a glob that matches one kernel.

\b
Examples:
  hgemm draw hgemm_sm89_tn_f16_f32_f16_128x128x32 --to tile.svg
  hgemm draw '*sm90a*256x128x64*' > tile.svg
"""


@click.command("draw", help=_DRAW_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option(
    "-o", "--to", type=FILE, metavar="FILE", help="Write to FILE: tile.svg or tile.png. Default: SVG to stdout."
)
def draw_command(symbol: str, library: Path, to: Path | None) -> None:
    if to and to.suffix.lower() not in ("", ".svg", ".png"):
        raise RequestError(f"--to {to} is neither SVG nor PNG: use a name that ends in .svg or .png")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    picture = picture_of(plan_of(Spec.from_dict(record.data["spec"])), record.symbol)
    if to is None:
        click.echo(picture, nl=False)
    else:
        write_atomically(to, png_of(picture) if to.suffix.lower() == ".png" else picture.encode(), "--to")
        click.echo(to)


# ==== report ====

_REPORT_HELP = """Write a library as one HTML file. The file needs no network.

It contains a table of the kernels with filters, rates, ratios to cuBLASLt, rooflines, registers, shared memory, occupancy,
ladders, and a page for each kernel: source, instruction counts, bank pictures, proof and times.

Measurements come from the library, where `hgemm bench --record` and `hgemm tune` write them, and from the files of --bench and
--ladder. The verb needs matplotlib: pip install 'hgemm-generator[plots]'.

\b
Examples:
  hgemm report --to report.html
  hgemm report --to hopper.html --arch 90,90a --bench measured.json --ladder ladders.json --png pictures

FILE.html#kernel=SYMBOL opens the page of a kernel. FILE.html#q=128x128&arch=sm_90a opens a filtered table.
"""


@click.command("report", help=_REPORT_HELP)
@library_option
@filter_options
@click.option("-o", "--to", type=FILE, required=True, metavar="FILE", help="Write to FILE: report.html.")
@click.option(
    "--bench", type=FILE, multiple=True, metavar="FILE", help="A file of `hgemm bench --keep`. May be repeated."
)
@click.option(
    "--ladder", type=FILE, multiple=True, metavar="FILE", help="A file of `hgemm ladder --keep`. May be repeated."
)
@click.option(
    "--png",
    type=NonEmptyPath(file_okay=False),
    metavar="DIR",
    help="Also write every picture to DIR as PNG.",
)
def report_command(
    library: Path, to: Path, bench: Sequence[Path], ladder: Sequence[Path], png: Path | None, **filters: str
) -> None:
    from generator.report.page import write_report  # slow to load, and needed only here

    opened, kernel_filter = Library(library), KernelFilter(**filters)
    note_left_out(opened, kernel_filter)
    for path in write_report(opened, kernel_filter, to, bench, ladder, png, partial(click.echo, err=True)):
        click.echo(path)
