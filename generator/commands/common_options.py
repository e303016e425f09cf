"""Options that several verbs share, so that they are spelt and explained the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from hgemm.advice import DEFAULT_LIBRARY
from hgemm.problem import MAX_EXTENT

Function = TypeVar("Function", bound=Callable[..., Any])

library_option = click.option(
    "--library",
    type=click.Path(readable=False, path_type=Path),
    default=DEFAULT_LIBRARY,
    envvar="HGEMM_LIBRARY",
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="The library's folder.",
)
SIZE = click.IntRange(1, MAX_EXTENT)
"""Of m, n, k or batch."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")


class Symbol(click.ParamType):
    """A variant's symbol or a glob; a shell completes it from the library's index."""

    name = "symbol"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from generator.store.library import Library
        from generator.store.selection import Selection, select_rows

        folder = ctx.params.get("library")
        rows = select_rows(Library(folder), Selection(kernels=f"{incomplete}*")) if folder and folder.is_dir() else []
        return [CompletionItem(str(row["symbol"])) for row in rows]


class Fields(click.ParamType):
    """Names of fields, with commas between them, or `-` before one; a shell completes the last."""

    name = "fields"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from generator.store.fields import FIELDS

        begun = re.match(r"(?:.*,)?-?", incomplete).group()  # matches any text
        last = incomplete.removeprefix(begun)
        return [CompletionItem(begun + name) for name in sorted(FIELDS) if name.startswith(last)]


_FILTERS = (
    click.option("--arch", default="", metavar="ARCHS", help="Architectures, each as written: 89, or 90,90a."),
    click.option("--tile", default="", metavar="TILES", help="CTA tiles: 128x128x32,256x128 (any K)."),
    click.option("--layout", default="", metavar="LAYOUTS", help="Layouts: tn,nn,nt,tt."),
    click.option("--kernels", default="", metavar="GLOBS", help="Names or aliases: '*128x128x32*,*_nn_*'."),
    click.option("--where", default="", metavar="EXPR", help="A condition: \"registers<=128 and layout='tn'\"."),
)


def filter_options(function: Function) -> Function:
    """Add --arch, --tile, --layout, --kernels and --where, named as the fields of Selection."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


_KIND = (
    click.option("--layout", default="tn", show_default=True, metavar="LAYOUT", help="Of A and B: tn, nn, nt, tt."),
    click.option("--dtype-a", default="f16", show_default=True, metavar="TYPE", help="Of A: f16, bf16, tf32."),
    click.option("--dtype-b", default="f16", show_default=True, metavar="TYPE", help="Of B."),
    click.option("--dtype-d", default="f16", show_default=True, metavar="TYPE", help="Of C and D: f16, bf16, f32."),
    click.option("--acc", default="f32", show_default=True, metavar="TYPE", help="The least exact accumulation."),
    click.option("--bias", default="none", show_default=True, metavar="KIND", help="none, row, column."),
    click.option("--activation", default="none", show_default=True, metavar="NAME", help="none, relu, gelu, silu."),
)


def kind_options(function: Function) -> Function:
    """Add the options that say what kind of product is wanted, named as the fields of Kind."""
    for option in reversed(_KIND):
        function = option(function)
    return function
