"""Choosing variants of a library: what the filters of the command line say, as one condition."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from generator.arch import ARCHS, parse_arch_list
from generator.errors import LibraryError, RequestError, nearest, unknown
from generator.store.conditions import Compare, Every, Like, Literal, Node, Some, any_like
from generator.store.fields import known_fields
from generator.store.library import Library
from generator.store.where import check_field, parse_where
from hgemm.advice import on
from hgemm.record import RECORD_NAME, SOURCE_NAME, Scalar
from hgemm.variants import is_symbol

LAYOUTS = ("tn", "nn", "nt", "tt")
NAME_FIELDS = ("symbol", "alias")
_TILE = re.compile(r"[0-9]{1,5}x[0-9]{1,5}(x[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True)
class Selection:
    """The filters as they were written; an empty one chooses everything."""

    arch: str = ""
    tile: str = ""
    layout: str = ""
    kernels: str = ""
    where: str = ""


def condition_of(selection: Selection, known: Collection[str] | None = None) -> Node:
    """Return the condition that all filters of a selection state together.

    Raises: RequestError where a filter is malformed or names a field that is not `known`.
    """
    items: list[Node] = []
    if selection.arch:
        items.append(_one_of("arch", parse_arch_list(selection.arch)))
    if selection.tile:
        items.append(Some(tuple(_tile(word) for word in _words(selection.tile))))
    if selection.layout:
        items.append(_one_of("layout", tuple(_layout(word) for word in _words(selection.layout))))
    if selection.kernels:
        items.append(any_like(NAME_FIELDS, _words(selection.kernels)))
    if selection.where.strip():
        items.append(parse_where(selection.where, known))
    return Every(tuple(items))


def select_rows(library: Library, selection: Selection, sort: str = "symbol") -> list[dict[str, Scalar]]:
    """Return the flat records of a selection, sorted by a field, or downwards by `-field`.

    Raises: RequestError for a malformed filter or an unknown field, LibraryError where the library cannot be read.
    """
    known = known_fields(library) if selection.where.strip() or sort != "symbol" else None
    rows = library.rows(condition_of(selection, known))
    if sort == "symbol":
        return rows
    field = check_field(sort.lstrip("-"), known, "--sort")
    present = [row for row in rows if field in row]
    present.sort(key=lambda row: _sort_key(row[field]), reverse=sort.startswith("-"))
    return present + [row for row in rows if field not in row]


def choose(library: Library, names: Collection[str], selection: Selection) -> list[str]:
    """Return the symbols that a selection and, where there are any, names (as `resolve` reads them) both choose.

    Raises: RequestError for what is malformed or names nothing, LibraryError where nothing is left.
    """
    chosen = _chosen(library, names, selection)
    if not chosen:
        raise nothing_matches(library)
    return chosen


def nothing_matches(library: Library) -> LibraryError:
    """Return the error of a selection that chooses nothing: the filters are to change, or the library is empty."""
    made = f"`generate --catalog{on(library.folder)}` makes the shipped ones"
    if library.rows():
        shown = f"`hgemm list{on(library.folder)}` shows those that are"
        return LibraryError(f"no variant in {library.folder} matches: {shown}, {made}")
    return LibraryError(f"{library.folder} has no variants: {made}")


def left_out(library: Library, names: Collection[str], selection: Selection) -> dict[str, int]:
    """Count by architecture the variants that --arch alone keeps out, though GPUs that it names run them: 90, not 90a.

    Raises: RequestError and LibraryError as `choose` does for what is malformed.
    """
    asked = parse_arch_list(selection.arch) if selection.arch else ()
    kin = {
        arch.name for arch in ARCHS.values() if arch.suffix and arch.name not in asked and f"sm_{arch.number}" in asked
    }
    counts = {arch: len(_chosen(library, names, replace(selection, arch=arch))) for arch in sorted(kin)}
    return {arch: count for arch, count in counts.items() if count}


def _chosen(library: Library, names: Collection[str], selection: Selection) -> list[str]:
    rows = [str(row["symbol"]) for row in select_rows(library, selection)]
    named = {symbol for name in names for symbol in resolve(library, name)}
    return [symbol for symbol in rows if not names or symbol in named]


def resolve(library: Library, name: str) -> list[str]:
    """Return the symbols that a symbol, an alias, a unique beginning of either, or a glob names.

    Raises: RequestError where it names none, or a beginning names several.
    """
    found = _exactly(library, name)
    begun = [] if found else _begun(library, name)
    if len(begun) > 1:
        raise RequestError(f"{name!a} begins {_several(begun)}: write more of it, or '{name}*' for all")
    return found or begun or _none(library, name)


def resolve_one(library: Library, name: str) -> str:
    """Return the symbol that a symbol, an alias, a beginning of either, or a glob names.

    Raises: RequestError where it names none, or several.
    """
    found = _exactly(library, name) or _begun(library, name) or _none(library, name)
    if len(found) > 1:
        raise RequestError(f"{name!a} names {_several(found)}: write more of one")
    return found[0]


def _exactly(library: Library, name: str) -> list[str]:
    return [name] if is_symbol(name) and library.get(name, verify=False) else _symbols(library, name)


def _begun(library: Library, name: str) -> list[str]:
    return [] if "*" in name or "?" in name else _symbols(library, name + "*")


def _several(symbols: list[str]) -> str:
    return f"{len(symbols)} variants ({', '.join(symbols[:3])}{', ...' if len(symbols) > 3 else ''})"


def _symbols(library: Library, pattern: str) -> list[str]:
    return [str(row["symbol"]) for row in library.rows(any_like(NAME_FIELDS, (pattern,)))]


def _none(library: Library, name: str) -> list[str]:
    inside = f"*{name.strip('*')}*"
    if _symbols(library, inside):
        raise RequestError(f"no variant in {library.folder} begins with {name!a}: did you mean '{inside}'?")
    symbols = [str(row["symbol"]) for row in library.rows()]
    near = nearest(name, symbols, cutoff=0.3)
    named = [path.parent for path in library.folder.glob(f"*/{SOURCE_NAME}") if path.parent.name.startswith(name)]
    texts = sorted(path.name for path in named if not (path / RECORD_NAME).exists())
    if texts:
        told = f"of {texts[0]} only the text is there, which `generate --catalog{on(library.folder)}` compiles"
        raise RequestError(f"no variant in {library.folder} is named {name!a}: {told}")
    hint = f"did you mean {near[0]}?" if near else f"`hgemm list{on(library.folder)}` shows those that are"
    raise RequestError(f"no variant in {library.folder} is named {name!a}: {hint}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one_of(field: str, texts: tuple[str, ...]) -> Node:
    return Some(tuple(Compare(field, "=", Literal(text)) for text in texts))


def _layout(word: str) -> str:
    if word.lower() not in LAYOUTS:
        raise unknown("layout", word, LAYOUTS)
    return word.lower()


def _tile(word: str) -> Node:
    match = _TILE.fullmatch(word.lower())
    if not match:
        raise RequestError(f"tile {word!a} is malformed: write it as MxNxK, such as 128x128x32, or MxN for any K")
    return Like("cta_tile", word.lower() if match[1] else word.lower() + "x*")


def _sort_key(value: Scalar) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
