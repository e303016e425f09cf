"""Options that several commands share: the types and the layout of a problem, and old names of options."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hgemm.cases import MAX_SEED
from hgemm.dtypes import OUTPUTS, type_word
from hgemm.errors import RequestError, deprecated, unknown_word
from hgemm.problem import ACCUMULATIONS, LAYOUTS, TYPES

_METAVARS = {"layout": "LAYOUT", "acc": "DTYPE", "dtype": "DTYPE", "out": "DTYPE"}
"""Metavars of options; of others it is NAME. Lists have a plural."""
Function = TypeVar("Function", bound=Callable[..., Any])
INPUTS = tuple(word for word in TYPES if word != "f32")


class RenamedOption(click.Option):
    """An option that accepts its old names with a note. Help texts do not show them."""

    def __init__(self, *names: Any, old: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.old = tuple(old)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for name in self.old:
            parser._long_opt[name] = _with_note(parser._long_opt[self.opts[0]], name, self.opts[0])


def _with_note(known: Any, old: str, new: str) -> Any:
    renamed = copy.copy(known)

    def process(value: Any, state: Any) -> None:
        deprecated(old, new)
        known.process(value, state)

    renamed.process = process
    return renamed


class Words(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """One of some words, or a list of them with commas. Types may have other spellings, such as fp16."""

    name = "words"

    def __init__(self, words: Sequence[str], several: bool = False) -> None:
        self.words = tuple(words)
        self.several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        called = param.opts[0] if param else self.name
        found = [type_word(word) for word in str(value).split(",") if word.strip()]
        for word in found:
            if word not in self.words:
                raise unknown_word(called, word, self.words)
        if len(found) > 1 and not self.several:
            raise RequestError(f"{called} {value!a} has {len(found)} values: use one of {', '.join(self.words)}")
        return ",".join(found)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [click.shell_completion.CompletionItem(before + comma + w) for w in self.words if w.startswith(last)]


class FiniteRange(click.FloatRange):
    """A number in a range. nan, which no comparison excludes, and infinity are errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class NonEmptyPath(click.Path):
    """A path, but not an empty text, which would be the current folder. Scripts pass one if a variable is not set."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


SEED = click.IntRange(0, MAX_SEED)
FILE = NonEmptyPath(dir_okay=False)
FOLDER = NonEmptyPath(readable=False)
"""A folder that a command checks later, such as a library."""


def kind_option(
    flag: str, words: Sequence[str], help: str, note: str = "", several: bool = False, **settings: Any
) -> Callable[[Function], Function]:
    """Return an option of a word, or of several with commas, whose help lists the words."""
    listed = f"{help}: {', '.join(words)}." + (f" {note}" if note else "")
    metavar = _METAVARS.get(flag.removeprefix("--"), "NAME") + "S" * several
    return click.option(flag, cls=RenamedOption, type=Words(words, several), metavar=metavar, help=listed, **settings)


_USUAL = {"layout": "tn", "dtype": "f16", "acc": "f32", "out": "as A and B"}


def type_options(
    several: Sequence[str] = (),
    old: dict[str, Sequence[str]] | None = None,
    defaults: dict[str, str] | None = None,
    note: str = "",
) -> tuple[Callable[[Function], Function], ...]:
    """Return --layout, --dtype, --acc and --out, the same for every command.

    `several` names the options that take a list. `old` maps an option to its old flags, and `defaults` to its default. `note`
    ends the help of options without a default; {default} in it stands for the usual value.
    """
    rows = (
        ("layout", LAYOUTS, "A and B in BLAS letters"),
        ("dtype", INPUTS, "Type of A and B"),
        ("acc", ACCUMULATIONS, "Accumulator"),
        ("out", OUTPUTS, "Type of C and D"),
    )
    old, defaults = old or {}, defaults or {}
    return tuple(
        kind_option(
            f"--{name}",
            words,
            help,
            "" if name in defaults else note.format(default=_USUAL[name]),
            name in several,
            old=old.get(name, ()),
            default=defaults.get(name, ""),
            show_default=bool(defaults.get(name)),
        )
        for name, words, help in rows
    )
