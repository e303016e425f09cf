"""`hgemm reindex`: the index made anew from the folders."""

from __future__ import annotations

import json
from pathlib import Path

import click

from generator.commands.common_options import json_option, library_option
from generator.commands.table import counted
from generator.store.library import Library

_HELP = """Make a library's index anew from its folders.

Measurements stay. This is never needed for correctness: an index that is missing, damaged or behind is mended by
the next command that reads it.

\b
Example:
  hgemm reindex --library emitted
"""


@click.command("reindex", help=_HELP)
@library_option
@json_option
def command(library: Path, as_json: bool) -> None:
    count = Library(library).reindex()
    if as_json:
        click.echo(json.dumps({"library": str(library), "variants": count}))
    else:
        click.echo(f"{counted(count, 'variant')} indexed in {library}")
