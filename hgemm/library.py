"""A library of kernels: reading one folder safely, and the Library that programs open.

A kernel is a folder with a record and its artefacts. Everything read is checked against the record's schema and hashes
before it is used. Other processes may replace folders meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from hgemm.arrays import ARRAY_ADAPTERS, joined_rows, new_array, shape_of
from hgemm.disk import disk_errors, is_being_replaced, open_folder, read_regular
from hgemm.dispatch_table import DispatchTable
from hgemm.epilogue import OF_PROBLEM
from hgemm.errors import HgemmError, HostArrayError, LibraryError, ProblemError, RequestError
from hgemm.growth import GrowingSelector, Growth
from hgemm.kernel import Kernel, number_of, split_inputs, split_results
from hgemm.launch_traits import INPUT
from hgemm.locations import (
    default_library,
    existing_library,
    library_suffix,
    missing_hint,
    named_folder,
    regenerate_hint,
)
from hgemm.measured import read_sessions
from hgemm.model.kernel import by_wgmma
from hgemm.problem import Kind, Problem, unknown_kind_word
from hgemm.products import (
    LaunchCache,
    MatmulOptions,
    MatmulPlan,
    check_linear,
    check_same_types,
    empty_product,
    explain_operands,
    launcher_of,
    make_plan,
)
from hgemm.record import CUBIN_NAME, MAX_RECORD_BYTES, PTX_NAME, RECORD_NAME, Record
from hgemm.selection import Choice, FallbackWatch, Selector
from hgemm.selection_query import SelectionQuery, Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES, check_workspace_bytes

# ==== Reading a kernel ====

_SYMBOL = re.compile(r"[a-z0-9_]{1,200}", re.ASCII)
_LOG = logging.getLogger(__name__)
_READ_ATTEMPTS = 50
_SHOWN = 5
"""The most symbols that an error lists."""
_RETRY_PAUSE_S = 0.002


class MissingKernelError(LibraryError):
    """There is no kernel with this symbol, or its folder has no record."""


class UnusableKernelError(LibraryError):
    """The record of a kernel is sound, but needs a word or a workspace that this version does not have."""

    @classmethod
    def of(cls, place: Path, word: str) -> UnusableKernelError:
        gc = f"hgemm gc{library_suffix(place.parent)}"
        return cls(f"{place} is not used, because this version has no {word}: remove it with `{gc}`")


@cache
def warn_once(text: str) -> None:
    """Log a warning, each text once in a process."""
    _LOG.warning("%s", text)


@dataclass(frozen=True)
class StoredKernel:
    """A kernel that was read: its record, its folder, its artefacts and the text of its record.

    Without a check of the hashes, `artefacts` and `document` are empty.
    """

    record: Record
    folder: Path
    artefacts: Mapping[str, bytes]
    document: bytes = b""

    @property
    def symbol(self) -> str:
        return self.record.symbol

    @property
    def source(self) -> bytes:
        """The source code, if the artefacts were read."""
        return self.artefacts[self.record.source_name]

    def path(self, name: str) -> Path:
        """Return the path of an artefact."""
        return self.folder / name


def is_symbol(text: str) -> bool:
    """Return whether a text may be the name of a kernel and its folder."""
    return bool(_SYMBOL.fullmatch(text))


def check_symbol(symbol: str) -> str:
    """Return the symbol. Raises RequestError if it is not safe as a part of a path."""
    if not is_symbol(symbol):
        raise RequestError(f"symbol {ascii(symbol)[:80]} is malformed: use a to z, 0 to 9 and _ only")
    return symbol


def stamp_of(status: os.stat_result) -> str:
    """Return a text that changes if a file is rewritten: its modification time and size."""
    return f"{status.st_mtime_ns}:{status.st_size}"


EXPORT_MANIFEST, EXPORT_TABLE = "MANIFEST.json", "table.json"
"""Files of an exported C library."""


def require_library(library: Path) -> None:
    """Raise LibraryError if there is no library folder at this path, or an exported C library."""
    if not library.exists():
        raise LibraryError(f"library {library} does not exist: {missing_hint(library)}")
    reject_file(library)
    if all((library / name).is_file() for name in (EXPORT_MANIFEST, EXPORT_TABLE)):
        raise LibraryError(f"library {library} is an exported C library: name the library that it was exported from")


def reject_file(library: Path) -> None:
    """Raise LibraryError if the path of a library is a file."""
    if library.exists() and not library.is_dir():
        raise LibraryError(f"library {library} is a file: name a folder")


def scan(library: Path) -> dict[str, str]:
    """Return the stamp of each kernel of a library by symbol. Folders without a record are ignored.

    Raises: LibraryError if the library is missing, not a folder, or unreadable.
    """
    stamps: dict[str, str] = {}
    with disk_errors("read the library", library):
        for name in _kernel_folders(library):
            with suppress(FileNotFoundError, NotADirectoryError):
                stamps[name] = stamp_of(os.lstat(f"{library}/{name}/{RECORD_NAME}"))
    return stamps


def _kernel_folders(library: Path) -> list[str]:
    require_library(library)
    with disk_errors("read the library", library), os.scandir(library) as entries:
        return [entry.name for entry in entries if is_symbol(entry.name) and entry.is_dir(follow_symlinks=False)]


def without_record(library: Path) -> list[str]:
    """Return the folders of compiled kernels whose record is missing, sorted by name. `scan` ignores them.

    Raises: LibraryError as `scan`.
    """

    def has(name: str, artefact: str) -> bool:
        return os.path.lexists(f"{library}/{name}/{artefact}")

    return sorted(name for name in _kernel_folders(library) if has(name, CUBIN_NAME) and not has(name, RECORD_NAME))


def read_stored(library: Path, symbol: str, verify: bool = True) -> StoredKernel:
    """Read the record of a kernel and, if `verify`, its artefacts, whose hashes are checked.

    Raises: RequestError for a malformed symbol, MissingKernelError if there is none, LibraryError if the record is malformed
        or the hash of an artefact differs.
    """
    place = library / check_symbol(symbol)
    for attempt in range(_READ_ATTEMPTS):
        try:
            return _read_once(place, verify)
        except _Replaced:
            time.sleep(_RETRY_PAUSE_S)
        except MissingKernelError:
            if attempt and not is_being_replaced(place):
                raise
            if attempt:
                time.sleep(_RETRY_PAUSE_S)
    raise LibraryError(
        f"{place} was replaced during {_READ_ATTEMPTS} attempts to read it: retry when the other run has ended"
    )


class _Replaced(Exception):
    """Another process replaced the folder while it was read, so the failure means nothing."""


def _read_once(place: Path, verify: bool) -> StoredKernel:
    if place.is_symlink():
        raise LibraryError(f"{place} is a symbolic link, and a library may contain none: remove it")
    with disk_errors("read", place):
        try:
            folder = open_folder(place)
        except FileNotFoundError:
            raise MissingKernelError(
                f"no kernel {place.name} in {place.parent}: `hgemm list{library_suffix(place.parent)}` lists all"
            ) from None
    try:
        document = _read_document(place, folder)
        record = _parsed(place, document)
        if not verify:
            return StoredKernel(record, place, {})
        return StoredKernel(
            record, place, {name: read_artefact(place, folder, record, name) for name in record.files}, document
        )
    except LibraryError:
        if not _is_at(folder, place):
            raise _Replaced from None
        raise
    finally:
        os.close(folder)


def _is_at(folder: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.lstat(place))
    except FileNotFoundError:
        return False


def read_record(place: Path, folder: int) -> Record:
    """Read and check the record in the open `folder`, whose path is `place`.

    Raises: LibraryError if it is malformed, MissingKernelError if there is none, UnusableKernelError if this version lacks a word
        of it.
    """
    return _parsed(place, _read_document(place, folder))


def _read_document(place: Path, folder: int) -> bytes:
    path = place / RECORD_NAME
    with disk_errors("read", path):
        try:
            document = read_regular(RECORD_NAME, folder, MAX_RECORD_BYTES)
        except FileNotFoundError:
            raise MissingKernelError(f"{place} has no {RECORD_NAME}: run `generate` to complete it") from None
    if len(document) > MAX_RECORD_BYTES:
        raise LibraryError(f"{path} exceeds {MAX_RECORD_BYTES} B: {regenerate_hint(place.parent)}")
    return document


def _parsed(place: Path, document: bytes) -> Record:
    path = place / RECORD_NAME
    record = Record.parse(document, str(path), place.parent)
    if record.symbol != place.name:
        raise LibraryError(f"{path}: symbol is {record.symbol}, not its folder's name: {regenerate_hint(place.parent)}")
    if word := unknown_kind_word(record.data["spec"]):
        raise UnusableKernelError.of(place, word)
    if record.data["traits"]["workspace"].get("counter_bytes_per_tile"):  # an old kernel, which no launch supports
        raise UnusableKernelError.of(place, "workspace with counters per tile")
    return record


def read_usable_records(library: Path, symbols: Iterable[str]) -> dict[str, Record]:
    """Return the records of kernels by symbol. One that this version cannot use is skipped with a warning.

    Raises: LibraryError if a record is missing or malformed.
    """
    found = {}
    for symbol in symbols:
        try:
            found[symbol] = read_stored(library, symbol, verify=False).record
        except UnusableKernelError as error:
            warn_once(str(error))
    return found


def read_artefact(place: Path, folder: int, record: Record, name: str) -> bytes:
    """Read an artefact in the open `folder`, whose path is `place`. Raises LibraryError if its hash differs."""
    path, expected = place / name, record.files[name]
    with disk_errors("read", path):
        try:
            content = read_regular(name, folder, expected["bytes"])
        except FileNotFoundError:
            raise LibraryError(f"{path} is missing: {regenerate_hint(place.parent)}") from None
    if len(content) != expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise LibraryError(
            f"{path} is not the file that its record describes (SHA-256 differs): {regenerate_hint(place.parent)}"
        )
    return content


# ==== An open library ====


def open_library(
    path: str | PathLike[str] | None = None,
    *,
    build: bool = False,
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
) -> Library:
    """Open the library in a folder: by default the default library, or that of the wheel hgemm-kernels.

    The default library is HGEMM_LIBRARY, `emitted` of a checkout, or `hgemm/library` in the user's data folder. With `build`, a
    missing folder is created, and kernels that calls lack are built: once, in about a second each, with one log line. This needs
    the generator. It never happens while a CUDA graph is captured: call the product once before the capture.

    Units: `workspace_bytes` is the size of the automatic workspace per device and stream; 0 allows none.
    Raises: LibraryError if there is no library.
    """
    usual = default_library if build else existing_library
    folder = usual().absolute() if path is None else named_folder(path)
    if build:
        with disk_errors("create the library", folder):
            folder.mkdir(parents=True, exist_ok=True)
    require_library(folder)
    return Library(folder, workspace_bytes, build)


class Library:
    """The library in `folder`. Records and code are checked and read on first use, and kept.

    Later changes of the folder have no effect: open it again to see them. Threads may share a library. Products that split k
    take a workspace of `workspace_bytes` from the library of the arrays, once per device and stream. With `build`, kernels that
    calls lack are built.
    """

    def __init__(self, folder: Path, workspace_bytes: int = DEFAULT_WORKSPACE_BYTES, build: bool = False) -> None:
        self.folder, self.workspace_bytes = folder, check_workspace_bytes(workspace_bytes)
        self._kernels: dict[str, Kernel] = {}
        self._selectors: dict[Target, Selector] = {}
        self._noted: set[tuple[int, str]] = set()
        self._growth = Growth(self) if build else None

    def __repr__(self) -> str:
        return f"Library({str(self.folder)!r})"

    @property
    def builds(self) -> bool:
        """Whether kernels that calls lack are built."""
        return self._growth is not None

    @cached_property
    def _launch_cache(self) -> LaunchCache:
        return LaunchCache(
            lambda views, device, options, allocate: launcher_of(
                self,
                views,
                device,
                options if isinstance(options, MatmulOptions) else MatmulOptions(*options),
                allocate,
            )
        )

    @cached_property
    def records(self) -> dict[str, Record]:
        """The record of each kernel by symbol. Raises LibraryError if one is invalid."""
        return read_usable_records(self.folder, sorted(scan(self.folder)))

    @property
    def symbols(self) -> Sequence[str]:
        """The symbols of the kernels in alphabetical order."""
        return tuple(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __bool__(self) -> bool:
        return True  # an empty library is a library

    def __iter__(self) -> Iterator[Kernel]:
        """Yield the kernels in the order of their symbols. The code of each is read when its turn comes."""
        return map(self.kernel, self.symbols)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self.records

    def __getitem__(self, prefix: str) -> Kernel:
        """Return the kernel whose symbol begins so, or whose hash it is. Raises RequestError unless there is exactly one."""
        found = [one for one in self.symbols if one.startswith(prefix) or one.rpartition("_")[2] == prefix]
        if prefix in found:
            found = [prefix]
        if not found:
            raise RequestError(f"no symbol in {self.folder} begins with {prefix!a}: `library.symbols` lists them")
        if len(found) > 1:
            shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
            raise RequestError(f"{len(found)} symbols in {self.folder} begin with {prefix!a}; write one whole: {shown}")
        return self.kernel(found[0])

    @cached_property
    def table(self) -> DispatchTable:
        """The dispatch table: the kernels, and the measurements of them."""
        return DispatchTable.of((record.data for record in self.records.values()), read_sessions(self.folder))

    def kernel(self, symbol: str) -> Kernel:
        """Return a kernel that can be called. Repeated calls return the same object.

        Raises: RequestError for a malformed symbol, LibraryError if the kernel is missing or invalid.
        """
        if symbol not in self._kernels:
            stored = read_stored(self.folder, symbol)
            code = stored.artefacts
            self._kernels.setdefault(symbol, Kernel(stored.record.data, code[CUBIN_NAME], code[PTX_NAME]))
        return self._kernels[symbol]

    def select(self, query: SelectionQuery, target: Target) -> Choice:
        """Return the kernel for a problem on a device. Raises UnsupportedError with the reasons if there is none."""
        return self.selector(target).choose(query)

    def selector(self, target: Target) -> Selector:
        """Return the selector for a device. Repeated calls return the same object."""
        selectors = self._selectors
        if target not in selectors:
            selectors.setdefault(target, self._new_selector(target))
        return selectors[target]

    def _new_selector(self, target: Target) -> Selector:
        if self._growth:
            return GrowingSelector(self, target, self.fallback_watch, self._growth)
        return Selector(self.table, target, self.folder, self.fallback_watch)

    @property
    def fallback_watch(self) -> FallbackWatch:
        """Logs calls that fall back to mma.sync, once per kind and kernel."""
        wgmma = frozenset(symbol for symbol, record in self.records.items() if by_wgmma(record.data["spec"]))
        return FallbackWatch(wgmma, self._noted)

    def refresh(self) -> None:
        """Read the kernels that were added to the folder since the records were read."""
        before = self.records
        added = scan(self.folder).keys() - before.keys()
        if added:
            read = read_usable_records(self.folder, added)
            self.__dict__["records"] = dict(sorted({**before, **read}.items()))
            self.__dict__.pop("table", None)
            self._selectors = {}

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        bias: Any = None,
        activation: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Any = None,
        workspace: Any = None,
        stream: Any = None,
        precision: str = "",
        batch_invariant: bool = False,
        cublas_order: bool = False,
        epilogue: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Launch out = activation(alpha * a b + beta * c + bias) with the best kernel, and return `out` without waiting.

        Without `out`, a new array of the type of `a` is returned. Without `stream`, the launch uses the current stream of
        `out`'s library (torch, CuPy) or the legacy default stream. Kernels that split k use the stream's automatic workspace,
        or `workspace`: any array, which one call at a time may use. The first call of a geometry chooses and loads a kernel.
        CUDA graphs can capture later calls, or those of a MatmulPlan. f32 arrays need `precision="tf32"`, which drops 13 of
        their 24 significant bits. With `batch_invariant`, the bits of a row of `out` depend on that row of `a`, on b, n and k, but
        not on m or the batch. `cublas_order` prefers kernels that sum k as the unsplit kernels of cuBLASLt do.

        With an `epilogue`, out is that expression instead: a Python function, a text, or a traced function (see
        hgemm.epilogue_language). `inputs` are its inputs by name: arrays, and numbers for scalars. `bias` and `c` may be among
        them. If it has several results, `out` is a tuple of their arrays, in the order of `return`. Without `out`, the call
        makes them. The library needs a kernel of this expression.

        Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,) or (m,); if m = n, bias is (n,). Each may have a leading batch.
            A bias (m, 1) of one product has one value per row, also if m = n.
            One of the last two axes of a and b is contiguous; the last one of out and c is.
        Raises: ProblemError if the arrays do not form a product, UnsupportedError if no kernel supports it, DeviceError if
            the driver fails.
        """
        if type(alpha) is not float or type(beta) is not float:
            alpha, beta = number_of("alpha", alpha), number_of("beta", beta)
        if epilogue is not None:
            return self._matmul_expression(
                (a, b, out, workspace, stream),
                epilogue,
                {"bias": bias, "c": c, "activation": activation},
                inputs or {},
                MatmulOptions(alpha, beta, "none", precision, batch_invariant, cublas_order),
            )
        if inputs:
            raise ProblemError("inputs are those of an epilogue: pass it, too")
        if out is None:
            out = empty_product(a, b)
        options = (alpha, beta, activation or "none", precision, batch_invariant, cublas_order)
        try:
            return self._launch_cache.run(a, b, out, bias, c, workspace, stream, options)
        except HostArrayError:
            self._multiply_on_host((a, b, out, bias, c, workspace), MatmulOptions(*options), {})
            return out

    def linear(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        activation: str | None = None,
        out: Any = None,
        stream: Any = None,
        precision: str = "",
        batch_invariant: bool = False,
    ) -> Any:
        """Launch out = activation(x weight^T + bias) and return `out` without waiting. `weight` is not copied.

        The other arguments are those of `matmul`.

        Shapes: x (..., k), weight (n, k), bias (n,), out (..., n).
        Raises: as matmul.
        """
        shape = check_linear(x, weight, bias)
        check_same_types(x=x, weight=weight, bias=bias if out is None else None)
        out = new_array(x, shape) if out is None else out
        if (given := shape_of(out, "out")) != shape:
            raise ProblemError(f"out is {given}, not {shape}")
        options = {"stream": stream, "precision": precision, "batch_invariant": batch_invariant}
        columns = ARRAY_ADAPTERS[type(weight)].transpose(weight)
        rows, results = joined_rows(x, "x"), joined_rows(out, "out")
        try:
            self.matmul(rows, columns, results, bias, activation, **options)
        except HgemmError as error:
            explain_operands(error)
            raise
        return out

    def _matmul_expression(
        self,
        given: tuple[Any, ...],
        epilogue: Any,
        beside: Mapping[str, Any],
        inputs: Mapping[str, Any],
        options: MatmulOptions,
    ) -> Any:
        """Launch the kernel of an expression. `beside` are arguments that the expression may take, too."""
        from hgemm.epilogue_language import as_expression  # most programs need no tracer

        expression = as_expression(epilogue)
        named = {**{name: one for name, one in beside.items() if one is not None}, **inputs}
        arrays, numbers = split_inputs(named)
        names = [one.name for one in expression.operands]
        if unknown := named.keys() - {*names}:
            if moved := sorted(unknown & {*OF_PROBLEM}):
                raise ProblemError(f"{moved[0]} is an argument of the call, not an input: pass {moved[0]}=VALUE")
            raise ProblemError(
                f"the epilogue has no {', '.join(sorted(unknown))}: its inputs are {', '.join(names) or 'none'}"
            )
        whole = replace(options, epilogue=expression.text, scalars=tuple(sorted(numbers.items())))
        a, b, out, workspace, stream = given
        if out is None:
            out = empty_product(a, b, expression)
        d, further = split_results(expression, out)
        operands = {INPUT + name: arrays.get(name) for name in names} | further
        try:
            self.launch_expression(a, b, d, operands, whole, workspace, stream)
        except HostArrayError:
            self._multiply_on_host((a, b, d, None, None, workspace), whole, operands)
        return out

    def launch_expression(
        self,
        a: Any,
        b: Any,
        d: Any,
        operands: Mapping[str, Any],
        options: MatmulOptions,
        workspace: Any = None,
        stream: Any = None,
    ) -> None:
        """Launch the kernel of an expression, whose text is in `options`.

        `operands` has each input and each further result in order, with INPUT and OUTPUT before its name; None for numbers.
        """
        self._launch_cache.run_expression(a, b, d, workspace, stream, options, operands)

    def _multiply_on_host(self, arrays: tuple[Any, ...], options: MatmulOptions, operands: Mapping[str, Any]) -> None:
        from hgemm.host import multiply  # programs with a GPU do not need it

        multiply(self, {**dict(zip(("A", "B", "D", "bias", "C", "workspace"), arrays)), **operands}, options)

    def plan(
        self,
        problem: Problem,
        kind: Kind = Kind(),  # noqa: B008
        *,
        device: int = 0,
        workspace_bytes: int | None = None,
        batch_invariant: bool = False,
        cublas_order: bool = False,
        epilogue: Any = None,
    ) -> MatmulPlan:
        """Choose the kernel for a problem and load it.

        Addresses of `problem` may be 0: arrays are then assumed to be aligned as allocations are. Leading dimensions may be 0:
        rows then have no gaps. With `workspace_bytes`, each call will pass a workspace of that size; 0 is none. By default, calls
        use the automatic workspace of their stream. `batch_invariant`, `cublas_order` and `epilogue` are those of `matmul`.
        Each call then passes `inputs`.

        Raises: UnsupportedError with the reasons if no kernel supports it, DeviceError if there is no such device.
        """
        expression = None
        if epilogue is not None:
            from hgemm.epilogue_language import as_epilogue  # most programs need no tracer

            expression = as_epilogue(epilogue)
        return make_plan(self, problem, kind, device, workspace_bytes, batch_invariant, cublas_order, expression)
