"""Growth: a library that is opened with `build=True` builds the kernels that its calls lack, once, and keeps them.

The builder is `build_kernel` of the plug-in that hgemm.plugin finds, loaded when a kernel is missing and never before.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from hgemm.capture import forbid_in_capture
from hgemm.disk import disk_errors
from hgemm.dispatch_table import DispatchTable, Row
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE
from hgemm.errors import DeviceError, HgemmError
from hgemm.invariance import KOrder, keeps_order, order_key
from hgemm.plugin import MODULE, load
from hgemm.selection import WGMMA_CAPABILITY, Choice, FallbackWatch, Found, Selector, wgmma_computes
from hgemm.selection_query import SelectionQuery, Target

_LOG = logging.getLogger("hgemm")

# ==== Sizes: which kernels a kind of product needs ====

# A library that grows has a kernel of each size that its calls need, for each kind and alignment: few_rows, small, medium, large.
FEW_ROWS, SMALL_ROWS = 16, 64
"""Rows that one tile of the sizes few_rows and small covers."""
SMALL_AREA, MEDIUM_AREA = 64 * 128, 128 * 144
"""Elements of a CTA tile of the sizes small and medium, at most."""


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

    def order(self, query: SelectionQuery) -> KOrder | None:
        """Return the order of Selector.order. Kernels that are added later do not change the order of a product."""
        if query.batch_invariant and (found := self._growth.orders.get((self.target, order_key(query)))):
            return found
        return super().order(query)

    def choose_any(self, queries: Sequence[SelectionQuery]) -> Choice:
        """Return the best kernel, as Selector.choose_any, after a missing one was built.

        Raises: DeviceError if none supports the call and a CUDA graph is captured; LibraryError if the generator is not
            installed or the folder cannot be written.
        """
        current = self._library.selector(self.target)
        if current is not self:  # the library has grown since this selector was made
            return current.choose_any(queries)
        queries = [replace(query, cublas_order=True) if query.batch_invariant else query for query in queries]
        found = self.best_of(queries)
        missing = self.missing(queries, found)
        if missing and self._growth.grows(missing, queries):
            return self._library.selector(self.target).choose_any(queries)
        choice = self.chosen(queries, found)
        if choice.order and queries[0].batch_invariant:
            self._growth.orders.setdefault((self.target, order_key(queries[0])), choice.order)
        return choice

    def missing(self, queries: Sequence[SelectionQuery], found: Found | None) -> Missing | None:
        """Return the kernel that a call lacks, or None if it lacks none. `found` is that of `best_of`."""
        if any(query.kind.epilogue != NONE and query.expression == NONE for query in queries):
            return None  # only the hash of its expression is known
        if found is None:
            return Missing(queries[0], self.target, size_of_problem(queries[0], self.target.sms))
        query, choice = found
        if query.kind.code in self.surveys:
            return None
        size = size_of_problem(query, self.target.sms)
        has_size = any(size_of_tile(row.tile_m, row.tile_n) == size for row in self._own_rows(query))
        return None if has_size else Missing(query, self.target, size, choice.clocks)

    def _own_rows(self, query: SelectionQuery) -> list[Row]:
        """Return the rows that are made for problems such as a query: on wgmma if it can be, and with all of its alignment."""
        full = VECTOR_BYTES // DTYPES[query.kind.dtype_a].bytes
        least_a, least_b = min(query.align_a, full), min(query.align_b, full)
        rows = [row for row in self.supporting(query) if row.align_a >= least_a and row.align_b >= least_b]
        if self.watch and self.target.number == WGMMA_CAPABILITY and wgmma_computes(query):
            rows = [row for row in rows if row.symbol in self.watch.wgmma]
        if query.batch_invariant:
            order = self.order(query)
            rows = [row for row in rows if order and keeps_order(row, order, query)]
        return rows


@dataclass(frozen=True)
class Missing:
    """A kernel that a call lacks.

    Units: `clocks` is the estimated time of the kernel that the call would use instead, 0 if there is none.
    """

    query: SelectionQuery
    target: Target
    size: str
    clocks: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Key that calls share if they lack the same kernel."""
        q = self.query
        aligns = (q.align_a, q.align_b, q.align_d)
        return self.target, q.kind.code, *aligns, q.beta, q.batch_invariant, self.size, self.clocks > 0

    @property
    def problem(self) -> tuple[object, ...]:
        """The key, with the sizes of the problem."""
        q = self.query
        return *self.key, q.m, q.n, q.k, q.batch


Builder = Callable[[Path, Missing], "str | None"]
"""Builds a missing kernel into a library. Returns its symbol, or None if no kernel is faster than those of the library."""
LOCK_NAME = "growth.lock"


class Growth:
    """Kernels that a library has built, or tried to build, for its calls. Threads may share it. Processes wait for one another."""

    def __init__(self, library: GrowingLibrary, builder: Callable[[], Builder] | None = None) -> None:
        self._library, self._find_builder = library, builder or _builder
        self._lock = threading.Lock()
        self.orders: dict[Hashable, KOrder] = {}
        """The accumulation orders that batch-invariant products have, by device, kind, n and k."""
        self._tried: set[tuple[object, ...]] = set()

    def grows(self, missing: Missing, queries: Sequence[SelectionQuery]) -> bool:
        """Build the kernel that a call lacks, if it was not tried before. Return whether the library has changed.

        Raises: HgemmError if no kernel supports the call and none can be built now. Otherwise the call uses a slower kernel.
        """
        if self._is_tried(missing):
            return False
        kind, required = missing.query.kind, not missing.clocks
        try:
            forbid_in_capture(f"build a kernel for {kind}")
        except DeviceError:
            if required:
                raise
            return False
        try:
            with self._lock, locked(self._library.folder):
                return self._grows(missing.target, queries)
        except HgemmError as error:
            if required:
                raise
            self._tried.add(missing.key)
            _LOG.warning("no better kernel for %s was built: %s", kind, error)
            return False

    def _is_tried(self, missing: Missing) -> bool:
        return missing.key in self._tried or missing.problem in self._tried

    def _grows(self, target: Target, queries: Sequence[SelectionQuery]) -> bool:
        self._library.refresh()  # another thread or process may have built it meanwhile
        selector = self._library.selector(target)
        if not isinstance(selector, GrowingSelector):
            return True
        missing = selector.missing(queries, selector.best_of(queries))
        if missing is None or self._is_tried(missing):
            return True
        folder, query, began = self._library.folder, missing.query, time.perf_counter()
        symbol = self._find_builder()(folder, missing)
        self._tried.add(missing.key if symbol else missing.problem)
        if symbol is None:
            return False
        seconds, extents = time.perf_counter() - began, f"{query.m}x{query.n}x{query.k}"
        _LOG.warning("built %s in %.1f s for %s, %s, in %s", symbol, seconds, query.kind, extents, folder)
        self._library.refresh()
        return True


def can_build() -> bool:
    """Return whether the generator, which builds kernels, is installed."""
    found = find_spec(MODULE.partition(".")[0])
    return found is not None and found.origin is not None  # a folder without code has no origin


@contextmanager
def locked(folder: Path) -> Iterator[None]:
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
    """Return the builder of the plug-in. Raises LibraryError if it is not installed."""
    return load("build=True").build_kernel
