"""`hgemm export`: a library as a C library with headers, CMake and pkg-config files, for other people's programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from generator.commands.common_options import filter_options, json_option, library_option
from generator.commands.left_out import tell_left_out
from generator.commands.table import counted
from generator.errors import HgemmError, ProofError
from generator.export.build import lacking
from generator.export.tree import Wish, export
from generator.store.library import Library
from generator.store.selection import Selection, nothing_matches, select_rows
from hgemm.advice import on
from hgemm.library import open_library

_HELP = """Write a C library with the kernels inside, to link to. It needs the NVIDIA driver when it runs, and nothing of
NVIDIA's before: no GPU, no toolkit, any C compiler.

The folder holds include/hgemm.h and hgemm.hpp, lib/libhgemm.a and .so, what find_package and pkg-config look for, and the
sources with a CMakeLists.txt for add_subdirectory. The same kernels and compiler give the same bytes.

\b
Examples:
  hgemm export --to build/hgemm
  hgemm export --to build/hgemm --where "proof_executor like '*'" --require-proof
  hgemm export --to third_party/mygemm --arch 90,90a --prefix mygemm
"""


@click.command("export", help=_HELP)
@library_option
@filter_options
@click.option(
    "--to", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="The folder to write."
)
@click.option("--prefix", default="hgemm", show_default=True, metavar="NAME", help="Begins every symbol and file name.")
@click.option("--source", is_flag=True, help="Also the kernels' sources, to compile in translation units of your own.")
@click.option("--require-proof", is_flag=True, help="Refuse kernels that no run on the CPU has proved.")
@click.option("--uncompressed", is_flag=True, help="Embed cubins and PTX as they are; nvFatbin is not needed then.")
@click.option(
    "--cc", default="cc", envvar="CC", show_default=True, show_envvar=True, metavar="CC", help="The C compiler."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    library: Path,
    to: Path,
    prefix: str,
    source: bool,
    require_proof: bool,
    uncompressed: bool,
    cc: str,
    as_json: bool,
    **filters: str,
) -> None:
    opened = Library(library)
    rows = select_rows(opened, Selection(**filters))
    symbols = [str(row["symbol"]) for row in rows]
    tell_left_out(opened, Selection(**filters))
    missing = lacking(cc)
    if missing and ctx.get_parameter_source("cc") is click.core.ParameterSource.COMMANDLINE:
        raise HgemmError(f"no {missing} is here: name another with --cc, or leave that out: {_UNNAMED}")
    if not symbols:
        raise nothing_matches(opened)
    unproved = [str(row["symbol"]) for row in rows if "proof_executor" not in row]
    if unproved and require_proof:
        raise ProofError(f"{_told(unproved, rows)}, nothing is exported: {_how(library)}")
    done = export(open_library(library), to, Wish(symbols, prefix, source, not uncompressed, cc))
    if not done.compiler:
        why = f"no {missing} is here" if missing else f"{cc} does not say its version"
        click.echo(f"hgemm: {why}: the sources are written, and lib/ is left to CMake", err=True)
    if unproved:
        click.echo(f"hgemm: {_told(unproved, rows)}: {_how(library)}", err=True)
    if as_json:
        click.echo(json.dumps({**asdict(done), "folder": str(done.folder), "unproved": unproved}, indent=1))
        return
    click.echo(
        f"{done.folder}: {counted(done.variants, 'kernel')} for {', '.join(done.archs)}, {done.image_bytes:,} B of images"
    )


_UNNAMED = "cc builds then, and where there is none the sources alone are written"


def _how(library: Path) -> str:
    verify = f"hgemm verify{on(library)}"
    return f"`{verify} --emulate` proves those in C++, `{verify} --device` checks any on a GPU"


def _told(unproved: Sequence[str], rows: Sequence[object]) -> str:
    return f"{len(unproved)} of {counted(len(rows), 'kernel')} {'has' if len(unproved) == 1 else 'have'} no proof"
