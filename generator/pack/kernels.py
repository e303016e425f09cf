"""The kernels of a pack: for every layer and number of rows, one whose predicted time is near the best of all candidates.

Candidates are tiles that `hgemm tune` searches, and the tiles of the Hopper catalog. Their times come from the cost model and the
package's calibration, so no GPU is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from generator.arch import ARCHS, parse_arch_list
from generator.build.pipeline import Outcome, Settings, make
from generator.build.toolchain import templates_folder
from generator.build.workers import cores
from generator.errors import RequestError, unknown_word
from generator.families.base import Plan
from generator.pack.models import Layer, Model, distinct
from generator.spec import Spec, symbol_of
from generator.store.library import Library
from generator.tuning import planned_record, plans_of
from hgemm.dispatch_table import OF_KERNEL, Row, kind_of, launch_clocks, row_of
from hgemm.dtypes import type_word
from hgemm.estimates import estimates, features, part_of, stacked, supported
from hgemm.launch_traits import LaunchTraits
from hgemm.model.calibrated import calibration
from hgemm.model.trees import BOUND_LIMIT, MAX_CHANGE
from hgemm.model.trees import ONE as TREE_ONE
from hgemm.packed import ROWS, PackedLayer, add_pack
from hgemm.problem import LAUNCH, TYPES, Kind, LaunchOptions, kind_supports
from hgemm.record import CUBIN_NAME, PTX_NAME
from hgemm.selection_query import ANY_WORKSPACE, SelectionQuery, Target

MAX_LOSS = 0.06
"""A pack's kernel may be predicted this much slower than the best candidate. So Llama 3 8B's pack builds in a minute on 2 cores.

Source: benchmarks/data, four files of measured problems on an H200. Kernels that cover with a predicted loss of 0, 3, 5 and 10 %,
selected by estimates, reach 96, 94, 94 and 92 % of the speed of the best measured kernel.
"""
ACTIVATION_STRICTNESS = 2
"""The loss of kernels with an activation counts this many times: they differ by more than their estimates say.

Source: docs/performance-notes.md, "Activations in estimates".
"""
NEAR = (TREE_ONE + MAX_CHANGE) / (TREE_ONE - MAX_CHANGE)
"""Trees may make a candidate the best if its estimate is at most this multiple of the lowest one."""
REFINED_AT_ONCE = 64
"""Candidates whose estimates trees refine at once."""
ROWS_PER_OCTAVE = 32
"""Numbers of rows from a power of two to the next for which kernels are chosen.

Source: docs/performance-notes.md, "Rows for which a pack is chosen".
"""
INPUTS = tuple(word for word in TYPES if word != "f32")
"""The types that kernels multiply."""
DEFAULT_DTYPE = "f16"
"""The type of a pack if neither the model nor the user names one."""
WORKSPACES = (0, ANY_WORKSPACE)
"""A pack serves calls without a workspace, and calls that pass one."""

# ==== Candidates ====


@dataclass(frozen=True)
class Candidate:
    """A kernel that could be packed: its plan, its kind, and the row that the cost model reads."""

    plan: Plan
    kind: Kind
    row: Row

    @property
    def symbol(self) -> str:
        return self.row.symbol

    @classmethod
    def of(cls, plan: Plan) -> Candidate:
        record = planned_record(plan)
        traits = LaunchTraits.of(record)
        return cls(plan, kind_of(traits), row_of(traits, record))


def candidates_for(kind: Kind, query: SelectionQuery, arch: str, wide: bool = False) -> Sequence[Candidate]:
    """Return the candidates for problems with the alignments of `query`. `wide` adds all kernels that the calibration measured.

    Where an architecture has wgmma, kernels on mma.sync are candidates only if wgmma cannot compute the kind.
    """
    aligns = (query.align_a, query.align_b, query.align_d)
    found = (_candidates(kind, aligns, name, query.expression, wide) for name in _archs(arch))
    return next(filter(None, found), ())


@cache
def _candidates(
    kind: Kind, aligns: tuple[int, int, int], arch: str, expression: str, wide: bool
) -> Sequence[Candidate]:
    found = plans_of(kind, aligns, (arch,), expression=expression)
    candidates = [Candidate.of(plan) for plan in found.values()]
    if wide:
        more = plans_of(kind, aligns, (arch,), expression=expression, wide=True)
        others = (Candidate.of(plan) for symbol, plan in more.items() if symbol not in found)
        candidates += [one for one in others if one.row.calibration == OF_KERNEL]
    return candidates


def _archs(arch: str) -> list[str]:
    """Return an architecture and, if it has wgmma, the one of the same GPUs without it."""
    return [arch, arch.removesuffix("a")] if ARCHS[arch].has_wgmma else [arch]


# ==== The choice ====


@dataclass(frozen=True)
class PackProblem:
    """One layer with some rows, as one kind of product, with or without a workspace."""

    layer: Layer
    query: SelectionQuery


@dataclass(frozen=True)
class RowRange:
    """The rows of a layer, from `first` to `last`, that one kernel of a pack serves in calls with, or without, a workspace."""

    layer: str
    kind: Kind
    workspace: bool
    first: int
    last: int
    symbol: str


@dataclass(frozen=True)
class PackedKernels:
    """The kernels of a pack on one architecture.

    Fields: `candidates` counts the kernels that were compared. `mean_loss` and `worst_loss` are the predicted time of the pack
        over that of the best candidate, minus 1.
    """

    arch: str
    plans: tuple[Plan, ...]
    ranges: tuple[RowRange, ...]
    candidates: int
    mean_loss: float
    worst_loss: float


def _rows_between(first: int, last: int) -> list[int]:
    """Return numbers of rows with both ends, in ascending order: ROWS_PER_OCTAVE for each octave, or all of them."""
    found, rows = [], first
    while rows < last:
        found.append(rows)
        step = max(1, (1 << rows.bit_length() - 1) // ROWS_PER_OCTAVE)
        rows = (rows // step + 1) * step
    return [*found, last]


class PackChooser:
    """Chooses the kernels of a pack for layers of one type on one architecture. Each kind is estimated once."""

    def __init__(
        self,
        layers: Sequence[Layer],
        dtype: str,
        arch: str,
        rows: tuple[int, int] = ROWS,
        invariant: bool = False,
        activation_only: bool = False,
    ) -> None:
        """`rows` are the fewest and the most rows of A. `invariant` chooses among kernels that sum k in one order, without splits.

        With `activation_only`, no kernel leaves out a layer's activation.
        Raises: RequestError if the architecture has no kernel for a layer.
        """
        self.arch, self.target, self.invariant = arch, Target.typical(arch), invariant
        self.rows = _rows_between(*rows)
        if dtype != "f16" and not ARCHS[arch].has_bf16:
            raise RequestError(f"{arch} multiplies f16 only: use --dtype f16, or another --arch")
        self.problems = [
            PackProblem(layer, SelectionQuery.dense(kind, (m, layer.n, layer.k, 1), workspace))
            for layer in layers
            for kind in layer.kinds(dtype, activation_only)
            for m in self.rows
            for workspace in WORKSPACES
        ]
        self.candidates = self._found()

    def layers(self) -> list[PackedLayer]:
        """Return the layers, once for each kind of product that the pack has kernels for."""
        each = dict.fromkeys((one.layer, one.query.kind) for one in self.problems)
        return [PackedLayer(layer.name, layer.n, layer.k, kind, (self.rows[0], self.rows[-1])) for layer, kind in each]

    def _found(self) -> list[Candidate]:
        """Return the candidates of all problems, each once."""
        found: dict[str, Candidate] = {}
        asked: set[Any] = set()
        for problem in self.problems:
            query = problem.query
            if query.m == 1:  # its leading dimension does not matter; 3 rows have the alignment of the layer
                query = SelectionQuery.dense(query.kind, (3, query.n, query.k, 1))
            key = (query.kind, query.align_a, query.align_b, query.align_d)
            if key in asked:
                continue
            asked.add(key)
            its = candidates_for(query.kind, query, self.arch, wide=True)
            if not its:
                raise RequestError(
                    f"{self.arch} has no kernel for {problem.layer.name} ({query.kind}): use another --dtype"
                )
            found |= {one.symbol: one for one in its}
        return [*found.values()]

    @cached_property
    def clocks(self) -> np.ndarray:
        """The estimated time of each problem with each candidate, inf if it does not support it. Units: clocks of an SM."""
        times = np.full((len(self.problems), len(self.candidates)), np.inf, order="F")
        of_kind: dict[int, list[int]] = {}
        for at, problem in enumerate(self.problems):
            of_kind.setdefault(problem.query.kind.code, []).append(at)
        for code, its in of_kind.items():
            places, queries = np.array(its), stacked([self.problems[at].query for at in its])
            columns = [at for at, one in enumerate(self.candidates) if kind_supports(one.kind.code, code)]
            for at in columns:
                row = self.candidates[at].row
                found = supported(row, queries, self.target)
                times[places[found], at] = self._clocks(row, part_of(queries, found))
            if not self.invariant:
                self._refine(times, places, columns, queries)
        return self._of_one_order(times) if self.invariant else times

    def _clocks(self, row: Row, queries: SelectionQuery) -> Any:
        """Return the estimated times of launches, of those that do not split k if the pack is batch-invariant."""
        if not self.invariant:
            return estimates(row, queries, self.target)
        unsplit = row.order and row.splits == 1
        return launch_clocks(row, queries, self.target, LaunchOptions(1)) if unsplit else np.inf

    def _refine(self, times: np.ndarray, places: np.ndarray, columns: Sequence[int], queries: SelectionQuery) -> None:
        """Refine times of some problems by the calibration's trees where a candidate may be the best.

        Shapes: times as `clocks`; places, queries (query,); columns (candidate,).
        """
        most = np.minimum(NEAR * times[np.ix_(places, columns)].min(axis=1), BOUND_LIMIT)
        calibrated = [at for at in columns if self.candidates[at].row.calibration]
        for first in range(0, len(calibrated), REFINED_AT_ONCE):
            part = calibrated[first : first + REFINED_AT_ONCE]
            near = [np.flatnonzero(times[places, at] <= most) for at in part]
            clocks = [times[places[its], at].astype(np.int64) for at, its in zip(part, near)]
            found = np.concatenate(
                [
                    features(self.candidates[at].row, part_of(queries, its), self.target, of_row)
                    for at, its, of_row in zip(part, near, clocks)
                ]
            )
            # Neighbours that differ in their workspace only often have equal features.
            new = np.insert((found[1:] != found[:-1]).any(axis=1), 0, True)[: len(found)]
            factors = calibration().forest.refinements(found[new])[np.cumsum(new) - 1]
            at_row, at_column = places[np.concatenate(near)], np.repeat(part, [*map(len, near)])
            times[at_row, at_column] = np.concatenate(clocks) * factors // TREE_ONE

    def _of_one_order(self, times: np.ndarray) -> np.ndarray:
        """Return times with inf for each kernel that has not the order of its kind: the one that supports the most problems.

        Of equals, the order of cuBLASLt's kernels comes first, then the fastest one.
        """
        times = times.copy()
        orders = np.array([one.row.order for one in self.candidates])
        is_cublas = {one.row.order: one.row.cublas_order for one in self.candidates}
        kinds = np.array([one.query.kind.code for one in self.problems])
        for kind in set(kinds):
            of_kind = np.flatnonzero(kinds == kind)
            best = {order: times[np.ix_(of_kind, orders == order)].min(axis=1) for order in set(orders)}
            chosen = max(
                best,
                key=lambda order: (
                    np.isfinite(best[order]).sum(),
                    is_cublas[order],
                    -np.log(best[order][np.isfinite(best[order])]).sum(),
                ),
            )
            times[np.ix_(of_kind, orders != chosen)] = np.inf
        return times

    def choose(
        self, max_loss: float = MAX_LOSS, without: Collection[str] = (), present: Collection[str] = ()
    ) -> PackedKernels:
        """Return a small set of candidates whose predicted loss is at most `max_loss` for every problem.

        With an activation, the loss is at most `max_loss` / ACTIVATION_STRICTNESS.

        `without` names kernels that could not be built. Candidates that need as many registers are not chosen either.
        `present` names kernels that are built already and stay.
        Raises: RequestError if the others do not support every problem, or `max_loss` is not 0 or more.
        """
        if not max_loss >= 0:
            raise RequestError(f"max_loss is {max_loss}: pass 0 or more, such as {MAX_LOSS}")
        failed = [one.plan.spec for one in self.candidates if one.symbol in without]
        usable = np.array(
            [one.symbol in present or not needs_as_much(one.plan.spec, failed) for one in self.candidates]
        )
        fastest = self.clocks.min(axis=1, initial=np.inf, where=usable)
        if not np.isfinite(fastest).all():
            layer = self.problems[int(np.argmax(~np.isfinite(fastest)))].layer
            raise RequestError(f"no kernel for {layer.name} can be built on {self.arch}: use another --dtype or --arch")
        losses = self.clocks / fastest[:, None]
        losses -= 1
        losses[:, ~usable] = np.inf
        kept = [
            at for at, one in enumerate(self.candidates) if one.symbol in present and np.isfinite(losses[:, at]).any()
        ]
        weights = [1 if one.query.kind.activation == "none" else ACTIVATION_STRICTNESS for one in self.problems]
        losses *= np.array(weights)[:, None]
        costs = [compile_cost(one.plan.spec) for one in self.candidates]
        chosen = cheap_cover(losses, max_loss, costs, kept)
        best = losses[:, chosen].min(axis=1) / weights
        plans = tuple(self.candidates[place].plan for place in chosen)
        ranges = tuple(self._ranges(chosen))
        return PackedKernels(self.arch, plans, ranges, len(self.candidates), float(best.mean()), float(best.max()))

    def _ranges(self, chosen: list[int]) -> Iterator[RowRange]:
        """Yield, for each layer and kind, the rows that each kernel serves: with a workspace, then without one."""
        served = np.array(chosen)[self.clocks[:, chosen].argmin(axis=1)]
        starts: dict[tuple[Layer, Kind, bool], list[tuple[int, str]]] = {}
        for problem, place in zip(self.problems, served):
            query, symbol = problem.query, self.candidates[place].symbol
            begun = starts.setdefault((problem.layer, query.kind, query.workspace_bytes > 0), [])
            if not begun or begun[-1][1] != symbol:
                begun.append((query.m, symbol))
        for (layer, kind, workspace), begun in sorted(starts.items(), key=lambda one: not one[0][2]):
            ends = [first - 1 for first, _ in begun[1:]] + [self.rows[-1]]
            for (first, symbol), last in zip(begun, ends, strict=True):
                yield RowRange(layer.name, kind, workspace, first, last, symbol)


_REGISTER_FIELDS = ("arch", "cta_tile", "mma", "swap_ab", "cooperation", "consumers", "copy", "dtype_d", "ctas_per_sm")
"""Fields that decide how many registers a kernel needs, besides bias and activation."""


def needs_as_much(spec: Spec, failed: Collection[Spec]) -> bool:
    """Return whether a kernel needs at least as many registers as one that could not be built."""
    return any(
        all(getattr(spec, name) == getattr(other, name) for name in _REGISTER_FIELDS)
        and all(getattr(other, name) in ("none", getattr(spec, name)) for name in ("bias", "activation"))
        for other in failed
    )


LAUNCH_COSTS = {1: 1.5, 2: 2.0, 3: 4.0}
"""How many times as long a wgmma kernel whose launches decide the splits takes to compile as other kernels, by its consumers.

Source: mean times of 131 kernels with NVRTC 13.0, 2026-11-29: 1.6, 1.9 and 3.7.
"""


def compile_cost(spec: Spec) -> float:
    """Return about how long a kernel takes to compile. Units: the time of a kernel with a fixed schedule."""
    return LAUNCH_COSTS.get(spec.consumers, 1.0) if str(spec.schedule) == LAUNCH else 1.0


def cheap_cover(losses: np.ndarray, max_loss: float, costs: Sequence[float], kept: Sequence[int] = ()) -> list[int]:
    """Return `kept` and other candidates of a low total cost. For every problem, one of them has a loss of at most `max_loss`.

    Greedy: each one adds the most problems for its cost, and of equals the lowest loss. At the end, those that are not needed are
    removed. Shapes: losses (problem, candidate), costs (candidate,). Every problem has a candidate without loss.
    """
    good = np.ascontiguousarray(losses <= max_loss)
    mean = np.minimum(losses, 1).mean(axis=0)
    chosen = list(kept)
    covered = good[:, chosen].any(axis=1)
    counts = good[~covered].sum(axis=0)
    while not covered.all():
        best = int(np.lexsort((mean, -counts / costs))[0])
        chosen.append(best)
        newly = good[:, best] & ~covered
        counts -= good[newly].sum(axis=0)
        covered |= newly
    for place in sorted(set(chosen) - set(kept), key=lambda one: good[:, one].sum() / costs[one]):
        others = [one for one in chosen if one != place]
        if others and good[:, others].any(axis=1).all():
            chosen = others
    return chosen


# ==== The pack ====


@dataclass(frozen=True)
class Pack:
    """The kernels of a model in a library.

    Fields: `dropped` holds the error of each kernel that could not be built and was replaced.
    Units: `bytes` counts cubins and PTX; `seconds` is the time of all builds.
    """

    folder: Path
    choices: tuple[PackedKernels, ...]
    symbols: tuple[str, ...]
    dropped: Mapping[str, str]
    bytes: int
    seconds: float


def pack(
    choosers: Sequence[PackChooser],
    settings: Settings,
    max_loss: float = MAX_LOSS,
    processes: int = 0,
    started: Callable[[Sequence[PackedKernels], int], AbstractContextManager[Callable[[Outcome], None]]] | None = None,
) -> Pack:
    """Build the kernels of a pack into a library. A kernel that does not build is replaced by the next best one.

    `started` is called before each round of builds with the choices and the number of kernels. It returns a context whose value
    is called with each outcome.
    Raises: RequestError if a layer has no other kernel, LibraryError if the folder cannot be written.
    """
    start = time.perf_counter()
    made: dict[str, Outcome] = {}
    dropped: dict[str, str] = {}
    while True:
        present = [symbol for symbol, outcome in made.items() if outcome.record]
        choices = [chooser.choose(max_loss, dropped, present) for chooser in choosers]
        plans = {symbol_of(plan.spec): plan for choice in choices for plan in choice.plans}
        missing = [plan for symbol, plan in plans.items() if symbol not in made]
        if not missing:
            break
        with started(choices, len(missing)) if started else nullcontext(lambda outcome: None) as tell:
            with closing(make(missing, settings, processes)) as outcomes:
                for _, outcome in outcomes:
                    made[outcome.symbol] = outcome
                    tell(outcome)
        dropped |= {symbol: made[symbol].error for symbol in plans if made[symbol].record is None}
    add_pack(settings.library.folder, (layer for chooser in choosers for layer in chooser.layers()))
    records = [record for symbol in plans if (record := made[symbol].record)]
    size = sum(record.data["files"][name]["bytes"] for record in records for name in (CUBIN_NAME, PTX_NAME))
    return Pack(settings.library.folder, tuple(choices), tuple(plans), dropped, size, time.perf_counter() - start)


def choosers_of(
    model: Model,
    archs: Sequence[str],
    dtypes: Sequence[str],
    invariant: bool = False,
    rows: tuple[int, int] = ROWS,
    activation_only: bool = False,
) -> list[PackChooser]:
    """Return a chooser for each architecture and type.

    Raises: RequestError if one has no kernel for a layer, or if no layer has an activation, with `activation_only`.
    """
    layers = distinct(model.layers)
    if activation_only and all(layer.activation == "none" for layer in layers):
        raise RequestError("no layer has an activation that kernels fuse: omit --activation-only")
    return [PackChooser(layers, dtype, arch, rows, invariant, activation_only) for arch in archs for dtype in dtypes]


def pack_model(
    model: Model,
    folder: Path,
    arch: str,
    dtype: str = "",
    max_loss: float = MAX_LOSS,
    invariant: bool = False,
    rows: tuple[int, int] = ROWS,
    progress: Callable[[str], object] | None = None,
    activation_only: bool = False,
) -> Pack:
    """Build the kernels of a model into the library in `folder`, in one process per core. This is `hgemm pack`.

    `arch` is a list such as sm_90a or 80,90a. `dtype` is the model's own if it is not given. `invariant` packs kernels that sum k
    in one order. `rows` are the fewest and the most rows of a call. `progress` is called with a line for each kernel.
    With `activation_only`, layers with an activation get no kernels without it.
    Raises: RequestError for an unknown architecture or type, LibraryError if the folder cannot be written.
    """
    settings = Settings(Library(folder), templates_folder())
    choosers = choosers_of(model, parse_arch_list(arch), dtypes_of(model, dtype), invariant, rows, activation_only)

    @contextmanager
    def started(choices: Sequence[PackedKernels], total: int) -> Iterator[Callable[[Outcome], None]]:
        done = count(1)

        def tell(outcome: Outcome) -> None:
            if progress:
                progress(f"{next(done)} of {total}: {outcome.status} {outcome.symbol}")

        yield tell

    return pack(choosers, settings, max_loss, cores(), started)


def dtypes_of(model: Model, asked: str = "") -> list[str]:
    """Return the types to pack: those of the list `asked`, or the model's own, or DEFAULT_DTYPE if that is unknown.

    Raises: RequestError if a type is unknown, or the model's is f32.
    """
    if asked:
        words = list(dict.fromkeys(type_word(word) for word in asked.split(",") if word.strip()))
        for word in words:
            if word not in INPUTS:
                raise unknown_word("dtype", word, INPUTS)
        return words
    if model.dtype == "f32":
        raise RequestError(
            "the model's dtype is float32: choose f16 or bf16 with --dtype, or tf32, which keeps 11 of 24 bits"
        )
    return [model.dtype or DEFAULT_DTYPE]
