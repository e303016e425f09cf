"""`hgemm gc`: what no one can use any more, removed from a library."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from generator.commands.common_options import json_option, library_option
from generator.store.garbage import collect_garbage
from generator.store.library import Library

_HELP = """Remove leavings of killed runs and variants that cannot be trusted.

Removed are temporary folders of processes that have died, sources and logs of failed compilations, the files of
variants whose record or artefacts do not pass their checks, and rows of variants that are gone. Sources without a
record, and files that the generator did not write, stay.

\b
Example:
  hgemm gc --dry-run
"""


@click.command("gc", help=_HELP)
@library_option
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
def command(library: Path, dry_run: bool, as_json: bool) -> None:
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
