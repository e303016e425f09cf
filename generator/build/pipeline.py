"""The pipeline: emit, compile, inspect, check, describe, store. `build` does the stages; `make` adds the library."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from generator import __version__
from generator.build.compile import Compiled, compile_kernel, key_of, versions_of
from generator.build.emit import EmittedKernel, emit
from generator.build.inspect import Binary, Inspection, inspect_all
from generator.build.toolchain import Headers, headers
from generator.build.workers import MAX_BATCH, LostItem, run
from generator.errors import BuildError, LibraryError, ProofError
from generator.families import expectation_of
from generator.families.base import Plan
from generator.planner import advice_on_spills, spill_fallbacks
from generator.spec import Request
from generator.store.files import disk_errors, forget_failure, keep_failure, temporary_name
from generator.store.library import Library
from generator.store.proofs import unproved, with_proof
from hgemm.library import MissingKernelError, read_stored
from hgemm.record import CUBIN_NAME, PTX_NAME, SCHEMA, SOURCE_NAME, Record

_LOCAL_MEMORY = ("LDL", "STL")


def planned_sections(kernel: EmittedKernel) -> dict[str, Any]:
    """Return the sections of a record that follow from the plan alone."""
    plan = kernel.plan
    return {
        "schema": SCHEMA,
        "symbol": kernel.symbol,
        "alias": kernel.alias,
        "arch": plan.spec.arch,
        "spec": plan.spec.to_dict(),
        "launch": plan.launch(),
        "traits": plan.traits(),
        "accumulation_order": plan.accumulation_order.to_dict(),
    }


def artefacts_of(kernel: EmittedKernel, compiled: Compiled) -> dict[str, bytes]:
    """Return the files of a kernel, without its record."""
    return {kernel.source_name: kernel.source.encode(), CUBIN_NAME: compiled.cubin, PTX_NAME: compiled.ptx}


def record_data(
    kernel: EmittedKernel,
    headers: Headers,
    compiled: Compiled,
    inspection: Inspection,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the record of a kernel: its plan, its inputs, and the results of inspection."""
    return {
        **planned_sections(kernel),
        "key": key_of(kernel, headers),
        "toolchain": {**versions_of(kernel), "options": [*compiled.options], "generator": __version__},
        "inputs": headers.hashes(),
        "files": {name: _described(content) for name, content in artefacts_of(kernel, compiled).items()},
        "resources": asdict(inspection.resources),
        "sass": inspection.sass,
        "proof": _proof(kernel.plan, inspection),
        "seconds": seconds,
        "spilled": spills(inspection),
    }


def spills(inspection: Inspection) -> bool:
    """Return whether a kernel uses local memory, for spilled registers or for arrays."""
    resources = inspection.resources
    return bool(resources.spill_bytes or resources.stack_bytes or any(map(inspection.sass.get, _LOCAL_MEMORY)))


def _proof(plan: Plan, inspection: Inspection) -> dict[str, Any]:
    """Return what inspection shows. `bank_conflicts` counts those of a k-tile."""
    apart = {} if inspection.store_spacing is None else {"mma_between_stores": inspection.store_spacing}
    return {"mma_per_k_tile": plan.mma_per_k_tile, "bank_conflicts": plan.bank_conflicts, **apart}


def _described(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


# ---- From plans to results: nothing is written ----------------------------------------------------------------------


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build. `prover`, if given, checks each kernel before it is stored."""

    templates: Path
    allow_spills: bool = False
    prover: Prover | None = None


class Prover(Protocol):
    """Checks a kernel. The proof records `version` as its `executor`."""

    version: str

    def proof(self, ptx: bytes, record: dict[str, Any]) -> dict[str, Any]:
        """Return the additions to the `proof` of the record. Raises: ProofError if the kernel fails."""


@dataclass(frozen=True)
class Prepared:
    """A kernel, emitted once, and its content key. Worker processes receive it, so it leaves out the texts of headers."""

    kernel: EmittedKernel
    key: str
    seconds: float


@dataclass(frozen=True)
class BuildResult:
    """The result of building a kernel: its record and files, or an error.

    Fields: `status` is built, proved, spilled or failed. `failure` is the error of the compiler for `source`. `spills` is set if it
        failed because registers spill.
    """

    symbol: str
    status: str
    seconds: float
    record: dict[str, Any] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    error: str = ""
    failure: BuildError | None = None
    source: str = ""
    source_name: str = SOURCE_NAME
    spills: bool = False


@dataclass(frozen=True)
class _Built:
    """A compiled kernel before inspection. `place` is its index in the batch."""

    place: int
    prepared: Prepared
    headers: Headers
    compiled: Compiled
    seconds: float


def prepare(plan: Plan, templates: Path) -> Prepared:
    """Emit the kernel of a plan, and compute its content key from the source and the headers that it can include."""
    start = time.perf_counter()
    kernel = emit(plan, templates)
    return Prepared(kernel, key_of(kernel, headers(kernel.entry_header, templates)), time.perf_counter() - start)


def build(batch: Sequence[Prepared], options: BuildOptions) -> list[BuildResult]:
    """Compile kernels one by one, inspect them together, and return a BuildResult for each.

    The record's key is of the headers that this process read, which may have changed since the kernel was prepared.
    """
    results: dict[int, BuildResult] = {}
    compiled: list[_Built] = []
    for place, prepared in enumerate(batch):
        kernel = prepared.kernel
        found = headers(kernel.entry_header, options.templates)
        start = time.perf_counter()
        try:
            result = compile_kernel(kernel, found)
            compiled.append(_Built(place, prepared, found, result, time.perf_counter() - start))
        except BuildError as error:
            seconds = time.perf_counter() - start
            text = {"source": kernel.source, "source_name": kernel.source_name}
            results[place] = BuildResult(error.symbol, "failed", seconds, failure=error, **text)
    start = time.perf_counter()
    inspections = inspect_all(
        [
            Binary(
                built.compiled.cubin,
                built.prepared.kernel.symbol,
                expectation_of(built.prepared.kernel.plan, options.allow_spills),
                built.compiled.ptxas_log,
            )
            for built in compiled
        ]
    )
    inspect_seconds = (time.perf_counter() - start) / max(1, len(compiled))
    for built, inspection in zip(compiled, inspections):
        results[built.place] = _build_result(built, inspection, inspect_seconds, options.prover)
    return [results[place] for place in range(len(batch))]


def _build_result(built: _Built, inspection: Inspection, inspect_seconds: float, prover: Prover | None) -> BuildResult:
    """Check a compiled kernel against its plan, run the prover if any, and write the record."""
    prepared, symbol = built.prepared, built.prepared.kernel.symbol
    seconds = {"emit": prepared.seconds, "compile": built.seconds, "inspect": inspect_seconds}
    total = sum(seconds.values())
    if inspection.violations:
        error = f"{symbol} differs from its plan and is not stored: {'; '.join(inspection.violations)}"
        if inspection.resources.spill_bytes and (advice := advice_on_spills(prepared.kernel.plan)):
            error = f"{error}. {advice}"
        return BuildResult(symbol, "failed", total, error=error, spills=bool(inspection.resources.spill_bytes))
    data = record_data(prepared.kernel, built.headers, built.compiled, inspection, seconds)
    began = time.perf_counter()
    try:
        if prover:
            data = with_proof(data, prover.proof(built.compiled.ptx, data))
    except ProofError as error:
        message = f"{symbol} fails its check and is not stored: {error}"
        return BuildResult(symbol, "failed", total + time.perf_counter() - began, error=message)
    status = "spilled" if spills(inspection) else "proved" if prover else "built"
    files = artefacts_of(prepared.kernel, built.compiled)
    return BuildResult(symbol, status, total + time.perf_counter() - began, data, files)


# ---- With a library: take what it has, build and store the rest -----------------------------------------------------

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """The library, whether to rebuild present kernels (`force`), and the fields of BuildOptions."""

    library: Library
    templates: Path
    force: bool = False
    allow_spills: bool = False
    prover: Prover | None = None

    @property
    def options(self) -> BuildOptions:
        return BuildOptions(self.templates, self.allow_spills, self.prover)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one kernel. `status` is built, proved, cached, spilled or failed; a failed one has no record.

    Units: `seconds` in this run.
    Fields: `spills` is set if it failed because registers spill.
    """

    symbol: str
    status: str
    seconds: float = 0.0
    record: Record | None = None
    error: str = ""
    spills: bool = False


class WorkerPool(Protocol):
    """Builds kernels elsewhere. It does not access the library."""

    def results(self, kernels: Sequence[Prepared]) -> Iterator[tuple[int, BuildResult | LostItem]]:
        """Yield (place, result or LostItem) once per kernel, as results arrive."""


def make(
    plans: Sequence[Plan],
    settings: Settings,
    processes: int,
    worker_pool: WorkerPool | None = None,
    max_batch: int = MAX_BATCH,
) -> Iterator[tuple[int, Outcome]]:
    """Yield (place, outcome) of each legal plan as it arrives: first the cached kernels, then the built ones.

    `worker_pool` builds if given, else `processes` worker processes; a crash of a compiler then costs one kernel. With no
    processes, or one plan, this process builds. That is faster, but a crash of a compiler ends it. Outcomes of worker processes
    arrive in batches of at most `max_batch`. Small batches arrive earlier, and take more time in all.
    Raises: HgemmError if nothing can be built: a missing compiler, or a folder that cannot be written.
    """
    missing: dict[int, Prepared] = {}
    for place, plan in enumerate(plans):
        prepared = prepare(plan, settings.templates)
        found = cached(prepared, settings)
        if found:
            yield place, found
        else:
            missing[place] = prepared
    if not missing:
        return
    _require_writable(settings.library)
    places, wanted = [*missing], [*missing.values()]
    if worker_pool:
        done = _stored_as_they_come(wanted, worker_pool, settings)
    elif not processes or len(wanted) == 1:
        done = _in_this_process(wanted, settings)
    else:
        done = _in_processes(wanted, settings, processes, max_batch)
    for place, outcome in done:
        yield places[place], outcome


@dataclass(frozen=True)
class FittedOutcome:
    """A plan and its outcome. If the plan at `place` spills, `plan` is one that fits, with this `change` of options."""

    place: int
    plan: Plan
    outcome: Outcome
    change: str = ""
    spilled: str = ""

    @property
    def note(self) -> str:
        """A note about the replaced kernel; empty if none was replaced."""
        return f"{self.spilled} spills registers: built it with {self.change}" if self.change else ""


MAX_FALLBACKS = 4
"""Specs to build for a kernel that spills, until one fits."""


def make_fitting(
    plans: Sequence[Plan],
    requests: Mapping[Plan, Request],
    settings: Settings,
    processes: int,
    worker_pool: WorkerPool | None = None,
) -> Iterator[FittedOutcome]:
    """Yield what `make` yields, but replace kernels that spill by the nearest ones that fit. These come last.

    Fields that the request of a plan sets are never changed.
    Raises: as `make`.
    """
    spilling: list[FittedOutcome] = []
    for place, outcome in make(plans, settings, processes, worker_pool):
        made = FittedOutcome(place, plans[place], outcome)
        if outcome.spills:
            spilling.append(made)
        else:
            yield made
    for made in spilling:
        yield _fitting(made, requests[made.plan], settings)


def _fitting(made: FittedOutcome, request: Request, settings: Settings) -> FittedOutcome:
    for plan, change in itertools.islice(spill_fallbacks(made.plan, request), MAX_FALLBACKS):
        ((_, outcome),) = make([plan], settings, 0)
        if outcome.record:
            return FittedOutcome(made.place, plan, outcome, change, made.outcome.symbol)
    return made


def cached(prepared: Prepared, settings: Settings, level: int = logging.WARNING) -> Outcome | None:
    """Return the kernel if the library has it, sound and from the same inputs; else None.

    One that spills counts only if spills are allowed. A damaged one is logged at `level`.
    """
    start, symbol = time.perf_counter(), prepared.kernel.symbol
    if settings.force:
        return None
    try:
        stored = read_stored(
            settings.library.folder, symbol
        )  # Library.load would also plan; the plan is compared below
    except MissingKernelError:
        return None
    except LibraryError as error:
        _LOG.log(level, "rebuilding %s: %s", symbol, str(error).rpartition(": ")[0])
        return None
    if stored.record.key != prepared.key:
        return None
    data = stored.record.data
    if any(data.get(name) != value for name, value in planned_sections(prepared.kernel).items()):
        return None
    if stored.source != prepared.kernel.source.encode():
        _LOG.log(level, "rebuilding %s: its %s is not what this version writes", symbol, stored.record.source_name)
        return None
    if data["spilled"] and not settings.allow_spills:
        return None
    if settings.prover and unproved(data, settings.prover.version):
        return None
    status = "spilled" if data["spilled"] else "cached"
    return Outcome(symbol, status, prepared.seconds + time.perf_counter() - start, stored.record)


def build_and_store(batch: Sequence[Prepared], settings: Settings) -> list[Outcome]:
    """Build and store what the library does not have. Return the outcome of each kernel."""
    found = [cached(prepared, settings, logging.DEBUG) for prepared in batch]  # another process may have built some
    results = iter(build([prepared for prepared, old in zip(batch, found) if not old], settings.options))
    return [old or stored_outcome(next(results), settings.library) for old in found]


def stored_outcome(result: BuildResult, library: Library) -> Outcome:
    """Store a kernel, or keep the source and log of a failed compilation. Return the outcome.

    Raises: LibraryError if the folder cannot be written, or a record does not describe its files.
    """
    if result.record is None:
        error = result.error
        if result.failure:
            error = str(keep_failure(library.folder, result.source, result.source_name, result.failure, library.option))
        return Outcome(result.symbol, "failed", result.seconds, error=error, spills=result.spills)
    library.publish(result.record, result.files)
    forget_failure(library.folder, result.symbol)
    return Outcome(result.symbol, result.status, result.seconds, Record(result.record))


def _in_this_process(kernels: Sequence[Prepared], settings: Settings) -> Iterator[tuple[int, Outcome]]:
    """Build kernels in this process. A new process takes 0.2 s to start."""
    for start in range(0, len(kernels), MAX_BATCH):
        yield from enumerate(build_and_store(kernels[start : start + MAX_BATCH], settings), start)


def _in_processes(
    kernels: Sequence[Prepared], settings: Settings, processes: int, max_batch: int
) -> Iterator[tuple[int, Outcome]]:
    """Build kernels in worker processes, which also store them."""
    from generator.build.workers import process_pool  # needed only for several kernels

    settings = replace(
        settings, library=replace(settings.library, folder=settings.library.folder.absolute())
    )  # a process has another folder
    with process_pool(min(processes, len(kernels))) as pool:
        for place, result in run(partial(build_and_store, settings=settings), kernels, pool, max_batch):
            yield place, _lost(kernels[place], result) if isinstance(result, LostItem) else result


def _stored_as_they_come(
    kernels: Sequence[Prepared], worker_pool: WorkerPool, settings: Settings
) -> Iterator[tuple[int, Outcome]]:
    for place, result in worker_pool.results(kernels):
        lost = isinstance(result, LostItem)
        yield place, _lost(kernels[place], result) if lost else stored_outcome(result, settings.library)


def _lost(prepared: Prepared, lost: LostItem) -> Outcome:
    symbol = prepared.kernel.symbol
    return Outcome(symbol, "failed", error=f"{symbol} was not built: its worker {lost.cause}")


def _require_writable(library: Library) -> None:
    """Raises: LibraryError if the folder cannot be written. This check comes before any compilation."""
    folder = library.folder
    with disk_errors("write", folder, library.option):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / temporary_name()
        probe.touch()
        probe.unlink()
