"""The folder of one variant: how it is found, and checked before it is trusted."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgemm.disk import disk_errors, is_being_replaced, open_folder, read_regular
from hgemm.dispatch_table import DispatchTable
from hgemm.errors import LibraryError, RequestError, library_suffix, regenerate_hint
from hgemm.kernel import Kernel
from hgemm.measured import read_sessions
from hgemm.problem import Kind, Problem
from hgemm.record import CUBIN_NAME, MAX_RECORD_BYTES, PTX_NAME, RECORD_NAME, Record
from hgemm.selection import Choice, Selector
from hgemm.selection_query import SelectionQuery, Target

_SYMBOL = re.compile(r"[a-z0-9_]{1,200}", re.ASCII)
_READ_ATTEMPTS = 50
_SWAP_PAUSE_S = 0.002


class MissingVariantError(LibraryError):
    """There is no folder of that name, or it holds a source without a record."""


@dataclass(frozen=True)
class Variant:
    """A variant that was read: its record, its folder, and its artefacts where their hashes were checked."""

    record: Record
    folder: Path
    artefacts: Mapping[str, bytes]

    @property
    def symbol(self) -> str:
        return self.record.symbol

    @property
    def source(self) -> bytes:
        """The text that it was made from, where its artefacts were read."""
        return self.artefacts[self.record.source_name]

    def path(self, name: str) -> Path:
        """Return where the artefact `name` lies."""
        return self.folder / name


def is_symbol(text: str) -> bool:
    """Tell whether a text may be the name of a variant, and so of a folder."""
    return bool(_SYMBOL.fullmatch(text))


def check_symbol(symbol: str) -> str:
    """Return the symbol. Raises RequestError where it may not become part of a path."""
    if not is_symbol(symbol):
        raise RequestError(f"symbol {ascii(symbol)[:80]} is malformed: use a to z, 0 to 9 and _ only")
    return symbol


def stamp_of(status: os.stat_result) -> str:
    """Return what changes when a record is written anew: its time of writing and its size."""
    return f"{status.st_mtime_ns}:{status.st_size}"


def require_library(library: Path) -> None:
    """Raise LibraryError where there is no library at this place."""
    if not library.exists():
        raise LibraryError(f"library {library} does not exist: run `generate` first, or name another folder")
    reject_file(library)


def reject_file(library: Path) -> None:
    """Raise LibraryError where a library cannot be, since a file is there."""
    if library.exists() and not library.is_dir():
        raise LibraryError(f"library {library} is a file: name a folder")


def scan(library: Path) -> dict[str, str]:
    """Return the stamp of every variant of a library, by symbol; sources without a record are left out.

    Raises: LibraryError where the library is missing, is no folder, or cannot be read.
    """
    require_library(library)
    stamps: dict[str, str] = {}
    with disk_errors("read the library", library), os.scandir(library) as entries:
        for entry in entries:
            if is_symbol(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    stamps[entry.name] = stamp_of(os.lstat(f"{entry.path}/{RECORD_NAME}"))
                except (FileNotFoundError, NotADirectoryError):
                    continue
    return stamps


def read_variant(library: Path, symbol: str, verify: bool = True) -> Variant:
    """Read a variant, with its artefacts where `verify` asks for their hashes to be checked.

    Raises: RequestError for a malformed symbol, NoVariant where there is none, LibraryError where the record
        is malformed or an artefact is not what the record says.
    """
    place = library / check_symbol(symbol)
    for attempt in range(_READ_ATTEMPTS):
        try:
            return _read_once(place, verify)
        except _Replaced:
            time.sleep(_SWAP_PAUSE_S)
        except MissingVariantError:
            if attempt and not is_being_replaced(place):
                raise
            if attempt:
                time.sleep(_SWAP_PAUSE_S)
    raise LibraryError(f"{place} is being replaced all the time: try again when the other run is done")


class _Replaced(Exception):
    """The folder being read was replaced by another process; what was read says nothing."""


def _read_once(place: Path, verify: bool) -> Variant:
    if place.is_symlink():
        raise LibraryError(f"{place} is a symbolic link, which a library may not hold: remove it")
    try:
        with disk_errors("read", place):
            folder = open_folder(place)
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MissingVariantError(
                f"no variant {place.name} in {place.parent}: `hgemm list{library_suffix(place.parent)}` shows those that are"
            ) from None
        raise
    try:
        record = read_record(place, folder)
        artefacts = {name: read_artefact(place, folder, record, name) for name in record.files} if verify else {}
        return Variant(record, place, artefacts)
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
    """Read and check the record in the open `folder` that stands at `place`. Raises LibraryError, or NoVariant."""
    path = place / RECORD_NAME
    try:
        with disk_errors("read", path):
            document = read_regular(RECORD_NAME, folder, MAX_RECORD_BYTES)
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MissingVariantError(f"{place} holds no {RECORD_NAME}: `generate` completes it") from None
        raise
    if len(document) > MAX_RECORD_BYTES:
        raise LibraryError(f"{path} is larger than {MAX_RECORD_BYTES} B: {regenerate_hint(place.parent)}")
    record = Record.parse(document, str(path), place.parent)
    if record.symbol != place.name:
        raise LibraryError(f"{path}: symbol is {record.symbol}, not its folder's name: {regenerate_hint(place.parent)}")
    return record


def read_artefact(place: Path, folder: int, record: Record, name: str) -> bytes:
    """Read a file of the open `folder` that stands at `place`. Raises LibraryError where it is not as recorded."""
    path, expected = place / name, record.files[name]
    try:
        with disk_errors("read", path):
            content = read_regular(name, folder, expected["bytes"])
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise LibraryError(f"{path} is missing: {regenerate_hint(place.parent)}") from None
        raise
    if len(content) != expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise LibraryError(
            f"{path} is not the file that its record describes (SHA-256 differs): {regenerate_hint(place.parent)}"
        )
    return content


# ==== A library at run time ====


if TYPE_CHECKING:  # what only calls need is imported by the first of them
    from hgemm.matmul import LaunchCache, MatmulPlan


def open_library(path: str | PathLike[str]) -> Library:
    """Open the library in a folder. Raises LibraryError where there is none."""
    folder = Path(path)
    require_library(folder)
    return Library(folder)


class Library:
    """The library in `folder`. Records are read when first asked for, code when a kernel is, each after its checks.

    What is read stays as it was, whatever becomes of the folder: open it again for what was added since. Threads may
    share it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kernels: dict[str, Kernel] = {}
        self._selectors: dict[Target, Selector] = {}

    def __repr__(self) -> str:
        return f"Library({str(self.folder)!r})"

    @cached_property
    def _launch_cache(self) -> LaunchCache:
        from hgemm.matmul import LaunchCache, MatmulOptions, launcher_of

        return LaunchCache(lambda views, device, options: launcher_of(self, views, device, MatmulOptions(*options)))

    @cached_property
    def records(self) -> dict[str, Record]:
        """Return the record of each variant by symbol. Raises LibraryError where one cannot be trusted."""
        return {symbol: read_variant(self.folder, symbol, verify=False).record for symbol in sorted(scan(self.folder))}

    @property
    def symbols(self) -> Sequence[str]:
        """Return the variants' symbols in alphabetical order."""
        return tuple(self.records)

    @cached_property
    def table(self) -> DispatchTable:
        """Return the table that selection reads: the variants, and what was measured of them."""
        return DispatchTable.of((record.data for record in self.records.values()), read_sessions(self.folder))

    def kernel(self, symbol: str) -> Kernel:
        """Return a variant that can be called, always the same one; schema and hashes are checked when it is read.

        Raises: RequestError for a malformed symbol, LibraryError where there is none or it cannot be trusted.
        """
        if symbol not in self._kernels:
            variant = read_variant(self.folder, symbol)
            code = variant.artefacts
            self._kernels.setdefault(symbol, Kernel(variant.record.data, code[CUBIN_NAME], code[PTX_NAME]))
        return self._kernels[symbol]

    def select(self, wanted: SelectionQuery, target: Target) -> Choice:
        """Return the variant for a problem on a device. Raises UnfitError, saying why, where there is none."""
        return self.selector(target).choose(wanted)

    def selector(self, target: Target) -> Selector:
        """Return this library's selection on a device, made once for each."""
        if target not in self._selectors:
            self._selectors.setdefault(target, Selector(self.table, target, self.folder))
        return self._selectors[target]

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
    ) -> Any:
        """Launch out = activation(alpha * a b + beta * c + bias) by the variant that serves it, and return `out` without waiting.

        Without `out` one is made, of the type of `a`; without `stream`, the current one of the library that `out` is of (torch,
        CuPy) is taken, and the legacy default one of others. Variants that split k are chosen only where a `workspace` is
        given, any array of as many bytes, used by one call at a time. The first call of a geometry chooses and loads:
        capture later ones in graphs, or a MatmulPlan's. Arrays of f32 are multiplied with `precision="tf32"` only, which says what is
        lost: 13 of their 24 significant bits.

        Shapes: a (m, k), b (k, n), out and c (m, n), bias (n,) or (m,) (where m is n, one for each column), each with or
            without a leading batch; of each matrix one of the last two axes is contiguous, of out and c the last.
        Raises: ProblemError where the arrays make no product, UnfitError where no variant serves it, DeviceError where the
            driver refuses.
        """
        if out is None:
            from hgemm.matmul import empty_product

            out = empty_product(a, b)
        return self._launch_cache.run(
            a, b, out, bias, c, workspace, stream, (alpha, beta, activation or "none", precision)
        )

    def plan(self, problem: Problem, kind: Kind = Kind(), *, device: int = 0, workspace_bytes: int = 0) -> MatmulPlan:  # noqa: B008
        """Choose the variant for a problem and load it.

        Of `problem`, addresses may be 0: then arrays are thought to begin as allocations do. So may leading dimensions be:
        then rows follow one another without gaps. `workspace_bytes` is what each call will bring.

        Raises: UnfitError, saying why, where no variant serves it, DeviceError where there is no such device.
        """
        from hgemm.matmul import make_plan

        return make_plan(self, problem, kind, device, workspace_bytes)
