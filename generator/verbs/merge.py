"""`hgemm merge`: several libraries joined to one, such as the shards of a sweep."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from generator.commands.common_options import json_option
from generator.commands.progress import progress
from generator.commands.table import counted
from generator.pipeline import Outcome
from generator.store.merge import merge
from hgemm.variants import scan

_HELP = """Add the variants and measurements of several libraries to one, which may be new, or one of them.

A variant that several have is taken once, one with a proof before one without. Variants of one name and different content
keys are an error that names both; then nothing is written. Every record and hash is checked first. A run that was stopped
is completed by the same command.

\b
Examples:
  hgemm merge shard-1 shard-2 shard-3 --to emitted
  hgemm merge measured --to emitted
"""


@click.command("merge", help=_HELP)
@click.argument("libraries", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "--to", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The library to add to, or to make."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@json_option
def command(libraries: tuple[Path, ...], to: Path, quiet: bool, as_json: bool) -> None:
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
