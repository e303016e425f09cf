"""The whole export: every file of it, its manifest, and its writing, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator import __version__
from generator.errors import RequestError
from generator.export.build import SOURCES, build, compiler_version
from generator.export.enums import with_enums
from generator.export.images import pack
from generator.export.names import check_name, renamed
from generator.export.source_form import source_files
from generator.export.table_c import Shortlists, table_c, table_h
from generator.store.disk import told
from generator.store.whole import temporary_name
from generator.toolchain import templates_folder
from hgemm.facts import Facts
from hgemm.library import Library
from hgemm.measured.session import read_sessions
from hgemm.table import Table

MANIFEST = "MANIFEST.json"
FORMAT = 1
_PLACES = {
    "include/hgemm.h.in": "include/{name}.h",
    "include/hgemm.hpp": "include/{name}.hpp",
    "cmake/hgemm-config.cmake": "lib/cmake/{name}/{name}-config.cmake",
    "cmake/hgemm-config-version.cmake": "lib/cmake/{name}/{name}-config-version.cmake",
    "hgemm.pc": "lib/pkgconfig/{name}.pc",
    "CMakeLists.txt": "CMakeLists.txt",
}
"""Where the templates that are not sources of the library go."""


@dataclass(frozen=True)
class Wish:
    """What is exported, and how."""

    symbols: Sequence[str]
    name: str = "hgemm"
    sources: bool = False
    compressed: bool = True
    compiler: str = "cc"


@dataclass(frozen=True)
class Export:
    """What was exported. Fields: `compiler` is what built the libraries, empty where there was none."""

    folder: Path
    name: str
    variants: int
    archs: tuple[str, ...]
    image_bytes: int
    compiler: str


def export(library: Library, to: Path, wish: Wish) -> Export:
    """Write an export to the folder `to`, replacing an older export there.

    Raises: RequestError for a name that is none, or a folder that holds something else; LibraryError for a variant that
        cannot be trusted; HgemmError where a compiler fails.
    """
    check_name(wish.name)
    _check_place(to)
    records = [library.records[symbol].data for symbol in wish.symbols]
    table = Table.of(records, read_sessions(library.folder))
    images = pack(library, (row.symbol for row in table.rows), wish.compressed)
    facts = {record["symbol"]: Facts.of(record) for record in records}
    digest = hashlib.sha256(images.blob + json.dumps(table.to_dict(), sort_keys=True).encode()).hexdigest()
    templates = templates_folder()
    files = _templates(templates / "capi", wish.name)
    shortlists = Shortlists.of(table)
    files["src/table.h"] = renamed(table_h(table, shortlists, f"{__version__} {digest[:8]}"), wish.name).encode()
    files["src/table.c"] = _table_source(table, shortlists, facts, images, wish.name).encode()
    files["src/images.bin"] = images.blob
    files["table.json"] = _json(table.to_dict())
    if wish.sources:
        files.update(_source_form(library, wish.symbols, templates))
    compiler = compiler_version(wish.compiler)
    archs = tuple(sorted({record["arch"] for record in records}))
    about = {
        "format": FORMAT,
        "name": wish.name,
        "version": __version__,
        "archs": archs,
        "compiler": compiler,
        "variants": {record["symbol"]: record["key"] for record in records},
    }
    with told("write", to, "--to"):
        _write(to, files, about, wish)
    return Export(to, wish.name, len(table.rows), archs, len(images.blob), compiler)


def _templates(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files that are the same for all libraries, under the export's name."""
    sources = sorted(f"src/{path.name}" for path in (folder / "src").iterdir())
    places = {**{source: source for source in sources}, **_PLACES}
    texts = {place.format(name=name): (folder / path).read_text(encoding="utf-8") for path, place in places.items()}
    words = {"@VERSION@": __version__, "@SOURCES@": " ".join(f"{source}.c" for source in SOURCES)}
    return {place: _filled(renamed(with_enums(text), name), words).encode() for place, text in texts.items()}


def _filled(text: str, words: dict[str, str]) -> str:
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    return text


def _table_source(table: Table, shortlists: Shortlists, facts: dict[str, Facts], images, name: str) -> str:
    """Return table.c under the export's name; the kernels keep theirs, which are inside their images."""
    lines = table_c(table, shortlists, facts, images).splitlines(keepends=True)
    return "".join(line if line.startswith('    {"hgemm_') else renamed(line, name) for line in lines)


def _source_form(library: Library, symbols: Sequence[str], templates: Path) -> dict[str, bytes]:
    files = {f"source/{path}": text for path, text in source_files(library, symbols, templates).items()}
    launches = {symbol: library.records[symbol].data["launch"] for symbol in symbols}
    return {**files, "source/launch.json": _json(launches)}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


# ---- Writing --------------------------------------------------------------------------------------------------------


def _check_place(to: Path) -> None:
    if to.is_symlink() or (to.exists() and not to.is_dir()):
        raise RequestError(f"{to} is no folder: name another with --to")
    if to.is_dir() and any(to.iterdir()) and not (to / MANIFEST).is_file():
        raise RequestError(f"{to} holds files that are no export (no {MANIFEST}): name another with --to")


def _write(to: Path, files: dict[str, bytes], about: dict, wish: Wish) -> None:
    """Fill a folder beside `to` and rename it; what stood there goes only then."""
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.parent / temporary_name()
    try:
        for path, content in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_bytes(content)
        if about["compiler"]:
            build(temporary, wish.name, wish.compiler)
        (temporary / MANIFEST).write_bytes(_json({**about, "files": _hashes(temporary)}))
        if to.exists():
            aside = to.parent / temporary_name()
            os.rename(to, aside)
            os.rename(temporary, to)
            shutil.rmtree(aside)
        else:
            os.rename(temporary, to)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _hashes(folder: Path) -> dict[str, dict[str, str | int]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)} for name, text in found.items()}
