"""Which variants are worth measuring on a problem: the estimates, and what was measured near it, each have a say."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import zip_longest

from hgemm.bench.work import Work
from hgemm.cost import clocks
from hgemm.kinds import Kind
from hgemm.measured.nearness import ONE, Nearby, point
from hgemm.measured.session import Problem
from hgemm.serving import row_serves
from hgemm.table import Extents, Row
from hgemm.target import Target
from hgemm.wanted import Wanted

AGAIN = 2
"""So many of the best of earlier sessions are measured again."""


class Ranking:
    """Variants of any kinds on one device, by symbol, and what is learnt of them problem by problem."""

    def __init__(self, rows: Mapping[str, tuple[Kind, Row]], target: Target) -> None:
        self.rows, self.target = rows, target
        self._learnt: dict[Kind, dict[Extents, Mapping[str, float]]] = {}
        self._best: dict[tuple[Kind, Extents], Sequence[str]] = {}

    def learn(self, problem: Problem, times_us: Mapping[str, float], order: Sequence[str] = ()) -> None:
        """Take note of times on one problem, and of an order there, the best first."""
        wanted = Wanted.dense(problem.kind, problem.extents)
        rows = {symbol: self.rows[symbol][1] for symbol in times_us if symbol in self.rows}
        if rows and not wanted.straddling:  # those say little of others
            self._learnt.setdefault(problem.kind, {})[problem.extents] = {
                symbol: times_us[symbol] / clocks(row, wanted, self.target) for symbol, row in rows.items()
            }
        self._best[problem.kind, problem.extents] = [symbol for symbol in order if symbol in rows]

    def stands(self, work: Work) -> str | None:
        """Return the variant that is the best on a problem, as far as is known."""
        return next(iter(self._best.get((_kind(work), work.extents), ())), None)

    def best(self, work: Work, count: int, among: Container[str] | None = None) -> list[str]:
        """Return the variants to measure on a problem, at most so many, the most promising first; some only, where given.

        First come those that were the best there before, then in turns those of least estimate corrected by what was
        measured around the problem, and those of least estimate: near problems may have misled.
        """
        kind = _kind(work)
        wanted = Wanted.dense(kind, work.extents)
        estimates = {
            symbol: clocks(row, wanted, self.target)
            for symbol, (its_kind, row) in self.rows.items()
            if its_kind == kind and row_serves(row, wanted, self.target) and (among is None or symbol in among)
        }
        corrected = self._corrected(kind, work, estimates)
        first = self._best.get((kind, work.extents), ())[:AGAIN]
        by_estimate = sorted(estimates, key=estimates.__getitem__)
        by_both = sorted(corrected, key=corrected.__getitem__)
        mixed = [symbol for pair in zip_longest(by_both, by_estimate) for symbol in pair if symbol]
        return list(dict.fromkeys([*(symbol for symbol in first if symbol in estimates), *mixed]))[:count]

    def _corrected(self, kind: Kind, work: Work, estimates: Mapping[str, int]) -> dict[str, float]:
        learnt = self._learnt.get(kind)
        if not learnt:
            return {}
        here = point(*work.extents)
        found = Nearby([point(*extents) for extents in learnt], [*learnt.values()]).factors(here)
        return {symbol: estimate * found.get(symbol, ONE) / ONE for symbol, estimate in estimates.items()}


def _kind(work: Work) -> Kind:
    return Kind(work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.acc)
