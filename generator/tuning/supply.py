"""Builds missing variants in worker processes while the GPU measures existing ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from generator.build.pipeline import Outcome, Settings, make
from generator.build.toolchain import templates_folder
from generator.device_check import open_kernel
from generator.families.base import Plan
from generator.store.library import Library
from generator.tuning.space import planned_record, plans_for
from hgemm.bench.work import Work
from hgemm.dispatch_table import kind_of, row_of
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.selection_query import Target
from hgemm.tune.problem import Ranking

_STOP_S = 10.0


@dataclass(frozen=True)
class Search:
    """What to search: problems, candidates per problem, architectures, an optional spec file, and worker processes."""

    works: Sequence[Work]
    candidates: int
    archs: tuple[str, ...]
    space: Path | None
    jobs: int


class Generating:
    """Variants `symbols` of a library, plus those of a search. Raises RequestError if its specs are malformed."""

    def __init__(
        self, library: Library, symbols: Sequence[str], search: Search, target: Target, log: Callable[[str], None]
    ) -> None:
        self._library, self._search, self._log = library, search, log
        records = {symbol: library.load(symbol, verify=False).record.data for symbol in symbols}
        self.keys = {symbol: record["key"] for symbol, record in records.items()}
        self._plans: dict[str, Plan] = {}
        for work in search.works:
            self._plans |= plans_for(work, search.archs, search.space)
        planned = {symbol: planned_record(plan) for symbol, plan in self._plans.items() if symbol not in records}
        traits = {symbol: LaunchTraits.of(record) for symbol, record in {**planned, **records}.items()}
        rows = {symbol: (kind_of(one), row_of(one, {**planned, **records}[symbol])) for symbol, one in traits.items()}
        self.ranking = Ranking(rows, target)
        self._available, self._failed = set(records), set[str]()
        self._candidates: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

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
        symbols = self.ranking.best(work, self._search.candidates, among=available)
        return [open_kernel(self._library, symbol) for symbol in symbols]

    def close(self) -> None:
        """Stop building."""
        self._stop.set()
        if self._thread:
            self._thread.join(_STOP_S)

    def _start(self, works: Sequence[Work]) -> None:
        if self._thread:
            return
        self._candidates = {work.key: self.ranking.best(work, self._search.candidates) for work in works}
        missing = [
            symbol for symbols in self._candidates.values() for symbol in symbols if symbol not in self._available
        ]
        plans = [self._plans[symbol] for symbol in dict.fromkeys(missing)]
        self._thread = threading.Thread(target=self._make, args=(plans,), daemon=True)
        self._thread.start()

    def _make(self, plans: Sequence[Plan]) -> None:
        settings = Settings(self._library, templates_folder())
        try:
            with closing(make(plans, settings, self._search.jobs)) as outcomes:
                for number, (_, outcome) in enumerate(outcomes, 1):
                    self._record_outcome(outcome)
                    self._log(f"made {number}/{len(plans)}: {outcome.status} {outcome.symbol}")
                    if self._stop.is_set():
                        return
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
                self.keys[outcome.symbol] = outcome.record.key
            self._changed.notify_all()
