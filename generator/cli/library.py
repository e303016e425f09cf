"""`hgemm list`: the variants of a library, filtered, sorted, as a table, CSV or JSON."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from generator.arch import parse_arch_list
from generator.build.pipeline import Outcome, Settings, make
from generator.build.toolchain import templates_folder
from generator.cli.options import SIZE, Fields, Symbol, filter_options, json_option, kind_options, library_option
from generator.cli.output import card, progress, tell_left_out
from generator.errors import HgemmError, LibraryError, ProofError, RequestError, unknown_word
from generator.export.c_library import ExportOptions, export, missing_tool
from generator.export.cover import SORTS, Hole, computes, holes, kinds_of, promised_types
from generator.store.library import Library
from generator.store.maintenance import collect_garbage, merge
from generator.store.query import Selection, check_field, known_fields, nothing_matches, resolve, select_rows
from generator.sweep import sweep
from generator.tables import counted, fitting, to_csv, to_text
from hgemm.device import open_device
from hgemm.dispatch_table import COMPATIBLE, EXACT
from hgemm.errors import DeviceError, library_suffix
from hgemm.library import Variant, open_library, scan
from hgemm.octave_grid import FACTOR_ONE, STEP_BITS, distance
from hgemm.problem import LAYOUTS, MAX_EXTENT, Kind, Problem
from hgemm.record import CUBIN_NAME, PTX_NAME, Scalar
from hgemm.selection import ESTIMATED, MEASURED, NEAR, Choice, Selector
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target, with_dense_strides

DEFAULT_COLUMNS = (
    "symbol arch layout cta_tile warp_tile stages registers smem_bytes ctas_per_sm occupancy spilled "
    "dtype_a acc dtype_d schedule"
).split()

_LIST_HELP = """List the variants of a library.

\b
Example:
  hgemm list --arch 89 --tile 128x128x32 --where "registers<=128 and not spilled"

--where compares fields with numbers and texts by < <= = != >= >, matches texts by like 'a*b', and joins by and, or,
not and parentheses; a field alone must be true. --fields lists the fields.
"""


@click.command("list", help=_LIST_HELP)
@library_option
@filter_options
@click.option(
    "--sort", type=Fields(), default="symbol", show_default=True, metavar="FIELD", help="Sort by; -FIELD for downwards."
)
@click.option(
    "--columns",
    type=Fields(),
    default="",
    metavar="FIELDS",
    help="The columns, also of CSV and JSON: symbol,registers.",
)
@click.option("--fields", is_flag=True, help="Print the fields that --where, --columns and --sort take.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Print the first N only.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV to stdout.")
@json_option
def list_command(
    library: Path, sort: str, columns: str, fields: bool, limit: int | None, as_csv: bool, as_json: bool, **filters: str
) -> None:
    if as_csv and as_json:
        raise RequestError("--csv and --json exclude each other: give one")
    opened = Library(library)
    if fields:
        names = sorted(known_fields(opened))
        click.echo(json.dumps(names) if as_json else "\n".join(names))
        return
    rows = select_rows(opened, Selection(**filters), sort)[:limit]
    tell_left_out(opened, Selection(**filters))
    if as_json and not columns.strip():
        _print_json(opened, rows)
        return
    names = _columns(opened, columns, rows)
    if as_json:
        click.echo(_document(json.dumps({name: row.get(name) for name in names}) for row in rows))
    elif as_csv:
        click.echo(to_csv(rows, names), nl=False)
    elif not rows:
        click.echo(f"no variant in {library} matches", err=True)
    elif columns.strip() or not sys.stdout.isatty():
        click.echo(to_text(rows, names), nl=False)
    else:
        click.echo(to_text(rows, fitting(rows, names, shutil.get_terminal_size().columns)), nl=False)


def _columns(library: Library, columns: str, rows: list[dict[str, Scalar]]) -> list[str]:
    if not columns.strip():
        present = set(itertools.chain.from_iterable(rows))
        return [name for name in DEFAULT_COLUMNS if name in present or not rows]
    known = known_fields(library)
    return [check_field(name.strip(), known, "--columns") for name in columns.split(",") if name.strip()]


def _print_json(library: Library, rows: list[dict[str, Scalar]]) -> None:
    """Print the whole records, one a line, each read from its folder and checked."""
    found = (library.get(str(row["symbol"]), verify=False) for row in rows)
    click.echo(_document(json.dumps(variant.record.data, sort_keys=True) for variant in found if variant))


def _document(lines: Iterable[str]) -> str:
    return "[" + ",\n ".join(lines) + "]"


# ==== `hgemm show`: one variant in full, its hashes checked first ====


_SHOW_HELP = """Show a variant: what it is, what it takes, and how it was proved.

SYMBOL is a variant's symbol or alias, a unique beginning of one, or a glob such as '*128x128x32*'. The hashes of all
artefacts are checked before anything is shown.

\b
Example:
  hgemm show hgemm_sm89_tn_f16_f32_f16_128x128x32 --source
"""


@click.command("show", help=_SHOW_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--source", is_flag=True, help="Print the source.")
@click.option("--ptx", is_flag=True, help="Print the PTX.")
@click.option("--sass", is_flag=True, help="Print the machine code, disassembled.")
@click.option("--paths", is_flag=True, help="Print the paths of the artefacts.")
@json_option
def show_command(symbol: str, library: Path, as_json: bool, **views: bool) -> None:
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
    from generator.build.inspect import (
        Code,
        disassemble,
        read_cubin,  # the disassembler's modules are slow to load, and rarely asked for
    )

    cubin = read_cubin(variant.artefacts[CUBIN_NAME], variant.symbol)
    return disassemble([Code(variant.record.arch, cubin.text)])[0].text()


def _paths(variant: Variant) -> str:
    return "\n".join(str(variant.path(name)) for name in sorted(variant.artefacts))


# ==== `hgemm select`: the variant that a library has for a problem on a device, and those it was preferred to ====


_SELECT_HELP = """Tell which variant computes a problem, as exported libraries and `hgemm.open(...)` choose it.

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


@click.command("select", help=_SELECT_HELP)
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
def select_command(
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
    dense = SelectionQuery.of(its_kind, with_dense_strides(problem, its_kind), most)
    wanted = replace(dense, **dict.fromkeys(("align_a", "align_b", "align_d"), int(align))) if align else dense
    best = selector.choose(wanted)
    others = [choice for choice in selector.ranked(wanted) if choice.row is not best.row] if show_all else []
    why = _why(best, selector, wanted) + _order(best, selector, wanted)
    rows = [{**_select_row(best), "why": why}, *map(_select_row, others)]
    if as_json:
        click.echo(json.dumps(rows if show_all else rows[0], indent=1))
        return
    click.echo(to_text(rows, _COLUMNS) + f"{rows[0]['rule']}: {why}")


def _here() -> Target:
    try:
        return Target.of(open_device())
    except DeviceError as error:
        raise DeviceError(f"{error}: --arch names a GPU to choose for") from None


def _why(choice: Choice, selector: Selector, wanted: SelectionQuery) -> str:
    if choice.nearest is None:
        which = "no such product" if wanted.kind.code not in selector.surveys else "none that serves it"
        return f"the least estimate of those that serve it; {which} was measured on {selector.target.name}"
    survey = selector.surveys[wanted.kind.code]
    devices, near = " and ".join(survey.devices), choice.nearest
    if choice.rule == MEASURED:
        return f"the best of {len(near.order)} that were compared at this very problem on {devices}"
    octaves = distance(near.point, wanted.point) / (1 << STEP_BITS)
    name = f"{near.m}x{near.n}x{near.k}" + (f"@{near.batch}" if near.batch > 1 else "")
    return (
        f"the least of {counted(len(selector.shortlist(wanted)), 'estimate')}, of the best in this region, each corrected by what "
        f"was measured around it: {name} is the nearest of {counted(len(survey.problems), 'problem')} on {devices} "
        f"({octaves:.1f} octaves away; this one's by {choice.factor / FACTOR_ONE:.2f})"
    )


def _order(choice: Choice, selector: Selector, wanted: SelectionQuery) -> str:
    """Say what put a choice before others whatever their estimates: how its code runs, where theirs runs otherwise."""
    ways = {other.code_match for other in selector.ranked(wanted)}
    return f"; {_FIRST[choice.code_match]}" if len(ways) > 1 else ""


def _select_row(choice: Choice) -> dict[str, Any]:
    row = {name: getattr(choice, name) for name in _COLUMNS if name != "rule"} | {"rule": _RULES[choice.rule]}
    return row | ({"near": list(choice.nearest.extents)} if choice.nearest else {})


# ==== `hgemm cover`: what no variant of a library serves, and the least set of variants that closes the holes ====


_ALIGNS = ("8", "4", "2", "1")
_COVER_HELP = """Tell which problems no variant of a library serves on a GPU: of which layout, types and epilogue, at which
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


@click.command("cover", help=_COVER_HELP)
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
def cover_command(
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
            raise unknown_word("--align", word, _ALIGNS)
    aligns = [*map(int, _words(align))]

    counts = {name: sum(computes(name, kind) for kind in kinds) for name in archs}
    unsupported = [name for name, count in counts.items() if count < len(kinds)]
    if unsupported and not any(counts.values()):
        raise RequestError(f"tensor instructions of {' and '.join(unsupported)} multiply f16 only: use --types f16")
    for name in unsupported:
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
        click.echo(to_text(list(map(_cover_row, found)), ("arch", "kind", "beta", "align", "not_served")), nl=False)
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


def _cover_row(hole: Hole) -> dict[str, str]:
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


# ==== `hgemm export` ====


_EXPORT_HELP = """Write a C library with the kernels inside, to link to. It needs the NVIDIA driver when it runs, and nothing of
NVIDIA's before: no GPU, no toolkit, any C compiler.

The folder holds include/hgemm.h and hgemm.hpp, lib/libhgemm.a and .so, what find_package and pkg-config look for, and the
sources with a CMakeLists.txt for add_subdirectory. The same kernels and compiler give the same bytes.

\b
Examples:
  hgemm export --to build/hgemm
  hgemm export --to build/hgemm --where "proof_executor like '*'" --require-proof
  hgemm export --to third_party/mygemm --arch 90,90a --prefix mygemm
"""


@click.command("export", help=_EXPORT_HELP)
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
def export_command(
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
    missing = missing_tool(cc)
    if missing and ctx.get_parameter_source("cc") is click.core.ParameterSource.COMMANDLINE:
        raise HgemmError(f"the {missing} is not installed: choose another with --cc, or omit --cc: {_UNNAMED}")
    if not symbols:
        raise nothing_matches(opened)
    unproved = [str(row["symbol"]) for row in rows if "proof_executor" not in row]
    if unproved and require_proof:
        raise ProofError(f"{_told(unproved, rows)}, nothing is exported: {_how(library)}")
    done = export(open_library(library), to, ExportOptions(symbols, prefix, source, not uncompressed, cc))
    if not done.compiler:
        why = f"the {missing} is not installed" if missing else f"{cc} --version failed"
        click.echo(f"hgemm: {why}: wrote the sources; build lib/ with CMake", err=True)
    if unproved:
        click.echo(f"hgemm: {_told(unproved, rows)}: {_how(library)}", err=True)
    if as_json:
        click.echo(json.dumps({**asdict(done), "folder": str(done.folder), "unproved": unproved}, indent=1))
        return
    click.echo(
        f"{done.folder}: {counted(done.variants, 'kernel')} for {', '.join(done.archs)}, {done.image_bytes:,} B of images"
    )


_UNNAMED = "the default is cc; without a compiler only the sources are written"


def _how(library: Path) -> str:
    verify = f"hgemm verify{library_suffix(library)}"
    return f"`{verify} --emulate` proves those in C++, `{verify} --device` checks any on a GPU"


def _told(unproved: Sequence[str], rows: Sequence[object]) -> str:
    return f"{len(unproved)} of {counted(len(rows), 'kernel')} {'has' if len(unproved) == 1 else 'have'} no proof"


# ==== `hgemm merge`: several libraries joined to one, such as the shards of a sweep ====


_MERGE_HELP = """Add the variants and measurements of several libraries to one, which may be new, or one of them.

A variant that several have is taken once, one with a proof before one without. Variants of one name and different content
keys are an error that names both; then nothing is written. Every record and hash is checked first. A run that was stopped
is completed by the same command.

\b
Examples:
  hgemm merge shard-1 shard-2 shard-3 --to emitted
  hgemm merge measured --to emitted
"""


@click.command("merge", help=_MERGE_HELP)
@click.argument("libraries", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "--to", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The library to add to, or to make."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
def merge_command(libraries: tuple[Path, ...], to: Path, quiet: bool, as_json: bool) -> None:
    names = {name for folder in (*libraries, to) if folder.is_dir() for name in scan(folder)}
    with progress(len(names), quiet) as tell:
        done = merge(libraries, to, lambda *told: tell(Outcome(*told)))
    if as_json:
        click.echo(json.dumps({**asdict(done), "library": str(to)}))
        return
    replaced = f"{done.replaced} replaced by proved ones, " if done.replaced else ""
    added, measured = counted(done.added, "variant"), counted(done.measurements, "measurement")
    click.echo(
        f"{to}: {added} added, {replaced}{done.present} {'was' if done.present == 1 else 'were'} there, {measured} added"
    )


# ==== `hgemm gc`: what no one can use any more, removed from a library ====


_GC_HELP = """Remove leavings of killed runs and variants that cannot be trusted.

Removed are temporary folders of processes that have died, sources and logs of failed compilations, the files of
variants whose record or artefacts do not pass their checks, and rows of variants that are gone. Sources without a
record, and files that the generator did not write, stay.

\b
Example:
  hgemm gc --dry-run
"""


@click.command("gc", help=_GC_HELP)
@library_option
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
def gc_command(library: Path, dry_run: bool, as_json: bool) -> None:
    removals = collect_garbage(Library(library), dry_run)
    freed_bytes = sum(removal.freed_bytes for removal in removals)
    if as_json:
        found = [asdict(removal) for removal in removals]
        click.echo(json.dumps({"dry_run": dry_run, "removed": found, "freed_bytes": freed_bytes}, indent=1))
        return
    for removal in removals:
        click.echo(f"{removal.name}: {removal.reason} ({removal.freed_bytes} B)")
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(removals)} {verb}, {freed_bytes} B {'to free' if dry_run else 'freed'}")


# ==== `hgemm reindex`: the index made anew from the folders ====


_REINDEX_HELP = """Make a library's index anew from its folders.

Measurements stay. This is never needed for correctness: an index that is missing, damaged or behind is mended by
the next command that reads it.

\b
Example:
  hgemm reindex --library emitted
"""


@click.command("reindex", help=_REINDEX_HELP)
@library_option
@json_option
def reindex_command(library: Path, as_json: bool) -> None:
    count = Library(library).reindex()
    if as_json:
        click.echo(json.dumps({"library": str(library), "variants": count}))
    else:
        click.echo(f"{counted(count, 'variant')} indexed in {library}")
