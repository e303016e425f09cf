"""Plans to products: emitted, compiled, inspected, proved and described; nothing is written, so this may be done anywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from generator.binary.inspect import Binary, Inspection, inspect_all
from generator.compile import Compiled, compile_kernel, key_of
from generator.emit import Kernel, emit
from generator.errors import BuildError, ProofError
from generator.expectation import expectation_of
from generator.plan import Plan
from generator.register import artefacts_of, document, spills
from generator.toolchain import Headers, headers
from hgemm.record import SOURCE_NAME


@dataclass(frozen=True)
class Recipe:
    """What variants are made from, and what is let pass.

    Fields: `prover` runs each variant before it is registered, where there is one.
    """

    templates: Path
    allow_spills: bool = False
    prover: Prover | None = None


class Prover(Protocol):
    """What proves a variant, in `version` of itself, which the proof then has as its `executor`."""

    version: str

    def proof(self, source: str, record: dict[str, Any]) -> dict[str, Any]:
        """Return what is added to the record's `proof`. Raises ProofError where the variant is not right."""


@dataclass(frozen=True)
class Prepared:
    """A kernel's text with everything that its compilation can read, and the content key of all that."""

    kernel: Kernel
    headers: Headers
    key: str
    seconds: float


@dataclass(frozen=True)
class Product:
    """What building a variant came to, to be filed: its record and files, or what is wrong with it.

    Fields: `status` is built, proved, spilled or failed; `failure` is the compiler's, on the text `source` of the file
    `source_name`.
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


@dataclass(frozen=True)
class _Built:
    """A compiled kernel on its way to inspection; `place` is that of its plan."""

    place: int
    prepared: Prepared
    compiled: Compiled
    seconds: float


def prepare(plan: Plan, templates: Path) -> Prepared:
    """Emit a plan's kernel, collect the headers that it can reach, and compute the key."""
    start = time.perf_counter()
    kernel = emit(plan, templates)
    found = headers(kernel.entry_header, templates)
    return Prepared(kernel, found, key_of(kernel, found), time.perf_counter() - start)


def build(plans: Sequence[Plan], recipe: Recipe) -> list[Product]:
    """Compile plans one after the other, inspect them together, and return what each came to; nothing is written."""
    products: dict[int, Product] = {}
    compiled: list[_Built] = []
    for place, plan in enumerate(plans):
        prepared = prepare(plan, recipe.templates)
        start = time.perf_counter()
        try:
            result = compile_kernel(prepared.kernel, prepared.headers)
            compiled.append(_Built(place, prepared, result, time.perf_counter() - start))
        except BuildError as error:
            seconds, kernel = time.perf_counter() - start, prepared.kernel
            text = {"source": kernel.source, "source_name": kernel.source_name}
            products[place] = Product(error.symbol, "failed", seconds, failure=error, **text)
    start = time.perf_counter()
    inspections = inspect_all(
        [
            Binary(
                built.compiled.cubin,
                built.prepared.kernel.symbol,
                expectation_of(built.prepared.kernel.plan, recipe.allow_spills),
                built.compiled.ptxas_log,
            )
            for built in compiled
        ]
    )
    inspect_seconds = (time.perf_counter() - start) / max(1, len(compiled))
    for built, inspection in zip(compiled, inspections):
        products[built.place] = _product(built, inspection, inspect_seconds, recipe.prover)
    return [products[place] for place in range(len(plans))]


def _product(built: _Built, inspection: Inspection, inspect_seconds: float, prover: Prover | None) -> Product:
    """Judge a compiled kernel, prove it where that is asked for, and describe it."""
    prepared, symbol = built.prepared, built.prepared.kernel.symbol
    seconds = {"emit": prepared.seconds, "compile": built.seconds, "inspect": inspect_seconds}
    total = sum(seconds.values())
    if inspection.violations:
        error = f"{symbol} is not as planned and is not registered: {'; '.join(inspection.violations)}"
        return Product(symbol, "failed", total, error=error)
    data = document(prepared.kernel, prepared.headers, prepared.key, built.compiled, inspection, seconds)
    began = time.perf_counter()
    try:
        if prover:
            data["proof"] |= prover.proof(prepared.kernel.source, data)
    except ProofError as error:
        told = f"{symbol} is not proved and is not registered: {error}"
        return Product(symbol, "failed", total + time.perf_counter() - began, error=told)
    status = "spilled" if spills(inspection) else "proved" if prover else "built"
    files = artefacts_of(prepared.kernel, built.compiled)
    return Product(symbol, status, total + time.perf_counter() - began, data, files)
