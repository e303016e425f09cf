"""`hgemm completion`: the script that completes options, verbs and values in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HELP = """Print the completion script of `generate` and `hgemm` for a shell.

\b
Examples:
  eval "$(hgemm completion bash)"
  hgemm completion zsh >> ~/.zshrc
  hgemm completion fish > ~/.config/fish/conf.d/hgemm.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    from generator.cli import generate_command, hgemm_command

    complete = get_completion_class(shell)
    assert complete is not None
    for root in (generate_command, hgemm_command):
        name = str(root.name)
        script = complete(root, {}, name, f"_{name.upper()}_COMPLETE")
        click.echo(script.source_template % script.source_vars())
