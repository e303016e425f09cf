"""`hgemm doctor`: whether everything needed is installed and sound, and what to do where it is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from generator.commands.common_options import json_option, library_option
from generator.commands.doctor import FAIL, Check, examine

_HELP = """Check the installation, the compilers, the GPU where there is one, and the library.

Each line says ok, warn or fail, and what to do. Exit status 1 says that something failed.

\b
Example:
  hgemm doctor
"""


@click.command("doctor", help=_HELP)
@library_option
@json_option
@click.pass_context
def command(ctx: click.Context, library: Path, as_json: bool) -> None:
    checks = examine(library)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        click.echo("\n".join(map(_line, checks)))
    ctx.exit(int(any(check.state == FAIL for check in checks)))


def _line(check: Check) -> str:
    return f"{check.state:<5} {check.name:<21} {check.found}" + (f": {check.way_out}" if check.way_out else "")
