"""Options that several verbs share: filters, kinds of products, and the fields of a spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from generator import epilogue
from generator.spec import BY_NAME, SPEC_OPTIONS, SpecOption, Texts, flag_meant_by
from hgemm.dtypes import stored_dtype
from hgemm.errors import LibraryError
from hgemm.locations import LIBRARY_VARIABLE, default_library
from hgemm.options import FILE, FOLDER, RenamedOption, kind_option, type_options
from hgemm.problem import ACTIVATIONS, BIASES, MAX_EXTENT, Kind
from hgemm.record import RENAMED_FIELDS

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class LibraryOption(click.Option):
    """An option whose help shows the default library of this user."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        with suppress(LibraryError):
            return super().get_default(ctx, True)
        return super().get_default(ctx, call)


_LIBRARY: dict[str, Any] = {
    "cls": LibraryOption,
    "type": FOLDER,
    "default": default_library,
    "envvar": LIBRARY_VARIABLE,
    "show_default": True,
    "show_envvar": True,
    "metavar": "DIR",
    "help": "The library's folder.",
}
library_option = click.option("--library", **_LIBRARY)
output_library_option = click.option("-o", "--library", **_LIBRARY)
"""--library of a command that writes it."""
SIZE = click.IntRange(1, MAX_EXTENT)
"""Of m, n, k or batch."""
SMS = click.IntRange(1, 1024)
"""Of a GPU. The largest ones have fewer than 200 (`hgemm.gpus.TYPICAL`); the cost model is not meant for far larger ones."""


class Extents(click.ParamType):
    """One number or several, as a tuple: 4096, 1,37,777 or 1024:4096:256. Each is at least `low`."""

    name = "range"

    def __init__(self, low: int = 1) -> None:
        self._each = click.IntRange(low, MAX_EXTENT)

    def convert(self, value: str, param: click.Parameter, ctx: click.Context) -> tuple[int, ...]:
        from hgemm.bench.work import numbers  # takes 0.1 s, and is needed only here

        return tuple(self._each.convert(number, param, ctx) for number in numbers(value, param.name))


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")


class Symbol(click.ParamType):
    """The name of a kernel. A shell completes it from the library's index."""

    name = "symbol"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from generator.store.library import Library
        from generator.store.query import KernelFilter, select_rows

        folder = ctx.params.get("library")
        rows = (
            select_rows(Library(folder), KernelFilter(kernels=f"{incomplete}*")) if folder and folder.is_dir() else []
        )
        return [CompletionItem(str(row["symbol"])) for row in rows]


class Fields(click.ParamType):
    """Names of fields, separated by commas, or one with `-` before it. A shell completes the last."""

    name = "fields"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from generator.store.query import FIELDS

        begun = re.match(r"(?:.*,)?-?", incomplete).group()  # matches any text
        last = incomplete.removeprefix(begun)
        return [CompletionItem(begun + name) for name in sorted(FIELDS) if name.startswith(last)]


_KERNEL_CHOICE = (
    click.option("--arch", default="", metavar="ARCHS", help="Architectures of the kernels: 89, or 90,90a."),
    click.option("--tile", default="", metavar="TILES", help="CTA tiles: 128x128x32,256x128 (any K)."),
    click.option("--kernels", default="", metavar="NAMES", help="Symbols, prefixes, hashes or globs: '*128x128x32*'."),
    click.option("--where", default="", metavar="EXPR", help="A condition: \"registers<=128 and layout='tn'\"."),
)
_KINDS = type_options(several=("layout", "dtype", "acc", "out"))
_EPILOGUE = click.option(
    "--epilogue",
    default="",
    metavar="FORMULA",
    callback=lambda context, option, text: epilogue.resolved(text, Path()),
    help="Kernels of this expression: a formula, FILE.py:FUNCTION, its hash, or none.",
)


def kernel_options(function: AnyFunction) -> AnyFunction:
    """Add --arch, --tile, --kernels and --where, named as the fields of KernelFilter."""
    return _with(function, _KERNEL_CHOICE)


def filter_options(function: AnyFunction) -> AnyFunction:
    """Add the options of `kernel_options`, --layout, --dtype, --acc, --out and --epilogue, named as the fields of KernelFilter."""
    return _with(function, (*_KERNEL_CHOICE[:2], *_KINDS, *_KERNEL_CHOICE[2:], _EPILOGUE))


def _with(function: AnyFunction, options: Sequence[Callable[[AnyFunction], AnyFunction]]) -> AnyFunction:
    for option in reversed(options):
        function = option(function)
    return function


_KIND = (
    *type_options(
        old={"dtype": ("--dtype-a", "--dtype-b"), "out": ("--dtype-d",)},
        defaults={"layout": "tn", "dtype": "f16", "acc": "f32"},
        note="Default: as A and B; f32 with tf32.",
    ),
    kind_option("--bias", BIASES, "Bias", default="none", show_default=True),
    kind_option("--activation", ACTIVATIONS, "Activation", default="none", show_default=True),
)


def kind_options(function: AnyFunction) -> AnyFunction:
    """Add the options that `kind_from` reads."""
    return _with(function, _KIND)


def kind_from(layout: str, dtype: str, acc: str, out: str, bias: str, activation: str) -> Kind:
    """Return the kind of a product that the options name."""
    return Kind(layout, dtype, dtype, out or stored_dtype(dtype), acc, bias, activation)


# ==== The options of a spec for click ====


class WordList(click.ParamType):
    """Words separated by commas, which the spec parses. `complete` returns the words that begin so, for a shell."""

    name = "words"

    def __init__(self, complete: Callable[[str], Iterable[str]]) -> None:
        self._complete = complete

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in self._complete(last)]


class GroupedCommand(click.Command):
    """A command whose help lists options by the `group` of `grouped_option`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = flag_meant_by(error.option_name)
            if not meant:
                raise
            message = f"No such option '{error.option_name}'. Did you mean '{meant}'?"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                groups.setdefault(getattr(param, "group", "Options"), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def grouped_option(group: str, decorator: Callable[[AnyFunction], AnyFunction]) -> Callable[[AnyFunction], AnyFunction]:
    """List the option that `decorator` adds under `group`."""

    def decorate(function: AnyFunction) -> AnyFunction:
        decorated = decorator(function)
        decorated.__click_params__[-1].group = group
        return decorated

    return decorate


def spec_options(function: AnyFunction) -> AnyFunction:
    """Add --spec and an option for each field of a spec."""
    spec_file = click.option(
        "--spec",
        "spec_file",
        type=FILE,
        metavar="FILE",
        help="Read these options from a TOML file. Options of the command line override it.",
    )
    function = grouped_option("Target", spec_file)(function)
    for option in reversed(SPEC_OPTIONS):
        function = grouped_option(option.group, _click_option(option))(function)
    return function


_OLD_FLAGS = {"out": ("--dtype-d",), **{new: (f"--{old}",) for old, new in RENAMED_FIELDS.items()}}


def _click_option(option: SpecOption) -> Callable[[AnyFunction], AnyFunction]:
    words = WordList(lambda begun: (word for word in option.words if word.startswith(begun)))
    old = _OLD_FLAGS.get(option.name, ())
    settings = {"type": words, "metavar": option.metavar, "help": option.help}
    return list_option(option.flag, option.name, cls=RenamedOption, old=old, **settings)


def list_option(*names: str, **settings: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Return an option whose value is a list with commas. Giving it again adds to the list."""
    return click.option(*names, multiple=True, callback=_joined, **settings)


def _joined(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> str | None:
    return ",".join(texts) if texts else None


def texts_of(options: dict[str, Any]) -> Texts:
    """Return the texts of the options of a spec."""
    return {name: text for name, text in options.items() if name in BY_NAME and text is not None}


# ==== The cost model: which card, which problem ====

_MODEL_GROUP = "Model"
_MODEL_OPTIONS = (
    click.option("--m", type=SIZE, metavar="N", help="Rows of A and D. Adds the time of this problem to the answer."),
    click.option("--n", type=SIZE, metavar="N", help="Columns of B and D. Default: equal to --m."),
    click.option("--k", type=SIZE, metavar="N", help="Columns of A, rows of B. Default: equal to --m."),
    click.option("--batch", type=SIZE, metavar="N", help="Number of products. Default: 1."),
    click.option(
        "--device",
        default="",
        metavar="NAME",
        help="Card: H200, 'RTX 4090'. Default: the card that --arch names, or the usual one of the architecture.",
    ),
    click.option("--sms", type=SMS, metavar="N", help="SMs of the card. Default: as in its table."),
)


def model_options(function: AnyFunction) -> AnyFunction:
    """Add the options of a question, which `Question.of` reads."""
    for option in reversed(_MODEL_OPTIONS):
        function = grouped_option(_MODEL_GROUP, option)(function)
    return function
