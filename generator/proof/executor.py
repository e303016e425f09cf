"""Build a kernel's PTX for the CPU and run it there: C interface of the executor, host compiler, cache, and build."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import logging
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import generator.ptx
from generator.errors import BuildError, HgemmError, first_error
from generator.isolated import NEUTRAL_FOLDER
from generator.ptx.parser import parse, parse_like
from generator.ptx.translate import PTX_FILE, origins, translate
from generator.store.files import disk_errors, temporary_name
from hgemm.disk import TEMPORARY, is_stale
from hgemm.errors import DeviceError
from hgemm.object_cache import CACHE_VARIABLE, cache_base, is_sound, private_folder, reject_foreign, seal

COSTS_CASE = "costs of a k-tile"
"""The name of the last check: the counted costs of a k-tile match the plan."""


# ==== The C interface of the executor: templates/executor/abi.h ====


ABI_VERSION = 1
TIMINGS = ("late", "early", "any_time")
"""When asynchronous work takes effect: the values of enum hgemm_timing."""
ORDERS = ("round_robin", "ahead_low", "ahead_high", "any_order")
"""Which warp runs next: the values of enum hgemm_order."""
READABLE, WRITABLE, WRITE_ONCE, INITIALISED, PADDING_READABLE, MATRIX_READABLE = 1, 2, 4, 8, 16, 32
TENSOR_MAP_MAGIC = 0x70616D74
_EMULATED, TOO_LONG = 0, 2
REPORT_BYTES = 1 << 20


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("rows", "row_bytes", "pitch_bytes", "batches", "batch_stride_bytes")),
        ("element_bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class EmulatedTensorMap(ctypes.Structure):
    """struct hgemm_tensor_map, the executor's version of CUtensorMap."""

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
        ("programmatic", ctypes.c_uint32),
        ("arch", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("parameter_count", ctypes.c_uint32),
        ("region_count", ctypes.c_uint32),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("parameter_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("regions", ctypes.POINTER(_Region)),
        ("block", ctypes.c_uint32 * 3),
    ]


@dataclass(frozen=True)
class Region:
    """A region of global memory, such as a matrix; see struct hgemm_region.

    Units: bytes.
    """

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
    """The choices of one launch that CUDA leaves open. The same adversary repeats the same run."""

    timing: str
    order: str
    seed: int

    def __str__(self) -> str:
        return f"{self.timing}, {self.order}, seed {self.seed}"


@dataclass(frozen=True)
class Launch:
    """One launch: its grid, resources, parameters by value, and the memory that it may access.

    Fields: `block` is the shape of the `threads` of a CTA; without one, they are a row.
    """

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    threads: int
    smem_bytes: int
    parameters: tuple[bytes, ...]
    regions: tuple[Region, ...]
    resident_ctas: int
    step_limit: int
    programmatic: bool = False
    block: tuple[int, int, int] = (0, 0, 0)
    arch: int = 0


@dataclass(frozen=True)
class Finding:
    """A violation: its kind (see templates/executor/abi.h), and where it occurred first."""

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
    """The costs of one source line, summed over all its warp instructions."""

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
    """The report of one launch. A launch without findings is clean.

    `predicates` has the values that the predicate of each such instruction has had since the kernel was loaded: 1 if false, 2 if
    true, 3 if both, 0 if the instruction never ran.
    """

    findings: tuple[Finding, ...]
    counts: tuple[dict[str, Any], ...]
    counters: dict[str, int]
    predicates: tuple[int, ...] = ()

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Return the costs of each source line, which are seldom needed."""
        return tuple(Site(**site) for site in self.counts)

    @classmethod
    def of_json(cls, document: dict) -> Report:
        """Read the JSON document of the executor."""
        return cls(
            tuple(Finding(**finding) for finding in document["findings"]),
            tuple(document["sites"]),
            dict(document["counters"]),
            tuple(map(int, document["predicates"])),
        )


class Executable:
    """A kernel that runs on the CPU: its shared object, loaded. Findings of a kernel of `ptx` quote its instruction."""

    def __init__(self, path: Path, ptx: str = "") -> None:
        self._ptx = ptx
        self._function = ctypes.CDLL(str(path)).hgemm_emulate
        self._function.argtypes = [ctypes.POINTER(_Emulation), ctypes.c_char_p, ctypes.c_size_t]

    @cached_property
    def _text(self) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(REPORT_BYTES)

    def run(self, launch: Launch, adversary: Adversary) -> Report:
        """Run one launch. Raises DeviceError if the executor rejects it."""
        blocks = [ctypes.create_string_buffer(value, len(value)) for value in launch.parameters]
        addresses = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
        sizes = (ctypes.c_uint64 * len(blocks))(*map(len, launch.parameters))
        regions = (_Region * len(launch.regions))(*(region.structure() for region in launch.regions))
        request = _Emulation(
            version=ABI_VERSION,
            grid=launch.grid,
            cluster=launch.cluster,
            block=launch.block,
            threads=launch.threads,
            shared_bytes=launch.smem_bytes,
            resident_ctas=launch.resident_ctas,
            timing=TIMINGS.index(adversary.timing),
            order=ORDERS.index(adversary.order),
            programmatic=launch.programmatic,
            arch=launch.arch,
            seed=adversary.seed,
            step_limit=launch.step_limit,
            parameter_count=len(blocks),
            region_count=len(regions),
            parameters=ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p)),
            parameter_bytes=ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint64)),
            regions=regions,
        )
        status, document = self._emulate(request)
        if status != _EMULATED:
            raise DeviceError(f"the executor rejects the launch: {document.get('error', f'status {status}')}")
        return self._quoted(Report.of_json(document))

    def _emulate(self, request: _Emulation) -> tuple[int, dict]:
        """Return the status of a launch, and the report."""
        text = self._text  # made once, because zeroing it takes as long as a small launch
        status = self._function(ctypes.byref(request), text, REPORT_BYTES)
        if status == TOO_LONG:
            raise DeviceError(f"the report of the executor exceeds {REPORT_BYTES} B")
        return status, json.loads(text.value.decode(errors="replace"))

    def _quoted(self, report: Report) -> Report:
        """Return a report whose findings quote the instruction of their PTX line."""
        if not self._ptx or not report.findings:
            return report
        quotes = origins(self._ptx, {one.line for one in report.findings if one.file == PTX_FILE})
        quoted = (replace(one, message=one.message + quotes.get(one.line, "")) for one in report.findings)
        return replace(report, findings=tuple(quoted))


# ==== The host's C++ compiler ====


CANDIDATES = ("g++", "clang++")
_FIX = "install g++ 12 or later (or clang++ 16), or set CXX to a compiler"
PROBE = "executor/probe.cpp"
_LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).hgemm_probe(3) != 3)"
"""Runs in a separate process, which has not loaded another C++ library yet."""
_HOST_COMPILER_TIMEOUT_S = 20


class NoCompiler(HgemmError):
    """No C++ compiler is installed, or it does not work."""


class NoCompilerInstalled(NoCompiler):
    """CXX is not set, and no C++ compiler is installed."""


@dataclass(frozen=True)
class HostCompiler:
    """A compiler: its command, and `identity`, its version and target, which do not depend on its path.

    `linker` has the option for the linker of kernels, if it has a faster one than its default.
    """

    command: tuple[str, ...]
    identity: str
    linker: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{' '.join(self.command)} ({self.identity})"

    @property
    def is_gcc(self) -> bool:
        return "g++" in self.identity.partition(" ")[0]  # as in x86_64-linux-gnu-g++-12


def find_compiler(named: str = "") -> HostCompiler:
    """Return the compiler with the command `named`, as in CXX, or the first of CANDIDATES that is installed.

    Raises: NoCompiler, with a fix.
    """
    try:
        words = tuple(shlex.split(named))
    except ValueError as error:
        raise NoCompiler(f"CXX is {named!a}, which is not a command ({error}): {_FIX}") from None
    if words:
        if not shutil.which(words[0]):
            raise NoCompiler(f"CXX is {words[0]}, which is not installed: {_FIX}")
        return HostCompiler(words, _identity(words), _linker(words))
    for name in CANDIDATES:
        if shutil.which(name):
            return HostCompiler((name,), _identity((name,)), _linker((name,)))
    raise NoCompilerInstalled(
        f"running kernels on the CPU needs a C++ compiler ({', '.join(CANDIDATES)}), but none is installed: {_FIX}"
    )


def require_working(compiler: HostCompiler, templates: Path) -> None:
    """Compile and load a small program. Raises NoCompiler if that fails, for example for a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "probe.so")
        command = [*compiler.command, "-std=c++17", "-fPIC", "-shared", str(templates / PROBE), "-o", made]
        log = _error_of(command)
        wrong = first_error(log) if log else _error_of([sys.executable, "-I", "-S", "-c", _LOAD, made])
    if wrong:
        named, reason = " ".join(compiler.command), wrong.splitlines()[-1].replace(f"{made}: ", "")
        full = os.strerror(errno.ENOSPC) in log
        fix = (
            f"free some space on the disk of {tempfile.gettempdir()}, or set TMPDIR to another folder" if full else _FIX
        )
        raise NoCompiler(f"{named} does not build a C++17 shared object that loads ({reason}): {fix}")


def _error_of(command: list[str]) -> str:
    """Run a command. Return its stderr if it fails, otherwise an empty string."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_HOST_COMPILER_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"it exits with status {done.returncode}") if done.returncode else ""


def _identity(command: tuple[str, ...]) -> str:
    answers = [_ask(command, question).splitlines() for question in ("--version", "-dumpmachine")]
    return " ".join(lines[0].strip() for lines in answers if lines)


def _linker(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the option for gold, which links a kernel in 10 ms, not 40, if the compiler links C++ with it."""
    option = "-fuse-ld=gold"
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "linked.so")
        wrong = _error_of([*command, "-x", "c++", os.devnull, "-shared", "-fPIC", option, "-o", made])
    return () if wrong else (option,)


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run(
            [*command, question], capture_output=True, text=True, timeout=_HOST_COMPILER_TIMEOUT_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} does not run ({error}): {_FIX}") from error
    if done.returncode:
        raise NoCompiler(
            f"{command[0]} {question} exits with status {done.returncode}, so it is not a compiler: {_FIX}"
        )
    return done.stdout


# ==== The cache of compiled objects, in the user's cache folder. Names are hashes of all inputs. ====


_LOG = logging.getLogger(__name__)
MAX_CACHE_BYTES = 512 * 2**20
"""Above this size, the least recently used objects are deleted."""
_MIN_AGE_S = 60.0
"""Younger objects are not deleted, because a process may be about to load them."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the absolute path of the cache folder."""
    return cache_base(environment) / "executor"


def cached(folder: Path, name: str) -> Path | None:
    """Return the path of the object `name` if the cache has it undamaged, and mark it as used.

    Raises: LibraryError if the folder belongs to another user.
    """
    path = folder / name
    reject_foreign(folder)
    try:
        if not is_sound(path):
            _LOG.warning("%s is damaged, or others may write it: building it again", path)
            return None
    except FileNotFoundError:
        return None
    with suppress(OSError):  # read-only cache
        os.utime(path)
    return path


def temporary_file(folder: Path, text: str = "") -> Path:
    """Create a temporary file in the cache, with `text` as its content. `add_to_cache` gives it its final name.

    Raises: LibraryError if the folder is not writable, or belongs to another user.
    """
    with disk_errors("write to the cache", folder, CACHE_VARIABLE):
        private_folder(folder)
        path = folder / temporary_name()
        path.touch(exist_ok=False)
        path.write_text(text)
    return path


def add_to_cache(made: Path, name: str) -> Path:
    """Seal a finished object and give it its final name, atomically. Raises LibraryError if the folder is not writable."""
    path = made.with_name(name)
    with disk_errors("write to the cache", made.parent, CACHE_VARIABLE):
        seal(made)
        made.chmod(0o700)
        os.replace(made, path)
    return path


def trim(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> int:
    """Delete the least recently used objects until the rest fits, and files of dead processes. Return the freed bytes."""
    found: list[tuple[float, int, Path]] = []
    freed = 0
    for path in folder.glob("*"):
        with suppress(OSError):
            status = path.stat()
            if TEMPORARY.match(path.name):
                freed += _delete(path, status.st_size) if is_stale(path) else 0
            else:
                found.append((status.st_mtime, status.st_size, path))
    total, newest = sum(size for _, size, _ in found), time.time() - _MIN_AGE_S
    for used, size, path in sorted(found):
        if total <= max_bytes or used > newest:
            break
        total -= size
        freed += _delete(path, size)
    return freed


def _delete(path: Path, size_bytes: int) -> int:
    with suppress(OSError):
        path.unlink()
        return size_bytes
    return 0


# ==== Build: from PTX to shared object ====


EXECUTOR = "executor/executor.cpp"
RUNNER = "executor/runner.cpp"
ORDERED_SUM = "executor/ordered_sum.cpp"
PTX = "executor/ptx.hpp"
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden")
_EXECUTOR_OPTIONS = (*_COMMON, "-O3", "-c")
_LIBRARY_OPTIONS = (*_COMMON, "-O2", "-shared")
_RUNNER_OPTIONS = ("-std=c++17", "-O1")
_KERNEL_OPTIONS = (*_COMMON, "-shared", "-fwrapv")
"""PTX defines overflow of signed integers."""
_FEWER_PASSES = (
    "-fira-region=one",
    *("-fno-tree-ccp", "-fno-tree-fre", "-fno-tree-dominator-opts", "-fno-tree-copy-prop", "-fno-forward-propagate"),
    *("-fno-cprop-registers", "-fno-combine-stack-adjustments", "-fno-compare-elim", "-fno-shrink-wrap", "-fno-dce"),
    *("-fno-dse", "-fno-if-conversion", "-fno-if-conversion2", "-fno-guess-branch-probability"),
    *("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"),
)
"""Passes of g++ that take a fifth of the time for a kernel, and gain nothing: NVCC has done their work."""
_BUILD_TIMEOUT_S = 300
_UNWANTED_VARIABLES = frozenset(
    "CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH COMPILER_PATH GCC_EXEC_PREFIX DEPENDENCIES_OUTPUT SUNPRO_DEPENDENCIES".split()
)
"""Variables that make a compiler read or write other files. An empty entry of a path is the current folder."""
_TRANSLATION = tuple(sorted(Path(generator.ptx.__file__).parent.glob("*.py")))
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class HostToolchain:
    """Builds kernels for the CPU.

    Fields: `flags` are extra options of every compilation, such as those of a sanitizer; `level` is the optimization level of
        kernels, which should be low if they run only once or twice.
    """

    compiler: HostCompiler
    templates: Path
    cache: Path
    flags: tuple[str, ...] = ()
    level: str = "-Og"
    """It makes code as fast as -O1 in half the time, because NVCC has optimized the PTX already."""
    known_includes: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The hashes of the templates that files include, by file, as far as they are known: see `includes_of_file`."""

    def executable(self, symbol: str, ptx: str, rebuild: bool = False, twin: tuple[str, str] | None = None) -> Path:
        """Return the shared object of a kernel's PTX, translated to C++, from the cache unless `rebuild` is set.

        With the symbol and the PTX of a `twin`, it has both kernels: see generator.ptx.translate.

        Raises: PtxError for an instruction that is not supported, or if the kernels are no twins; BuildError with the compiler's
            log; LibraryError if the cache is not writable.
        """
        executor = self.executor(rebuild)
        translated = _translated(symbol, ptx, twin)
        inputs = {**self._includes(PTX), "kernel.cpp": _hash(translated.encode()), "": executor.name}
        fewer_passes = _FEWER_PASSES if self.compiler.is_gcc else ()
        options = (*_KERNEL_OPTIONS, self.level, *fewer_passes, *self.compiler.linker)
        name = self._name("kernel", options, inputs, ".so")
        found = None if rebuild else cached(self.cache, name)
        if found:
            return found
        text = temporary_file(self.cache, translated)
        try:
            return self._compile(symbol, options, ["-x", "c++", str(text), "-x", "none", str(executor)], name)
        finally:
            text.unlink()

    def runner(self) -> Path:
        """Return the program that loads a kernel's shared object in a process of its own."""
        name = self._name("runner", _RUNNER_OPTIONS, self._includes(RUNNER), "")
        return cached(self.cache, name) or self._compile(
            "the runner", _RUNNER_OPTIONS, [self._path(RUNNER), "-ldl"], name
        )

    def ordered_sum(self) -> Path:
        """Return the shared object that adds products in a given order."""
        name = self._name("ordered-sum", _LIBRARY_OPTIONS, self._includes(ORDERED_SUM), ".so")
        return cached(self.cache, name) or self._compile(
            "the ordered sum", _LIBRARY_OPTIONS, [self._path(ORDERED_SUM)], name
        )

    def executor(self, rebuild: bool = False) -> Path:
        """Return the executor's object file, which is linked into every kernel. Building it takes some seconds."""
        name = self._name("executor", _EXECUTOR_OPTIONS, self._includes(EXECUTOR), ".o")
        found = None if rebuild else cached(self.cache, name)
        return found or self._compile("the executor", _EXECUTOR_OPTIONS, [self._path(EXECUTOR)], name)

    def version(self) -> str:
        """Return a short hash of the executor and of the translation of PTX."""
        files = {**self._includes(EXECUTOR), **self._includes(PTX)}
        files |= {path.name: _hash(path.read_bytes()) for path in _TRANSLATION}
        return _hash(json.dumps(files, sort_keys=True).encode())[:16]

    def _includes(self, name: str) -> Mapping[str, str]:
        """Return `includes_of_file`, read once: a proof needs it for each object."""
        if name not in self.known_includes:
            self.known_includes[name] = includes_of_file(name, self.templates)
        return self.known_includes[name]

    def includes(self) -> dict[str, Mapping[str, str]]:
        """Return what `known_includes` has once all objects are built."""
        return {name: self._includes(name) for name in (EXECUTOR, RUNNER, ORDERED_SUM, PTX)}

    def _path(self, name: str) -> str:
        return str(self.templates / name)

    def _name(self, kind: str, options: tuple[str, ...], inputs: dict[str, str], suffix: str) -> str:
        content = {"inputs": inputs, "options": [*options, *self.flags], "compiler": self.compiler.identity}
        return f"{kind}-{_hash(json.dumps(content, sort_keys=True).encode())}{suffix}"

    def _compile(self, symbol: str, options: tuple[str, ...], arguments: list[str], name: str) -> Path:
        made = temporary_file(self.cache)
        try:
            self._run(symbol, options, [*arguments, "-o", str(made)])
            return add_to_cache(made, name)
        finally:
            made.unlink(missing_ok=True)

    def _run(self, symbol: str, options: tuple[str, ...], arguments: list[str]) -> None:
        command = [*self.compiler.command, *options, *self.flags, "-I", str(self.templates), *arguments]
        environment = {name: value for name, value in os.environ.items() if name not in _UNWANTED_VARIABLES}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_BUILD_TIMEOUT_S,
                env={**environment, "TMPDIR": str(self.cache)},
                cwd=NEUTRAL_FOLDER,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(symbol, f"error: {command[0]}: {error}") from error
        if done.returncode:
            with disk_errors("write to the cache", self.cache, CACHE_VARIABLE):
                if os.strerror(errno.ENOSPC) in done.stderr:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise BuildError(symbol, done.stderr or f"{command[0]} exits with status {done.returncode}")


@lru_cache(maxsize=1)  # twins are loaded one after the other
def _translated(symbol: str, ptx: str, twin: tuple[str, str] | None) -> str:
    if not twin:
        return translate(parse(ptx), symbol)
    name, text = twin
    return translate(parse(ptx), symbol, (parse_like(text, name, ptx, symbol), name))


def includes_of_file(name: str, templates: Path) -> dict[str, str]:
    """Return the hashes, by name, of a template file and of all templates that it can include."""
    text = (templates / name).read_bytes()
    return {name: _hash(text), **includes_of(text, templates, name)}


def includes_of(text: bytes, templates: Path, name: str = "") -> dict[str, str]:
    """Return the hashes, by name, of all templates that a source can include, under any preprocessor condition."""
    found: dict[str, str] = {}
    queue, tried = [(name, text)], set()
    while queue:
        includer, includes = queue.pop()
        folder = posixpath.dirname(includer)
        for included in map(bytes.decode, _INCLUDE.findall(includes)):
            for candidate in (posixpath.normpath(posixpath.join(folder, included)), included):
                if candidate in tried:
                    continue
                tried.add(candidate)
                path = os.path.join(templates, candidate)
                if os.path.isfile(path):
                    content = Path(path).read_bytes()
                    found[candidate] = _hash(content)
                    queue.append((candidate, content))
    return found


@cache
def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
