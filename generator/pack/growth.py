"""The kernel that a call lacks: chosen by the cost model among the tiles of its size, and built into the caller's library.

`hgemm.growth` calls `build_kernel` for a library that was opened with build=True. `hgemm cover --add` calls `best_plan`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from generator.build.pipeline import Settings, make
from generator.build.toolchain import templates_folder
from generator.errors import HgemmError
from generator.families.base import Plan
from generator.pack.kernels import Candidate, candidates_for, needs_as_much
from generator.spec import Spec
from generator.store.library import Library
from generator.tuning import archs_of
from hgemm.dispatch_table import Row, estimate_clocks, refined_estimate
from hgemm.growth import Missing, size_of_tile
from hgemm.selection import row_supports
from hgemm.selection_query import MAX_ALIGN, SelectionQuery, Target

MAX_ATTEMPTS = 4
"""Kernels to try, until one builds without spilling registers."""
GAIN = 1.1
"""A kernel for a call that another kernel supports must be predicted to be this much faster."""
FEW_ROWS_COPIES = ("ldg",)
"""Copies of kernels that serve few rows only. A library would need another kernel for the next call with more rows."""
USUAL_ROWS = {"few_rows": (1, 8, 16), "small": (32, 64, 192), "medium": (256, 512, 1024), "large": (2048, 4096, 8192)}
"""Rows that calls of each size have, besides those of the first call."""


def build_kernel(folder: Path, missing: Missing) -> str | None:
    """Build a missing kernel into a library, in this process.

    Returns its symbol, or None if no kernel supports the call, or none is predicted to be at least GAIN times as fast as the one
    that the call would use instead.
    Raises: HgemmError if every attempt fails.
    """
    query, target = missing.query, missing.target
    failed: list[Spec] = []
    error = ""
    for _ in range(MAX_ATTEMPTS):
        plan = best_plan(query, target, missing.size, failed)
        if plan is None or 0 < missing.clocks < GAIN * refined_estimate(Candidate.of(plan).row, query, target):
            break
        (_, outcome), *_ = make([plan], Settings(Library(folder), templates_folder()), processes=0)
        if outcome.record:
            return outcome.symbol
        failed.append(plan.spec)
        error = error or outcome.error
    if error:
        raise HgemmError(f"no kernel for {query.kind} builds: {error}")
    return None


def best_plan(query: SelectionQuery, target: Target, size: str, failed: Collection[Spec] = ()) -> Plan | None:
    """Return the best plan of a size that supports a query, or of any size if there is none: by estimates for usual rows.

    Plans that need as many registers as one of `failed` are left out.
    """
    if query.kind.dtype_a != query.kind.dtype_b or query.kind.dtype_a == "f32":
        return None
    query = _with_usual_alignment(query)
    kinds = dict.fromkeys((query.kind, replace(query.kind, acc="f32")))  # sums in f32 serve every request
    for arch, kind in itertools.product(archs_of(target), kinds):
        found = [one for one in candidates_for(kind, query, arch) if row_supports(one.row, query, target)]
        found = [one for one in found if one.plan.spec.copy not in FEW_ROWS_COPIES]
        if query.batch_invariant:
            found = _of_one_order(found)
        found = [one for one in found if not needs_as_much(one.plan.spec, failed)]
        sized = [one for one in found if _size(one) == size]
        if sized or found:
            problems = [query, *(replace(query, m=m) for m in USUAL_ROWS[size])]
            return min(sized or found, key=lambda one: _total_log(one.row, problems, target)).plan
    return None


def _of_one_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that sum k as cuBLASLt's unsplit kernels do, or those of another fixed order if there are none."""
    fixed = [one for one in candidates if one.row.order and one.row.splits == 1]
    return [one for one in fixed if one.row.cublas_order] or fixed


def _with_usual_alignment(query: SelectionQuery) -> SelectionQuery:
    """Return a query with the alignment of dense operands that have several rows. Of one row, only the pointer matters."""
    if query.m > 1:
        return query
    a = query.k if query.kind.layout[0] == "t" else MAX_ALIGN
    return replace(query, align_a=min(query.align_a, _power_of_2(a)), align_d=min(query.align_d, _power_of_2(query.n)))


def _power_of_2(extent: int) -> int:
    """Return the largest power of 2 that divides an extent, at most MAX_ALIGN."""
    return (extent | MAX_ALIGN) & -(extent | MAX_ALIGN)


def _total_log(row: Row, problems: Sequence[SelectionQuery], target: Target) -> float:
    """Return the sum of the logarithms of the estimated times of problems."""
    return sum(math.log(estimate_clocks(row, problem, target)) for problem in problems)


def _size(candidate: Candidate) -> str:
    return size_of_tile(candidate.row.tile_m, candidate.row.tile_n)
