"""`hgemm compare`: one spec in every form, built and run side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from generator.commands.common_options import SIZE, json_option
from generator.commands.compare import build, columns, in_every_form, run_on_cpu, run_on_device, side_by_side
from generator.commands.emulate import NOT_IN_CPP, workshop
from generator.commands.scratch import scratch_library, scratch_library_option
from generator.commands.spec_options import GroupedCommand, spec_options
from generator.commands.table import to_text
from generator.pipeline import Settings
from generator.toolchain import templates_folder
from hgemm.errors import DeviceError

_HELP = """Build one spec in every form and print side by side what each came to.

The options are those of `generate`, and name one spec. With a GPU, each form is timed on one problem and checked against the
reference, and D is compared bit by bit; with --emulate, D is computed on the CPU, for a few ragged tiles. Exit
status 1 says that a form was not built, or is wrong.

\b
Example:
  hgemm compare --arch sm_90 --mma m16n8k16 --tile 128x128x32 --m 4096
"""


@click.command("compare", cls=GroupedCommand, help=_HELP)
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
def command(
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
    said = in_every_form(options)
    for one in said:
        for violation in one.broken:
            click.echo(f"hgemm: form {one.form} is left out, {violation.rule}: {violation.message}", err=True)
        if one.lacking and not one.broken:
            click.echo(f"hgemm: form {one.form} is left out: {one.lacking}", err=True)
    host = workshop() if emulate else None
    settings = Settings(ctx.with_resource(scratch_library(library)), templates_folder())
    built, errors = build(said, settings, processes=1, quiet=quiet)
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


next(option for option in command.params if option.name == "form").hidden = True  # since every form is compared
