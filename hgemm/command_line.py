"""What a command says of wrong words, and how a command of `python -m` ends: with one line on stderr, and a status."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from hgemm.errors import HgemmError


def line_of(error: click.UsageError, program: str) -> str:
    """Say in one line what is wrong with a command's words, and where its help is."""
    path = error.ctx.command_path if error.ctx else program
    return f"{program}: error: {error.format_message().rstrip('.')} (see `{path} --help`)"


def end_with(command: click.Command, program: str) -> NoReturn:
    """Run a command with the words of this process, which ends with its exit status."""
    try:
        sys.exit(command.main(prog_name=program, standalone_mode=False))
    except click.UsageError as error:
        click.echo(line_of(error, program), err=True)
        sys.exit(error.exit_code)
    except HgemmError as error:
        click.echo(f"{program}: error: {error}", err=True)
        sys.exit(error.exit_code)
