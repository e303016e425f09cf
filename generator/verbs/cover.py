"""`hgemm cover`: what no variant of a library serves, and the least set of variants that closes the holes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from generator.arch import parse_arch_list
from generator.commands.common_options import json_option, library_option
from generator.commands.table import counted, to_text
from generator.errors import LibraryError, RequestError, unknown
from generator.export.cover import SORTS, Hole, computes, holes, kinds_of, promised_types
from generator.pipeline import Settings, make
from generator.store.library import Library
from generator.sweep import sweep
from generator.toolchain import templates_folder
from hgemm.kinds import LAYOUTS
from hgemm.library import open_library

_ALIGNS = ("8", "4", "2", "1")
_HELP = """Tell which problems no variant of a library serves on a GPU: of which layout, types and epilogue, at which
alignment, and of which sort (whole tiles, ragged, one row, one column, k of 1 and of 0, a batch).

What is asked for is what the shipped catalog promises: f16 and bf16, and tf32 where the library has any, with f32
accumulation, all four layouts, alpha and beta, every alignment, any m, n, k and batch, without a workspace. --add makes
one variant for each hole, which serves all of it. Exit status 1 where holes are left.

\b
Examples:
  hgemm cover --arch 80,86,89,90,120
  hgemm cover --arch 90 --types f16:f32 --bias none,row --activation none,gelu --add
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


@click.command("cover", help=_HELP)
@library_option
@click.option("--arch", required=True, metavar="ARCHS", help="GPUs: 80,89,90. Code for sm_90a serves those of sm_90.")
@click.option(
    "--types", default="", metavar="TYPES", help="Of A, B and D, or f16:f32; f16,bf16 and, where there is any, tf32."
)
@click.option("--layout", default=",".join(LAYOUTS), show_default=True, metavar="LAYOUTS", help="Layouts.")
@click.option("--bias", default="none", show_default=True, metavar="KINDS", help="none,row,column.")
@click.option("--activation", default="none", show_default=True, metavar="NAMES", help="none,relu,gelu,silu.")
@click.option(
    "--align", default="8,4,2,1", show_default=True, metavar="N", help="Alignments of all operands, in elements."
)
@click.option("--no-beta", is_flag=True, help="C need not be added.")
@click.option("--add", is_flag=True, help="Make the variants that close the holes.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    library: Path,
    arch: str,
    types: str,
    layout: str,
    bias: str,
    activation: str,
    align: str,
    no_beta: bool,
    add: bool,
    as_json: bool,
) -> None:
    archs = dict.fromkeys(name.rstrip("af") for name in parse_arch_list(arch))
    asked = _words(types) or promised_types(open_library(library).table)
    kinds = kinds_of(asked, *map(_words, (layout, bias, activation)))
    for word in _words(align):
        if word not in _ALIGNS:
            raise unknown("--align", word, _ALIGNS)
    aligns = [*map(int, _words(align))]

    counts = {name: sum(computes(name, kind) for kind in kinds) for name in archs}
    lacking = [name for name, count in counts.items() if count < len(kinds)]
    if lacking and not any(counts.values()):
        raise RequestError(f"tensor instructions of {' and '.join(lacking)} multiply f16 only: use --types f16")
    for name in lacking:
        click.echo(
            f"hgemm: {name} multiplies f16 only: {counted(len(kinds) - counts[name], 'kind')} left out", err=True
        )

    def look() -> list[Hole]:
        return list(holes(open_library(library).table, archs, kinds, aligns, not no_beta))

    found = look()
    if add and found:
        _add(Library(library), found)
        found = look()
    if as_json:
        click.echo(json.dumps([hole.to_dict() for hole in found], indent=1))
    elif found:
        click.echo(to_text(list(map(_row, found)), ("arch", "kind", "beta", "align", "not_served")), nl=False)
    else:
        served = ", ".join(f"{name}: {counted(count, 'kind')}" for name, count in counts.items())
        click.echo(f"{served} served, at alignments {align}, for {', '.join(SORTS)}")
    if found and not add:
        click.echo("hgemm: --add makes the variants that close these holes", err=True)
    ctx.exit(int(bool(found)))


def _add(library: Library, found: list[Hole]) -> None:
    """Make one variant for each hole. Raises LibraryError where one cannot be made."""
    plans = sweep([hole.request() for hole in found]).plans
    processes = min(len(plans), os.cpu_count() or 1)
    for _, outcome in make(plans, Settings(library, templates_folder()), processes):
        if outcome.error:
            raise LibraryError(f"a variant that would close a hole cannot be made: {outcome.error}")
        click.echo(f"added {outcome.symbol}", err=True)


def _row(hole: Hole) -> dict[str, str]:
    aligns = ",".join(map(str, sorted(hole.sorts, reverse=True)))
    sorts = dict.fromkeys(sort for sorts in hole.sorts.values() for sort in sorts)
    told = "all" if len(sorts) == len(SORTS) else ", ".join(sorts)
    return {
        "arch": hole.arch,
        "kind": str(hole.kind),
        "beta": "yes" if hole.beta else "no",
        "align": aligns,
        "not_served": told,
    }
