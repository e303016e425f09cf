"""The kernel that a library selects for a problem, and the reason: what `hgemm select` prints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from generator.arch import ARCHS
from generator.build.pipeline import Outcome, Settings, make
from generator.errors import LibraryError
from generator.pack.growth import MAX_ATTEMPTS, best_plan
from generator.spec import Spec, symbol_of
from generator.sweep import sweep
from generator.tables import counted
from hgemm.dispatch_table import COMPATIBLE, EXACT, DispatchTable
from hgemm.dtypes import DTYPES, VECTOR_BYTES, stored_dtype
from hgemm.epilogue import Epilogue, columns_of_d
from hgemm.errors import RequestError
from hgemm.growth import size_of_tile
from hgemm.model.calibrated import calibration
from hgemm.octave_grid import FACTOR_ONE, STEP_BITS, distance
from hgemm.problem import Kind, Problem, kind_word
from hgemm.selection import ESTIMATED, MEASURED, NEAR, SHIPPED, Choice, FallbackWatch, Selector
from hgemm.selection_query import ANY_WORKSPACE, MAX_ALIGN, SelectionQuery, Target, with_dense_strides

COLUMNS = ("symbol", "code", "rule", "clocks", "workspace_bytes")
_RULES = {ESTIMATED: "estimated", NEAR: "near", MEASURED: "measured", SHIPPED: "shipped"}
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

    def query(self, kind: Kind, epilogue: Epilogue | None = None) -> SelectionQuery:
        """Return the query that an exported library or `hgemm.open` makes for this problem.

        Raises: RequestError if C is added, but the epilogue has no beta, or n is not a multiple of 16 for a gated pair.
        """
        if epilogue and self.beta and not epilogue.takes("beta"):
            raise RequestError(f"--beta adds beta * C, but the epilogue has no beta: {epilogue.formula}")
        columns = columns_of_d(epilogue, self.n)
        strides = {
            "batch_stride_a": self.m * self.k,
            "batch_stride_b": self.n * self.k,
            "batch_stride_c": self.m * columns,
        }
        leading = {"ldc": columns, "ldd": columns}
        problem = Problem(self.m, self.n, self.k, self.batch, **leading, **strides, beta=float(self.beta))
        query = SelectionQuery.of(kind, with_dense_strides(problem, kind), self.workspace_bytes, epilogue)
        if self.align is None:
            return query
        return replace(query, align_a=self.align, align_b=self.align, align_d=self.align)


def selected(selector: Selector, query: SelectionQuery) -> dict[str, Any]:
    """Return the selected kernel, with the reason as `why`.

    Raises: UnsupportedError if no kernel supports the problem.
    """
    best = selector.choose(query)
    why = _reason(best, selector, query) + _options_reason(best) + _preferred_code(best, selector, query)
    return {**row_of(best), "why": why + _order_reason(best, query)}


def alternatives(selector: Selector, query: SelectionQuery) -> Iterator[dict[str, Any]]:
    """Yield the other kernels that support the problem, best first."""
    best = selector.choose(query)
    return (row_of(choice) for choice in selector.ranked(query) if choice.row is not best.row)


def row_of(choice: Choice) -> dict[str, Any]:
    """Return the columns of a choice, and the measured problem that decided it, if any."""
    row = {name: getattr(choice, name) for name in COLUMNS if name != "rule"} | {"rule": _RULES[choice.rule]}
    row |= {"options": choice.options_text} if choice.options else {}
    row |= {"order": asdict(choice.order)} if choice.order else {}
    return row | ({"near": list(choice.nearest.extents)} if choice.nearest else {})


def _reason(choice: Choice, selector: Selector, query: SelectionQuery) -> str:
    if choice.rule == SHIPPED:
        found = calibration()
        return (
            "smallest estimate of the kernels that support the problem; estimates are calibrated by measurements that ship with "
            f"hgemm ({counted(found.problems, 'problem')} on {' and '.join(found.devices)}), not by this library's own"
        )
    if choice.nearest is None:
        has_survey = query.kind.code in selector.surveys
        unmeasured = (
            "the selected one was not measured on a similar problem"
            if has_survey
            else "the selected one was not measured"
        )
        return f"smallest estimate of the kernels that support the problem; {unmeasured} on {selector.target.name}"
    survey = selector.surveys[query.kind.code]
    devices, near = " and ".join(survey.devices), choice.nearest
    if choice.rule == MEASURED:
        return f"fastest of {counted(len(near.order), 'kernel')} measured on this problem on {devices}"
    octaves = distance(near.point, query.point) / (1 << STEP_BITS)
    name = f"{near.m}x{near.n}x{near.k}" + (f"@{near.batch}" if near.batch > 1 else "")
    return (
        "smallest estimate of the kernels that support the problem, corrected by measurements; "
        f"the nearest of {counted(len(survey.problems), 'measured problem')} on {devices} is {name}, {octaves:.1f} octaves away; "
        f"correction {choice.factor / FACTOR_ONE:.2f}"
    )


def _options_reason(choice: Choice) -> str:
    """Return the options of the launch and where they come from, if the kernel leaves any open."""
    if not choice.options:
        return ""
    source = "measured on these tiles" if choice.measured_options else "with the lowest estimate"
    return f"; launched with {choice.options_text}, {source}"


def _order_reason(choice: Choice, query: SelectionQuery) -> str:
    """Return the accumulation order of the choice, if the query asked for one."""
    if not choice.order:
        return "; no kernel has the order of cuBLASLt" if query.cublas_order and query.k else ""
    which = f"all m with n {query.n} and k {query.k}" if query.batch_invariant else "cuBLASLt's unsplit kernels"
    return f"; the accumulation order of {which}: {choice.order}"


def _preferred_code(choice: Choice, selector: Selector, query: SelectionQuery) -> str:
    """Return why the choice precedes kernels whose estimates may be smaller, if their code runs in another way."""
    ways = {other.code_match for other in selector.ranked(query)}
    return f"; {_PREFERRED_CODE[choice.code_match]}" if len(ways) > 1 else ""


# ---- Coverage --------------------------------------------------------------------------------------------------------


SORTS = {
    "whole tiles": {"m": 4096, "n": 4096, "k": 4096},
    "ragged": {"m": 4099, "n": 4101, "k": 4103},
    "one row": {"m": 1, "n": 4101, "k": 4103},
    "one column": {"m": 4099, "n": 1, "k": 4103},
    "k of 1": {"m": 4099, "n": 4101, "k": 1},
    "k of 0": {"m": 4099, "n": 4101, "k": 0},
    "batch": {"m": 65, "n": 67, "k": 69, "batch": 3},
}
"""One problem of each sort. Kernels may support some sorts only."""
FALLS_BACK = "falls back to mma.sync"
"""The sort of problems that a GPU with wgmma computes on mma.sync."""
ROWS_OF_SIZE = {"few_rows": 8, "small": 64, "medium": 512, "large": 4096}
"""Rows of a problem with n and k of 4096 for each size of kernel."""
FALLBACK = {"tile": "64x64x32", "schedule": "one_tile"}
"""Further fields of a kernel that closes a hole. The small tile wastes little on small problems."""


@dataclass(frozen=True)
class Hole:
    """Problems of one kind on one architecture that no kernel supports without a workspace.

    Fields: `sorts` holds the missing names of SORTS, or FALLS_BACK, by the alignment of all operands in elements; `beta` tells
        whether C is added; `sizes` are those of kernels that problems with aligned operands lack.
    """

    arch: str
    kind: Kind
    beta: bool
    sorts: dict[int, tuple[str, ...]]
    sizes: tuple[str, ...] = ()

    @property
    def unsupported(self) -> bool:
        """Whether no kernel supports some of the problems."""
        return any(sorts != (FALLS_BACK,) for sorts in self.sorts.values())

    def lacks(self) -> Iterator[tuple[SelectionQuery, str]]:
        """Yield problems whose kernels are missing, with the size of the kernel."""
        least = min(self.sorts)
        for size in self.sizes:
            yield self._query(ROWS_OF_SIZE[size], MAX_ALIGN), size
        if self.sorts[least] == (FALLS_BACK,) and least < MAX_ALIGN:
            yield self._query(ROWS_OF_SIZE["large"], least), "large"

    def _query(self, m: int, align: int) -> SelectionQuery:
        return SelectionQuery(self.kind, m, 4096, 4096, beta=self.beta, align_a=align, align_b=align, align_d=align)

    def request(self) -> dict[str, str]:
        """Return the fields of a kernel that supports all of these problems: its alignment is the smallest of the hole."""
        kind, align = self.kind, min(self.sorts)
        sizes = {"a": DTYPES[kind.dtype_a].bytes, "b": DTYPES[kind.dtype_b].bytes, "d": DTYPES[kind.dtype_d].bytes}
        return {
            "arch": self.arch,
            "layout": kind.layout,
            "dtype_a": kind.dtype_a,
            "dtype_b": kind.dtype_b,
            "out": kind.dtype_d,
            "acc": kind.acc,
            "bias": kind.bias,
            "activation": kind.activation,
            "beta": "on" if self.beta else "off",
            "align": str(align),
            **{
                f"align_{name}": str(VECTOR_BYTES // size)
                for name, size in sizes.items()
                if align * size > VECTOR_BYTES
            },
            **FALLBACK,
        }

    def to_dict(self) -> dict[str, object]:
        """Return the hole as JSON."""
        sorts = {str(align): list(sorts) for align, sorts in self.sorts.items()}
        return {"arch": self.arch, "kind": str(self.kind), "beta": self.beta, "sorts": sorts, "request": self.request()}


def kinds_of(
    types: Sequence[str], layouts: Sequence[str], biases: Sequence[str], activations: Sequence[str]
) -> list[Kind]:
    """Return all combinations of types, layouts, biases and activations.

    A type is `f16` (A, B and D), `tf32` (A and B; D is f32) or `f16:f32` (A and B; D).

    Raises: RequestError for an unknown word.
    """
    found = []
    for text, layout, bias, activation in product(types, layouts, biases, activations):
        dtype, _, dtype_d = text.partition(":")
        if dtype == "f32":
            raise RequestError(f"kernels multiply f32 as tf32 only: use {text.replace('f32', 'tf32', 1)}")
        found.append(Kind(layout, dtype, dtype, dtype_d or stored_dtype(dtype), "f32", bias, activation))
    return found


def promised_types(table: DispatchTable) -> list[str]:
    """Return the default types: f16 and bf16, and tf32 if the library has a kernel for it."""
    there = {kind_word(group.kind, "dtype_a") for group in table.groups}
    return ["f16", "bf16", *(["tf32"] if "tf32" in there else [])]


def holes(
    table: DispatchTable,
    archs: Iterable[str],
    kinds: Sequence[Kind],
    aligns: Sequence[int],
    beta: bool,
    watch: FallbackWatch | None = None,
    sorts: Sequence[str] = (*SORTS,),
) -> Iterator[Hole]:
    """Yield the holes of a library on a typical GPU of each architecture. Types that an architecture lacks are skipped.

    With `watch`, problems that fall back to mma.sync on a GPU with wgmma are holes, too.

    Raises: RequestError for an unknown architecture.
    """
    for arch in archs:
        selector = Selector(table, Target.typical(arch))
        for kind in filter(partial(computes, arch), kinds):
            missing = {align: tuple(_unsupported(selector, kind, align, beta, watch, sorts)) for align in aligns}
            missing = {align: lacking for align, lacking in missing.items() if lacking}
            if missing:
                sizes = _missing_sizes(selector, kind, beta, missing) if MAX_ALIGN in aligns else ()
                yield Hole(selector.target.name, kind, beta, missing, tuple(sizes))


def _missing_sizes(selector: Selector, kind: Kind, beta: bool, missing: Collection[int]) -> Iterator[str]:
    """Yield the sizes of kernels that aligned operands lack: all if no kernel supports them, none if the kind was measured."""
    if MAX_ALIGN in missing:
        yield from ROWS_OF_SIZE
    elif kind.code not in selector.surveys:
        aligned = SelectionQuery(kind, 4096, 4096, 4096, beta=beta)
        present = {size_of_tile(row.tile_m, row.tile_n) for row in selector.supporting(aligned)}
        yield from (size for size in ROWS_OF_SIZE if size not in present)


def close_holes(
    missing: Sequence[Hole],
    settings: Settings,
    processes: int,
    planning: Callable[[], AbstractContextManager[Callable[[int, int], None]]],
    building: Callable[[int], AbstractContextManager[Callable[[Outcome], None]]],
) -> None:
    """Build the kernels that close holes.

    `planning` is told the number of planned kernels and their total. `building` takes the number of kernels of an attempt, and is
    told each outcome.

    Each hole gets one kernel that supports all of its problems, and for aligned operands the best kernel of each size that is
    missing. One that does not build is replaced by the next best.

    Raises: LibraryError if a kernel that a hole requires cannot be built.
    """
    required = sweep([hole.request() for hole in missing if hole.unsupported]).plans
    wanted = [(Target.typical(hole.arch), *lack) for hole in missing for lack in hole.lacks()]
    failed: list[Spec] = []
    done: set[str] = set()
    for attempt in range(MAX_ATTEMPTS):
        best = []
        with planning() as planned:
            for target, query, size in wanted:
                best.append(best_plan(query, target, size, failed))
                planned(len(best), len(wanted))
        plans = {symbol_of(plan.spec): plan for plan in (*required, *best) if plan}
        plans = {symbol: plan for symbol, plan in plans.items() if symbol not in done}
        if not plans:
            return
        failed_before = len(failed)
        made = make([*plans.values()], settings, min(len(plans), processes))
        with building(len(plans)) as show, closing(made):
            for _, outcome in made:
                show(outcome)
                if outcome.record:
                    done.add(outcome.symbol)
                elif attempt + 1 == MAX_ATTEMPTS or plans[outcome.symbol] in required:
                    raise LibraryError(f"cannot build a kernel that closes a hole: {outcome.error}")
                else:
                    failed.append(plans[outcome.symbol].spec)
        if len(failed) == failed_before:
            return


def computes(arch: str, kind: Kind) -> bool:
    """Return whether an architecture has tensor instructions for the input types of a kind."""
    return kind.dtype_a == "f16" or ARCHS[arch].has_bf16


def _unsupported(
    selector: Selector, kind: Kind, align: int, beta: bool, watch: FallbackWatch | None, sorts: Sequence[str]
) -> Iterator[str]:
    queries = {
        sort: SelectionQuery(kind, **SORTS[sort], beta=beta, align_a=align, align_b=align, align_d=align)
        for sort in sorts
    }
    found = [sort for sort, query in queries.items() if selector.find(query) is None]
    yield from found
    if not found and watch and watch.falls_back(selector, queries["whole tiles"]):
        yield FALLS_BACK
