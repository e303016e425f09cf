"""`hgemm select`: the variant that a library has for a problem on a device, and those it was preferred to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from generator.commands.common_options import json_option, kind_options, library_option
from generator.commands.table import to_text
from generator.errors import RequestError
from hgemm.device import open_device
from hgemm.kinds import Kind
from hgemm.library import open_library
from hgemm.problem import Problem
from hgemm.select import ANY_WORKSPACE, Choice, Wanted
from hgemm.target import Target

_HELP = """Tell which variant computes a problem, as exported libraries and `hgemm.open(...)` choose it.

Operands are taken to lie dense, as an array of that shape does: a row of 4095 elements leaves an alignment of 1. --align
says what lies otherwise. The estimate ranks variants of one library; it is no prediction of time.

\b
Example:
  hgemm select --arch 90 --m 4096 --n 4096 --k 4096 --layout tt
"""
_COLUMNS = ("symbol", "code", "clocks", "workspace_bytes")


@click.command("select", help=_HELP)
@library_option
@click.option("--m", type=click.IntRange(1), required=True, metavar="N", help="Rows of A and D.")
@click.option("--n", type=click.IntRange(1), required=True, metavar="N", help="Columns of B and D.")
@click.option("--k", type=click.IntRange(0), required=True, metavar="N", help="Columns of A, rows of B.")
@click.option("--batch", type=click.IntRange(1), default=1, metavar="N", help="Products at once.")
@kind_options
@click.option("--beta", is_flag=True, help="C is added.")
@click.option(
    "--align",
    type=click.Choice(["8", "4", "2", "1"]),
    help="Of all operands, in elements; what dense ones have, if not given.",
)
@click.option(
    "--workspace", type=click.IntRange(0), metavar="BYTES", help="Workspace; as much as is wanted, if not given."
)
@click.option("--arch", default="", metavar="ARCH", help="A GPU of this architecture; this machine's, if not given.")
@click.option("--sms", type=click.IntRange(1), metavar="N", help="SMs of that GPU; a common number, if not given.")
@click.option("--all", "show_all", is_flag=True, help="Print every variant that serves, the best first.")
@json_option
def command(
    library: Path,
    m: int,
    n: int,
    k: int,
    batch: int,
    beta: bool,
    align: str | None,
    workspace: int | None,
    arch: str,
    sms: int | None,
    show_all: bool,
    as_json: bool,
    **kind: str,
) -> None:
    if sms and not arch:
        raise RequestError("--sms needs an --arch: this machine's GPU has the SMs that it has")
    target = Target.typical(arch, sms or 0) if arch else Target.of(open_device())
    selector = open_library(library).selector(target)
    dense = _dense(Kind(**kind), m, n, k, batch, beta, ANY_WORKSPACE if workspace is None else workspace)
    wanted = replace(dense, **dict.fromkeys(("align_a", "align_b", "align_d"), int(align))) if align else dense
    best = selector.choose(wanted)
    others = [choice for choice in selector.ranked(wanted) if choice.row is not best.row] if show_all else []
    rows = [_row(choice) for choice in (best, *others)]
    click.echo(json.dumps(rows if show_all else rows[0], indent=1) if as_json else to_text(rows, _COLUMNS).rstrip("\n"))


def _dense(kind: Kind, m: int, n: int, k: int, batch: int, beta: bool, workspace_bytes: int) -> Wanted:
    """Return a problem whose operands, C as D, have nothing unused after a row or a matrix."""
    problem = Problem(
        *(m, n, k, batch),
        lda=k if kind.layout[0] == "t" else m,
        ldb=k if kind.layout[1] == "n" else n,
        ldc=n,
        ldd=n,
        batch_stride_a=m * k,
        batch_stride_b=n * k,
        batch_stride_c=m * n,
        batch_stride_d=m * n,
        beta=float(beta),
    )
    return Wanted.of(kind, problem, workspace_bytes)


def _row(choice: Choice) -> dict[str, str | int]:
    return {name: getattr(choice, name) for name in _COLUMNS}
