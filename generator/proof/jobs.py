"""Variants proved on the CPU, each in a process of its own: a kernel that crashes or never ends harms no other."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from generator.build.toolchain import OWN_HEADERS, templates_folder
from generator.device_check import Outcome, Workers, answer
from generator.errors import ProofError
from generator.proof.executor import HostCompiler, HostToolchain, cache_folder, find_compiler, require_working, trim
from generator.store.library import Library
from hgemm.cases import Shape
from hgemm.record import SOURCE_NAME, dump

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Request:
    """What to prove: a variant's text and the sections of its record, on its default cases where `shapes` is empty."""

    symbol: str
    source: str
    record: Mapping[str, Any]
    mma_per_tile: int
    compiler: tuple[str, ...]
    identity: str
    templates: str
    cache: str
    shapes: str = ""
    seed: int = 0
    flags: tuple[str, ...] = ()
    level: str = HostToolchain.level


def request_of(
    host_toolchain: HostToolchain, source: str, record: Mapping[str, Any], shapes: str = "", seed: int = 0
) -> Request:
    """Return what proves a variant from its text and its record, or the planned sections of one."""
    return Request(
        symbol=record["symbol"],
        source=source,
        record={name: record[name] for name in ("symbol", "arch", "spec", "launch", "traits")},
        mma_per_tile=record["proof"]["mma_per_tile"],
        compiler=host_toolchain.compiler.command,
        identity=host_toolchain.compiler.identity,
        templates=str(host_toolchain.templates),
        cache=str(host_toolchain.cache),
        shapes=shapes,
        seed=seed,
        flags=host_toolchain.flags,
        level=host_toolchain.level,
    )


def workers(jobs: int, timeout_s: float = TIMEOUT_S) -> Workers:
    """Return what proves requests, `jobs` at a time."""
    return Workers(jobs, timeout_s, module="generator.proof.jobs")


def check_here(request: Request) -> Outcome:
    """Prove a variant in this process. Raises: HgemmError where it cannot be built or launched."""
    from generator.proof.proving import Subject, prove  # NumPy, which only the process that proves needs

    began = time.monotonic()
    compiler = HostCompiler(tuple(request.compiler), request.identity)
    host_toolchain = HostToolchain(
        compiler, Path(request.templates), Path(request.cache), tuple(request.flags), request.level
    )
    shapes = Shape.parse_list(request.shapes) if request.shapes else ()
    subject = Subject(request.symbol, request.source, request.record, request.mma_per_tile)
    proved = prove(subject, host_toolchain, shapes, request.seed)
    checks = tuple(asdict(check) for check in proved.checks)
    return Outcome(request.symbol, checks, "", "", time.monotonic() - began, proved.proof, proved.sites)


# ==== Proving on the CPU, as `hgemm verify --emulate` and `generate --verify emulate` ask for it ====


NOT_IN_CPP = "the executor runs C++, and this is a module of CuTe DSL: verify it on a GPU"
_TIMES = "emulate_seconds"


def host_toolchain() -> HostToolchain:
    """Return what builds executable variants here: the compiler that CXX names, or the first that is found.

    Raises: HgemmError where there is no compiler, or one that does not work.
    """
    compiler, templates = find_compiler(os.environ.get("CXX", "")), templates_folder()
    require_working(compiler, templates)
    return HostToolchain(compiler, templates, cache_folder(os.environ))


@dataclass(frozen=True)
class Emulation:
    """How variants of a library are proved: on which shapes, from which seed, by how many processes."""

    library: Library
    host_toolchain: HostToolchain
    shapes: str = ""
    seed: int = 0
    jobs: int = 1
    timeout_s: float = TIMEOUT_S

    def outcomes(self, symbols: Iterable[str]) -> Iterator[Outcome]:
        """Yield what came of each variant, in order; a proof on the default shapes is filed in its record."""
        wanted = [self._request(symbol) for symbol in symbols]
        requests = [one for one in wanted if isinstance(one, Request)]
        if requests:
            self.host_toolchain.executor()  # once, not by each process; where it cannot be, no variant is to blame
        told = workers(self.jobs, self.timeout_s).check_all(requests)
        for one in wanted:
            outcome = next(told)[0] if isinstance(one, Request) else one
            if outcome.proof:
                self._file(outcome)
            yield outcome
        trim(self.host_toolchain.cache)

    def _request(self, symbol: str) -> Request | Outcome:
        variant = self.library.load(symbol)
        if variant.record.source_name != SOURCE_NAME:
            return Outcome(symbol, skipped=NOT_IN_CPP)
        try:
            require_same_headers(self.host_toolchain, variant.record.data)
        except ProofError as error:
            return Outcome(symbol, error=str(error))
        source = variant.source.decode()
        return request_of(self.host_toolchain, source, variant.record.data, self.shapes, self.seed)

    def _file(self, outcome: Outcome) -> None:
        variant = self.library.load(outcome.symbol)
        old = variant.record.data["proof"]
        new = {**old, **outcome.proof}
        if dump({**new, _TIMES: None}) != dump({**old, _TIMES: None}):
            self.library.publish({**variant.record.data, "proof": new}, variant.artefacts)


def require_same_headers(host_toolchain: HostToolchain, record: Mapping[str, Any]) -> None:
    """Raise ProofError where a variant was compiled from other templates than would be run here."""
    for name, sha256 in record["inputs"].items():
        if name.startswith(OWN_HEADERS) and host_toolchain.hash_of(name) != sha256 and "host" not in name:
            raise ProofError(f"it was made from another templates/{name} than there is now: generate it anew")


@dataclass(frozen=True)
class Prover:
    """Proves a variant before it is registered; may be sent to other processes."""

    host_toolchain: HostToolchain
    timeout_s: float = TIMEOUT_S

    @cached_property
    def version(self) -> str:
        """Return what a proof of this executor has in it."""
        return self.host_toolchain.version()

    def proof(self, source: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what running a variant adds to its record's `proof`. Raises ProofError with what was found."""
        if record["spec"]["form"] == "dsl":
            raise ProofError(NOT_IN_CPP)
        outcome, _ = workers(1, self.timeout_s).check(request_of(self.host_toolchain, source, record))
        if not outcome.passed:
            raise ProofError(outcome.reason)
        return outcome.proof


if __name__ == "__main__":
    answer(Request(**json.loads(sys.argv[1])), check_here)
