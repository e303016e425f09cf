"""Measurement of one problem: contenders, output check, screening, and paired rounds."""

from __future__ import annotations

import statistics
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from hgemm.bench.contenders import contender_name, options_to_try, symbol_of
from hgemm.bench.device import Graph, Stream, Telemetry, Watchdog
from hgemm.bench.memory_kernel import MemoryKernel, moved_bytes
from hgemm.bench.operands import POISON, SCALAR, Operands, Pool, copy_bytes_per_s, expression_operands
from hgemm.bench.protocol import (
    Protocol,
    Tolerance,
    block_launches,
    block_times_us,
    fastest,
    figures,
    forth_and_back,
    round_times,
)
from hgemm.bench.results import ratios
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.dispatch_table import row_of
from hgemm.dtypes import DTYPES, decode
from hgemm.epilogue import PAIR_COLUMNS
from hgemm.epilogue_reference import Interval, evaluate
from hgemm.errors import DeviceError, HgemmError
from hgemm.kernel import Kernel
from hgemm.launch import COUNTER_BYTES, WORKSPACE_COUNTERS, workspace_bytes
from hgemm.launch_traits import INPUT
from hgemm.problem import LaunchOptions, Problem
from hgemm.reference import ACTIVATION_FORMULAS
from hgemm.selection_query import Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

Launch = Callable[[], None]
OURS, BASELINE = "ours", "baseline"


class Contender(typing.Protocol):
    """One way to compute a problem. `bind` returns one launch per set of operands. It may load code but not wait."""

    side: str

    @property
    def name(self) -> str: ...

    def bind(self, operands: Operands, stream: int) -> list[Launch]: ...

    def free(self) -> None: ...


class Proposed(typing.Protocol):
    """The contenders that a baseline proposes for one problem, its first choice first."""

    @property
    def contenders(self) -> Sequence[Contender]: ...

    def free(self) -> None: ...


class Baseline(typing.Protocol):
    """A library to compare with. `name` includes its version."""

    name: str

    def propose(self, work: Work, count: int, bias: int = 0) -> Proposed: ...

    def free(self) -> None: ...


_SOMEWHERE = 1
"""Stands for the address of a workspace while the default options are chosen."""


@dataclass
class KernelContender:
    """One kernel of the library, with a workspace if it needs one, as launches of the library have.

    `options` are those of its launches, None for the default. `bind` raises ProblemError for unsupported problems.
    """

    kernel: Kernel
    device: Device
    options: LaunchOptions | None = None
    side: str = OURS
    workspace: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return contender_name(self.kernel.traits, self.options)

    def bind(self, operands: Operands, stream: int) -> list[Launch]:
        work, traits = operands.work, self.kernel.traits
        first = replace(self.problem(operands, 0), workspace=_SOMEWHERE)
        options = self.kernel.with_launch_options(first, self.device.ordinal, DEFAULT_WORKSPACE_BYTES).options
        size = workspace_bytes(traits, work.m, work.n, work.batch, options)
        if size and not self.workspace:
            self.workspace = self.device.allocate(size)
            operands.stream.fill(self.workspace, 0, min(size, WORKSPACE_COUNTERS * COUNTER_BYTES))
        problems = (replace(self.problem(operands, at), options=options) for at in range(operands.sets))
        return [
            self.kernel.bind(
                problem, stream=stream, device=self.device.ordinal, workspace_size=size or None, zeroed=True
            )
            for problem in problems
        ]

    def problem(self, operands: Operands, at: int) -> Problem:
        """Return the problem of one set of operands."""
        return replace(operands.problem(at, self.workspace), options=self.options)

    def free(self) -> None:
        if self.workspace:
            self.device.free(self.workspace)
            self.workspace = 0


# ---- Output check ----------------------------------------------------------------------------------------------------


WHOLE_BYTES = 64 << 20
"""A larger D is checked in the sampled rows only."""
BASELINE_LENIENCY = 4.0
"""Tolerance factor for baselines: they may round more often, for example partial results in f16."""
ACTIVATION_LENIENCY = 2.0
"""Tolerance factor with an activation: its slope is below 1.2, and the norm of its results about 0.7 of the norm of its inputs."""
ROWS, COLUMNS = 24, 160
"""Number of sampled rows and columns. They cross nearly every row and column of CTA tiles."""


class OutputSample:
    """Sampled rows and columns of D of the first set, in its first and last matrix, with exact values."""

    def __init__(self, operands: Operands, seed: int) -> None:
        self.operands = operands
        work, rng = operands.work, np.random.default_rng(seed)
        self.rows = _sample_indices(rng, work.m, ROWS)
        self.columns = _sample_indices(rng, work.columns_of_d, COLUMNS)
        self.columns_of_b = self.columns
        if work.parsed and work.parsed.gated:  # whole blocks of the pair
            blocks = _sample_indices(rng, work.columns_of_d // PAIR_COLUMNS, COLUMNS // PAIR_COLUMNS)
            self.columns, self.columns_of_b = (
                (blocks[:, None] * width + np.arange(width)).reshape(-1) for width in (PAIR_COLUMNS, 2 * PAIR_COLUMNS)
            )
        self.batches = sorted({0, work.batch - 1})

    @cached_property
    def exact(self) -> np.ndarray:
        """Return the result in float64, before D is rounded. Shapes: (batches, rows, columns)."""
        work = self.operands.work
        return ACTIVATION_FORMULAS[work.activation].function(self._product())

    def _product(self) -> np.ndarray:
        """Return the sampled elements of the product and its bias. Shapes: (batches, rows, columns of B)."""
        work, along_k = self.operands.work, np.arange(self.operands.work.k)
        found = []
        for batch in self.batches:
            ends = (self.rows, along_k) if work.layout[0] == "t" else (along_k, self.rows)
            a = decode(self.operands.stored("a", batch, *ends), work.dtype_a)
            ends = (self.columns_of_b, along_k) if work.layout[1] == "n" else (along_k, self.columns_of_b)
            b = decode(self.operands.stored("b", batch, *ends), work.dtype_b)
            found.append((a if work.layout[0] == "t" else a.T) @ (b.T if work.layout[1] == "n" else b))
        product = np.stack(found)
        if work.bias != "none":
            bias = decode(self.operands.bias(), work.dtype_d)
            product = product + (bias[self.columns] if work.bias == "row" else bias[self.rows][:, None])
        return product

    @cached_property
    def expected(self) -> Interval:
        """Return D of the expression, and the interval of correct results before D is rounded. Shapes: as `exact`."""
        work, expression = self.operands.work, self.operands.work.parsed
        assert expression is not None
        inputs: dict[str, np.ndarray] = {"alpha": np.ones(()), "beta": np.ones(())}
        for one in expression.operands:
            if one.kind == "scalar":
                inputs[one.name] = np.full((), SCALAR)
                continue
            rows = self.rows if one.kind == "matrix" else np.zeros(1, np.int64)
            columns = self.rows if one.kind == "column" else self.columns
            found = [self.operands.stored(INPUT + one.name, batch, rows, columns) for batch in self.batches]
            values = decode(np.stack(found), one.of(work.dtype_d))
            inputs[one.name] = values.swapaxes(1, 2) if one.kind == "column" else values
        error = Tolerance.of(work.k, work.acc, work.dtype_d).absolute
        return evaluate(expression, Interval.around(self._product(), error), inputs)

    def failure(self, launch: Launch, side: str = OURS, acc: str = "") -> str:
        """Launch once on the first set and return what is wrong with D, or an empty string.

        D is poisoned before the launch. `acc` is the launch's accumulator type if it differs from the problem's.
        """
        operands, work = self.operands, self.operands.work
        operands.poison()
        launch()
        operands.stream.synchronize()
        rows = [self._rows(batch) for batch in self.batches]
        unwritten = sum(int(np.count_nonzero(_poisoned(part))) for part in rows)
        if unwritten:
            return f"{unwritten} elements of D were not written"
        picked = self.rows if len(rows[0]) == work.m else np.arange(len(self.rows))
        values = np.stack([decode(part[np.ix_(picked, self.columns)], work.dtype_d) for part in rows])
        if work.parsed:
            return _compare_expression(values, self.expected, work.dtype_d)
        tolerance = Tolerance.of(work.k, acc or work.acc, work.dtype_d)
        if work.activation != "none":  # it may enlarge errors, and makes half of the elements small
            tolerance = tolerance.times(ACTIVATION_LENIENCY)
        return _compare(values, self.exact, tolerance if side == OURS else tolerance.times(BASELINE_LENIENCY))

    def _rows(self, batch: int) -> np.ndarray:
        """Return one matrix of D as stored, or only its sampled rows if it is large. Shapes: (rows, n)."""
        place, device = self.operands.places["d"], self.operands.stream.device
        first = self.operands.blocks["d"] + batch * place.stride * place.item
        whole = place.stride * place.item <= WHOLE_BYTES
        found = np.empty((place.rows if whole else len(self.rows), place.columns), DTYPES[place.dtype].storage)
        if whole:
            device.download(found.ctypes.data, first, found.nbytes)
            return found
        for at, row in enumerate(self.rows):
            source = first + int(row) * place.columns * place.item
            device.download(found[at].ctypes.data, source, found[at].nbytes)
        return found


def _sample_indices(rng: np.random.Generator, extent: int, count: int) -> np.ndarray:
    """Return sorted sample places: the first, the last, and random ones between."""
    if extent <= count:
        return np.arange(extent)
    return np.unique([0, extent - 1, *rng.choice(extent, count - 2, replace=False)])


def _poisoned(stored: np.ndarray) -> np.ndarray:
    word = int.from_bytes(bytes([POISON]) * stored.itemsize, "little")
    return np.asarray(stored.view(f"<u{stored.itemsize}") == word)


def _compare(values: np.ndarray, exact: np.ndarray, tolerance: Tolerance) -> str:
    error = np.abs(values - exact)
    over = int(np.count_nonzero(~(error <= tolerance.absolute + tolerance.relative * np.abs(exact))))
    norm = float(np.linalg.norm(error) / max(float(np.linalg.norm(exact)), 1e-30))
    # The norm of few elements is no criterion: a single exact value may be close to zero.
    if over or (exact.size > 1000 and not norm <= tolerance.norm):
        return f"{over} of {exact.size} sampled elements exceed the tolerance; relative error norm {norm:.3g}"
    return ""


def _compare_expression(values: np.ndarray, expected: Interval, dtype: str) -> str:
    """Compare with an interval. Where it has no bound, or D's type overflows, any number is right."""
    with np.errstate(invalid="ignore"):
        allowed = expected.error + 2 * DTYPES[dtype].roundoff * np.abs(expected.exact) + DTYPES[dtype].roundoff * 1e-3
        right = np.abs(values - expected.exact) <= allowed
        free = ~np.isfinite(allowed) | (np.abs(expected.exact) + allowed > DTYPES[dtype].largest)
    over = int(np.count_nonzero(~(right | free)))
    return f"{over} of {values.size} sampled elements exceed the bound of the epilogue" if over else ""


# ---- Race ------------------------------------------------------------------------------------------------------------


SCREEN_LIMIT = 1.5
"""Contenders slower than this multiple of the fastest first launch are not screened further."""
_FIRST_LAUNCHES = 6
_SOLO_BLOCKS = 4
_ROUGH_AGAIN = 3
_HOST_MS = 0.03
"""Shorter launches are timed by graphs only: launches from the host are too slow to compare them."""
MIN_MS = 1e-4
MEMORY = "memory kernel"
"""Name of the kernel between products, which is timed alone, too."""


class LostDevice(DeviceError):
    """A kernel faulted and the device's context is lost."""


class Race:
    """Contenders on the same operands. `rejected` gives the reason for each one that is left out.

    After `alternate`, a memory-bound kernel precedes each launch of a contender. Times are without it.

    Fields: `spans` are each contender's time intervals for clock and power; `turns` are the milliseconds of all blocks
        of its turns in steady rounds.
    """

    def __init__(self, stream: Stream, operands: Operands, protocol: Protocol) -> None:
        self.stream, self.operands, self.protocol = stream, operands, protocol
        self.launches: dict[str, list[Launch]] = {}
        self.sides: dict[str, str] = {}
        self.rejected: dict[str, str] = {}
        self.launch_ms: dict[str, float] = {}
        self.spans: dict[str, list[tuple[float, float]]] = {}
        self.turns: dict[str, list[list[float]]] = {}
        self._graphs: dict[str, list[Graph]] = {}
        self._short: dict[str, Graph] = {}
        self._at = 0  # the first set of the next block, for blocks that do not use every set
        self._memory: MemoryKernel | None = None
        self._memory_ms = 0.0

    def alternate(self, memory: MemoryKernel | None) -> None:
        """Launch a memory-bound kernel before each launch of a contender from now on, or none."""
        self.free()
        self._memory = memory
        self._memory_ms = self._rough_ms([memory.launch]) if memory else 0.0

    @property
    def memory_ms(self) -> float:
        """Milliseconds of the memory-bound kernel before each launch, estimated. 0 if none runs."""
        return self._memory_ms if self._memory else 0.0

    def add(self, contender: Contender) -> None:
        """Bind a contender and launch it a few times. This loads its code and estimates its time."""
        name = contender.name
        try:
            launches = contender.bind(self.operands, self.stream.handle)
            launches[0]()
            self.launch_ms[name] = self._rough_ms(launches)
        except HgemmError as error:
            self.require_context(name)
            self.rejected[name] = str(error).removeprefix(f"{name}: ")
        else:
            self.launches[name], self.sides[name] = launches, contender.side

    def _rough_ms(self, launches: list[Launch]) -> float:
        """Return the estimated time of a launch. It is the host's launch time if that is longer."""
        once_ms = self.stream.timed(launches[-1])()
        if once_ms > self.protocol.screen_ms:
            return once_ms
        some = [launches[at % len(launches)] for at in range(_FIRST_LAUNCHES)]
        return self.stream.timed(partial(_run_all, some))() / len(some)

    def require_context(self, name: str) -> None:
        """Raise LostDevice if a contender's launches have ended the context."""
        try:
            self.stream.synchronize()
        except DeviceError as error:
            raise LostDevice(f"{name} on {self.operands.work.key} lost the device: {error}") from None

    def ranked(self, side: str) -> list[str]:
        """Return the contenders of a side, fastest first."""
        return sorted((name for name in self.launches if self.sides[name] == side), key=self.launch_ms.__getitem__)

    def reject(self, name: str, why: str) -> None:
        """Remove a contender and record why."""
        self.rejected[name] = why
        del self.launches[name]

    # ---- Screening --------------------------------------------------------------------------------------------------

    def screen(self, side: str) -> dict[str, float]:
        """Time a side's contenders briefly in turns. Return milliseconds per launch by name.

        Contenders that were far behind in their first launches keep that time.
        """
        for name, times in self.sample(self.competitive(side), self.protocol.screen_samples).items():
            self.launch_ms[name] = statistics.median(times)
        return {name: self.launch_ms[name] for name in self.ranked(side)}

    def competitive(self, side: str) -> list[str]:
        """Return the contenders of a side that are not far behind in their first launches, fastest first."""
        names = self.ranked(side)
        limit_ms = max(_HOST_MS, SCREEN_LIMIT * min((self.launch_ms[name] for name in names), default=0.0))
        for name in names:
            if self.launch_ms[name] > limit_ms:  # time it again: the device was at idle clocks, or the host was slow
                again = (self._rough_ms(self.launches[name]) for _ in range(_ROUGH_AGAIN))
                self.launch_ms[name] = min(self.launch_ms[name], *again)
        return [name for name in names if self.launch_ms[name] <= limit_ms]

    def sample(self, names: Sequence[str], count: int) -> dict[str, list[float]]:
        """Time contenders briefly, `count` times each, in alternating order. Return milliseconds per launch."""
        names = self._with_memory(names)
        for name in names:
            if name not in self._short:
                launches = max(1, min(round(self.protocol.screen_ms / self._paired_ms(name)), 4000))
                self._short[name] = self.stream.capture(self._turn(name, 0, launches))
        samples: dict[str, list[float]] = {name: [] for name in names}
        if names:
            self.stream.replay(self._short[names[0]])  # the device has been idle
        for at in range(count):
            for name in names[:: -1 if at % 2 else 1]:
                graph = self._short[name]
                wait = self.stream.timed(partial(self.stream.replay, graph))
                samples[name].append(wait() / graph.launches)
        return without_memory(samples)

    def _with_memory(self, names: Sequence[str]) -> list[str]:
        """Return the names, and the memory-bound kernel if it runs."""
        return [*names, MEMORY] if self._memory else [*names]

    def _paired_ms(self, name: str) -> float:
        """Return the estimated milliseconds of a launch and of the memory-bound kernel before it."""
        return self._memory_ms + (self.launch_ms[name] if name != MEMORY else 0.0)

    # ---- Rounds -----------------------------------------------------------------------------------------------------

    def prepare(self, names: Sequence[str], rounds: int) -> None:
        """Capture the graphs of the rounds.

        If a block does not use every set, there is one graph for each first set.
        """
        self.free()
        sets, names = self.operands.sets, self._with_memory(names)
        for name in names:
            count = block_launches(self._paired_ms(name), self.protocol, len(names), sets, rounds)
            firsts = range(sets if count < sets and name != MEMORY else 1)
            self._graphs[name] = [self.stream.capture(self._turn(name, first, count)) for first in firsts]

    def _turn(self, name: str, first: int, count: int) -> list[Launch]:
        memory = self._memory.launch if self._memory else None
        if name == MEMORY and memory:
            return [memory] * count
        launches = [self.launches[name][(first + at) % len(self.launches[name])] for at in range(count)]
        return [partial(_in_turn, memory, launch) for launch in launches] if memory else launches

    def block(self, name: str) -> Callable[[], float]:
        """Enqueue one block. Return a function that waits and returns milliseconds per launch."""
        graphs = self._graphs[name]
        graph = graphs[self._at % len(graphs)]
        self._at += graph.launches
        wait = self.stream.timed(lambda: self.stream.replay(graph))
        return lambda: wait() / graph.launches

    def load(self, names: Sequence[str], seconds: float) -> None:
        """Keep the device busy with the contenders for some seconds."""
        until = time.perf_counter() + seconds
        pending: list[Callable[[], float]] = []
        while time.perf_counter() < until or pending:
            enqueued = [self.block(name) for name in names] if time.perf_counter() < until else []
            for wait in pending:
                wait()
            pending = enqueued

    def steady(self, names: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Return the rounds under constant load: for each round, names and milliseconds in order."""
        protocol, names = self.protocol, self._with_memory(names)
        until = time.perf_counter() + protocol.seconds
        rounds: list[list[tuple[str, float]]] = []
        pending: list[tuple[str, list[Callable[[], float]]]] = []
        while True:  # the next round is always queued before the current one ends
            enqueued = [
                (name, [self.block(name) for _ in range(protocol.turn_blocks)]) for name in forth_and_back(names)
            ]
            if pending:
                rounds.append([(name, self._turn_ms(name, waits)) for name, waits in pending])
            pending = enqueued
            began = len(rounds) + 1
            if began >= protocol.rounds_max or (began >= protocol.rounds and time.perf_counter() > until):
                return [*rounds, [(name, self._turn_ms(name, waits)) for name, waits in pending]]

    def _turn_ms(self, name: str, waits: Sequence[Callable[[], float]]) -> float:
        """Wait for a turn. Return milliseconds per launch in its second half."""
        half = len(waits) // 2
        first = [wait() for wait in waits[:half]]
        began = time.perf_counter()
        blocks = [*first, *(wait() for wait in waits[half:])]
        if first:  # without a first half, the start of the turn is unknown
            self.spans.setdefault(name, []).append((began, time.perf_counter()))
            self.turns.setdefault(name, []).append(blocks)
        return statistics.fmean(blocks[half:])

    def burst(self, names: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Return rounds of short loads. Each load follows a pause and one block that raises the clock."""
        rounds = []
        for _ in range(self.protocol.burst_rounds):
            row, left = [], forth_and_back(names)
            while left:
                self.stream.synchronize()
                time.sleep(self.protocol.cool_down_s)
                self.block(left[0])()
                load_ms = 0.0
                while left and load_ms < self.protocol.burst_load_ms:
                    began = time.perf_counter()
                    row.append((left[0], self.block(left[0])()))
                    load_ms += 1e3 * (time.perf_counter() - began)
                    left = left[1:]
            rounds.append(row)
        return rounds

    def solo(self, name: str) -> list[float]:
        """Run one contender alone for a while. Return its times in the second half, with those of the memory-bound kernel."""
        began = time.perf_counter()
        middle, end = began + self.protocol.solo_s / 2, began + self.protocol.solo_s
        times: list[float] = []
        while not times or time.perf_counter() < end:
            late = time.perf_counter() >= middle
            waits = [self.block(name) for _ in range(_SOLO_BLOCKS)]
            blocks = [wait() for wait in waits]
            times = [*times, *blocks] if late else []
        self.spans[name] = [(middle, time.perf_counter())]
        return times

    def free(self) -> None:
        """Free the graphs."""
        for graph in [*self._short.values(), *(graph for graphs in self._graphs.values() for graph in graphs)]:
            graph.free()
        self._graphs, self._short = {}, {}


def _run_all(launches: Iterable[Launch]) -> None:
    for launch in launches:
        launch()


def _in_turn(memory: Launch, launch: Launch) -> None:
    memory()
    launch()


def without_memory(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the times of the contenders, less the memory-bound kernel's time of the same sample or round."""
    memory = times.get(MEMORY)
    return {
        name: [max(ms - memory[at], MIN_MS) for at, ms in enumerate(of_name)] if memory else [*of_name]
        for name, of_name in times.items()
        if name != MEMORY
    }


# ---- Measurement of one problem --------------------------------------------------------------------------------------


CONTINUOUS = ("model", "steady")
"""The states under load without pauses. In `model`, a memory-bound kernel runs between products."""
STATES = (*CONTINUOUS, "burst", "solo")
MAX_FEW_ROWS = 16
"""Up to this many rows of A, reading the weights from memory bounds the product."""


@dataclass
class BenchContext:
    """State that all measurements of a run share. The device's context must be current."""

    device: Device
    stream: Stream
    protocol: Protocol
    telemetry: Telemetry
    seed: int
    watchdog: Watchdog
    baseline: Baseline | None = None
    warm: bool = False
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)

    def pool(self, name: str, dtype: str) -> Pool:
        if (name, dtype) not in self.pools:
            self.pools[name, dtype] = Pool(self.stream, dtype, self.seed + "ab".index(name))
        return self.pools[name, dtype]

    def free_pools(self) -> None:
        for pool in self.pools.values():
            quietly(pool.free)

    def memory_kernel(self, work: Work) -> MemoryKernel:
        """Return the kernel that runs between products of a problem in the state `model`."""
        return MemoryKernel(self.stream, self.pool("a", work.dtype_a), moved_bytes(work, self.protocol.duty))

    def operands(self, work: Work) -> Operands:
        pools = {name: self.pool(name, getattr(work, f"dtype_{name}")) for name in "ab"}
        if work.bias != "none":
            pools["bias"] = self.pool("a", work.dtype_d)
        pools |= {INPUT + place.dtype: self.pool("a", place.dtype) for place in expression_operands(work).values()}
        protocol = self.protocol
        min_bytes = int(protocol.l2_multiple * self.device.l2_bytes)
        return Operands(self.stream, work, pools, min_bytes, (protocol.sets_min, protocol.sets_max))


def open_context(device: Device, protocol: Protocol, seed: int, watchdog: Watchdog, stack: ExitStack) -> BenchContext:
    """Make the device's context current, start telemetry, and return the shared state. The stack closes all of it."""
    stack.enter_context(device.current())
    stream = Stream(device)
    stack.callback(quietly, stream.free)
    telemetry = Telemetry(device.bus_id)
    telemetry.start()
    stack.callback(telemetry.stop)
    context = BenchContext(device, stream, protocol, telemetry, seed, watchdog)
    stack.callback(context.free_pools)
    return context


@contextmanager
def open_race(work: Work, context: BenchContext) -> Iterator[tuple[Race, Callable[[Any], Any]]]:
    """Yield a race on a problem's operands, and a function that registers an object to be freed with the race."""
    with ExitStack() as stack:

        def own(thing: Any) -> Any:
            stack.callback(quietly, thing.free)
            return thing

        race = own(Race(context.stream, own(context.operands(work)), context.protocol))
        stack.callback(context.watchdog.rest)
        yield race, own


def measure(
    work: Work,
    kernels: Sequence[Kernel],
    context: BenchContext,
    state: str,
    options_of: OptionsOf | None = None,
) -> dict[str, Any]:
    """Measure one problem in one state of STATES. Return a result that can be written as JSON.

    `options_of` gives the launch options to measure of a kernel. Without it, each kernel has its default options.

    Raises: LostDevice if a kernel faults; DeviceError if memory is too small. Other failures are listed in `refused`.
    """
    began = time.perf_counter()
    options_of = options_of or partial(lowest_estimates, context.device, 1)
    with open_race(work, context) as (race, own):
        contenders: list[Contender] = [
            KernelContender(kernel, context.device, options)
            for kernel in kernels
            if work.fits(kernel.traits)
            for options in options_of(kernel, work)
        ]
        if context.baseline:
            try:
                bias = race.operands.problem(0).bias
                contenders += own(context.baseline.propose(work, context.protocol.algorithms, bias)).contenders
            except HgemmError as error:
                race.rejected[context.baseline.name] = str(error)
        if state == "model":
            race.alternate(own(context.memory_kernel(work)))
        return _measured(race, [own(one) for one in contenders], context, state, began)


OptionsOf = Callable[[Kernel, Work], Sequence[LaunchOptions | None]]
"""Function that gives the launch options to measure of a kernel, [None] if it leaves none open."""


def lowest_estimates(device: Device, count: int, kernel: Kernel, work: Work) -> list[LaunchOptions | None]:
    """Return the launch options of a kernel with the lowest estimates, the default first."""
    if not (kernel.traits.decides_splits or kernel.traits.decides_raster):
        return [None]
    return options_to_try(row_of(kernel.traits, kernel.record), work, Target.of(device), count)


def with_options(contenders: Iterable[Contender]) -> dict[str, Any]:
    """Return a result's field `options`: launch options by contender. It is missing if no contender leaves any open."""
    found = {one.name: asdict(one.options) for one in contenders if isinstance(one, KernelContender) and one.options}
    return {"options": found} if found else {}


def quietly(free: Callable[[], None]) -> None:
    """Free a resource and ignore errors: after a fault every call fails, and the first error is the one to report."""
    with suppress(HgemmError):
        free()


def _measured(
    race: Race, contenders: list[Contender], context: BenchContext, state: str, began: float
) -> dict[str, Any]:
    work = race.operands.work
    sample = OutputSample(race.operands, context.seed)
    result = _screened(race, contenders, context, state)
    # Burst and solo measurements take long, so they have one finalist for each side.
    finalists = context.protocol.finalists if state in CONTINUOUS else 1
    ours, theirs = (_correct(race, sample, side, finalists) for side in (OURS, BASELINE))
    context.watchdog.rest()
    if not ours:
        return result
    first = next((one.name for one in contenders if one.side == BASELINE and one.name in race.launches), None)
    names = list(dict.fromkeys([*ours, *([first] if first else []), *theirs]))
    measured_from, times = _timed(race, names, context, state)
    ended = time.perf_counter()
    best = fastest(times, ours)
    result |= {
        "ours": best,
        "first": first,
        "best": fastest(times, theirs),
        "screening_winner": ours[0],
        "figures": {name: figures(times[name], work) for name in names},
        "telemetry": context.telemetry.between(measured_from, ended),
    }
    result |= ratios(times, result)
    if work.m <= MAX_FEW_ROWS:
        result["memory"] = _memory(work, result, context)
    if race.spans:  # only contenders that ran long enough for their own clock
        result["alone"] = {name: context.telemetry.within(race.spans[name]) for name in names}
    if race.turns:
        result["turns_us"] = {name: block_times_us(race.turns[name]) for name in names}
    if best and (wrong := sample.failure(race.launches[best][0])):  # on a hot card, where a data race may show first
        race.reject(best, f"after timing: {wrong}")
    result["seconds"] = {"setup": round(measured_from - began, 2), "rounds": round(ended - measured_from, 2)}
    return result


def _screened(race: Race, contenders: list[Contender], context: BenchContext, state: str) -> dict[str, Any]:
    """Bind and screen all contenders. Return the first fields of the result."""
    for contender in contenders:
        context.watchdog.begin(symbol_of(contender.name))
        race.add(contender)
    screened = {**race.screen(OURS), **race.screen(BASELINE)}
    return {
        "work": race.operands.work.plain(),
        "state": state,
        "sets": race.operands.sets,
        "rotated_bytes": race.operands.total_bytes,
        "screened_us": {name: round(ms * 1e3, 3) for name, ms in screened.items()},
        **with_options(contenders),
        "refused": race.rejected,
    }


def _correct(race: Race, sample: OutputSample, side: str, count: int) -> list[str]:
    """Return a side's fastest contenders whose output is correct. Reject incorrect ones."""
    right: list[str] = []
    for name in race.ranked(side):
        if len(right) == count:
            break
        wrong = sample.failure(race.launches[name][0], side)
        if wrong:
            race.reject(name, wrong)
        else:
            right.append(name)
    return right


def _timed(race: Race, names: list[str], context: BenchContext, state: str) -> tuple[float, dict[str, list[float]]]:
    """Time the finalists. Return the start of the measurement, after the warm-up, and each finalist's times."""
    began = warm_up(race, names, context, state)
    if state == "solo":
        return began, {name: race.solo(name) for name in names}
    return began, rounds_of(race, names, state)


def warm_up(race: Race, names: Sequence[str], context: BenchContext, state: str) -> float:
    """Prepare rounds in a state. Return when they may begin."""
    protocol = context.protocol
    race.prepare(names, protocol.burst_rounds if state == "burst" else protocol.rounds)
    if state in CONTINUOUS:
        race.load(names, protocol.rewarm_s if context.warm else protocol.warm_up_s)
        context.warm = True
    return time.perf_counter()


def rounds_of(race: Race, names: Sequence[str], state: str) -> dict[str, list[float]]:
    """Run prepared rounds in a state. Return one time per round for each name."""
    return without_memory(round_times(race.steady(names) if state in CONTINUOUS else race.burst(names)))


def _memory(work: Work, result: dict[str, Any], context: BenchContext) -> dict[str, float]:
    """Return the rate at which weights are read, and the rate of a copy in the same run."""
    copy = copy_bytes_per_s(context.stream)
    rate = work.weight_bytes / (result["figures"][result["ours"]]["time_us"] * 1e-6)
    return {
        "weights_gb_per_s": round(rate * 1e-9, 1),
        "copy_gb_per_s": round(copy * 1e-9, 1),
        "of_copy": round(rate / copy, 4),
    }
