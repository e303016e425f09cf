"""`hgemm explain`: what a request comes to, planned fields, derived numbers, and every rule that it breaks."""

from __future__ import annotations

from typing import Any

import click

from generator.commands.common_options import json_option
from generator.commands.generate import print_explanations, requested
from generator.commands.spec_options import GroupedCommand, spec_options

_HELP = """Explain what a request comes to, and build nothing.

The options are those of `generate`, lists and ranges too. Exit status 2 says that nothing of it is legal.

\b
Example:
  hgemm explain --arch sm_89 --tile 256x256x64 --stages 4
"""


@click.command("explain", cls=GroupedCommand, help=_HELP)
@spec_options
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, **options: Any) -> None:
    ctx.exit(print_explanations(requested(options), as_json))
