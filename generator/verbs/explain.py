"""`hgemm explain`: what a request comes to, planned fields, derived numbers, what bounds it, and every rule that it breaks."""

from __future__ import annotations

from typing import Any

import click

from generator.commands.common_options import json_option
from generator.commands.explain import print_explanations
from generator.commands.generate import requested
from generator.commands.model import Question, model_options
from generator.commands.spec_options import GroupedCommand, spec_options

_HELP = """Explain what a request comes to, and build nothing.

The options are those of `generate`, lists and ranges too. Of a legal one it is told what bounds it on a card: cycles of an
SM that a k-tile takes on the tensor cores, to be copied and to be read as fragments, from a table of the card's figures
that says whether they were measured. With --m, also how its tiles fill the card. Exit status 2 says that nothing of it
is legal.

\b
Examples:
  hgemm explain --arch sm_89 --tile 256x256x64 --stages 4
  hgemm explain --arch sm_89 --tile 128x128x32 --device 'RTX 4090' --m 4096
  hgemm explain --arch sm_90a --m 4096 --n 7168 --k 16384 --json
"""


@click.command("explain", cls=GroupedCommand, help=_HELP)
@spec_options
@model_options
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, **options: Any) -> None:
    ctx.exit(print_explanations(requested(options), as_json, Question.of(options)))
