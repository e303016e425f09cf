"""`hgemm show`: one variant in full, its hashes checked first."""

from __future__ import annotations

import json
from pathlib import Path

import click

from generator.commands.common_options import Symbol, json_option, library_option
from generator.errors import RequestError
from generator.store.card import card
from generator.store.library import Library
from generator.store.selection import resolve
from hgemm.record import CUBIN_NAME, PTX_NAME
from hgemm.variants import Variant

_HELP = """Show a variant: what it is, what it takes, and how it was proved.

SYMBOL is a variant's symbol or alias, a unique beginning of one, or a glob such as '*128x128x32*'. The hashes of all
artefacts are checked before anything is shown.

\b
Example:
  hgemm show hgemm_sm89_tn_f16_f32_f16_128x128x32 --source
"""


@click.command("show", help=_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--source", is_flag=True, help="Print the source.")
@click.option("--ptx", is_flag=True, help="Print the PTX.")
@click.option("--sass", is_flag=True, help="Print the machine code, disassembled.")
@click.option("--paths", is_flag=True, help="Print the paths of the artefacts.")
@json_option
def command(symbol: str, library: Path, as_json: bool, **views: bool) -> None:
    given = [name for name, asked in {**views, "json": as_json}.items() if asked]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(f'--{name}' for name in given)} exclude each other: give one")
    opened = Library(library)
    variants = [opened.load(name) for name in resolve(opened, symbol)]
    if as_json:
        click.echo(json.dumps([variant.record.data for variant in variants], sort_keys=True, indent=1))
        return
    writers = {"source": _source, "ptx": _ptx, "sass": _sass, "paths": _paths}
    view = given[0] if given else ""
    for place, variant in enumerate(variants):
        shown = writers[view](variant) if view else card(variant, opened.measurements(variant.symbol))
        click.echo(("\n" if place and view != "paths" else "") + shown.rstrip("\n"))


def _source(variant: Variant) -> str:
    return variant.source.decode(errors="replace")


def _ptx(variant: Variant) -> str:
    return variant.artefacts[PTX_NAME].rstrip(b"\0").decode(errors="replace")


def _sass(variant: Variant) -> str:
    from generator.binary.elf import read_cubin  # the disassembler's modules are slow to load, and rarely asked for
    from generator.binary.sass import Code, disassemble

    cubin = read_cubin(variant.artefacts[CUBIN_NAME], variant.symbol)
    return disassemble([Code(variant.record.arch, cubin.text)])[0].text()


def _paths(variant: Variant) -> str:
    return "\n".join(str(variant.path(name)) for name in sorted(variant.artefacts))
