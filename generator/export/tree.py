"""The name of an export: every symbol, file and package of it begins with that, so that several live in one program."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator import __version__
from generator.build.toolchain import cutlass_include, templates_folder
from generator.errors import HgemmError, LibraryError, RequestError
from generator.export.enums import with_enums
from generator.export.table_c import Shortlists, pack, table_c, table_h
from generator.store.files import temporary_name, told
from hgemm.dispatch_table import Table
from hgemm.launch_traits import LaunchTraits
from hgemm.library import Library, read_variant
from hgemm.measured import read_sessions
from hgemm.record import SOURCE_NAME

DEFAULT = "hgemm"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_RESERVED = {"std", "int", "char", "float", "double", "struct", "cu", "cuda", "lib"}


def check_name(name: str) -> str:
    """Return a name that C, C++, CMake and file systems take. Raises RequestError for another."""
    if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith("_"):
        raise RequestError(f"prefix {name!a} is no name: use a to z, 0 to 9 and _, such as mylib_gemm")
    return name


def renamed(text: str, name: str) -> str:
    """Return a template's text with the names of an export called `name`: hgemm_run becomes name_run, HGEMM_OK NAME_OK."""
    return text.replace(DEFAULT, name).replace(DEFAULT.upper(), name.upper())


# ==== The kernels as sources ====


_FOR_THE_CPU = "executor/"
"""Headers that the kernels' own include only where a C++ compiler makes them run on the CPU."""
README = """\
Each file of instances/ is one kernel; it includes headers of include/ and, of a CUDA toolkit, cuda_fp16.h and what that needs.

    nvcc -std=c++17 -arch=sm_89 -Iinclude -Iinclude/cute_lean -c instances/SYMBOL.cu

An architecture with a letter, such as sm_90a, is written out. include/cute_lean comes before any other copy of CuTe,
and is left out for kernels with _cute_ in their names, which are made of all of it.
common/problem.cuh is what a kernel takes; launch.json says with how many threads, how much shared memory, and which grid.
"""


def source_files(library: Library, symbols: Iterable[str], templates: Path) -> dict[str, bytes]:
    """Return the files by their paths.

    Raises: LibraryError where a header is not the one a variant was made from, RequestError where a variant is not in C++.
    """
    files = {"README": README.encode()}
    for symbol in symbols:
        variant = read_variant(library.folder, symbol)
        if variant.record.source_name != SOURCE_NAME:
            raise RequestError(
                f'{symbol} is a module of CuTe DSL, which nvcc does not compile: leave it out by --where "not form=dsl"'
            )
        files[f"instances/{symbol}.cu"] = variant.source
        for path, text in _headers(variant.record.data["inputs"], symbol, templates):
            files[f"include/{path}"] = text
    return files


def _headers(inputs: dict[str, str], symbol: str, templates: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the headers that are ours or CUTLASS's; those of the toolkit stay where it is."""
    for name, sha256 in inputs.items():
        if name.startswith(_FOR_THE_CPU):
            continue
        places = ((templates, ""), (templates / "cute_lean", "cute_lean/"), (cutlass_include(), ""))
        here = {place + name: (folder / name).read_bytes() for folder, place in places if (folder / name).is_file()}
        same = [path for path, text in here.items() if hashlib.sha256(text).hexdigest() == sha256]
        if here and not same:
            raise LibraryError(f"{symbol} was made from another {name} than is installed: generate it anew")
        yield from ((path, here[path]) for path in same[:1])


# ==== Builds the exported sources with the host's C compiler ====


SOURCES = ("check", "driver", "errors", "handle", "images", "launch", "select", "table", "unmet")
_FLAGS = (
    "-std=c11",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-Wall",
    "-Wextra",
    "-Iinclude",
)
_LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now", "-Wl,-z,defs")
_EXPORTED = '__attribute__((visibility("default")))'
TIMEOUT_S = 300


def lacking(compiler: str) -> str:
    """Say what is not here of a compiler and the archiver beside it; nothing where both are."""
    if not shutil.which(compiler):
        return f"C compiler {compiler!a}"
    return "" if shutil.which("ar") else "`ar`, which packs libraries,"


def compiler_version(compiler: str) -> str:
    """Return the first line that a compiler says of itself; nothing where something is lacking."""
    if lacking(compiler):
        return ""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    return (done.stdout.splitlines() or [""])[0] if done.returncode == 0 else ""


def build(folder: Path, name: str, compiler: str) -> None:
    """Compile and link lib/lib<name>.a and .so in an exported folder, whose path does not enter them.

    Raises: HgemmError with the compiler's first complaint.
    """
    (folder / "lib").mkdir(exist_ok=True)
    objects = folder / "objects"
    for kind, api in (("a", ""), ("so", _EXPORTED)):
        (objects / kind).mkdir(parents=True)
        defines = [f"-D{name.upper()}_API={api}", f'-D{name.upper()}_IMAGES="src/images.bin"']
        for source in SOURCES:
            _run(folder, compiler, *_FLAGS, *defines, "-c", f"src/{source}.c", "-o", f"objects/{kind}/{source}.o")
    archive, shared = f"lib/lib{name}.a", f"lib/lib{name}.so"
    _run(folder, "ar", "rcsD", archive, *(f"objects/a/{source}.o" for source in SOURCES))
    inputs = [f"objects/so/{source}.o" for source in SOURCES]
    _run(folder, compiler, *_LINK_FLAGS, f"-Wl,-soname,lib{name}.so", "-o", shared, *inputs, "-ldl", "-lpthread")
    shutil.rmtree(objects)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise HgemmError(f"{Path(command[0]).name} fails: {_first_line(done.stderr)}: name another compiler with --cc")


def _first_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it does not say why")


# ==== The whole export: every file of it, its manifest, and its writing, whole or not at all ====


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
    traits = {record["symbol"]: LaunchTraits.of(record) for record in records}
    digest = hashlib.sha256(images.blob + json.dumps(table.to_dict(), sort_keys=True).encode()).hexdigest()
    templates = templates_folder()
    files = _templates(templates / "capi", wish.name)
    shortlists = Shortlists.of(table)
    files["src/table.h"] = renamed(table_h(table, shortlists, f"{__version__} {digest[:8]}"), wish.name).encode()
    files["src/table.c"] = _table_source(table, shortlists, traits, images, wish.name).encode()
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


def _table_source(table: Table, shortlists: Shortlists, traits: dict[str, LaunchTraits], images, name: str) -> str:
    """Return table.c under the export's name; the kernels keep theirs, which are inside their images."""
    lines = table_c(table, shortlists, traits, images).splitlines(keepends=True)
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
