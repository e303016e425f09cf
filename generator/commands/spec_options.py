"""The options of a spec for click: one for each of `SPEC_OPTIONS`, with help in groups and completion of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from generator.commands.options import BY_NAME, SPEC_OPTIONS, SpecOption, Texts, flag_meant_by

Function = TypeVar("Function", bound=Callable[..., Any])


class Words(click.ParamType):
    """Words separated by commas, which only the generator judges; `complete` returns those that begin as the last one does."""

    name = "words"

    def __init__(self, complete: Callable[[str], Iterable[str]]) -> None:
        self._complete = complete

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in self._complete(last)]


class GroupedCommand(click.Command):
    """A command of spec options, whose help lists options under the `group` that `grouped_option` gave them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = flag_meant_by(error.option_name)
            if not meant:
                raise
            told = f"No such option '{error.option_name}'. Did you mean '{meant}'?"
            raise click.NoSuchOption(error.option_name, told, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                groups.setdefault(getattr(param, "group", "Answer"), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def grouped_option(group: str, decorator: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Let the option that `decorator` adds be listed under `group`."""

    def decorate(function: Function) -> Function:
        decorated = decorator(function)
        decorated.__click_params__[-1].group = group
        return decorated

    return decorate


def spec_options(function: Function) -> Function:
    """Add --spec and an option for each field of a spec."""
    spec_file = click.option(
        "--spec",
        "spec_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Read these options from a TOML file; those given here go before it.",
    )
    function = grouped_option("Target", spec_file)(function)
    for option in reversed(SPEC_OPTIONS):
        function = grouped_option(option.group, _click_option(option))(function)
    return function


def _click_option(option: SpecOption) -> Callable[[Function], Function]:
    words = Words(lambda begun: (word for word in option.words.split() if word.startswith(begun)))
    return list_option(option.flag, option.name, type=words, metavar=option.metavar, help=option.help)


def list_option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """Return an option whose value is a list with commas, and which adds to it where it is given again."""
    return click.option(*names, multiple=True, callback=_joined, **settings)


def _joined(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> str | None:
    return ",".join(texts) if texts else None


def texts_of(options: dict[str, Any]) -> Texts:
    """Return what was written for the options of a spec."""
    return {name: text for name, text in options.items() if name in BY_NAME and text is not None}
