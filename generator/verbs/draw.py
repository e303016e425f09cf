"""`hgemm draw`: a picture of a variant's shared memory and fragments, as SVG."""

from __future__ import annotations

from pathlib import Path

import click

from generator.commands.common_options import Symbol, library_option
from generator.drawing.picture import picture_of
from generator.errors import RequestError
from generator.plan import plan_of
from generator.spec import Spec
from generator.store.library import Library
from generator.store.selection import resolve_one
from hgemm.disk import write_whole

_HELP = """Draw how a variant's operands lie among the banks of shared memory, before and after the swizzle, with the lanes
of one ldmatrix or the matrices that wgmma reads, and which lane holds which elements of the tensor instruction.

SYMBOL is a variant's symbol or alias, a unique beginning of one, or a glob that one variant matches.

\b
Example:
  hgemm draw hgemm_sm89_tn_f16_f32_f16_128x128x32 --to tile.svg
"""


@click.command("draw", help=_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write there, not to stdout: tile.svg.",
)
def command(symbol: str, library: Path, to: Path | None) -> None:
    if to and to.suffix.lower() not in ("", ".svg"):
        raise RequestError(f"a variant is drawn as SVG, not as {to.suffix[1:]!a}: name a file.svg")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    picture = picture_of(plan_of(Spec.from_dict(record.data["spec"])), record.symbol)
    if to is None:
        click.echo(picture, nl=False)
    else:
        write_whole(to, picture.encode(), "--to")
        click.echo(to)
