"""Selection: which kernels support a problem on a device, and which of them is the fastest.

The best measured kernel, if this very problem was measured on such a device. Else the lowest estimate, after measurements of
similar problems have corrected it. Measurements that ship with the package have calibrated the estimates of many kernels
(hgemm/model/calibrated.py) and refine them by trees (hgemm/model/trees.py). The launch options of the chosen kernel are
measured ones if they exist (hgemm/measured_options.py). A batch-invariant query has only the kernels that keep one accumulation
order (hgemm/invariance.py). The exported C library does the same steps with the same numbers (templates/capi/src/select.c).
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from hgemm.dispatch_table import (
    OF_KERNEL,
    PTX,
    DispatchTable,
    Row,
    Survey,
    SurveyPoint,
    estimate_clocks,
    launch_clocks,
    refined_clocks,
    with_default_raster,
)
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE, parse_epilogue
from hgemm.errors import UnsupportedError
from hgemm.invariance import (
    KOrder,
    chosen_order,
    has_order,
    keeps_order,
    least_aligned_query,
    order_clocks,
    order_key,
    order_of,
    order_options,
)
from hgemm.locations import library_suffix
from hgemm.measured_options import MeasuredOptions, options_of
from hgemm.octave_grid import (
    ESTIMATE_WEIGHTS,
    FACTOR_ONE,
    Point,
    Ratios,
    correction,
    distance,
    nearest,
    relative_ratios,
)
from hgemm.problem import LAYOUTS, Kind, LaunchOptions, kind_supports
from hgemm.requirements import FEWER_TILES, row_supports, unmet_requirements
from hgemm.selection_query import ANY_WORKSPACE, MAX_ALIGN, SelectionQuery, Target

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hgemm.estimates import Candidates

MAX_ORDERS_KEPT = 4096
"""Accumulation orders that a selector remembers, by kind, n and k."""
ESTIMATED, NEAR, MEASURED, SHIPPED = range(4)
"""What a choice is based on, as hgemm_rule of hgemm.h. NEAR is an estimate that measurements of similar problems have corrected,
SHIPPED one that the package's measurements have calibrated."""


@dataclass(frozen=True)
class Choice:
    """A chosen kernel.

    Units: `clocks` is the estimated time in clocks of an SM; FACTOR_ONE of `factor` is 1.0.
    Fields: `code_match` says how the code runs on the device. `nearest` is the measured problem at this place or the nearest
        one, if measurements decided. `factor` is the correction of the estimate. `options` are those of the launch, None if the
        kernel leaves none open; `measured_options` tells whether they were measured. `order` is the accumulation order of all
        products with this n and k, if the query asked for one.
    """

    row: Row
    code_match: int
    clocks: int
    workspace_bytes: int
    rule: int = ESTIMATED
    nearest: SurveyPoint | None = None
    factor: int = FACTOR_ONE
    options: LaunchOptions | None = None
    measured_options: bool = False
    order: KOrder | None = None

    @property
    def options_text(self) -> str:
        """The options that the kernel leaves open, as text."""
        return self.options.text(self.row.decides_splits, self.row.decides_raster) if self.options else ""

    @property
    def symbol(self) -> str:
        return self.row.symbol

    @property
    def code(self) -> str:
        return "ptx" if self.code_match == PTX else "cubin"


Found = tuple[SelectionQuery, Choice]
"""A description of a product, and the kernel chosen for it."""


class Selector:
    """Selection from a dispatch table on one device.

    Fields: `library` is the table's folder, for suggested commands. `watch` notes choices that are slower than they could be.
    """

    def __init__(
        self,
        table: DispatchTable,
        target: Target,
        library: Path | None = None,
        watch: FallbackWatch | None = None,
    ) -> None:
        self.table, self.target, self.library, self.watch = table, target, library, watch
        self.groups = table.runnable_groups(target)
        self._ratios: dict[int, list[tuple[Point, bool, Ratios[int]]]] = {}
        self._options: dict[int, MeasuredOptions] = {}
        self._orders: dict[Hashable, KOrder | None] = {}
        self._candidates: dict[Hashable, Candidates | None] = {}

    @cached_property
    def surveys(self) -> dict[int, Survey]:
        """By kind: the survey on devices of this capability with the nearest number of SMs, the fewer on a tie."""
        here = [survey for survey in self.table.surveys if survey.capability == self.target.number]
        nearest_first = sorted(here, key=lambda survey: abs(survey.sms - self.target.sms))
        return {survey.kind: survey for survey in reversed(nearest_first)}

    def find(self, query: SelectionQuery) -> Choice | None:
        """Return the kernel for a query, or None. Extents are 1 or more; k may be 0."""
        order = self.order(query)
        if order is not None:
            found = self._find(query, order)
            if found or query.batch_invariant:
                return found
        elif query.batch_invariant and query.k:
            return None
        return self._find(query, None)

    def order(self, query: SelectionQuery) -> KOrder | None:
        """Return the accumulation order that a query must or should have, or None if any order will do.

        None for a batch-invariant query with k above 0 means that no kernel has a fixed order.
        """
        if not (query.batch_invariant or query.cublas_order) or query.k == 0:
            return None
        key = order_key(query)
        if key not in self._orders:
            if len(self._orders) >= MAX_ORDERS_KEPT:
                self._orders.clear()
            candidates = ((match, self.table.rows[row]) for match, row in self._of_kind(query))
            self._orders[key] = chosen_order(candidates, query, self.target)
        found = self._orders[key]
        return found if found and (query.batch_invariant or found.is_cublas) else None

    def _find(self, query: SelectionQuery, order: KOrder | None) -> Choice | None:
        found = self._supporting(query, order)
        return self._best(found.best_matches(), query, order) if found else None

    def _best(self, candidates: Candidates, query: SelectionQuery, order: KOrder | None) -> Choice:
        rows, match = candidates.places.tolist(), int(candidates.matches[0])
        survey = self.surveys.get(query.kind.code)
        if survey and survey.sms == self.target.sms:
            extents = (query.m, query.n, query.k, query.batch)
            measured = next((one for one in survey.problems if one.extents == extents), None)
            fitting = (row for row in (measured.order if measured else ()) if row in rows)
            best = next((row for row in fitting if self._was_measured(row, query, order)), None)
            if best is not None:
                return self._choice(best, match, query, order, MEASURED, measured)
        factors = self.corrections(rows, query)
        best, clocks = candidates.fastest(query, self.target, self._clocks(candidates, query, order), factors)
        if survey and best in factors:
            alike = (one for one in survey.problems if one.straddles(query.kind) == (query.straddling > 0))
            similar = min(alike, key=lambda problem: distance(problem.point, query.point))
            return self._choice(best, match, query, order, NEAR, similar, factors[best], clocks)
        return self._choice(best, match, query, order, clocks=clocks)

    def _was_measured(self, row: int, query: SelectionQuery, order: KOrder | None) -> bool:
        """Return whether the measured launch of a row had this order."""
        if order is None or not self.table.rows[row].decides_splits:
            return True
        measured = self.measured_options(query)
        return has_order(measured.find(row, query) if measured else None, self.table.rows[row], order)

    def measured_options(self, query: SelectionQuery) -> MeasuredOptions | None:
        """Return the launch options that were measured for a query's kind, if the devices have as many SMs as this one."""
        survey = self.surveys.get(query.kind.code)
        if survey is None or survey.sms != self.target.sms:
            return None
        if survey.kind not in self._options:
            self._options[survey.kind] = MeasuredOptions(self.table.rows, survey)
        return self._options[survey.kind]

    def corrections(self, rows: Iterable[int], query: SelectionQuery) -> dict[int, int]:
        """Return the factors of the rows whose estimates measurements of similar problems correct.

        A problem with rows off the L2 sectors corrects only such problems, and another one only others.
        """
        survey, straddles = self.surveys.get(query.kind.code), query.straddling > 0
        if survey is None:
            return {}
        if survey.kind not in self._ratios:
            self._ratios[survey.kind] = [
                (one.point, one.straddles(query.kind), relative_ratios(dict(one.ratios))) for one in survey.problems
            ]
        alike = ((at, ratios) for at, other, ratios in self._ratios[survey.kind] if other == straddles)
        near = nearest(query.point, alike)
        found = {row: correction(near, row, ESTIMATE_WEIGHTS[self.table.rows[row].calibration]) for row in rows if near}
        return {row: factor for row, factor in found.items() if factor is not None}

    def choose(self, query: SelectionQuery) -> Choice:
        """Return the kernel for a query. Raises UnsupportedError with the reasons if there is none."""
        return self.choose_any([query])

    def choose_any(self, queries: Sequence[SelectionQuery]) -> Choice:
        """Return the best kernel for any of several descriptions of one product.

        Raises: UnsupportedError with the reasons for the first one if no kernel supports any.
        """
        return self.chosen(queries, self.best_of(queries))

    def chosen(self, queries: Sequence[SelectionQuery], found: Found | None) -> Choice:
        """Return the choice that `best_of` found. Raises UnsupportedError with the reasons if it is None."""
        if found is None:
            raise UnsupportedError(self._reason(queries[0]))
        query, choice = found
        if self.watch:
            self.watch.note(self, query, choice)
        return choice

    def best_of(self, queries: Sequence[SelectionQuery]) -> Found | None:
        """Return the query that has the best kernel, and this kernel, or None."""
        found = [(query, choice) for query in queries if (choice := self.find(query))]
        return min(found, key=lambda one: (one[1].code_match, one[1].clocks)) if found else None

    def supporting(self, query: SelectionQuery) -> list[Row]:
        """Return the rows of all kernels that support a query and whose code runs on the device."""
        found = self._supporting(query)
        return [self.table.rows[row] for row in found.places.tolist()] if found else []

    def ranked(self, query: SelectionQuery) -> list[Choice]:
        """Return all kernels that support a query, the chosen one first, the others by their estimates."""
        best = self.find(query)
        its = self._supporting(query, best.order) if best else None
        if best is None or its is None:
            return []
        matched = zip(its.matches.tolist(), its.places.tolist(), strict=True)
        found = [self._choice(row, match, query, best.order) for match, row in matched]
        others = sorted(found, key=lambda choice: (choice.code_match, choice.clocks))
        return [best, *(choice for choice in others if choice.row is not best.row)]

    def _of_kind(self, query: SelectionQuery) -> Iterator[tuple[int, int]]:
        """Yield code match and row of each kernel whose kind fits and whose code runs on the device, the best match first."""
        for match, place in self.groups:
            group = self.table.groups[place]
            if kind_supports(group.kind, query.kind.code):
                yield from ((match, row) for row in range(group.first, group.first + group.count))

    def _supporting(self, query: SelectionQuery, order: KOrder | None = None) -> Candidates | None:
        """Return the kernels that support a query, and keep an order if one is given, or None. The best match comes first."""
        from hgemm.estimates import Candidates, fits_int64  # with NumPy, which takes long to load

        fits = fits_int64(query)
        key = query.kind.code, fits
        if key not in self._candidates:
            of_kind = [*self._of_kind(query)]
            self._candidates[key] = Candidates.of(of_kind, self.table.rows, fits) if of_kind else None
        its = self._candidates[key]
        found = its.supporting(query, self.target) if its else None
        if found and order:
            rows = (self.table.rows[at] for at in found.places.tolist())
            found = found.part([at for at, row in enumerate(rows) if keeps_order(row, order, query)])
        return found or None

    def _clocks(self, candidates: Candidates, query: SelectionQuery, order: KOrder | None) -> ArrayLike:
        if order is None:
            return candidates.estimates(query, self.target)
        rows = (self.table.rows[at] for at in candidates.places.tolist())
        return [order_clocks(row, order, query, self.target) for row in rows]

    def _choice(
        self,
        at: int,
        match: int,
        query: SelectionQuery,
        order: KOrder | None,
        rule: int | None = None,
        nearest: SurveyPoint | None = None,
        factor: int = FACTOR_ONE,
        clocks: int | None = None,
    ) -> Choice:
        """Return the choice of a row. `clocks` is its refined estimate, if known."""
        row = self.table.rows[at]
        if rule is None:
            rule = SHIPPED if row.calibration == OF_KERNEL else ESTIMATED
        options, were_measured = options_of(at, row, query, self.target, self.measured_options(query))
        if order and row.decides_splits and not (were_measured and has_order(options, row, order)):
            some = order_options(row, order, query, self.target)
            fastest = min(some, key=lambda one: launch_clocks(row, query, self.target, one))
            options, were_measured = with_default_raster(row, query, self.target, fastest), False
        workspace_bytes = row.workspace_bytes(query.m, query.n, query.batch, options)
        if clocks is None:
            estimate = estimate_clocks if order is None else partial(order_clocks, order=order)
            clocks = refined_clocks(row, query, self.target, estimate(row, query=query, target=self.target))
        return Choice(row, match, clocks, workspace_bytes, rule, nearest, factor, options, were_measured, order)

    def _reason(self, query: SelectionQuery) -> str:
        """Return why no kernel supports a query, and a command that generates one."""
        kinds = {self.table.groups[place].kind for _, place in self.groups}
        if not kinds:
            archs = sorted({group.arch for group in self.table.groups})
            fix = f"`generate --catalog --arch {self.target.number}{library_suffix(self.library)}` adds some"
            return f"no kernel runs on {self.target.name}: the library has {', '.join(archs) or 'none'}; {fix}"
        if query.kind.epilogue != NONE and not any(kind_supports(kind, query.kind.code) for kind in kinds):
            return f"no kernel computes {query.kind} on {self.target.name}: make one with `{self._expression_command(query)}`"
        if query.kind.dtype_a != query.kind.dtype_b or query.kind.dtype_a == "f32":
            return f"no kernel computes {query.kind}: use f16 or bf16 for both A and B, or f32 with precision tf32"
        if self.target.number < 80 and query.kind.dtype_a != "f16":
            return f"no kernel computes {query.kind}: the tensor instructions of {self.target.name} multiply f16 only"
        options = f"--arch {self.target.number} {query.kind.cover_options}"
        cover = f"hgemm cover {options} --add"
        if query.kind.pointer_arrays:
            cover = f"generate {options} --pointer-arrays on"
        fix = f"`{cover}{library_suffix(self.library)}` makes one"
        if not any(kind_supports(kind, query.kind.code) for kind in kinds):
            types = sorted({Kind.from_code(kind).dtype_a for kind in kinds})
            others = "" if query.kind.dtype_a in types else f"the library has {', '.join(types)}; "
            return f"no kernel computes {query.kind} on {self.target.name}: {others}{fix}"
        rows = [self.table.rows[at] for _, at in self._of_kind(query)]
        order = self.order(query) if query.batch_invariant else None
        if query.batch_invariant and query.k and order is None:
            return self._no_order_reason(rows, query)
        if order is not None:
            rows = [row for row in rows if order_of(row, query.k, order.splits) == order]
        counts = Counter(unmet for row in rows for unmet in unmet_requirements(row, query, self.target))
        if order is not None:
            needs_more = sum(row_supports(row, query, self.target) for row in rows)
            counts.update({f"more workspace ({query.workspace_bytes} B are given)": needs_more})
            fix = f"`{self._order_command(query, order.splits)}` makes one, or pass aligned operands"
        if query.kind.epilogue != NONE:
            fix = self._expression_fix(rows, query)
        reasons = ", ".join(f"{count} of {len(rows)} need {unmet}" for unmet, count in counts.most_common() if count)
        extents = f"{query.m}x{query.n}x{query.k}"
        hint = "" if counts[FEWER_TILES] == len(rows) else f"; {fix}"
        all_m = f", with the order of all m ({order})" if order else ""
        return f"no kernel for {query.kind} on {self.target.name} supports {extents}{all_m}: {reasons}{hint}"

    def _no_order_reason(self, rows: Sequence[Row], query: SelectionQuery) -> str:
        """Return why no order computes every m with the n and k of a query."""
        every_m = least_aligned_query(query, beta=False)
        ordered = [row for row in rows if order_of(row, query.k, row.splits)]
        counts = Counter(unmet for row in ordered for unmet in unmet_requirements(row, every_m, self.target))
        reasons = ", ".join(f"{count} of {len(ordered)} need {unmet}" for unmet, count in counts.most_common())
        return (
            f"no kernel for {query.kind} on {self.target.name} adds k in one order for every m with n {query.n} and k {query.k}"
            f" ({reasons or 'stream-K does not, and old records do not tell'}): `{self._order_command(every_m, 1)}` makes one"
        )

    def _expression_fix(self, rows: Sequence[Row], query: SelectionQuery) -> str:
        """Return how to get a kernel of an expression for a query that none of `rows` supports."""
        unlimited = replace(query, workspace_bytes=ANY_WORKSPACE)
        fitting = [row for row in rows if row_supports(row, unlimited, self.target)]
        if not fitting:
            made = f"make one with `{self._expression_command(query)}`"
            aligned = replace(unlimited, align_a=MAX_ALIGN, align_b=MAX_ALIGN, align_d=MAX_ALIGN)
            if not any(row_supports(row, aligned, self.target) for row in rows):
                return made
            operands = {"A": query.align_a, "B": query.align_b, query.align_d_of: query.align_d}
            loose = " and ".join(name for name, align in operands.items() if align < MAX_ALIGN)
            places = (
                "address, leading dimension and batch stride" if query.batch > 1 else "address and leading dimension"
            )
            return f"align the {places} of {loose} to {VECTOR_BYTES} bytes, or {made}"
        needed = min(row.workspace_bytes(query.m, query.n, query.batch) for row in fitting)
        return f"pass a workspace of {needed} B, or open the library with workspace_bytes={needed}"

    def _expression_command(self, query: SelectionQuery) -> str:
        """Return a command that generates a kernel of an expression for a query. A query may have its hash only."""
        if query.expression == NONE:
            return "generate --epilogue"
        return self._generate_command(query, f"--epilogue {shlex.quote(str(parse_epilogue(query.expression)))}")

    def _order_command(self, query: SelectionQuery, splits: int) -> str:
        """Return a command that generates a kernel with a fixed order for a query."""
        schedule = "one_tile" if splits == 1 else f"split_k_cluster:{splits}"
        return self._generate_command(query, f"--schedule {schedule}", splits > 1)

    def _generate_command(self, query: SelectionQuery, option: str, needs_cluster: bool = False) -> str:
        """Return a command that generates a kernel for the kind and the alignments of a query, with a further option."""
        operands = {"a": query.align_a, "b": query.align_b, "d": query.align_d}
        aligned = [f"--align-{name} {align}" for name, align in operands.items() if align < MAX_ALIGN]
        has_wgmma = self.target.number == WGMMA_CAPABILITY and wgmma_computes(query)
        arch = f"{self.target.number}a" if needs_cluster or has_wgmma else self.target.number
        options = " ".join([f"--arch {arch}", query.kind.cover_options, *aligned, option])
        return f"generate {options}{library_suffix(self.library)}"


# ==== Choices that are slower than they could be ====

_LOG = logging.getLogger("hgemm")
WGMMA_CAPABILITY = 90
"""Devices with wgmma. Source: PTX ISA 9.0, "wgmma.mma_async": sm_90a."""
_WGMMA_COPY_BYTES = 4
"""Alignment of A and B that kernels on wgmma require. Source: PTX ISA 9.0, "cp.async"."""


def wgmma_computes(query: SelectionQuery) -> bool:
    """Return whether kernels on wgmma can be built for a query."""
    kind, size = query.kind, DTYPES[query.kind.dtype_a].bytes
    if kind.epilogue != NONE and query.expression == NONE:
        return False
    aligned = min(query.align_a, query.align_b) * size >= _WGMMA_COPY_BYTES
    layouts = ("tn",) if kind.dtype_a == "tf32" else LAYOUTS
    return aligned and kind.dtype_a == kind.dtype_b and kind.layout in layouts and query.k > 0 and query.mappable


@dataclass
class FallbackWatch:
    """Logs, once per kind and kernel, that a request falls back to mma.sync on a device with wgmma.

    Fields: `wgmma` holds the symbols of the kernels on wgmma.
    """

    wgmma: Container[str]
    noted: set[tuple[int, str]] = field(default_factory=set)

    def falls_back(self, selector: Selector, query: SelectionQuery) -> bool:
        """Return whether wgmma could compute a query, but no kernel of it supports the query."""
        if selector.target.number != WGMMA_CAPABILITY or not wgmma_computes(query):
            return False
        return not any(row.symbol in self.wgmma for row in selector.supporting(query))

    def note(self, selector: Selector, query: SelectionQuery, choice: Choice) -> None:
        """Log a choice that falls back."""
        key = (query.kind.code, choice.symbol)
        if query.kind.epilogue != NONE:  # `hgemm cover` takes no expression
            return
        if choice.symbol in self.wgmma or key in self.noted or not self.falls_back(selector, query):
            return
        self.noted.add(key)
        _LOG.warning(
            "%s falls back to mma.sync (%s): %s has no kernel on wgmma for it; to build one, open the library with build=True, "
            "or run `%s%s`",
            query.kind,
            choice.symbol,
            selector.library or "the library",
            _command_for_wgmma(query, selector.target.number),
            library_suffix(selector.library),
        )


def _command_for_wgmma(query: SelectionQuery, number: int) -> str:
    """Return the command that builds what a query lacks on wgmma, without --library.

    `hgemm cover` gives all operands one alignment, so it helps only if D has the alignment that kernels on wgmma require.
    """
    size = DTYPES[query.kind.dtype_a].bytes
    if query.align_d * size >= _WGMMA_COPY_BYTES:
        return f"hgemm cover --arch {number} {query.kind.cover_options} --no-fallback --add"
    aligns = {"a": query.align_a, "b": query.align_b, "d": query.align_d}
    options = [f"--align-{name} {align}" for name, align in aligns.items() if align * size < VECTOR_BYTES]
    return " ".join([f"generate --arch {number}a --tile 64x64x64,128x128x64 {query.kind.cover_options}", *options])
