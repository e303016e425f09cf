"""The plug-in of the run-time package: what `hgemm.generate`, `hgemm.verify` and growing libraries call. See hgemm.plugin."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from generator.build.pipeline import Prover, Settings, make_fitting
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.device_check import CheckOutcome, CheckRequest, CheckWorkers
from generator.errors import RequestError
from generator.families.base import Plan
from generator.pack.growth import build_kernel
from generator.planner import not_implemented
from generator.store.files import reject_export
from generator.store.library import Library
from generator.store.query import KernelFilter, choose
from generator.sweep import overridden, read_spec_file, sweep, texts_from
from hgemm.cases import Shape
from hgemm.device import open_device
from hgemm.library import reject_file
from hgemm.plugin import GenerateRequest, MultiplyRequest, Progress, Verified, VerifyRequest

__all__ = ["build_kernel", "generate", "multiply", "verify"]

_LOG = logging.getLogger("hgemm")


def generate(request: GenerateRequest) -> Iterator[Progress]:
    """Build kernels into a library, and yield each as it is finished.

    Raises: RequestError for an illegal request, LibraryError if the folder cannot be written.
    """
    given = texts_from(request.fields)
    groups = [
        texts
        for spec in request.specs or [{}]
        for texts in (read_spec_file(spec) if isinstance(spec, Path) else [texts_from(spec)])
    ]
    asked = sweep([overridden(group, given) for group in groups])
    asked.reject_empty()
    if asked.illegal:
        _LOG.warning("%s", asked.summary("and skipped"))
    plans = _available(asked.plans)
    reject_file(request.folder)
    reject_export(request.folder)
    settings = Settings(
        library=Library(request.folder),
        templates=templates_folder(),
        force=request.force,
        allow_spills=request.allow_spills,
        prover=_prover() if request.verify else None,
    )
    jobs = cores() if request.jobs is None else request.jobs
    if jobs < 1:
        raise RequestError(f"jobs is {jobs}: pass 1 or more")
    workers = 0 if jobs == 1 else jobs
    for done, made in enumerate(make_fitting(plans, asked.requests, settings, workers), 1):
        if made.note:
            _LOG.warning("%s", made.note)
        outcome = made.outcome
        yield Progress(done, len(plans), made.place, outcome.symbol, outcome.status, outcome.seconds, outcome.error)


def _available(plans: tuple[Plan, ...]) -> list[Plan]:
    """Return the plans that have a template. Raises: RequestError if none has."""
    missing = {plan: reason for plan in plans if (reason := not_implemented(plan))}
    available = [plan for plan in plans if plan not in missing]
    if not available:
        raise RequestError(next(iter(missing.values())))
    for reason in dict.fromkeys(missing.values()):
        _LOG.warning("skipped: %s", reason)
    return available


def _prover() -> Prover:
    """Return the prover of this machine. Raises: HgemmError if it has no C++ compiler."""
    from generator.proof.jobs import local_prover  # slow to import

    return local_prover()


def verify(request: VerifyRequest) -> Iterator[Verified]:
    """Check kernels of a library, and yield each as it is finished.

    Raises: RequestError for an illegal request, LibraryError if the library cannot be read or, without `symbols`, a record is
        damaged, NoCompiler or DeviceError if nothing can run here.
    """
    if request.shapes:
        Shape.parse_list(request.shapes)
    if request.jobs is not None and request.jobs < 1:
        raise RequestError(f"jobs is {request.jobs}: pass 1 or more")
    library = Library(request.folder)
    symbols = choose(library, tuple(request.symbols), KernelFilter())
    if not request.symbols and (damaged := library.damaged()):
        raise next(iter(damaged.values()))
    for one in _on_cpu(library, symbols, request) if request.device == "cpu" else _on_gpu(symbols, request):
        cases = tuple(check["case"] for check in one.shapes)
        reason = "" if one.passed else one.reason
        yield Verified(
            one.symbol, one.passed, bool(one.skipped), cases, one.worst_ratio, one.seconds, reason, one.reused
        )


def multiply(request: MultiplyRequest) -> None:
    """Compute a product of NumPy arrays on the CPU, and write its results. Raises: as generator.proof.products.multiply."""
    from generator.proof.products import multiply as multiply_on_cpu  # slow to import

    multiply_on_cpu(request)


def _on_cpu(library: Library, symbols: list[str], request: VerifyRequest) -> Iterator[CheckOutcome]:
    from generator.proof.jobs import Emulation, host_toolchain  # slow to import

    jobs = request.jobs or cores()
    emulation = Emulation(library, host_toolchain(), request.shapes, request.seed, jobs, force=request.force)
    return emulation.outcomes(symbols)


def _on_gpu(symbols: list[str], request: VerifyRequest) -> Iterator[CheckOutcome]:
    open_device()
    folder = str(request.folder.resolve())
    requests = [CheckRequest(folder, symbol, request.shapes, seed=request.seed) for symbol in symbols]
    workers = CheckWorkers(request.jobs or max(1, min(8, cores() // 2)))
    return (outcome for outcome, _ in workers.check_all(requests))
