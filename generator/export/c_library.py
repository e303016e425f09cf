"""Export kernels as a C library: headers, sources, built libraries, packages for CMake and pkg-config, and a manifest."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from generator import __version__
from generator.build.toolchain import cutlass_include, templates_folder
from generator.errors import HgemmError, LibraryError, RequestError
from generator.export.blas import blas_files, build_blas
from generator.export.c_sources import Images, epilogues_of, images_of, table_c, table_h, with_enums
from generator.store.files import (
    EXPORT_FORMAT,
    disk_errors,
    exported_files,
    remove_abandoned,
    replace_folder,
    temporary_name,
)
from generator.store.planned import require_planned
from generator.store.proofs import subject_of
from hgemm.dispatch_table import DispatchTable
from hgemm.launch_traits import LaunchTraits
from hgemm.library import EXPORT_MANIFEST, EXPORT_TABLE, Library, read_stored
from hgemm.measured import read_sessions
from hgemm.record import SOURCE_NAME

# ==== The name of an export. All symbols, files and packages begin with it, so that a program can link several. ====


DEFAULT = "hgemm"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_RESERVED = frozenset(
    """std cu cuda lib main linux unix
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const const_cast consteval
    constexpr constinit continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or
    or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile while xor xor_eq""".split()
)
"""Names that other code has, macros of compilers, and the keywords of C++: a prefix is the name of a namespace."""


def check_name(name: str) -> str:
    """Return the name if it is valid in C, C++, CMake and file systems. Raises RequestError otherwise."""
    if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith("_"):
        reason = "is reserved" if name in _RESERVED else "is not a valid name"
        raise RequestError(
            f"prefix {name!a} {reason}: begin with a letter, then use a to z, 0 to 9 and _, at most 32, such as mylib_gemm"
        )
    return name


def renamed(text: str, name: str) -> str:
    """Rename everything in a template: hgemm_run becomes `name`_run, and HGEMM_OK becomes NAME_OK."""
    return text.replace(DEFAULT, name).replace(DEFAULT.upper(), name.upper())


# ==== The sources of the kernels (--source) ====


_CPU_HEADERS = "executor/"
"""Kernels include these headers on the CPU only."""
README = """\
The sources of the kernels, to compile in your own program. Each file in instances/ is one kernel. It includes headers of
include/, and cuda_fp16.h of a CUDA toolkit.

    nvcc -std=c++17 -diag-suppress 177 -gencode arch=compute_89,code=sm_89 -Iinclude/cute_lean -Iinclude -c instances/SYMBOL.cu

Use the exact architecture of the kernel in both places, such as compute_90a and sm_90a. -arch=sm_90a would fail: some versions of
nvcc compile for compute_90, too. Warning 177 names constants that a kernel does not use. include/cute_lean comes first: it replaces
headers of CuTe. Omit it for instances that include a header named cute_*.cuh: they use all of CuTe. To compile the others with the
headers of CuTe, write -ICUTLASS/include instead of -Iinclude/cute_lean.
NVRTC takes the same folders, -I of the CUDA toolkit's include, --gpu-architecture=sm_89, -std=c++17 and -default-device.
include/common/problem.cuh defines the kernel's parameter. launch.json holds its threads, shared memory and grid.
"""


def source_files(library: Library, symbols: Iterable[str], templates: Path) -> dict[str, bytes]:
    """Return the source files by path.

    Raises: LibraryError if a header has changed since a kernel was compiled; RequestError for a kernel that is not C++.
    """
    files = {"README": README.encode()}
    for symbol in symbols:
        stored = read_stored(library.folder, symbol)
        if stored.record.source_name != SOURCE_NAME:
            raise RequestError(
                f'{symbol} is a CuTe DSL module, which nvcc cannot compile: exclude it with --where "not form=dsl"'
            )
        files[f"instances/{symbol}.cu"] = stored.source
        for path, text in _headers(stored.record.data["inputs"], symbol, templates):
            files[f"include/{path}"] = text
    return files


def _headers(inputs: dict[str, str], symbol: str, templates: Path) -> Iterator[tuple[str, bytes]]:
    """Yield our headers and those of CUTLASS. Headers of the CUDA toolkit are not copied."""
    for name, sha256 in inputs.items():
        if name.startswith(_CPU_HEADERS):
            continue
        places = ((templates, ""), (templates / "cute_lean", "cute_lean/"), (cutlass_include(), ""))
        here = {place + name: (folder / name).read_bytes() for folder, place in places if (folder / name).is_file()}
        same = [path for path, text in here.items() if hashlib.sha256(text).hexdigest() == sha256]
        if here and not same:
            raise LibraryError(
                f"{symbol} was compiled with a different {name} than the installed one: generate it again"
            )
        yield from ((path, here[path]) for path in same[:1])


# ==== The C compiler ====


SOURCES = ("check", "driver", "errors", "gemm", "handle", "images", "launch", "select", "table", "unmet", "workspace")
_MAJOR, _MINOR, _PATCH = __version__.split(".")
ABI = _MAJOR if int(_MAJOR) else f"{_MAJOR}.{_MINOR}"
"""The version in the soname. Versions with the same one are compatible; before 1.0, each minor version has its own."""
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


def _command_of(compiler: str) -> list[str]:
    """Return the words of a compiler's command, such as `ccache gcc`. The program's path becomes absolute."""
    try:
        words = [compiler] if shutil.which(compiler) else shlex.split(compiler) or [compiler]
    except ValueError:
        words = [compiler]
    return [os.path.abspath(words[0]) if os.sep in words[0] else words[0], *words[1:]]


def compiler_failure(compiler: str) -> str:
    """Return why the compiler or the archiver `ar` cannot be used, or an empty string."""
    program = _command_of(compiler)[0]
    if not shutil.which(program):
        return f"the C compiler {program!a} is not installed"
    if not shutil.which("ar"):
        return "the archiver `ar` is not installed"
    return "" if compiler_version(compiler) else f"{compiler} --version failed"


def compiler_version(compiler: str) -> str:
    """Return the first line of `compiler --version`, or an empty string if that fails."""
    done = _finished([*_command_of(compiler), "--version"])
    return (done.stdout.splitlines() or [""])[0] if done.returncode == 0 else ""


def build(folder: Path, name: str, compiler: str, blas: bool = False) -> None:
    """Compile and link lib/lib<name>.a and .so.<ABI> in an exported folder. The result is the same in any folder, at any time.

    `blas` adds lib<name>_blas.so, which has the functions of cuBLAS.

    Raises: HgemmError with the compiler's first error.
    """
    (folder / "lib").mkdir(exist_ok=True)
    command = _command_of(compiler)
    objects = folder / "objects"
    for kind, api in (("a", ""), ("so", _EXPORTED)):
        (objects / kind).mkdir(parents=True)
        defines = [f"-D{name.upper()}_API={api}", f'-D{name.upper()}_IMAGES="src/images.bin"']
        for source in SOURCES:
            _run(folder, *command, *_FLAGS, *defines, "-c", f"src/{source}.c", "-o", f"objects/{kind}/{source}.o")
    archive, shared = f"lib/lib{name}.a", f"lib/lib{name}.so.{ABI}"
    _run(folder, "ar", "rcsD", archive, *(f"objects/a/{source}.o" for source in SOURCES))
    inputs = [f"objects/so/{source}.o" for source in SOURCES]
    soname = Path(shared).name  # programs ask for this name when they start
    _run(folder, *command, *_LINK_FLAGS, f"-Wl,-soname,{soname}", "-o", shared, *inputs, "-ldl", "-lpthread")
    link = folder / "lib" / f"lib{name}.so"
    link.unlink(missing_ok=True)  # of an earlier build in this folder
    link.symlink_to(soname)
    shutil.rmtree(objects)
    if blas:
        build_blas(folder, name, _FLAGS, _run, command)


def _finished(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises: HgemmError if it does not start or takes too long."""
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HgemmError(f"{command[0]} does not run ({error}): choose another compiler with --cc") from error


def _run(folder: Path, *command: str) -> None:
    done = _finished(command, folder)
    if done.returncode:
        fix = "choose another compiler with --cc"
        if any(word in done.stderr for word in _DISK_IS_FULL):
            fix = "free some space on its disk, or on that of TMPDIR"
        raise HgemmError(f"{Path(command[0]).name} failed: {_first_error(done.stderr)}: {fix}")


_DISK_IS_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "unable to copy file")
"""Words of compilers and of `ar`."""


def _first_error(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no error message")


# ==== The export ====


BATCH_INVARIANT = 1
"""HGEMM_BATCH_INVARIANT of hgemm.h."""
_DESTINATIONS = {
    "include/hgemm.h.in": "include/{name}.h",
    "include/hgemm.hpp": "include/{name}.hpp",
    "cmake/hgemm-config.cmake": "lib/cmake/{name}/{name}-config.cmake",
    "cmake/hgemm-config-version.cmake": "lib/cmake/{name}/{name}-config-version.cmake",
    "hgemm.pc": "lib/pkgconfig/{name}.pc",
    "CMakeLists.txt": "CMakeLists.txt",
}
"""Destinations of the templates outside src/."""


@dataclass(frozen=True)
class ExportOptions:
    """The kernels to export, and the options of the export.

    Fields: `name` is the prefix of all symbols; `sources` adds the kernels' sources; `compressed` packs code as compressed fat
        binaries; `invariant` makes all products of the library batch-invariant; `blas` adds a library with the functions of cuBLAS.
    """

    symbols: Sequence[str]
    name: str = "hgemm"
    sources: bool = False
    compressed: bool = True
    compiler: str = "cc"
    invariant: bool = False
    blas: bool = False


@dataclass(frozen=True)
class Export:
    """The result of an export. Fields: `compiler` is the version of the compiler, empty if nothing was built."""

    folder: Path
    name: str
    kernels: int
    archs: tuple[str, ...]
    image_bytes: int
    compiler: str


def export(library: Library, to: Path, options: ExportOptions) -> Export:
    """Write an export to the folder `to`. An older export there is replaced whole.

    Raises: RequestError for an invalid name, or a folder with files that no export wrote; LibraryError for damaged kernels;
        HgemmError if the compiler fails.
    """
    check_name(options.name)
    _check_place(to)
    for symbol in options.symbols:
        require_planned(library.records[symbol], library.folder / symbol)
    records = [library.records[symbol].data for symbol in options.symbols]
    table = DispatchTable.of(records, read_sessions(library.folder))
    images = images_of(library, (row.symbol for row in table.rows), options.compressed)
    traits = {record["symbol"]: LaunchTraits.of(record) for record in records}
    hashed = hashlib.sha256(images.blob)
    hashed.update(json.dumps(table.to_dict(), sort_keys=True).encode())
    digest = hashed.hexdigest()
    templates = templates_folder()
    files = _templates(templates / "capi", options.name)
    version = f"{__version__} {digest[:8]}"
    flags, epilogues = BATCH_INVARIANT if options.invariant else 0, len(epilogues_of(traits.values()))
    table_header = table_h(table, version, flags, epilogues)
    files["src/table.h"] = renamed(table_header, options.name).encode()
    files["src/table.c"] = _table_source(table, traits, images, options.name).encode()
    files["src/images.bin"] = images.blob
    files[EXPORT_TABLE] = _json(table.to_dict())
    if options.sources:
        files.update(_kernel_sources(library, options.symbols, templates))
    compiler = "" if compiler_failure(options.compiler) else compiler_version(options.compiler)
    if options.blas and not compiler:
        raise RequestError(f"--blas needs a C compiler, and {options.compiler} does not run: choose another with --cc")
    archs = tuple(sorted({record["arch"] for record in records}))
    if options.blas:
        files.update(blas_files(templates, archs, options.compressed, lambda text: renamed(text, options.name)))
    manifest = {
        "format": EXPORT_FORMAT,
        "name": options.name,
        "version": __version__,
        "archs": archs,
        "compiler": compiler,
        "keys": {record["symbol"]: record["key"] for record in records},
        "kernels": {record["symbol"]: subject_of(record) for record in records},
    }
    with disk_errors("write", to, "--to"):
        _write(to, files, manifest, options)
    return Export(to, options.name, len(table.rows), archs, len(images.blob), compiler)


def _templates(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files that come from templates, renamed."""
    sources = sorted(f"src/{path.name}" for path in (folder / "src").iterdir())
    places = {**{source: source for source in sources}, **_DESTINATIONS}
    texts = {place.format(name=name): (folder / path).read_text(encoding="utf-8") for path, place in places.items()}
    words = {
        **{"@VERSION@": __version__, "@ABI@": ABI, "@MAJOR@": _MAJOR, "@MINOR@": _MINOR, "@PATCH@": _PATCH},
        "@SOURCES@": " ".join(f"{source}.c" for source in SOURCES),
    }
    return {place: _filled(renamed(with_enums(text), name), words).encode() for place, text in texts.items()}


def _filled(text: str, words: dict[str, str]) -> str:
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    return text


def _table_source(table: DispatchTable, traits: dict[str, LaunchTraits], images: Images, name: str) -> str:
    """Return table.c, renamed except for the kernels, whose symbols are inside the images, and for epilogues."""
    lines = table_c(table, traits, images).splitlines(keepends=True)
    return "".join(line if _STATIC.match(line) else renamed(line, name) for line in lines)


_STATIC = re.compile(r' {4}\{"(hgemm_|[0-9a-f]{8}")')


def _kernel_sources(library: Library, symbols: Sequence[str], templates: Path) -> dict[str, bytes]:
    files = {f"source/{path}": text for path, text in source_files(library, symbols, templates).items()}
    launches = {symbol: library.records[symbol].data["launch"] for symbol in symbols}
    return {**files, "source/launch.json": _json(launches)}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


# ---- Writing --------------------------------------------------------------------------------------------------------


def _check_place(to: Path) -> None:
    if to.is_symlink() or (to.exists() and not to.is_dir()):
        raise RequestError(f"{to} is not a folder: choose another one with --to")
    if not to.is_dir() or not any(to.iterdir()):
        return
    listed = exported_files(to)
    if listed is None:
        raise RequestError(
            f"{to} has files but no {EXPORT_MANIFEST} of an export, so nothing is replaced: choose another folder with --to"
        )
    others = sorted(_others(to, listed))
    if others:
        more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
        raise RequestError(
            f"{to} contains {', '.join(others[:_MAX_NAMED])}{more}, which its {EXPORT_MANIFEST} does not list: an export replaces "
            "its own files only; move the others out, or choose another folder with --to"
        )


_MAX_NAMED = 5


def _others(to: Path, listed: frozenset[str]) -> Iterator[str]:
    """Yield the files and folders of an export that its manifest does not list. A folder stands for all that it contains."""
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    for place, below, files in os.walk(to):
        relative = {name: (Path(place) / name).relative_to(to).as_posix() for name in (*below, *files)}
        ours = [name for name in below if relative[name] in folders and not (Path(place) / name).is_symlink()]
        yield from (f"{relative[name]}/" for name in below if name not in ours)
        yield from (relative[name] for name in files if relative[name] not in listed)
        below[:] = ours


def _write(to: Path, files: dict[str, bytes], manifest: dict, options: ExportOptions) -> None:
    """Fill a temporary folder beside `to`, then exchange the two in one step. An old export is deleted last.

    Folders that killed exports left beside `to` are deleted first.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(to.parent)
    temporary = to.parent / temporary_name()
    try:
        for path, content in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_bytes(content)
        if manifest["compiler"]:
            build(temporary, options.name, options.compiler, options.blas)
        (temporary / EXPORT_MANIFEST).write_bytes(_json({**manifest, "files": _hashes(temporary)}))
        _check_place(to)  # the compiler took seconds, in which files may have been added
        replace_folder(temporary, to)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _hashes(folder: Path) -> dict[str, dict[str, str | int]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _described(path) for path in paths}


def _described(path: Path) -> dict[str, str | int]:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            hashed.update(part)
    return {"sha256": hashed.hexdigest(), "bytes": path.stat().st_size}


_PART_BYTES = 2**20
