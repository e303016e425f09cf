"""The stages joined: emit, look in the library, compile, inspect, register.

A variant's own failures (it does not compile, it is not as planned) are outcomes, and the others go on. What would stop
every variant (a missing compiler, a full disk) is raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from generator.binary.inspect import Binary, inspect_all
from generator.compile import Compiled, compile_kernel, key_of
from generator.emit import Kernel, emit
from generator.errors import BuildError, LibraryError, ProofError
from generator.expectation import expectation_of
from generator.failures import forget_failure, keep_failure
from generator.naming import symbol_of
from generator.plan import Plan
from generator.register import artefacts_of, document, planned, spills
from generator.store.disk import told
from generator.store.library import Library
from generator.store.whole import temporary_name
from generator.toolchain import Headers, headers
from hgemm.record import Record

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Where variants are filed, what they are made from, and what is let pass.

    Fields: `prover` runs each variant before it is registered, where there is one.
    """

    library: Library
    templates: Path
    force: bool = False
    allow_spills: bool = False
    prover: Prover | None = None


class Prover(Protocol):
    """What proves a variant, in `version` of itself, which the proof then has as its `executor`."""

    version: str

    def proof(self, source: str, record: dict[str, Any]) -> dict[str, Any]:
        """Return what is added to the record's `proof`. Raises ProofError where the variant is not right."""


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


@dataclass(frozen=True)
class Prepared:
    """A kernel's text with everything that its compilation can read, and the content key of all that."""

    kernel: Kernel
    headers: Headers
    key: str
    seconds: float


@dataclass(frozen=True)
class _Built:
    """A compiled kernel on its way to inspection; `place` is that of its plan."""

    place: int
    prepared: Prepared
    compiled: Compiled
    seconds: float


def make(plans: Sequence[Plan], settings: Settings, processes: int) -> Iterator[tuple[int, Outcome]]:
    """Yield (place, outcome) of each legal plan as it comes: first what the library has, then what is built.

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
    done = (
        build(wanted, lambda place: None, settings) if len(wanted) == 1 else _in_processes(wanted, settings, processes)
    )
    for place, outcome in done:
        yield misses[place], outcome


def prepare(plan: Plan, templates: Path) -> Prepared:
    """Emit a plan's kernel, collect the headers that it can reach, and compute the key."""
    start = time.perf_counter()
    kernel = emit(plan, templates)
    found = headers(kernel.entry_header, templates)
    return Prepared(kernel, found, key_of(kernel, found), time.perf_counter() - start)


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


Begin = Callable[[int | None], None]


def build(plans: Sequence[Plan], begin: Begin, settings: Settings) -> Iterator[tuple[int, Outcome]]:
    """Compile plans one after the other, inspect them together, and publish those that are as planned.

    `begin` is told the place of the plan that is being compiled, and None before the inspection.
    """
    compiled: list[_Built] = []
    for place, plan in enumerate(plans):
        begin(place)
        prepared = prepare(plan, settings.templates)
        found = cached(prepared, settings, logging.DEBUG)  # another process may have built it meanwhile
        if found:
            yield place, found
            continue
        start = time.perf_counter()
        try:
            result = compile_kernel(prepared.kernel, prepared.headers)
            compiled.append(_Built(place, prepared, result, time.perf_counter() - start))
        except BuildError as error:
            kept = keep_failure(settings.library.folder, prepared.kernel.source, error)
            yield place, Outcome(error.symbol, "failed", time.perf_counter() - start, error=str(kept))
    begin(None)
    if compiled:
        yield from _inspect_and_publish(compiled, settings)


def _inspect_and_publish(compiled: list[_Built], settings: Settings) -> Iterator[tuple[int, Outcome]]:
    start = time.perf_counter()
    inspections = inspect_all(
        [
            Binary(
                built.compiled.cubin,
                built.prepared.kernel.symbol,
                expectation_of(built.prepared.kernel.plan, settings.allow_spills),
                built.compiled.ptxas_log,
            )
            for built in compiled
        ]
    )
    inspect_seconds = (time.perf_counter() - start) / len(compiled)
    for built, inspection in zip(compiled, inspections):
        prepared, symbol = built.prepared, built.prepared.kernel.symbol
        seconds = {"emit": prepared.seconds, "compile": built.seconds, "inspect": inspect_seconds}
        total = sum(seconds.values())
        if inspection.violations:
            error = f"{symbol} is not as planned and is not registered: {'; '.join(inspection.violations)}"
            yield built.place, Outcome(symbol, "failed", total, error=error)
            continue
        artefacts = artefacts_of(prepared.kernel, built.compiled)
        data = document(prepared.kernel, prepared.headers, prepared.key, built.compiled, inspection, seconds)
        began = time.perf_counter()
        try:
            if settings.prover:
                data["proof"] |= settings.prover.proof(prepared.kernel.source, data)
        except ProofError as error:
            told = f"{symbol} is not proved and is not registered: {error}"
            yield built.place, Outcome(symbol, "failed", total + time.perf_counter() - began, error=told)
            continue
        total += time.perf_counter() - began
        settings.library.publish(data, artefacts)
        forget_failure(settings.library.folder, symbol)
        status = "spilled" if spills(inspection) else "proved" if settings.prover else "built"
        yield built.place, Outcome(symbol, status, total, Record(data))


def _in_processes(plans: Sequence[Plan], settings: Settings, processes: int) -> Iterator[tuple[int, Outcome]]:
    """Build plans in worker processes; the plan that a worker died over is told of, the others are built."""
    from generator.workers import Lost, run  # only where there is more than one to build

    for place, result in run(partial(build, settings=settings), plans, min(processes, len(plans))):
        if isinstance(result, Lost):
            symbol = symbol_of(plans[place].spec)
            result = Outcome(symbol, "failed", error=f"{symbol} is not built: its worker {result}")
        yield place, result


def _require_writable(folder: Path) -> None:
    """Raises: LibraryError where nothing can be written to `folder`, before anything is compiled in vain."""
    with told("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / temporary_name()
        probe.touch()
        probe.unlink()
