"""The variant that a library selects for a problem, and the reason: what `hgemm select` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from generator.tables import counted
from hgemm.dispatch_table import COMPATIBLE, EXACT
from hgemm.octave_grid import FACTOR_ONE, STEP_BITS, distance
from hgemm.problem import Kind, Problem
from hgemm.selection import ESTIMATED, MEASURED, NEAR, Choice, Selector
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, with_dense_strides

COLUMNS = ("symbol", "code", "rule", "clocks", "workspace_bytes")
_RULES = {ESTIMATED: "estimated", NEAR: "near", MEASURED: "measured"}
_PREFERRED_CODE = {
    EXACT: "kernels for the GPU's own architecture are preferred",
    COMPATIBLE: "machine code is preferred to PTX",
}


@dataclass(frozen=True)
class DenseProblem:
    """A problem whose operands are dense. `align` replaces the alignment of dense operands. Units: elements, bytes."""

    m: int
    n: int
    k: int
    batch: int = 1
    beta: bool = False
    align: int | None = None
    workspace_bytes: int = ANY_WORKSPACE

    def query(self, kind: Kind) -> SelectionQuery:
        """Return the query that an exported library or `hgemm.open` makes for this problem."""
        strides = {
            "batch_stride_a": self.m * self.k,
            "batch_stride_b": self.n * self.k,
            "batch_stride_c": self.m * self.n,
        }
        problem = Problem(self.m, self.n, self.k, self.batch, **strides, beta=float(self.beta))
        query = SelectionQuery.of(kind, with_dense_strides(problem, kind), self.workspace_bytes)
        if self.align is None:
            return query
        return replace(query, align_a=self.align, align_b=self.align, align_d=self.align)


def selected(selector: Selector, query: SelectionQuery) -> dict[str, Any]:
    """Return the selected variant, with the reason as `why`.

    Raises: LibraryError if no variant supports the problem.
    """
    best = selector.choose(query)
    return {**row_of(best), "why": _reason(best, selector, query) + _preferred_code(best, selector, query)}


def alternatives(selector: Selector, query: SelectionQuery) -> Iterator[dict[str, Any]]:
    """Yield the other variants that support the problem, best first."""
    best = selector.choose(query)
    return (row_of(choice) for choice in selector.ranked(query) if choice.row is not best.row)


def row_of(choice: Choice) -> dict[str, Any]:
    """Return the columns of a choice, and the measured problem that decided it, if any."""
    row = {name: getattr(choice, name) for name in COLUMNS if name != "rule"} | {"rule": _RULES[choice.rule]}
    return row | ({"near": list(choice.nearest.extents)} if choice.nearest else {})


def _reason(choice: Choice, selector: Selector, query: SelectionQuery) -> str:
    if choice.nearest is None:
        has_survey = query.kind.code in selector.surveys
        unmeasured = "no variant that supports it" if has_survey else "no product of this kind"
        return f"smallest estimate of the variants that support the problem; {unmeasured} was measured on {selector.target.name}"
    survey = selector.surveys[query.kind.code]
    devices, near = " and ".join(survey.devices), choice.nearest
    if choice.rule == MEASURED:
        return f"fastest of {counted(len(near.order), 'variant')} measured on this problem on {devices}"
    octaves = distance(near.point, query.point) / (1 << STEP_BITS)
    name = f"{near.m}x{near.n}x{near.k}" + (f"@{near.batch}" if near.batch > 1 else "")
    return (
        f"smallest of {counted(len(selector.shortlist(query)), 'corrected estimate')} of the best variants in this region; "
        f"the nearest of {counted(len(survey.problems), 'measured problem')} on {devices} is {name}, {octaves:.1f} octaves away; "
        f"correction {choice.factor / FACTOR_ONE:.2f}"
    )


def _preferred_code(choice: Choice, selector: Selector, query: SelectionQuery) -> str:
    """Return why the choice precedes variants whose estimates may be smaller, if their code runs in another way."""
    ways = {other.code_match for other in selector.ranked(query)}
    return f"; {_PREFERRED_CODE[choice.code_match]}" if len(ways) > 1 else ""
