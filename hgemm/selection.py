"""Which rows of a table serve a problem on a device, and what the others need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hgemm.dispatch_table import PTX, DispatchTable, Row, Survey, SurveyPoint, estimate_clocks
from hgemm.errors import DEFAULT_LIBRARY, UnsupportedError, library_suffix
from hgemm.launch import MAX_CTAS
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES
from hgemm.octave_grid import CORRECTED_LIMIT, FACTOR_ONE, distance, region_of
from hgemm.problem import kind_supports
from hgemm.selection_query import SelectionQuery, Target

FEWER_TILES = f"fewer CTA tiles ({MAX_CTAS} at most)"


def row_supports(row: Row, wanted: SelectionQuery, target: Target) -> bool:
    """Tell whether a variant of the right kind takes a problem on a device that its code runs on."""
    return next(unmet_requirements(row, wanted, target), None) is None


def unmet_requirements(row: Row, wanted: SelectionQuery, target: Target) -> Iterator[str]:
    """Yield what a variant would need to take a problem, and what there is of it; nothing where it serves."""
    w = wanted
    if row.align_a > w.align_a or row.align_b > w.align_b or row.align_d > w.align_d:
        yield f"more alignment (A, B and D have {w.align_a}, {w.align_b} and {w.align_d} elements)"
    if row.beta < w.beta:
        yield "beta 0"
    if row.smem_bytes > target.smem_bytes_per_cta:
        yield f"more shared memory (a CTA has {target.smem_bytes_per_cta} B)"
    if row.tensor_maps and (w.k == 0 or not w.mappable):
        yield f"addresses that TMA supports (k above 0, strides below {MAX_MAP_STRIDE_BYTES} B)"
    if row.exact_tiles_only and (w.m % row.tile_m or w.n % row.tile_n or w.k % row.tile_k or w.k == 0):
        yield "extents of whole tiles"
    if row.work(w.m, w.n, w.batch) > MAX_CTAS:
        yield FEWER_TILES
    elif row.workspace_bytes(w.m, w.n, w.batch) > w.workspace_bytes:
        yield f"more workspace ({w.workspace_bytes} B are given)"


# ==== Which variant of a table computes a problem on a device ====


ESTIMATED, NEAR, MEASURED = range(3)
"""What decided, as hgemm_rule says it."""


@dataclass(frozen=True)
class Choice:
    """What was chosen: the table's row, how its code runs, what that launch needs, and the rule that decided.

    Units: `clocks` of an SM, as estimated. Fields: `near` is the problem that was measured there, or the nearest one, where
        measurements decided, and `factor`, of nearness.ONE, what they corrected the estimate by.
    """

    row: Row
    code_match: int
    clocks: int
    workspace_bytes: int
    rule: int = ESTIMATED
    nearest: SurveyPoint | None = None
    factor: int = FACTOR_ONE

    @property
    def symbol(self) -> str:
        return self.row.symbol

    @property
    def code(self) -> str:
        return "ptx" if self.code_match == PTX else "cubin"


class Selector:
    """A table on one device; `library` is the folder that it is of."""

    def __init__(self, table: DispatchTable, target: Target, library: Path = DEFAULT_LIBRARY) -> None:
        self.table, self.target, self.library = table, target, library
        self.groups = table.runnable_groups(target)
        self._lists: dict[int, Any] = {}

    @cached_property
    def surveys(self) -> dict[int, Survey]:
        """Return by kind what was measured on devices of this capability whose SMs are nearest in number, the fewer first."""
        found: dict[int, Survey] = {}
        for survey in self.table.surveys:
            if survey.capability == self.target.number:
                other = found.get(survey.kind)
                if other is None or self._far(survey) < self._far(other):
                    found[survey.kind] = survey
        return found

    def _far(self, survey: Survey) -> int:
        return abs(survey.sms - self.target.sms)

    def find(self, wanted: SelectionQuery) -> Choice | None:
        """Return the variant for a problem whose extents are all 1 or more, k also 0; None where there is none."""
        by_way: dict[int, list[int]] = {}
        for way, place in self._serving(wanted):
            by_way.setdefault(way, []).append(place)
        for way, places in sorted(by_way.items()):
            return self._best(places, way, wanted)
        return None

    def _best(self, places: Sequence[int], way: int, wanted: SelectionQuery) -> Choice:
        survey = self.surveys.get(wanted.kind.code)
        if survey:
            if survey.sms == self.target.sms:
                extents = (wanted.m, wanted.n, wanted.k, wanted.batch)
                measured = next((one for one in survey.problems if one.extents == extents), None)
                best = next((row for row in measured.order if row in places), None) if measured else None
                if best is not None:
                    return self._choice(best, way, wanted, MEASURED, measured)
            listed = self.shortlist(wanted)
            scores = {row: factor * self._limited(row, wanted) for row, factor in listed.items() if row in places}
            if scores:
                best = min(scores, key=scores.__getitem__)
                near = min(survey.problems, key=lambda problem: distance(problem.point, wanted.point))
                return self._choice(best, way, wanted, NEAR, near, listed[best])
        return self._choice(min(places, key=lambda place: self._clocks(place, wanted)), way, wanted)

    def shortlist(self, wanted: SelectionQuery) -> dict[int, int]:
        """Return the rows that are estimated in a problem's region, with their factors; none where nothing was measured."""
        survey = self.surveys.get(wanted.kind.code)
        if survey is None:
            return {}
        if survey.kind not in self._lists:
            pass  # merged  # numpy, which nothing else here needs

            from hgemm.shortlists import RegionShortlists  # imports numpy, which nothing else here needs

            self._lists[survey.kind] = RegionShortlists(self.table, survey)
        return dict(self._lists[survey.kind].at(region_of(wanted.point, wanted.straddling)))

    def _limited(self, row: int, wanted: SelectionQuery) -> int:
        return min(self._clocks(row, wanted), CORRECTED_LIMIT)

    def choose(self, wanted: SelectionQuery) -> Choice:
        """Return the variant for a problem. Raises UnfitError, saying what is missing, where there is none."""
        found = self.find(wanted)
        if found is None:
            raise UnsupportedError(self._reason(wanted))
        return found

    def ranked(self, wanted: SelectionQuery) -> list[Choice]:
        """Return all variants that serve a problem, the chosen one first, the others by their estimates."""
        best = self.find(wanted)
        found = [self._choice(place, way, wanted) for way, place in self._serving(wanted)]
        others = sorted(found, key=lambda choice: (choice.code_match, choice.clocks))
        return [best, *(choice for choice in others if choice.row is not best.row)] if best else []

    def _serving(self, wanted: SelectionQuery) -> Iterator[tuple[int, int]]:
        for way, place in self.groups:
            group = self.table.groups[place]
            if kind_supports(group.kind, wanted.kind.code):
                for row in range(group.first, group.first + group.count):
                    if row_supports(self.table.rows[row], wanted, self.target):
                        yield way, row

    def _clocks(self, place: int, wanted: SelectionQuery) -> int:
        return estimate_clocks(self.table.rows[place], wanted, self.target)

    def _choice(
        self,
        place: int,
        way: int,
        wanted: SelectionQuery,
        rule: int = ESTIMATED,
        nearest: SurveyPoint | None = None,
        factor: int = FACTOR_ONE,
    ) -> Choice:
        row = self.table.rows[place]
        needed = row.workspace_bytes(wanted.m, wanted.n, wanted.batch)
        return Choice(row, way, self._clocks(place, wanted), needed, rule, nearest, factor)

    def _reason(self, wanted: SelectionQuery) -> str:
        kinds = {self.table.groups[place].kind for _, place in self.groups}
        if not kinds:
            there = sorted({group.arch for group in self.table.groups})
            return f"no variant runs on {self.target.name}: the library has {', '.join(there) or 'none'}"
        if wanted.kind.dtype_a != wanted.kind.dtype_b or wanted.kind.dtype_a == "f32":
            return f"no kernel computes {wanted.kind}: A and B are both f16, both bf16, or f32 multiplied as tf32"
        cover = (
            f"hgemm cover --arch {self.target.number} {wanted.kind.cover_options} --add{library_suffix(self.library)}"
        )
        way_out = f"`{cover}` makes one"
        if not any(kind_supports(kind, wanted.kind.code) for kind in kinds):
            return f"no variant computes {wanted.kind} on {self.target.name}: {way_out}"
        rows = [
            row
            for _, place in self.groups
            if kind_supports((group := self.table.groups[place]).kind, wanted.kind.code)
            for row in self.table.rows[group.first : group.first + group.count]
        ]
        counts = Counter(need for row in rows for need in unmet_requirements(row, wanted, self.target))
        told = ", ".join(f"{count} of {len(rows)} need {need}" for need, count in counts.most_common())
        extents = f"{wanted.m}x{wanted.n}x{wanted.k}"
        hint = "" if counts[FEWER_TILES] == len(rows) else f"; {way_out}"
        return f"no variant for {wanted.kind} on {self.target.name} takes {extents}: {told}{hint}"
