"""Variants proved on the CPU, each in a process of its own: a kernel that crashes or never ends harms no other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from generator.commands.device_check import Outcome, Workers, answer
from generator.executor.build import Workshop
from generator.executor.host_compiler import HostCompiler
from hgemm.cases import Shape

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
    level: str = Workshop.level


def request_of(workshop: Workshop, source: str, record: Mapping[str, Any], shapes: str = "", seed: int = 0) -> Request:
    """Return what proves a variant from its text and its record, or the planned sections of one."""
    return Request(
        symbol=record["symbol"],
        source=source,
        record={name: record[name] for name in ("symbol", "arch", "spec", "launch", "traits")},
        mma_per_tile=record["proof"]["mma_per_tile"],
        compiler=workshop.compiler.command,
        identity=workshop.compiler.identity,
        templates=str(workshop.templates),
        cache=str(workshop.cache),
        shapes=shapes,
        seed=seed,
        flags=workshop.flags,
        level=workshop.level,
    )


def workers(jobs: int, timeout_s: float = TIMEOUT_S) -> Workers:
    """Return what proves requests, `jobs` at a time."""
    return Workers(jobs, timeout_s, module="generator.commands.emulated_check")


def check_here(request: Request) -> Outcome:
    """Prove a variant in this process. Raises: HgemmError where it cannot be built or launched."""
    from generator.executor.proving import Subject, prove  # NumPy, which only the process that proves needs

    began = time.monotonic()
    compiler = HostCompiler(tuple(request.compiler), request.identity)
    workshop = Workshop(compiler, Path(request.templates), Path(request.cache), tuple(request.flags), request.level)
    shapes = Shape.parse_list(request.shapes) if request.shapes else ()
    subject = Subject(request.symbol, request.source, request.record, request.mma_per_tile)
    proved = prove(subject, workshop, shapes, request.seed)
    checks = tuple(asdict(check) for check in proved.checks)
    return Outcome(request.symbol, checks, "", "", time.monotonic() - began, proved.proof, proved.sites)


if __name__ == "__main__":
    answer(Request(**json.loads(sys.argv[1])), check_here)
