"""`hgemm select`: the variant that a library has for a problem on a device, and those it was preferred to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from generator.commands.common_options import SIZE, json_option, kind_options, library_option
from generator.commands.table import counted, to_text
from generator.errors import RequestError
from hgemm.device import open_device
from hgemm.errors import DeviceError
from hgemm.kinds import Kind
from hgemm.library import open_library
from hgemm.measured.nearness import ONE, STEP_BITS, distance
from hgemm.problem import MAX_EXTENT, Problem
from hgemm.select import ESTIMATED, MEASURED, NEAR, Choice, Selector
from hgemm.table import COMPATIBLE, EXACT
from hgemm.target import Target
from hgemm.wanted import ANY_WORKSPACE, Wanted, with_leading

_HELP = """Tell which variant computes a problem, as exported libraries and `hgemm.open(...)` choose it.

Operands are taken to lie dense, as an array of that shape does: a row of 4095 elements leaves an alignment of 1. --align
says what lies otherwise. Kernels for the GPU's own architecture go first, then machine code for an older one, then PTX. What
decides among them is told: the best of those that `hgemm tune` compared at this very problem; else, of the
few that do best in its region, the least estimate, corrected by what was measured around over what was estimated there; where
nothing of the kind was measured, the least estimate of all. Estimates are clocks of an SM, by the model of `hgemm explain --m`.

\b
Example:
  hgemm select --arch 90 --m 4096 --n 4096 --k 4096 --layout tt
"""
_COLUMNS = ("symbol", "code", "rule", "clocks", "workspace_bytes")
_FIRST = {
    EXACT: "kernels for its own architecture go first",
    COMPATIBLE: "machine code that runs there goes before PTX",
}
_RULES = {ESTIMATED: "estimated", NEAR: "near", MEASURED: "measured"}


@click.command("select", help=_HELP)
@library_option
@click.option("--m", type=SIZE, required=True, metavar="N", help="Rows of A and D.")
@click.option("--n", type=SIZE, required=True, metavar="N", help="Columns of B and D.")
@click.option("--k", type=click.IntRange(0, MAX_EXTENT), required=True, metavar="N", help="Columns of A, rows of B.")
@click.option("--batch", type=SIZE, default=1, metavar="N", help="Products at once.")
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
    its_kind, most = Kind(**kind), ANY_WORKSPACE if workspace is None else workspace
    target = Target.typical(arch, sms or 0) if arch else _here()
    selector = open_library(library).selector(target)
    strides = {"batch_stride_a": m * k, "batch_stride_b": n * k, "batch_stride_c": m * n}
    problem = Problem(m, n, k, batch, **strides, beta=float(beta))
    dense = Wanted.of(its_kind, with_leading(problem, its_kind), most)
    wanted = replace(dense, **dict.fromkeys(("align_a", "align_b", "align_d"), int(align))) if align else dense
    best = selector.choose(wanted)
    others = [choice for choice in selector.ranked(wanted) if choice.row is not best.row] if show_all else []
    why = _why(best, selector, wanted) + _order(best, selector, wanted)
    rows = [{**_row(best), "why": why}, *map(_row, others)]
    if as_json:
        click.echo(json.dumps(rows if show_all else rows[0], indent=1))
        return
    click.echo(to_text(rows, _COLUMNS) + f"{rows[0]['rule']}: {why}")


def _here() -> Target:
    try:
        return Target.of(open_device())
    except DeviceError as error:
        raise DeviceError(f"{error}: --arch names a GPU to choose for") from None


def _why(choice: Choice, selector: Selector, wanted: Wanted) -> str:
    if choice.near is None:
        which = "no such product" if wanted.kind.code not in selector.surveys else "none that serves it"
        return f"the least estimate of those that serve it; {which} was measured on {selector.target.name}"
    survey = selector.surveys[wanted.kind.code]
    devices, near = " and ".join(survey.devices), choice.near
    if choice.rule == MEASURED:
        return f"the best of {len(near.order)} that were compared at this very problem on {devices}"
    octaves = distance(near.point, wanted.point) / (1 << STEP_BITS)
    name = f"{near.m}x{near.n}x{near.k}" + (f"@{near.batch}" if near.batch > 1 else "")
    return (
        f"the least of {counted(len(selector.listed(wanted)), 'estimate')}, of the best in this region, each corrected by what "
        f"was measured around it: {name} is the nearest of {counted(len(survey.problems), 'problem')} on {devices} "
        f"({octaves:.1f} octaves away; this one's by {choice.factor / ONE:.2f})"
    )


def _order(choice: Choice, selector: Selector, wanted: Wanted) -> str:
    """Say what put a choice before others whatever their estimates: how its code runs, where theirs runs otherwise."""
    ways = {other.way for other in selector.ranked(wanted)}
    return f"; {_FIRST[choice.way]}" if len(ways) > 1 else ""


def _row(choice: Choice) -> dict[str, Any]:
    row = {name: getattr(choice, name) for name in _COLUMNS if name != "rule"} | {"rule": _RULES[choice.rule]}
    return row | ({"near": list(choice.near.extents)} if choice.near else {})
