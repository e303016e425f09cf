"""Where the variants come from that are measured: a library that has them all, or what makes them on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hgemm.bench.work import Work
from hgemm.facts import Facts
from hgemm.kernel import Kernel
from hgemm.table import kind_of, order_of, row_of
from hgemm.target import Target
from hgemm.tune.ranking import Ranking


class Supply(Protocol):
    """What tuning asks of the variants."""

    ranking: Ranking
    keys: Mapping[str, str]
    """The content keys of the variants that there are, by symbol."""

    def ready(self, works: Sequence[Work]) -> Work:
        """Return which problem is to be tuned next, after waiting until its variants are there."""

    def kernels(self, work: Work) -> list[Kernel]:
        """Return the variants to measure on a problem."""

    def close(self) -> None:
        """Wait for nothing more."""


class Prebuilt:
    """Variants that are there."""

    def __init__(self, kernels: Iterable[Kernel], target: Target, candidates: int) -> None:
        self._kernels = {kernel.facts.symbol: kernel for kernel in kernels}
        self._candidates = candidates
        self.keys = {symbol: kernel.record["key"] for symbol, kernel in self._kernels.items()}
        rows = {symbol: (kind_of(one.facts), row_of(one.facts, one.record)) for symbol, one in self._kernels.items()}
        self.ranking = Ranking(rows, target)

    def ready(self, works: Sequence[Work]) -> Work:
        return works[0]

    def kernels(self, work: Work) -> list[Kernel]:
        return [self._kernels[symbol] for symbol in self.ranking.best(work, self._candidates)]

    def close(self) -> None:
        pass


def plainness(facts: Facts) -> tuple[Any, ...]:
    """Return by what variants are sorted of which none is faster: fewer splits, smaller clusters, the table's order."""
    return facts.splits, facts.cluster_ctas, order_of(facts)
