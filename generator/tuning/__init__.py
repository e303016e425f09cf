"""Tuning support of the generator: the specs to search, and a library that grows while the GPU measures."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generator.arch import ARCHS
from generator.build.pipeline import Outcome, Settings, make, prepare
from generator.build.toolchain import templates_folder
from generator.catalog import FOLDER as CATALOG
from generator.device_check import open_kernel
from generator.families.base import Plan
from generator.layouts import ASYNC_BYTES
from generator.spec import Texts, symbol_of
from generator.store.library import Library
from generator.sweep import overridden, read_spec_file, sweep
from hgemm.bench.work import Work
from hgemm.disk import read_text, write_atomically
from hgemm.dispatch_table import kind_of, row_of
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target
from hgemm.tuning.problem import Ranking

FOLDER = Path(__file__).resolve().parent
TABLE_BYTES = 2
"""The tables list tiles for elements of 2 bytes. Tiles of larger elements have as many bytes along k, and fewer elements."""

TILE_FIELDS = ("mma", "copy", "tile", "swap_ab", "consumers", "cooperation", "cluster", "schedule", "raster", "stages")
"""Fields that a tile of the catalog sets in kernels of other types, layouts, biases and activations."""


def archs_of(target: Target) -> tuple[str, ...]:
    """Return the architectures whose code runs on a device, the one with the most instructions first."""
    return tuple(sorted((arch.name for arch in ARCHS.values() if arch.number == target.number), reverse=True))


def plans_for(work: Work, archs: Sequence[str], space: Path | None) -> dict[str, Plan]:
    """Return the legal plans by symbol. `space` is a file that replaces the tables.

    Raises: RequestError if that file is malformed.
    """
    query = SelectionQuery.dense(work.kind, work.extents)
    aligns = (query.align_a, query.align_b, query.align_d)
    return plans_of(work.kind, aligns, tuple(archs), space, work.expression, wide=True)


@cache
def plans_of(
    kind: Kind,
    aligns: tuple[int, int, int],
    archs: tuple[str, ...],
    space: Path | None = None,
    expression: str = NONE,
    wide: bool = False,
) -> dict[str, Plan]:
    """Return the legal plans of the tables for a kind of product, by symbol.

    Fields: `aligns` are those of A, B and D in elements. `expression` is the text of the kind's expression. `wide` adds many tiles
        that only measurements can choose between.
    """
    requests: list[Texts] = []
    more = {} if expression == NONE else {"epilogue": expression}
    for arch in archs:
        groups = [
            group
            for table in ([space] if space else _tables(kind, aligns, arch, wide))
            for group in read_spec_file(table)
        ]
        if ARCHS[arch].has_wgmma and not space and not wide:
            groups += catalog_tiles()
        groups = groups if space else [_scaled_to_bytes(group, DTYPES[kind.dtype_a].bytes) for group in groups]
        requests += [overridden(group, {**_problem_fields(kind, aligns, arch), **more}) for group in groups]
    return {symbol_of(plan.spec): plan for plan in sweep(requests).plans}


def _tables(kind: Kind, aligns: tuple[int, int, int], arch: str, wide: bool) -> list[Path]:
    """Return the tables for operands with these alignments."""
    if ARCHS[arch].has_wgmma:
        return [FOLDER / "wgmma.toml", *([FOLDER / "wgmma_wide.toml"] if wide else [])]
    narrow = min(aligns[0] * DTYPES[kind.dtype_a].bytes, aligns[1] * DTYPES[kind.dtype_b].bytes) < ASYNC_BYTES
    if narrow:
        return [FOLDER / "unaligned.toml"]
    return [FOLDER / "mma_sync.toml", *([] if ARCHS[arch].has_cp_async else [FOLDER / "two_stages.toml"])]


@cache
def catalog_tiles() -> list[Texts]:
    """Return the tiles of the Hopper catalog, which measurements chose, without types and layouts."""
    groups = read_spec_file(CATALOG / "hopper.toml")
    return [{name: group[name] for name in TILE_FIELDS if name in group} for group in groups]


def _scaled_to_bytes(group: Texts, size: int) -> Texts:
    """Return a group of a table for elements of `size` bytes."""
    tiles = (tile.rsplit("x", 1) for tile in group["tile"].split(","))
    return {**group, "tile": ",".join(f"{tile}x{int(k) * TABLE_BYTES // size}" for tile, k in tiles)}


def _problem_fields(kind: Kind, aligns: tuple[int, int, int], arch: str) -> Texts:
    """Return the options that the problem decides. Alignments of 16 bytes stay open."""
    return {
        "arch": arch,
        **{name: getattr(kind, name) for name in ("layout", "dtype_a", "dtype_b", "acc")},
        **{name: word for name in ("bias", "activation") if (word := getattr(kind, name)) != "none"},
        "out": kind.dtype_d,
        **_narrow_alignments(kind, aligns),
    }


def _narrow_alignments(kind: Kind, aligns: tuple[int, int, int]) -> Texts:
    """Return the alignments below 16 bytes."""
    sizes = [DTYPES[dtype].bytes for dtype in (kind.dtype_a, kind.dtype_b, kind.dtype_d)]
    found = zip("abd", aligns, sizes)
    return {f"align_{name}": str(align) for name, align, size in found if align * size < VECTOR_BYTES}


def planned_record(plan: Plan) -> Mapping[str, Any]:
    """Return the part of a kernel's record that the cost model reads, with the planned CTAs per SM."""
    return {
        "symbol": symbol_of(plan.spec),
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        "launch": plan.launch(),
        "traits": plan.traits(),
        "accumulation_order": plan.accumulation_order.to_dict(),
        "resources": {"ctas_per_sm": plan.spec.ctas_per_sm},
    }


# ---- Builds beside measurements --------------------------------------------------------------------------------------


_STOP_S = 10.0
OWN_SHARE = 0.4
"""The part of the candidates that are kernels of the library. Those of the catalog have calibrated estimates, which are better.

Source: docs/performance-notes.md, "Selection and tuning".
"""
_BATCH = 2
"""Kernels of a batch. A problem is measured when its candidates are built, so they have to arrive early."""


SPILLED_NAME = "spilled.json"
"""File of a library with the kernels that tuning built and whose registers spill: content keys by symbol."""


def read_spilled(library: Path) -> dict[str, str]:
    """Return the content keys of kernels that spill, by symbol. A missing or malformed file has none."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_text(library / SPILLED_NAME))
        if isinstance(found, dict):
            return {symbol: key for symbol, key in found.items() if isinstance(key, str)}
    return {}


def add_spilled(library: Path, keys: Mapping[str, str]) -> None:
    """Add kernels that spill. Raises LibraryError if the file cannot be written."""
    known = read_spilled(library)
    if keys.items() - known.items():
        content = json.dumps({**known, **keys}, indent=0, sort_keys=True) + "\n"
        write_atomically(library / SPILLED_NAME, content.encode(), "--library")


@dataclass(frozen=True)
class Search:
    """The search for kernels: problems, candidates per problem, architectures, an optional spec file, and worker processes."""

    works: Sequence[Work]
    candidates: int
    archs: tuple[str, ...]
    space: Path | None
    jobs: int


class GeneratedCandidates:
    """Kernels `symbols` of a library, plus those of a search. Raises RequestError if its specs are malformed."""

    def __init__(
        self, library: Library, symbols: Sequence[str], search: Search, target: Target, log: Callable[[str], None]
    ) -> None:
        self._library, self._search, self._log = library, search, log
        records = {symbol: library.load(symbol, verify=False).record.data for symbol in symbols}
        self.records = [*records.values()]
        self.keys = {symbol: record["key"] for symbol, record in records.items()}
        self._plans: dict[str, Plan] = {}
        for work in search.works:
            self._plans |= plans_for(work, search.archs, search.space)
        planned = {symbol: planned_record(plan) for symbol, plan in self._plans.items() if symbol not in records}
        traits = {symbol: LaunchTraits.of(record) for symbol, record in {**planned, **records}.items()}
        rows = {symbol: (kind_of(one), row_of(one, {**planned, **records}[symbol])) for symbol, one in traits.items()}
        self.ranking = Ranking(rows, target)
        self._own, self._available, self._failed = frozenset(records), set(records), self._known_to_spill()
        self._built: set[str] = set()
        self._candidates: dict[str, list[str]] = {}
        self._kernels: dict[str, Kernel] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _known_to_spill(self) -> set[str]:
        """Return the planned kernels that an earlier tuning built from the same source, with registers that spill."""
        spilled = {symbol: key for symbol, key in read_spilled(self._library.folder).items() if symbol in self._plans}
        return {symbol for symbol, key in spilled.items() if self._key_of(self._plans[symbol]) == key}

    @staticmethod
    def _key_of(plan: Plan) -> str:
        return prepare(plan, templates_folder()).key

    def ready(self, works: Sequence[Work]) -> Work:
        """Wait for a problem whose candidates are all built or failed, and return the first."""
        self._start(works)
        with self._changed:
            while True:
                if self._error:
                    raise self._error
                for work in works:
                    if all(
                        symbol in self._available or symbol in self._failed for symbol in self._candidates[work.key]
                    ):
                        return work
                self._changed.wait()

    def kernels(self, work: Work) -> list[Kernel]:
        """Return the candidates. The choice uses all results so far, not only those at the start."""
        with self._changed:
            available = frozenset(self._available)
        found = self._best(work, available)
        self._kernels |= {symbol: open_kernel(self._library, symbol) for symbol in found if symbol not in self._kernels}
        return [self._kernels[symbol] for symbol in found]

    def _best(self, work: Work, among: Container[str] | None = None) -> list[str]:
        """Return the candidates for a problem. OWN_SHARE of them are kernels that the library had."""
        count = self._search.candidates
        own = self.ranking.best(work, round(OWN_SHARE * count), among=self._own)
        return list(dict.fromkeys([*own, *self.ranking.best(work, count, among)]))[:count]

    def keep(self, chosen: Collection[str]) -> None:
        """Stop building, and remove the kernels that this search has built and that are not chosen.

        Candidates are those with the lowest of thousands of estimates, so many estimates are too low. Selection would prefer such
        kernels to measured ones for other problems.
        """
        self.close()
        self._library.remove(sorted(self._built - set(chosen)))

    def close(self) -> None:
        """Stop building."""
        self._stop.set()
        if self._thread:
            self._thread.join(_STOP_S)

    def _candidates_of(self, work: Work) -> list[str]:
        """Return the candidates for a problem before any is built."""
        return self._best(work, self.ranking.rows.keys() - self._failed)

    def _start(self, works: Sequence[Work]) -> None:
        if self._thread:
            return
        self._candidates = {work.key: self._candidates_of(work) for work in works}
        missing = [
            symbol for symbols in self._candidates.values() for symbol in symbols if symbol not in self._available
        ]
        plans = [self._plans[symbol] for symbol in dict.fromkeys(missing)]
        self._thread = threading.Thread(target=self._make, args=(plans,), daemon=True)
        self._thread.start()

    def _make(self, plans: Sequence[Plan]) -> None:
        settings = Settings(self._library, templates_folder())
        spilled: dict[str, str] = {}
        try:
            with closing(make(plans, settings, self._search.jobs, max_batch=_BATCH)) as outcomes:
                for number, (place, outcome) in enumerate(outcomes, 1):
                    if outcome.spills:
                        spilled[outcome.symbol] = self._key_of(plans[place])
                    self._record_outcome(outcome)
                    self._log(f"made {number}/{len(plans)}: {outcome.status} {outcome.symbol}")
                    if self._stop.is_set():
                        break
            add_spilled(self._library.folder, spilled)
        except Exception as error:  # `ready` raises it again
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _record_outcome(self, outcome: Outcome) -> None:
        with self._changed:
            if outcome.record is None or outcome.record.data["spilled"]:
                self._failed.add(outcome.symbol)
            else:
                self._available.add(outcome.symbol)
                self._built |= {outcome.symbol} if outcome.status == "built" else set()
                self.keys[outcome.symbol] = outcome.record.key
            self._changed.notify_all()
