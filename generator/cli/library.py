"""The verbs that look at a library and maintain it: list, show, merge, gc, reindex."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from generator import epilogue
from generator.cli.options import Fields, Symbol, filter_options, json_option, library_option
from generator.cli.output import note_left_out, progress, record_text
from generator.errors import LibraryError, RequestError
from generator.export.launch_header import launch_header
from generator.spec import BY_FIELD, differing
from generator.store.library import Library
from generator.store.query import (
    FIELD_MEANINGS,
    KernelFilter,
    check_field,
    condition_of,
    fields_in,
    known_fields,
    resolve,
    select_rows,
)
from generator.store.schema import schema_text
from generator.tables import counted, fitted, line_width, to_csv, to_text
from hgemm.errors import printable
from hgemm.library import StoredKernel, scan
from hgemm.measured import session_paths
from hgemm.options import FOLDER
from hgemm.record import CUBIN_NAME, PTX_NAME, Scalar

# ==== list ====

DEFAULT_COLUMNS = "registers smem_bytes ctas_per_sm spilled warp_tile schedule copy occupancy".split()
"""Columns beside those that were filtered or sorted by. The symbol, which comes last, has the other usual fields."""
_COMPUTED = ("epilogue", "bias", "activation", "beta")
"""Fields that say what a kernel computes. If kernels differ in one, its column precedes the other ones."""
_INSTRUCTION = "sass_"
"""The beginning of the fields that count an instruction of the machine code. A library has about 85 of them."""

_LIST_HELP = """List the kernels of a library.

The columns of the table are the fields of your filters and --sort, then fields in which the kernels differ, then other usual
ones, and the symbol. The table leaves out fields that do not fit 100 columns, or the terminal. --columns, --csv and --json
leave out none.

--where compares fields with numbers and texts by < <= = != >= >, matches texts by like 'a*b', and joins conditions by and, or,
not and parentheses. A field alone selects the kernels for which it is true. --fields lists the fields.

\b
Examples:
  hgemm list --arch 89 --tile 128x128x32 --where "registers<=128 and not spilled"
  hgemm list --dtype f16 --sort=-occupancy --limit 10
  hgemm list --columns symbol,smem_a,smem_b,raster
"""


@click.command("list", help=_LIST_HELP)
@library_option
@filter_options
@click.option(
    "--sort",
    type=Fields(),
    default="symbol",
    show_default=True,
    metavar="FIELD",
    help="Sort by this field. -FIELD: the largest first.",
)
@click.option(
    "--columns",
    type=Fields(),
    default="",
    metavar="FIELDS",
    help="The columns, also of CSV and JSON: symbol,registers.",
)
@click.option(
    "--fields", is_flag=True, help="Print the fields that --where, --columns and --sort take, and their meaning."
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Print the first N only.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV to stdout.")
@json_option
def list_command(
    library: Path, sort: str, columns: str, fields: bool, limit: int | None, as_csv: bool, as_json: bool, **filters: str
) -> None:
    if as_csv and as_json:
        raise RequestError("--csv and --json exclude each other: give one")
    opened, kernel_filter = Library(library), KernelFilter(**filters)
    if fields:
        names = sorted(known_fields(opened))
        click.echo(json.dumps(names) if as_json else _meanings(names))
        return
    rows = select_rows(opened, kernel_filter, sort)[:limit]
    note_left_out(opened, kernel_filter)
    named = _named(opened, columns)
    if as_json and named:
        click.echo(_document(json.dumps({name: row.get(name) for name in named}) for row in rows))
    elif as_json:
        _print_json(opened, rows)
    elif as_csv:
        click.echo(to_csv(rows, named or ["symbol", *_present(rows)]), nl=False)
    elif not rows:
        found = f"no kernel in {library} matches" if opened.rows() else f"{library} has no kernels"
        click.echo(found, err=True)
    elif named:
        click.echo(to_text(rows, named), nl=False)
    else:
        _print_table(rows, [*fields_in(condition_of(kernel_filter)), sort.lstrip("-")])


def _meanings(names: Sequence[str]) -> str:
    """Return the fields and their meaning, one a line. One line stands for all counts of instructions."""
    counts = [name for name in names if name.startswith(_INSTRUCTION)]
    example = f", such as {counts[0]}; --json lists all {len(counts)}" if counts else ""
    lines = {name: FIELD_MEANINGS.get(name, "Field of another version.") for name in names if name not in counts}
    lines[f"{_INSTRUCTION}NAME"] = f"Number of instructions NAME in the machine code{example}."
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {lines[name]}" for name in sorted(lines))


def _named(library: Library, columns: str) -> list[str]:
    known = known_fields(library) if columns.strip() else set()
    return [check_field(name.strip(), known, "--columns") for name in columns.split(",") if name.strip()]


def _present(rows: list[dict[str, Scalar]]) -> list[str]:
    """Return the columns of a CSV file: all fields of a spec, then the other usual ones."""
    present = set(itertools.chain.from_iterable(rows))
    return [name for name in dict.fromkeys([*BY_FIELD, *DEFAULT_COLUMNS]) if name in present or not rows]


def _print_table(rows: list[dict[str, Scalar]], required: list[str]) -> None:
    other = separating_first(rows, differing({name: {row.get(name) for row in rows} for name in BY_FIELD}))
    computed = [name for name in _COMPUTED if name in other]
    required = [*required, *epilogue.required_columns(other)]
    table = fitted(rows, required, ["registers", *computed, *other, *DEFAULT_COLUMNS], line_width())
    click.echo(table.text, nl=False)
    note = table.note([*computed, *other], "use --columns NAMES")
    if note:
        click.echo(f"hgemm: {note}", err=True)


def separating_first(rows: list[dict[str, Scalar]], names: list[str]) -> list[str]:
    """Return these fields, first those in which kernels differ whose symbols have the same prefix."""
    groups: dict[str, list[dict[str, Scalar]]] = {}
    for row in rows:
        groups.setdefault(str(row["symbol"]).rpartition("_")[0], []).append(row)
    first = {name for name in names for its in groups.values() if len({row.get(name) for row in its}) > 1}
    return sorted(names, key=lambda name: name not in first)


def _print_json(library: Library, rows: list[dict[str, Scalar]]) -> None:
    """Print the whole records, one a line, each read from its folder and checked."""
    found = (library.get(str(row["symbol"]), verify=False) for row in rows)
    click.echo(_document(json.dumps(stored.record.data, sort_keys=True) for stored in found if stored))


def _document(lines: Iterable[str]) -> str:
    return "[" + ",\n ".join(lines) + "]"


# ==== show ====

_SHOW_HELP = """Show one kernel: its spec, resources, machine code, proof and measurements.

SYMBOL is a symbol or its hash, an alias, a unique prefix, or a glob such as '*128x128x32*'. The hashes of a kernel's files are
checked first.

\b
Examples:
  hgemm show hgemm_sm89_tn_f16_f32_f16_128x128x32
  hgemm show hgemm_sm89_tn_f16_f32_f16_128x128x32 --source
  hgemm show '*256x128x32*' --json
  hgemm show hgemm_sm89_tn_f16_f32_f16_128x128x32 --header > kernel.h
  hgemm show --schema
"""


_SHOWN_SYMBOLS = 5


def _print_schema(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the schema before SYMBOL is required."""
    if is_given and not ctx.resilient_parsing:
        click.echo(schema_text(), nl=False)
        ctx.exit()


@click.command("show", help=_SHOW_HELP)
@click.argument("symbol", type=Symbol())
@library_option
@click.option("--source", is_flag=True, help="Print the source.")
@click.option("--ptx", is_flag=True, help="Print the PTX.")
@click.option("--sass", is_flag=True, help="Print the disassembled machine code.")
@click.option("--paths", is_flag=True, help="Print the paths of the files.")
@click.option("--header", is_flag=True, help="Print a C header to launch the kernel through the CUDA driver.")
@json_option
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON schema of records, and exit.",
)
def show_command(symbol: str, library: Path, as_json: bool, **views: bool) -> None:
    given = [name for name, is_given in {**views, "json": as_json}.items() if is_given]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(f'--{name}' for name in given)} exclude each other: give one")
    opened = Library(library)
    symbols = resolve(opened, symbol)
    if views["header"] and len(symbols) > 1:
        shown = "".join(f"\n  {one}" for one in symbols[:_SHOWN_SYMBOLS])
        raise RequestError(f"--header describes one kernel, and {symbol!a} matches {len(symbols)}, such as:{shown}")
    stored_kernels = [opened.load(name) for name in symbols]
    if as_json:
        click.echo(json.dumps([stored.record.data for stored in stored_kernels], sort_keys=True, indent=1))
        return
    writers = {"source": _source, "ptx": _ptx, "sass": _sass, "paths": _paths, "header": _header}
    view = given[0] if given else ""
    for place, stored in enumerate(stored_kernels):
        shown = writers[view](stored) if view else record_text(stored, opened.measurements(stored.symbol))
        click.echo(("\n" if place and view != "paths" else "") + shown.rstrip("\n"))


def _source(stored: StoredKernel) -> str:
    return printable(stored.source.decode(errors="replace"))


def _ptx(stored: StoredKernel) -> str:
    return stored.artefacts[PTX_NAME].rstrip(b"\0").decode(errors="replace")


def _sass(stored: StoredKernel) -> str:
    from generator.build.inspect import MachineCode, disassemble, read_cubin  # slow to load, and needed only here

    cubin = read_cubin(stored.artefacts[CUBIN_NAME], stored.symbol)
    return disassemble([MachineCode(stored.record.arch, cubin.text)])[0].text()


def _header(stored: StoredKernel) -> str:
    return launch_header(stored.record.data)


def _paths(stored: StoredKernel) -> str:
    return "\n".join(str(stored.path(name)) for name in sorted(stored.artefacts))


# ==== merge ====

_MERGE_HELP = """Add the kernels and measurements of several libraries to one library.

The target may be new, or one of the sources. A kernel that several libraries hold is added once. A copy is preferred if it has a
proof of its files by this version. Two kernels with the same symbol and different content are an error. The error names both, and
nothing is written.
All records and hashes are checked first. To complete an interrupted merge, run the same command again.

Exit status 1: a library is missing or damaged, kernels conflict, or a folder is not a library.

\b
Examples:
  hgemm merge shard-1 shard-2 shard-3 --to emitted
  hgemm merge measured --to emitted
"""


@click.command("merge", help=_MERGE_HELP)
@click.argument("libraries", nargs=-1, required=True, type=FOLDER, metavar="DIR...")
@click.option(
    "-o",
    "--to",
    type=FOLDER,
    required=True,
    metavar="DIR",
    help="The library to add to, or to create.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
def merge_command(libraries: tuple[Path, ...], to: Path, quiet: bool, as_json: bool) -> None:
    from generator.build.pipeline import Outcome  # slow to load, and needed only here
    from generator.proof.jobs import executor_version
    from generator.store.maintenance import merge

    symbols = {symbol for folder in (*libraries, to) if folder.is_dir() for symbol in scan(folder)}
    empty = [folder for folder in libraries if folder.is_dir() and not scan(folder) and not session_paths(folder)]
    for folder in empty:
        if any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir()):
            raise LibraryError(
                f"{folder} has folders, but no kernels and no measurements: name the folder of a library"
            )
        click.echo(f"hgemm: {folder} has no kernels and no measurements", err=True)
    with progress(len(symbols), quiet) as show:
        done = merge(libraries, to, lambda *fields: show(Outcome(*fields)), executor_version())
    if as_json:
        click.echo(json.dumps({**asdict(done), "library": str(to)}))
        return
    counts = [
        f"{counted(done.added, 'kernel')} added",
        f"{done.replaced} replaced by a proved copy" if done.replaced else "",
        f"{done.present} already present",
        f"{counted(done.measurements, 'measurement')} added",
    ]
    click.echo(f"{to}: {', '.join(filter(None, counts))}")


# ==== gc ====

_GC_HELP = """Remove leftovers of killed runs, and kernels that fail their checks.

gc removes temporary folders of dead processes, sources and logs of failed compilations, the files of kernels whose record
or hashes are wrong, and index rows of missing kernels. It keeps sources without a record, and files that the generator
did not write.

\b
Examples:
  hgemm gc --dry-run
  hgemm gc --library emitted
"""


@click.command("gc", help=_GC_HELP)
@library_option
@click.option("--dry-run", is_flag=True, help="Print what would be removed. Remove nothing.")
@json_option
def gc_command(library: Path, dry_run: bool, as_json: bool) -> None:
    from generator.store.maintenance import collect_garbage  # slow to load, and needed only here

    removals = collect_garbage(Library(library), dry_run)
    freed_bytes = sum(removal.freed_bytes for removal in removals)
    if as_json:
        removed = [asdict(removal) for removal in removals]
        click.echo(json.dumps({"dry_run": dry_run, "removed": removed, "freed_bytes": freed_bytes}, indent=1))
        return
    for removal in removals:
        click.echo(f"{removal.name}: {removal.reason} ({removal.freed_bytes} B)")
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(removals)} {verb}, {freed_bytes} B {'to free' if dry_run else 'freed'}")


# ==== reindex ====

_REINDEX_HELP = """Rebuild the index of a library from its folders.

Measurements are kept. You rarely need this: a command that reads a missing, damaged or outdated index repairs it.

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
        click.echo(json.dumps({"library": str(library), "kernels": count}))
    else:
        click.echo(f"{counted(count, 'kernel')} indexed in {library}")
