"""The stages joined with a library: what it has is taken from there, what it has not is built, and filed in it.

A variant's own failures (it does not compile, it is not as planned) are outcomes, and the others go on. What would stop
every variant (a missing compiler, a full disk) is raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from generator.build import Prepared, Product, Prover, Recipe, build, prepare
from generator.errors import LibraryError
from generator.failures import forget_failure, keep_failure
from generator.naming import symbol_of
from generator.plan import Plan
from generator.register import planned
from generator.store.disk import told
from generator.store.library import Library
from generator.store.whole import temporary_name
from generator.workers.dispatch import MAX_BATCH, Lost, run
from hgemm.record import Record

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Where variants are filed, whether also those that are there already, and the fields of the recipe."""

    library: Library
    templates: Path
    force: bool = False
    allow_spills: bool = False
    prover: Prover | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.templates, self.allow_spills, self.prover)


@dataclass(frozen=True)
class Outcome:
    """What became of one variant: `status` is built, proved, cached, spilled or failed, and `record` is None where it failed.

    Units: `seconds` is the time that it took in this run.
    """

    symbol: str
    status: str
    seconds: float = 0.0
    record: Record | None = None
    error: str = ""


class Crew(Protocol):
    """What builds variants elsewhere, and has no part in the library."""

    def products(self, plans: Sequence[Plan]) -> Iterator[tuple[int, Product | Lost]]:
        """Yield (place, what became of it) of each plan, once, as they come."""


def make(
    plans: Sequence[Plan], settings: Settings, processes: int, crew: Crew | None = None
) -> Iterator[tuple[int, Outcome]]:
    """Yield (place, outcome) of each legal plan as it comes: first what the library has, then what is built.

    It is built by a crew where there is one, else by so many worker processes, of which each may die. Where there are to be
    none, or one plan is left, this process builds: sooner, and whatever ends a compiler ends it.
    Raises: HgemmError where no variant can be built: a missing compiler, a folder that cannot be written.
    """
    misses: list[int] = []
    for place, plan in enumerate(plans):
        found = cached(prepare(plan, settings.templates), settings)
        if found:
            yield place, found
        else:
            misses.append(place)
    if not misses:
        return
    _require_writable(settings.library.folder)
    wanted = [plans[place] for place in misses]
    if crew:
        done = _filed_as_they_come(wanted, crew, settings)
    elif not processes or len(wanted) == 1:
        done = _in_this_process(wanted, settings)
    else:
        done = _in_processes(wanted, settings, processes)
    for place, outcome in done:
        yield misses[place], outcome


def cached(prepared: Prepared, settings: Settings, level: int = logging.WARNING) -> Outcome | None:
    """Return the variant where the library has it, sound and from the same inputs; else None.

    One that spills counts only where that is allowed. A damaged one is logged at `level`.
    """
    start, symbol = time.perf_counter(), prepared.kernel.symbol
    if settings.force:
        return None
    try:
        variant = settings.library.get(symbol)
    except LibraryError as error:
        _LOG.log(level, "%s is built again: %s", symbol, str(error).rpartition(": ")[0])
        return None
    if variant is None or variant.record.key != prepared.key:
        return None
    data = variant.record.data
    if any(data[name] != value for name, value in planned(prepared.kernel).items()):
        return None
    if data["spilled"] and not settings.allow_spills:
        return None
    if settings.prover and data["proof"].get("executor") != settings.prover.version:
        return None
    status = "spilled" if data["spilled"] else "cached"
    return Outcome(symbol, status, prepared.seconds + time.perf_counter() - start, variant.record)


def build_and_file(plans: Sequence[Plan], settings: Settings) -> list[Outcome]:
    """Build what the library has not, file it there, and return the outcome of each plan."""
    outcomes: dict[int, Outcome] = {}
    for place, plan in enumerate(plans):
        found = cached(prepare(plan, settings.templates), settings, logging.DEBUG)  # built meanwhile by another process
        if found:
            outcomes[place] = found
    missing = [place for place in range(len(plans)) if place not in outcomes]
    for place, product in zip(missing, build([plans[place] for place in missing], settings.recipe)):
        outcomes[place] = filed(product, settings.library)
    return [outcomes[place] for place in range(len(plans))]


def filed(product: Product, library: Library) -> Outcome:
    """Publish what was built, or keep what a compiler refused, and return the outcome.

    Raises: LibraryError where the folder cannot be written, or a record does not describe its files.
    """
    if product.record is None:
        error = product.error
        if product.failure:
            error = str(keep_failure(library.folder, product.source, product.source_name, product.failure))
        return Outcome(product.symbol, "failed", product.seconds, error=error)
    library.publish(product.record, product.files)
    forget_failure(library.folder, product.symbol)
    return Outcome(product.symbol, product.status, product.seconds, Record(product.record))


def _in_this_process(plans: Sequence[Plan], settings: Settings) -> Iterator[tuple[int, Outcome]]:
    """Build plans here: another process would take 0.2 s to load what is loaded already."""
    for start in range(0, len(plans), MAX_BATCH):
        yield from enumerate(build_and_file(plans[start : start + MAX_BATCH], settings), start)


def _in_processes(plans: Sequence[Plan], settings: Settings, processes: int) -> Iterator[tuple[int, Outcome]]:
    """Build plans in worker processes, which file them."""
    from generator.workers.local import process_pool  # only where there is more than one to build

    with process_pool(min(processes, len(plans))) as pool:
        for place, result in run(partial(build_and_file, settings=settings), plans, pool):
            yield place, _lost(plans[place], result) if isinstance(result, Lost) else result


def _filed_as_they_come(plans: Sequence[Plan], crew: Crew, settings: Settings) -> Iterator[tuple[int, Outcome]]:
    for place, result in crew.products(plans):
        yield place, _lost(plans[place], result) if isinstance(result, Lost) else filed(result, settings.library)


def _lost(plan: Plan, lost: Lost) -> Outcome:
    symbol = symbol_of(plan.spec)
    return Outcome(symbol, "failed", error=f"{symbol} is not built: its worker {lost.cause}")


def _require_writable(folder: Path) -> None:
    """Raises: LibraryError where nothing can be written to `folder`, before anything is compiled in vain."""
    with told("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / temporary_name()
        probe.touch()
        probe.unlink()
