"""Growth: a library that is opened with `build=True` builds the kernels that its calls lack, once, and keeps them.

This is the only place where the run-time package uses the generator. `_builder` imports it when a kernel is missing, never
before.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hgemm.capture import forbid_in_capture
from hgemm.disk import disk_errors
from hgemm.dispatch_table import DispatchTable
from hgemm.errors import DeviceError, HgemmError, LibraryError
from hgemm.selection import Choice, FallbackWatch, Selector
from hgemm.selection_query import SelectionQuery, Target

_LOG = logging.getLogger("hgemm")

# ==== The default library ====

LIBRARY_VARIABLE = "HGEMM_LIBRARY"
CACHE_VARIABLE = "HGEMM_CACHE_DIR"


def default_library(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the default library: HGEMM_LIBRARY, or `library` in the user's cache folder.

    The cache folder is HGEMM_CACHE_DIR, `hgemm` below XDG_CACHE_HOME, or ~/.cache/hgemm.
    """
    known = os.environ if environment is None else environment
    if known.get(LIBRARY_VARIABLE):
        return Path(known[LIBRARY_VARIABLE])
    if known.get(CACHE_VARIABLE):
        return Path(known[CACHE_VARIABLE]) / "library"
    return Path(known.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm" / "library"


# ==== Sizes: which kernels a kind of product needs ====

SIZES = ("few_rows", "small", "medium", "large")
"""A library that grows has a kernel of each size that its calls need, for each kind and alignment."""
FEW_ROWS, SMALL_ROWS = 16, 64
"""Rows that one tile of the first two sizes covers."""
SMALL_AREA, MEDIUM_AREA = 64 * 128, 128 * 144
"""Elements of a CTA tile, at most."""


def size_of_tile(tile_m: int, tile_n: int) -> str:
    """Return the size of a kernel by its CTA tile."""
    if tile_m <= FEW_ROWS:
        return "few_rows"
    if tile_m <= SMALL_ROWS or tile_m * tile_n <= SMALL_AREA:
        return "small"
    return "medium" if tile_m * tile_n <= MEDIUM_AREA else "large"


def size_of_problem(query: SelectionQuery, sms: int) -> str:
    """Return the size of the kernel for a problem: the largest of which there are enough tiles for the SMs of a device."""
    if query.m <= FEW_ROWS:
        return "few_rows"
    if query.m <= SMALL_ROWS:
        return "small"
    rows = -(-query.m // 128) * query.batch
    if rows * -(-query.n // 256) >= sms:
        return "large"
    return "medium" if 2 * rows * -(-query.n // 128) >= sms else "small"


# ==== Selection that builds what is missing ====


class GrowingLibrary(Protocol):
    """The part of a Library that growth uses."""

    folder: Path

    @property
    def table(self) -> DispatchTable: ...
    def selector(self, target: Target) -> Selector: ...
    def refresh(self) -> None: ...


class GrowingSelector(Selector):
    """A selector that has missing kernels built.

    A kernel is missing if none supports the call. A kernel is also missing if no kernel has the size that the call needs, or
    the request falls back to mma.sync on a device with wgmma. Kinds that were measured have what `hgemm tune` left them.
    """

    def __init__(self, library: GrowingLibrary, target: Target, watch: FallbackWatch, growth: Growth) -> None:
        super().__init__(library.table, target, library.folder, watch)
        self._library, self._growth = library, growth

    def choose_any(self, queries: Sequence[SelectionQuery]) -> Choice:
        """Return the best variant, as Selector.choose_any, after a missing one was built.

        Raises: DeviceError if none supports the call and a CUDA graph is captured; LibraryError if the generator is not
            installed or the folder cannot be written.
        """
        current = self._library.selector(self.target)
        if current is not self:  # the library has grown since this selector was made
            return current.choose_any(queries)
        if self._growth.grows(self, queries):
            return self._library.selector(self.target).choose_any(queries)
        return super().choose_any(queries)

    def missing(self, queries: Sequence[SelectionQuery]) -> tuple[SelectionQuery, str, bool] | None:
        """Return the query to build a kernel for, its size, and whether no kernel supports the call; None if none is missing."""
        found = self.best_of(queries)
        query = found[0] if found else queries[0]
        size = size_of_problem(query, self.target.sms)
        if found is None:
            return query, size, True
        if query.kind.code in self.surveys:
            return None
        rows = self.supporting(query)
        if self.watch and self.watch.falls_back(self, query):
            return query, size, False
        has_size = any(size_of_tile(row.tile_m, row.tile_n) == size for row in rows)
        return None if has_size else (query, size, False)


Builder = Callable[[Path, SelectionQuery, Target, str], "str | None"]
"""Builds the best kernel of a size for a query on a device into a library. Returns its symbol, or None if there is none."""
LOCK_NAME = "growth.lock"


class Growth:
    """What a library has built, or tried to build, for its calls. Threads may share it; processes wait for one another."""

    def __init__(self, library: GrowingLibrary, builder: Callable[[], Builder] | None = None) -> None:
        self._library, self._find_builder = library, builder or _builder
        self._lock = threading.Lock()
        self._tried: set[tuple[object, ...]] = set()

    def grows(self, selector: GrowingSelector, queries: Sequence[SelectionQuery]) -> bool:
        """Build the kernel that a call lacks. Return whether the library has changed.

        Raises: HgemmError if no kernel supports the call and none can be built now. Otherwise the call uses a slower kernel.
        """
        missing = selector.missing(queries)
        if missing is None or self._key(selector.target, missing) in self._tried:
            return False
        query, _, required = missing
        try:
            forbid_in_capture(f"build a kernel for {query.kind}")
        except DeviceError:
            if required:
                raise
            return False
        try:
            with self._lock, _locked(self._library.folder):
                return self._grows(selector.target, queries)
        except HgemmError as error:
            if required:
                raise
            self._tried.add(self._key(selector.target, missing))
            _LOG.warning("no better kernel for %s was built: %s", query.kind, error)
            return False

    def _grows(self, target: Target, queries: Sequence[SelectionQuery]) -> bool:
        self._library.refresh()  # another thread or process may have built it meanwhile
        selector = self._library.selector(target)
        missing = selector.missing(queries) if isinstance(selector, GrowingSelector) else None
        if missing is None:
            return True
        key = self._key(target, missing)
        if key in self._tried:
            return True
        query, size, _ = missing
        began = time.perf_counter()
        symbol = self._find_builder()(self._library.folder, query, target, size)
        self._tried.add(key)
        if symbol is None:
            return False
        seconds, extents = time.perf_counter() - began, f"{query.m}x{query.n}x{query.k}"
        _LOG.warning("built %s in %.1f s for %s, %s, in %s", symbol, seconds, query.kind, extents, self._library.folder)
        self._library.refresh()
        return True

    def _key(self, target: Target, missing: tuple[SelectionQuery, str, bool]) -> tuple[object, ...]:
        query, size, required = missing
        return target, query.kind.code, query.align_a, query.align_b, query.align_d, query.beta, size, required


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one thread of one process at a time build kernels for a library."""
    with disk_errors("build a kernel for", folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        with disk_errors("lock", folder / LOCK_NAME):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _builder() -> Builder:
    """Return the generator's builder. Raises LibraryError if the generator is not installed."""
    try:
        from generator.pack.growth import build_kernel
    except ModuleNotFoundError as error:
        raise LibraryError(
            f"build=True needs the package hgemm-generator, and its module {error.name} is not installed: install it with "
            "'pip install .' in its folder, or add the kernel on another machine with `hgemm cover --add`"
        ) from None
    return build_kernel
