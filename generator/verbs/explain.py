"""`hgemm explain`: what a request or a variant comes to: planned fields, numbers, what bounds it, every rule that it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from generator.commands.common_options import Symbol, json_option, library_option
from generator.commands.explain import print_explanations
from generator.commands.generate import requested
from generator.commands.model import Question, model_options
from generator.commands.spec_options import GroupedCommand, spec_options, texts_of
from generator.errors import RequestError
from generator.spec import Spec
from generator.sweep import Sweep, sweep_of

_HELP = """Explain what a request, or a variant of a library, comes to, and build nothing.

The options are those of `generate`, lists and ranges too; a SYMBOL, as `hgemm show` reads it, stands for all of them. Of
a legal one it is told what bounds it on a card: cycles of an SM that a k-tile takes on the tensor cores, to be copied and
to be read as fragments, from a table of the card's figures that says whether they were measured. With --m, also how its
tiles fill the card. Exit status 2 says that nothing of it is legal.

\b
Examples:
  hgemm explain --arch sm_89 --tile 256x256x64 --stages 4
  hgemm explain --arch sm_89 --tile 128x128x32 --device 'RTX 4090' --m 4096
  hgemm explain --arch sm_90a --m 4096 --n 7168 --k 16384 --json
  hgemm explain hgemm_sm89_tn_f16_f32_f16_128x128x32 --m 4096
"""


@click.command("explain", cls=GroupedCommand, help=_HELP)
@click.argument("symbol", type=Symbol(), required=False)
@spec_options
@model_options
@library_option
@json_option
@click.pass_context
def command(ctx: click.Context, symbol: str | None, library: Path, as_json: bool, **options: Any) -> None:
    asked = _variant(symbol, library, options) if symbol else requested(options)
    ctx.exit(print_explanations(asked, as_json, Question.of(options)))


def _variant(symbol: str, library: Path, options: dict[str, Any]) -> Sweep:
    """Return a variant of a library as what is asked for. Raises: RequestError where a request stands beside it."""
    from generator.store.library import Library  # only where one is named
    from generator.store.selection import resolve_one

    beside = [*texts_of(options), *(["spec"] if options["spec_file"] else [])]
    if beside:
        raise RequestError(f"{symbol!a} is a variant, whose spec is whole: leave --{beside[0].replace('_', '-')} out")
    opened = Library(library)
    record = opened.load(resolve_one(opened, symbol), verify=False).record
    return sweep_of(Spec.from_dict(record.data["spec"]))
