"""The verbs that set up a machine: doctor, completion."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from generator.cli.options import json_option, library_option
from generator.doctor import FAIL, SetupCheck, examine

# ==== doctor ====

_DOCTOR_HELP = """Check the installation, the compilers, the GPU if any, and the library.

Each line starts with ok, warn or fail, and ends with the fix. Exit status 1: a check failed.

\b
Examples:
  hgemm doctor
  hgemm doctor --library emitted --json
"""


@click.command("doctor", help=_DOCTOR_HELP)
@library_option
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, library: Path, as_json: bool) -> None:
    checks = examine(library)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        click.echo("\n".join(map(_check_line, checks)))
    ctx.exit(int(any(check.state == FAIL for check in checks)))


def _check_line(check: SetupCheck) -> str:
    return f"{check.state:<5} {check.name:<21} {check.found}" + (f": {check.fix}" if check.fix else "")


# ==== completion ====

_COMPLETION_HELP = """Print the script that completes `generate` and `hgemm` in a shell.

\b
Examples:
  eval "$(hgemm completion bash)"
  hgemm completion zsh >> ~/.zshrc
  hgemm completion fish > ~/.config/fish/conf.d/hgemm.fish
"""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    from generator.cli.main import generate_command, hgemm_command

    complete = get_completion_class(shell)
    assert complete is not None
    for root in (generate_command, hgemm_command):
        name = str(root.name)
        script = complete(root, {}, name, f"_{name.upper()}_COMPLETE")
        click.echo(script.source_template % script.source_vars())
