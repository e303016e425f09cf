"""Kernels run on the CPU: the very text that the device's compiler gets, judged instruction by instruction."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generator.build.toolchain import cuda_include, cutlass_include, in_whole_cute, version_of
from generator.errors import BuildError, HgemmError, first_error
from generator.store.files import disk_errors, temporary_name
from hgemm.disk import TEMPORARY, is_stale
from hgemm.errors import DeviceError

COSTS_CASE = "costs of a k-tile"
"""The check after those of the shapes: what a k-tile costs is as planned."""


# ==== The C interface of an executable variant, templates/executor/abi.h, and what it reports ====


ABI_VERSION = 1
TIMINGS = ("late", "early", "any_time")
"""When asynchronous copies land, as enum hgemm_timing counts them."""
ORDERS = ("round_robin", "ahead_low", "ahead_high", "any_order")
"""Which warp goes next, as enum hgemm_order counts them."""
READABLE, WRITABLE, WRITE_ONCE, INITIALISED, PADDING_READABLE, MATRIX_READABLE = 1, 2, 4, 8, 16, 32
TENSOR_MAP_MAGIC = 0x70616D74
_EMULATED, _TOO_LONG = 0, 2
_REPORT_BYTES = 1 << 20


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("rows", "row_bytes", "pitch_bytes", "batches", "batch_stride_bytes")),
        ("element_bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class TensorMap(ctypes.Structure):
    """struct hgemm_tensor_map: what the 128 bytes of a CUtensorMap are to the host."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("extent", ctypes.c_uint64 * 5),
        ("stride_bytes", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5),
        *((name, ctypes.c_uint32) for name in ("rank", "element_bytes", "swizzle", "magic")),
        ("reserved", ctypes.c_uint32 * 3),
    ]


class _Emulation(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        *((n, ctypes.c_uint32) for n in ("threads", "shared_bytes", "registers", "resident_ctas", "timing", "order")),
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("parameter_count", ctypes.c_uint32),
        ("region_count", ctypes.c_uint32),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("parameter_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("regions", ctypes.POINTER(_Region)),
    ]


@dataclass(frozen=True)
class Region:
    """Global memory that belongs to one object; see struct hgemm_region. Units: bytes."""

    name: str
    base: int
    rows: int
    row_bytes: int
    pitch_bytes: int
    batches: int
    batch_stride_bytes: int
    element_bytes: int
    flags: int

    def structure(self) -> _Region:
        values = [getattr(self, name) for name, _ in _Region._fields_[1:]]
        return _Region(self.name.encode(), *values)


@dataclass(frozen=True)
class Adversary:
    """How whatever the program leaves open is decided in one launch; the same adversary replays the same run."""

    timing: str
    order: str
    seed: int

    def __str__(self) -> str:
        return f"{self.timing}, {self.order}, seed {self.seed}"


@dataclass(frozen=True)
class Launch:
    """One launch: CTAs along x, their threads and shared memory, what is passed by value, and the memory it may touch."""

    grid_x: int
    cluster_ctas: int
    threads: int
    smem_bytes: int
    parameters: tuple[bytes, ...]
    regions: tuple[Region, ...]
    resident_ctas: int
    step_limit: int


@dataclass(frozen=True)
class Finding:
    """Something that a kernel must not do: its kind as templates/executor/abi.h lists them, and the first place."""

    kind: str
    count: int
    message: str
    file: str
    line: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind} at {self.file}:{self.line}: {self.message}{times}"


@dataclass(frozen=True)
class Site:
    """What one source line cost, summed over all its warp instructions."""

    file: str
    line: int
    kind: str
    space: str
    requests: int
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """What one launch did: nothing found means that it is clean."""

    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    counters: dict[str, int]


class Executable:
    """A variant that runs on the CPU: a shared object that was built for it."""

    def __init__(self, path: Path) -> None:
        self._emulate = ctypes.CDLL(str(path)).hgemm_emulate
        self._emulate.argtypes = [ctypes.POINTER(_Emulation), ctypes.c_char_p, ctypes.c_size_t]

    def run(self, launch: Launch, adversary: Adversary) -> Report:
        """Run one launch to its end, or to what stops it. Raises: DeviceError where the executor refuses it."""
        blocks = [ctypes.create_string_buffer(value, len(value)) for value in launch.parameters]
        addresses = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
        sizes = (ctypes.c_uint64 * len(blocks))(*map(len, launch.parameters))
        regions = (_Region * len(launch.regions))(*(region.structure() for region in launch.regions))
        request = _Emulation(
            version=ABI_VERSION,
            grid=(launch.grid_x, 1, 1),
            cluster=(launch.cluster_ctas, 1, 1),
            threads=launch.threads,
            shared_bytes=launch.smem_bytes,
            resident_ctas=launch.resident_ctas,
            timing=TIMINGS.index(adversary.timing),
            order=ORDERS.index(adversary.order),
            seed=adversary.seed,
            step_limit=launch.step_limit,
            parameter_count=len(blocks),
            region_count=len(regions),
            parameters=ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p)),
            parameter_bytes=ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint64)),
            regions=regions,
        )
        text = ctypes.create_string_buffer(_REPORT_BYTES)
        status = self._emulate(ctypes.byref(request), text, _REPORT_BYTES)
        if status == _TOO_LONG:
            raise DeviceError(f"the executor's report is longer than {_REPORT_BYTES} B")
        document = json.loads(text.value.decode(errors="replace"))
        if status != _EMULATED:
            raise DeviceError(f"the executor refuses the launch: {document.get('error', f'status {status}')}")
        return report_of(document)


def report_of(document: dict) -> Report:
    """Read a report's JSON document."""
    return Report(
        tuple(Finding(**finding) for finding in document["findings"]),
        tuple(Site(**site) for site in document["sites"]),
        dict(document["counters"]),
    )


def added(reports: Sequence[Report]) -> dict[str, int]:
    """Return the counters of several launches together."""
    total: dict[str, int] = {}
    for report in reports:
        for name, count in report.counters.items():
            total[name] = total.get(name, 0) + count
    return total


# ==== The C++ compiler of this machine: found, or named by the user, and known by what it says of itself ====


CANDIDATES = ("g++", "clang++")
WAY_OUT = "install g++ 12 or later (or clang++ 16), or name a compiler in CXX"
PROBE = "executor/probe.cpp"
_LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).hgemm_probe(3) != 3)"
"""Run in a process of its own, which has no C++ library from elsewhere."""
_HOST_COMPILER_TIMEOUT_S = 20


class NoCompiler(HgemmError):
    """There is no C++ compiler here, or one that is here or was named does not answer."""


class NoneInstalled(NoCompiler):
    """There is no C++ compiler here, and none was named."""


@dataclass(frozen=True)
class HostCompiler:
    """A compiler by its command; `identity` is its version and its target, equal wherever it lies."""

    command: tuple[str, ...]
    identity: str

    def __str__(self) -> str:
        return f"{' '.join(self.command)} ({self.identity})"


def find_compiler(named: str = "") -> HostCompiler:
    """Return the compiler that `named` says, a command as in CXX, or the first of CANDIDATES that is there.

    Raises: NoCompiler, with what to do.
    """
    words = tuple(shlex.split(named))
    if words:
        if not shutil.which(words[0]):
            raise NoCompiler(f"CXX names {words[0]}, which is not here: {WAY_OUT}")
        return HostCompiler(words, _identity(words))
    for name in CANDIDATES:
        if shutil.which(name):
            return HostCompiler((name,), _identity((name,)))
    raise NoneInstalled(
        f"no C++ compiler here ({', '.join(CANDIDATES)}), which running kernels on the CPU needs: {WAY_OUT}"
    )


def require_working(compiler: HostCompiler, templates: Path) -> None:
    """Compile a few lines and load them. Raises: NoCompiler where that fails, as with a compiler of C alone."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "probe.so")
        command = [*compiler.command, "-std=c++17", "-fPIC", "-shared", str(templates / PROBE), "-o", made]
        refused = _complaint(command)
        wrong = first_error(refused) if refused else _complaint([sys.executable, "-c", _LOAD, made])
    if wrong:
        named, told = " ".join(compiler.command), wrong.splitlines()[-1].replace(f"{made}: ", "")
        raise NoCompiler(f"{named} makes no C++17 shared object that can be loaded ({told}): {WAY_OUT}")


def _complaint(command: list[str]) -> str:
    """Run a command and return what it said on stderr where it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_HOST_COMPILER_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"it ends with status {done.returncode}") if done.returncode else ""


def _identity(command: tuple[str, ...]) -> str:
    said = [_ask(command, question).splitlines() for question in ("--version", "-dumpmachine")]
    return " ".join(lines[0].strip() for lines in said if lines)


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run(
            [*command, question], capture_output=True, text=True, timeout=_HOST_COMPILER_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} does not run ({error}): {WAY_OUT}") from error
    if done.returncode:
        raise NoCompiler(f"{command[0]} {question} ends with status {done.returncode}, as no compiler does: {WAY_OUT}")
    return done.stdout


# ==== Compiled objects kept by the content that they were made from, in the user's cache folder ====


OPTION = "HGEMM_CACHE_DIR"
KEPT_BYTES = 512 * 2**20
"""Beyond this the objects that were used least recently are dropped."""
_KEPT_S = 60.0
"""An object so young may be on its way into a process."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of compiled executors: below HGEMM_CACHE_DIR, XDG_CACHE_HOME or ~/.cache."""
    named = environment.get(OPTION)
    if named:
        return Path(named) / "executor"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm" / "executor"


def kept(folder: Path, name: str) -> Path | None:
    """Return the object `name` where the cache has it, and note that it was used."""
    path = folder / name
    try:
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError:  # a cache that others own can be read all the same
        return path if path.is_file() else None
    return path


def place(folder: Path, text: str = "") -> Path:
    """Return a path in the cache to make an object at, which `keep` then gives its name, with `text` there.

    Raises: LibraryError where the folder cannot be written.
    """
    with disk_errors("write to the cache", folder, OPTION):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / temporary_name()
        path.touch(exist_ok=False)
        path.write_text(text)
    return path


def keep(made: Path, name: str) -> Path:
    """Give a finished object its name; another process may have made the same one meanwhile. Raises: LibraryError."""
    path = made.with_name(name)
    with disk_errors("write to the cache", made.parent, OPTION):
        os.replace(made, path)
    return path


def trim(folder: Path, kept_bytes: int = KEPT_BYTES) -> int:
    """Drop what was used least recently until the rest fits, and what dead processes left; return the bytes freed."""
    found: list[tuple[float, int, Path]] = []
    freed = 0
    for path in folder.glob("*"):
        with suppress(OSError):
            status = path.stat()
            if TEMPORARY.match(path.name):
                freed += _drop(path, status.st_size) if is_stale(path) else 0
            else:
                found.append((status.st_mtime, status.st_size, path))
    total, newest = sum(size for _, size, _ in found), time.time() - _KEPT_S
    for used, size, path in sorted(found):
        if total <= kept_bytes or used > newest:
            break
        total -= size
        freed += _drop(path, size)
    return freed


def _drop(path: Path, size_bytes: int) -> int:
    with suppress(OSError):
        path.unlink()
        return size_bytes
    return 0


# ==== A variant's emitted text to a shared object of this machine ====


EXECUTOR = "executor/executor.cpp"
VARIANT = "executor/variant.cpp"
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden")
_EXECUTOR_OPTIONS = (*_COMMON, "-O2", "-c")
_VARIANT_OPTIONS = (*_COMMON, "-shared", "-DHGEMM_HOST")
_BUILD_TIMEOUT_S = 300
_INSTRUCTIONS = ("executor/cute", "executor/cutlass")
"""Headers that hand the instructions of CuTe to the executor."""
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class HostToolchain:
    """With what variants are made executable.

    Fields: `flags` go to every compilation, such as those of a sanitizer; `level` says how far variants are optimised: what
        is to run once or twice is sooner done without.
    """

    compiler: HostCompiler
    templates: Path
    cache: Path
    flags: tuple[str, ...] = ()
    level: str = "-O1"

    def executable(self, symbol: str, source: str, anew: bool = False) -> Path:
        """Return the shared object of a variant's text, from the cache where it is there; `anew` builds it all the same.

        Raises: BuildError with the compiler's log; LibraryError where the cache cannot be written.
        """
        executor = self.executor(anew)
        read = includes_of(source.encode(), self.templates) | includes_of_file(VARIANT, self.templates)
        inputs = {**read, "kernel.cu": _hash(source.encode()), "": executor.name}
        options = (*_VARIANT_OPTIONS, self.level)
        name = self._name("variant", options, inputs | (self._cute() if _in_whole_cute(read) else {}), ".so")
        found = None if anew else kept(self.cache, name)
        if found:
            return found
        with self._arguments(symbol, source) as arguments:
            return self._compile(symbol, options, [*arguments, str(executor)], name)

    def compiles(self, symbol: str, source: str) -> bool:
        """Tell whether a text is C++ to the compiler, whatever the cache has."""
        try:
            with self._arguments(symbol, source) as arguments:
                self._run(symbol, (*_VARIANT_OPTIONS, "-fsyntax-only"), arguments)
        except BuildError:
            return False
        return True

    @contextmanager
    def _arguments(self, symbol: str, source: str) -> Iterator[list[str]]:
        """Yield what the compiler is told of a variant, whose text is in a file for so long."""
        whole = _in_whole_cute(includes_of(source.encode(), self.templates))
        text = place(self.cache, source)
        try:
            yield [
                *(_cute_folders(self.templates) if whole else ()),
                f"-DHGEMM_VARIANT={symbol}",
                f'-DHGEMM_VARIANT_FILE="{text}"',
                self._path(VARIANT),
            ]
        finally:
            text.unlink()

    def executor(self, anew: bool = False) -> Path:
        """Return the object that every variant is linked with, as `executable` does; it takes some seconds to build."""
        name = self._name("executor", _EXECUTOR_OPTIONS, includes_of_file(EXECUTOR, self.templates), ".o")
        found = None if anew else kept(self.cache, name)
        return found or self._compile("the executor", _EXECUTOR_OPTIONS, [self._path(EXECUTOR)], name)

    def _cute(self) -> dict[str, str]:
        """Return what a kernel in all of CuTe is made of beside the templates that it includes by their names."""
        paths = sorted(path for folder in _INSTRUCTIONS for path in (self.templates / folder).rglob("*.h*"))
        ours = {path.relative_to(self.templates).as_posix(): _hash(path.read_bytes()) for path in paths}
        return {**ours, "cutlass": version_of("nvidia-cutlass")}

    def version(self) -> str:
        """Return what changes whenever the executor's or the atoms' text does, in short."""
        read = includes_of_file(EXECUTOR, self.templates) | includes_of_file(VARIANT, self.templates)
        atoms = {
            name: text
            for name, text in read.items()
            if name.startswith(("executor/", "common/types")) or "atoms" in name
        }
        atoms |= self._cute()
        return _hash(json.dumps(atoms, sort_keys=True).encode())[:16]

    def hash_of(self, name: str) -> str:
        """Return the hash of a file of the templates, or nothing where there is none."""
        path = self.templates / name
        return _hash(path.read_bytes()) if path.is_file() else ""

    def _path(self, name: str) -> str:
        return str(self.templates / name)

    def _name(self, kind: str, options: tuple[str, ...], inputs: dict[str, str], suffix: str) -> str:
        content = {"inputs": inputs, "options": [*options, *self.flags], "compiler": self.compiler.identity}
        return f"{kind}-{_hash(json.dumps(content, sort_keys=True).encode())}{suffix}"

    def _compile(self, symbol: str, options: tuple[str, ...], arguments: list[str], name: str) -> Path:
        made = place(self.cache)
        try:
            self._run(symbol, options, [*arguments, "-o", str(made)])
            return keep(made, name)
        finally:
            made.unlink(missing_ok=True)

    def _run(self, symbol: str, options: tuple[str, ...], arguments: list[str]) -> None:
        command = [*self.compiler.command, *options, *self.flags, "-I", str(self.templates), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_BUILD_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(symbol, f"error: {command[0]}: {error}") from error
        if done.returncode:
            raise BuildError(symbol, done.stderr or f"{command[0]} ended with status {done.returncode}")


def _in_whole_cute(headers: Iterable[str]) -> bool:
    return any(map(in_whole_cute, headers))


def _cute_folders(templates: Path) -> list[str]:
    """Return the options by which the compiler finds all of CuTe, and before it the host's versions of its instructions."""
    cuda = cuda_include()
    genuine = (cutlass_include(), cuda, cuda / "cccl")
    return ["-I", str(templates / "executor"), *(word for folder in genuine for word in ("-isystem", str(folder)))]


def includes_of_file(name: str, templates: Path) -> dict[str, str]:
    """Return the hash of a file of the templates and of all that it can include there, by name."""
    text = (templates / name).read_bytes()
    return {name: _hash(text), **includes_of(text, templates, name)}


def includes_of(text: bytes, templates: Path, name: str = "") -> dict[str, str]:
    """Return the hashes of the files of the templates that a text can include, taken or not, by name."""
    found: dict[str, str] = {}
    queue = [(name, text)]
    while queue:
        includer, includes = queue.pop()
        for included in map(bytes.decode, _INCLUDE.findall(includes)):
            for candidate in ((Path(includer).parent / included).as_posix(), included):
                if candidate not in found and (templates / candidate).is_file():
                    content = (templates / candidate).read_bytes()
                    found[candidate] = _hash(content)
                    queue.append((candidate, content))
    return found


@cache
def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
