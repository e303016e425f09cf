"""Build the kernels of a library again, and compare: `hgemm verify --rebuild`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from generator.build.compile import compile_kernel, key_of
from generator.build.emit import EmittedKernel
from generator.build.fresh import differing_inputs, foreign, fresh_kernel
from generator.build.inspect import Binary, inspect
from generator.build.toolchain import headers
from generator.build.workers import LostItem, process_pool, run
from generator.device_check import CheckOutcome
from generator.errors import HgemmError
from generator.families import expectation_of
from generator.store.library import Library
from generator.tables import counted
from hgemm.library import StoredKernel
from hgemm.record import CUBIN_NAME, PTX_NAME

_MAX_NAMED = 3


def rebuilt(library: Library, symbols: Iterable[str], templates: Path, jobs: int) -> Iterator[CheckOutcome]:
    """Yield the outcome of each kernel, in order: its checks are the parts that were compared."""
    library, symbols = Library(library.folder.absolute()), [*symbols]
    task = partial(_rebuild_all, library=library, templates=templates)
    if jobs == 1 or len(symbols) == 1:
        for symbol in symbols:
            yield from task([symbol])
        return
    with process_pool(min(jobs, len(symbols))) as pool:
        found = dict(run(task, symbols, pool))
    for place, symbol in enumerate(symbols):
        result = found[place]
        yield CheckOutcome(symbol, error=f"its worker {result.cause}") if isinstance(result, LostItem) else result


def _rebuild_all(symbols: Sequence[str], library: Library, templates: Path) -> list[CheckOutcome]:
    return [_rebuild(library, symbol, templates) for symbol in symbols]


def _rebuild(library: Library, symbol: str, templates: Path) -> CheckOutcome:
    began = time.monotonic()
    try:
        stored = library.load(symbol)
        wrong = foreign(stored, templates)
        checks = [_check("source and launch", wrong)]
        if not wrong:
            checks += _compared(stored, fresh_kernel(stored, templates), templates)
    except HgemmError as error:
        return CheckOutcome(symbol, error=str(error), seconds=time.monotonic() - began)
    return CheckOutcome(symbol, tuple(checks), seconds=time.monotonic() - began)


def _compared(stored: StoredKernel, kernel: EmittedKernel, templates: Path) -> Iterator[dict]:
    """Yield the checks of the compiled files: byte for byte if all inputs are the same, otherwise by instruction counts."""
    record, found = stored.record, headers(kernel.entry_header, templates)
    compiled = compile_kernel(kernel, found)
    if record.key == key_of(kernel, found):
        for name, content in ((PTX_NAME, compiled.ptx), (CUBIN_NAME, compiled.cubin)):
            same = stored.artefacts[name] == content
            yield _check(name, "" if same else f"{name} is not what these inputs compile to")
        return
    expectation = expectation_of(kernel.plan, allow_spills=True)
    theirs, ours = (
        inspect(Binary(cubin, kernel.symbol, expectation, log)).sass
        for cubin, log in ((stored.artefacts[CUBIN_NAME], ""), (compiled.cubin, compiled.ptxas_log))
    )
    counts = "" if theirs == record.data["sass"] else "the cubin has other instructions than its record states"
    yield _check(f"instruction counts ({differing_inputs(stored, kernel)})", counts or _differing(theirs, ours))


def _check(case: str, reason: str) -> dict:
    return {"case": case, "max_error": 0.0, "max_bound_ratio": 0.0, "passed": not reason, "reason": reason}


def _differing(theirs: dict[str, int], ours: dict[str, int]) -> str:
    names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name, 0) != ours.get(name, 0))
    named = ", ".join(f"{name} {theirs.get(name, 0)}, here {ours.get(name, 0)}" for name in names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"instruction counts differ: {named}{more}" if names else ""


# ==== Outcomes as text ====


def rebuilt_line(outcome: CheckOutcome) -> str:
    """Return the outcome of one kernel as a line."""
    if not outcome.passed:
        return f"FAIL  {outcome.symbol}  {outcome.reason}"
    return (
        f"ok    {outcome.symbol}  same {', '.join(check['case'] for check in outcome.checks)}; {outcome.seconds:.1f} s"
    )


def rebuilt_summary(outcomes: Sequence[CheckOutcome]) -> str:
    """Return how many kernels were built the same again."""
    same = Counter(outcome.passed for outcome in outcomes)
    return f"{counted(same[True], 'kernel')} built the same again, {same[False]} not"
