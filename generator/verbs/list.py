"""`hgemm list`: the variants of a library, filtered, sorted, as a table, CSV or JSON."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from generator.commands.common_options import Fields, filter_options, json_option, library_option
from generator.commands.left_out import tell_left_out
from generator.commands.table import fitting, to_csv, to_text
from generator.errors import RequestError
from generator.store.fields import known_fields
from generator.store.library import Library
from generator.store.selection import Selection, select_rows
from generator.store.where import check_field
from hgemm.record import Scalar

DEFAULT_COLUMNS = (
    "symbol arch layout cta_tile warp_tile stages registers smem_bytes ctas_per_sm occupancy spilled "
    "dtype_a acc dtype_d schedule"
).split()

_HELP = """List the variants of a library.

\b
Example:
  hgemm list --arch 89 --tile 128x128x32 --where "registers<=128 and not spilled"

--where compares fields with numbers and texts by < <= = != >= >, matches texts by like 'a*b', and joins by and, or,
not and parentheses; a field alone must be true. --fields lists the fields.
"""


@click.command("list", help=_HELP)
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
def command(
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
