"""What is timed against one another on one problem: our variants, and what a baseline proposes."""

from __future__ import annotations

import statistics
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hgemm.bench.device import Graph, Stream, Telemetry, Watch
from hgemm.bench.operands import POISON, Operands, Pool, copy_bytes_per_s
from hgemm.bench.protocol import Protocol, Tolerance, abba, block_launches, by_place, fastest, figures, round_times
from hgemm.bench.results import ratios
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.dtypes import DTYPES, decode
from hgemm.errors import DeviceError, HgemmError
from hgemm.kernel import Kernel
from hgemm.launch import workspace_bytes

Launch = Callable[[], None]
OURS, BASELINE = "ours", "baseline"


class Contender(typing.Protocol):
    """One way to compute a problem. `bind` returns a launch for each set of operands, and may load, not wait."""

    name: str
    side: str

    def bind(self, operands: Operands, stream: int) -> list[Launch]: ...

    def free(self) -> None: ...


class Proposed(typing.Protocol):
    """What a baseline proposes for one problem, its first guess first."""

    contenders: list[Contender]

    def free(self) -> None: ...


class Baseline(typing.Protocol):
    """A library that ours is held against; `name` says its version too."""

    name: str

    def propose(self, work: Work, count: int) -> Proposed: ...

    def free(self) -> None: ...


@dataclass
class Variant:
    """One of our kernels, with a workspace where it needs one. Raises ProblemError where it does not take the problem."""

    kernel: Kernel
    device: Device
    side: str = OURS
    workspace: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return self.kernel.traits.symbol

    def bind(self, operands: Operands, stream: int) -> list[Launch]:
        work = operands.work
        size = workspace_bytes(self.kernel.traits, work.m, work.n, work.batch)
        if size and not self.workspace:
            self.workspace = self.device.allocate(size)
        problems = (operands.problem(at, self.workspace) for at in range(operands.sets))
        return [
            self.kernel.bind(problem, stream=stream, device=self.device.ordinal, workspace_size=size or None)
            for problem in problems
        ]

    def free(self) -> None:
        if self.workspace:
            self.device.free(self.workspace)
            self.workspace = 0


# ==== The check of what is timed: every element written, and a sample compared with the exact product ====


WHOLE_BYTES = 64 << 20
"""A larger D is looked at in some of its rows."""
BASELINE_LENIENCY = 4.0
"""A baseline may round more often than we know of, such as partial sums in f16; it is not left out for that."""
ROWS, COLUMNS = 24, 160
"""The sample: so many rows and columns cross nearly every CTA tile's row or column."""


class Sample:
    """Some rows and columns of the first set's D, of its first and its last matrix, and their exact values."""

    def __init__(self, operands: Operands, seed: int) -> None:
        self.operands = operands
        work, rng = operands.work, np.random.default_rng(seed)
        self.rows = _some(rng, work.m, ROWS)
        self.columns = _some(rng, work.n, COLUMNS)
        self.batches = sorted({0, work.batch - 1})

    @cached_property
    def exact(self) -> np.ndarray:
        """Return the product in float64. Shapes: (batches, rows, columns)."""
        work, along_k = self.operands.work, np.arange(self.operands.work.k)
        found = []
        for batch in self.batches:
            ends = (self.rows, along_k) if work.layout[0] == "t" else (along_k, self.rows)
            a = decode(self.operands.stored("a", batch, *ends), work.dtype_a)
            ends = (self.columns, along_k) if work.layout[1] == "n" else (along_k, self.columns)
            b = decode(self.operands.stored("b", batch, *ends), work.dtype_b)
            found.append((a if work.layout[0] == "t" else a.T) @ (b.T if work.layout[1] == "n" else b))
        return np.stack(found)

    def complaint(self, launch: Launch, side: str = OURS, acc: str = "") -> str:
        """Launch once on the first set, its output poisoned before; say what is wrong, or nothing.

        `acc` is what the launch accumulates in, where that is not the problem's.
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
        tolerance = Tolerance.of(work.k, acc or work.acc, work.dtype_d)
        return _compare(values, self.exact, tolerance if side == OURS else tolerance.times(BASELINE_LENIENCY))

    def _rows(self, batch: int) -> np.ndarray:
        """Return one matrix of D as stored, or its sampled rows where it is large. Shapes: (rows, n)."""
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


def _some(rng: np.random.Generator, extent: int, count: int) -> np.ndarray:
    """Return the first, the last and some places between, in order."""
    if extent <= count:
        return np.arange(extent)
    return np.unique([0, extent - 1, *rng.choice(extent, count - 2, replace=False)])


def _poisoned(stored: np.ndarray) -> np.ndarray:
    word = int.from_bytes(bytes([POISON]) * stored.itemsize, "little")
    return stored.view(f"<u{stored.itemsize}") == word


def _compare(values: np.ndarray, exact: np.ndarray, tolerance: Tolerance) -> str:
    error = np.abs(values - exact)
    over = int(np.count_nonzero(~(error <= tolerance.absolute + tolerance.relative * np.abs(exact))))
    norm = float(np.linalg.norm(error) / max(float(np.linalg.norm(exact)), 1e-30))
    # The norm of a few numbers says nothing: a product of one element may be anywhere near zero.
    if over or (exact.size > 1000 and not norm <= tolerance.norm):
        return f"{over} of {exact.size} sampled elements are off, relative norm {norm:.3g}"
    return ""


# ==== The contenders of one problem on the device: bound, screened, checked, and timed in pairs ====


HOPELESS = 1.5
"""A contender whose first launches take so many times the best one's is screened no further."""
_FIRST_LAUNCHES = 6
_SOLO_BLOCKS = 4
_HOST_MS = 0.02
"""Launches that are shorter than this are timed by graphs only: the host is too slow to tell them apart."""


class LostDevice(DeviceError):
    """A fault inside a kernel."""


class Race:
    """Contenders on the same operands; `refused` says why one is out.

    Fields: of each contender, `spans` is when what counts of it ran, for its clock and power, and `turns` the milliseconds
        of all blocks of its turns in steady rounds.
    """

    def __init__(self, stream: Stream, operands: Operands, protocol: Protocol) -> None:
        self.stream, self.operands, self.protocol = stream, operands, protocol
        self.launches: dict[str, list[Launch]] = {}
        self.sides: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.launch_ms: dict[str, float] = {}
        self.spans: dict[str, list[tuple[float, float]]] = {}
        self.turns: dict[str, list[list[float]]] = {}
        self._graphs: dict[str, list[Graph]] = {}
        self._short: dict[str, Graph] = {}
        self._at = 0  # the set that the next block begins with, where blocks are less than a turn

    def enter(self, contender: Contender) -> None:
        """Bind a contender and launch it a few times: code is loaded, and its time is roughly known."""
        name = contender.name
        try:
            launches = contender.bind(self.operands, self.stream.handle)
            launches[0]()
            self.launch_ms[name] = self._rough_ms(launches)
        except HgemmError as error:
            self.still_there(name)
            self.refused[name] = str(error).removeprefix(f"{name}: ")
        else:
            self.launches[name], self.sides[name] = launches, contender.side

    def _rough_ms(self, launches: list[Launch]) -> float:
        """Return what a launch takes, or what the host does where that is longer."""
        once_ms = self.stream.timed(launches[-1])()
        if once_ms > self.protocol.screen_ms:
            return once_ms
        some = [launches[at % len(launches)] for at in range(_FIRST_LAUNCHES)]
        return self.stream.timed(lambda: [launch() for launch in some])() / len(some)

    def still_there(self, name: str) -> None:
        """Raise LostDevice where a contender's launches have ended the context: nothing after it could be measured."""
        try:
            self.stream.synchronize()
        except DeviceError as error:
            raise LostDevice(f"{name} on {self.operands.work.key} lost the device: {error}") from None

    def of(self, side: str) -> list[str]:
        """Return the contenders of a side, the fastest so far first."""
        return sorted((name for name in self.launches if self.sides[name] == side), key=self.launch_ms.__getitem__)

    def refuse(self, name: str, why: str) -> None:
        """Leave a contender out of all that follows."""
        self.refused[name] = why
        del self.launches[name]

    # ---- Screening --------------------------------------------------------------------------------------------------

    def screen(self, side: str) -> dict[str, float]:
        """Time a side's contenders shortly, in turns, and return the milliseconds of a launch by name.

        Contenders that the first launches have shown to be far behind keep what was measured then.
        """
        for name, times in self.sample(self.close(side), self.protocol.screen_samples).items():
            self.launch_ms[name] = statistics.median(times)
        return {name: self.launch_ms[name] for name in self.of(side)}

    def close(self, side: str) -> list[str]:
        """Return the contenders of a side that the first launches have not shown to be far behind, the fastest first."""
        names = self.of(side)
        limit_ms = max(_HOST_MS, HOPELESS * min((self.launch_ms[name] for name in names), default=0.0))
        for name in names:
            if self.launch_ms[name] > limit_ms:  # once more: the clock may have been that of an idle device
                self.launch_ms[name] = min(self.launch_ms[name], self._rough_ms(self.launches[name]))
        return [name for name in names if self.launch_ms[name] <= limit_ms]

    def sample(self, names: Sequence[str], count: int) -> dict[str, list[float]]:
        """Time contenders shortly, so many times in turns, forwards and backwards; return the milliseconds of a launch."""
        for name in names:
            if name not in self._short:
                self._short[name] = self._short_graph(name)
        samples: dict[str, list[float]] = {name: [] for name in names}
        for at in range(count):
            for name in names[:: -1 if at % 2 else 1]:
                graph = self._short[name]
                wait = self.stream.timed(lambda graph=graph: self.stream.replay(graph))
                samples[name].append(wait() / graph.launches)
        return samples

    def _short_graph(self, name: str) -> Graph:
        launches = self.launches[name]
        count = max(1, min(round(self.protocol.screen_ms / self.launch_ms[name]), 4000))
        return self.stream.capture(launches[at % len(launches)] for at in range(count))

    # ---- Rounds -----------------------------------------------------------------------------------------------------

    def prepare(self, names: Sequence[str], rounds: int) -> None:
        """Capture the blocks of the rounds: for a contender of few launches a block, one graph for each first set."""
        self.free()
        sets = self.operands.sets
        for name in names:
            count = block_launches(self.launch_ms[name], self.protocol, len(names), sets, rounds)
            firsts = range(sets if count < sets else 1)
            self._graphs[name] = [self.stream.capture(self._turn(name, first, count)) for first in firsts]

    def _turn(self, name: str, first: int, count: int) -> list[Launch]:
        launches = self.launches[name]
        return [launches[(first + at) % len(launches)] for at in range(count)]

    def block(self, name: str) -> Callable[[], float]:
        """Enqueue one block; return what waits for it and gives the milliseconds of a launch."""
        graphs = self._graphs[name]
        graph = graphs[self._at % len(graphs)]
        self._at += graph.launches
        wait = self.stream.timed(lambda: self.stream.replay(graph))
        return lambda: wait() / graph.launches

    def load(self, names: Sequence[str], seconds: float) -> None:
        """Keep the device busy with what will be measured."""
        until = time.perf_counter() + seconds
        pending: list[Callable[[], float]] = []
        while time.perf_counter() < until or pending:
            enqueued = [self.block(name) for name in names] if time.perf_counter() < until else []
            for wait in pending:
                wait()
            pending = enqueued

    def steady(self, names: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Return the rounds of a device that never rests: for each, names and milliseconds in their order."""
        protocol = self.protocol
        until = time.perf_counter() + protocol.seconds
        rounds: list[list[tuple[str, float]]] = []
        pending: list[tuple[str, list[Callable[[], float]]]] = []
        while True:  # one round is always queued behind the one that runs
            enqueued = [(name, [self.block(name) for _ in range(protocol.turn_blocks)]) for name in abba(names)]
            if pending:
                rounds.append([(name, self._turn_ms(name, waits)) for name, waits in pending])
            pending = enqueued
            begun = len(rounds) + 1
            if begun >= protocol.rounds_max or (begun >= protocol.rounds and time.perf_counter() > until):
                return [*rounds, [(name, self._turn_ms(name, waits)) for name, waits in pending]]

    def _turn_ms(self, name: str, waits: Sequence[Callable[[], float]]) -> float:
        """Wait for a turn; return the milliseconds of a launch in the part that counts."""
        half = len(waits) // 2
        first = [wait() for wait in waits[:half]]
        begun = time.perf_counter()
        blocks = [*first, *(wait() for wait in waits[half:])]
        if first:  # else nothing says when the turn began
            self.spans.setdefault(name, []).append((begun, time.perf_counter()))
            self.turns.setdefault(name, []).append(blocks)
        return statistics.fmean(blocks[half:])

    def burst(self, names: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Return rounds whose every block comes after a rest, and a first block that brings the clock up."""
        rounds = []
        for _ in range(self.protocol.burst_rounds):
            row = []
            for name in abba(names):
                self.stream.synchronize()
                time.sleep(self.protocol.cool_down_s)
                self.block(name)()
                row.append((name, self.block(name)()))
            rounds.append(row)
        return rounds

    def alone(self, name: str) -> list[float]:
        """Run one contender and nothing else for a while; return its times in the second half of that."""
        begun = time.perf_counter()
        middle, end = begun + self.protocol.solo_s / 2, begun + self.protocol.solo_s
        times: list[float] = []
        while not times or time.perf_counter() < end:
            late = time.perf_counter() >= middle
            waits = [self.block(name) for _ in range(_SOLO_BLOCKS)]
            blocks = [wait() for wait in waits]
            times = [*times, *blocks] if late else []
        self.spans[name] = [(middle, time.perf_counter())]
        return times

    def free(self) -> None:
        """Drop the graphs."""
        for graph in [*self._short.values(), *(graph for graphs in self._graphs.values() for graph in graphs)]:
            graph.free()
        self._graphs, self._short = {}, {}


# ==== One problem measured: operands, contenders, screening, check, paired rounds, figures ====


FEW_ROWS = 16
"""Up to so many rows of A the weights' way from memory is what bounds a product."""


@dataclass
class Stand:
    """What all measurements of a run share. Its device's context must be the thread's."""

    device: Device
    stream: Stream
    protocol: Protocol
    telemetry: Telemetry
    seed: int
    watch: Watch
    baseline: Baseline | None = None
    warm: bool = False
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)

    def operands(self, work: Work) -> Operands:
        wanted = {"a": work.dtype_a, "b": work.dtype_b}
        for at, (name, dtype) in enumerate(wanted.items()):
            if (name, dtype) not in self.pools:
                self.pools[name, dtype] = Pool(self.stream, dtype, self.seed + at)
        pools = {name: self.pools[name, dtype] for name, dtype in wanted.items()}
        protocol = self.protocol
        least_bytes = int(protocol.l2_multiple * self.device.l2_bytes)
        return Operands(self.stream, work, pools, least_bytes, (protocol.sets_min, protocol.sets_max))


def open_stand(device: Device, protocol: Protocol, seed: int, watch: Watch, stack: ExitStack) -> Stand:
    """Return a stand on a device, whose context is current and whose state is sampled until the stack is closed."""
    stack.enter_context(device.current())
    stream = Stream(device)
    stack.callback(quietly, stream.free)
    telemetry = Telemetry(device.bus_id)
    telemetry.start()
    stack.callback(telemetry.stop)
    stand = Stand(device, stream, protocol, telemetry, seed, watch)
    stack.callback(lambda: [quietly(pool.free) for pool in stand.pools.values()])
    return stand


@contextmanager
def open_race(work: Work, stand: Stand) -> Iterator[tuple[Race, Callable[[Any], Any]]]:
    """Yield a race on a problem's operands, and a function that has what it is given freed with them, and returns it."""
    with ExitStack() as stack:

        def own(thing: Any) -> Any:
            stack.callback(quietly, thing.free)
            return thing

        race = own(Race(stand.stream, own(stand.operands(work)), stand.protocol))
        stack.callback(stand.watch.rest)
        yield race, own


def measure(work: Work, kernels: Sequence[Kernel], stand: Stand, state: str) -> dict[str, Any]:
    """Measure one problem in one state (steady, burst or solo) and return its result, ready for JSON.

    Raises: LostDevice where a kernel faults, DeviceError where there is no room; other failures are in `refused`.
    """
    begun = time.perf_counter()
    with open_race(work, stand) as (race, own):
        contenders: list[Contender] = [Variant(kernel, stand.device) for kernel in kernels if work.fits(kernel.traits)]
        if stand.baseline:
            try:
                contenders += own(stand.baseline.propose(work, stand.protocol.algorithms)).contenders
            except HgemmError as error:
                race.refused[stand.baseline.name] = str(error)
        return _measured(race, [own(one) for one in contenders], stand, state, begun)


def quietly(free: Callable[[], None]) -> None:
    """Give something back; after a fault nothing works any more, and what was told first counts."""
    with suppress(HgemmError):
        free()


def _measured(race: Race, contenders: list[Contender], stand: Stand, state: str, begun: float) -> dict[str, Any]:
    work = race.operands.work
    sample = Sample(race.operands, stand.seed)
    result = _screened(race, contenders, stand, state)
    # A block after a rest takes long, and one alone is for its clock and power: both for few.
    finalists = stand.protocol.finalists if state == "steady" else 1
    ours, theirs = (_right(race, sample, side, finalists) for side in (OURS, BASELINE))
    stand.watch.rest()
    if not ours:
        return result
    first = next((one.name for one in contenders if one.side == BASELINE and one.name in race.launches), None)
    names = list(dict.fromkeys([*ours, *([first] if first else []), *theirs]))
    measured_from, times = _timed(race, names, stand, state)
    ended = time.perf_counter()
    best = fastest(times, ours)
    result |= {
        "ours": best,
        "first": first,
        "best": fastest(times, theirs),
        "screening_winner": ours[0],
        "figures": {name: figures(times[name], work) for name in names},
        "telemetry": stand.telemetry.between(measured_from, ended),
    }
    result |= ratios(times, result)
    if work.m <= FEW_ROWS:
        result["memory"] = _memory(work, result, stand)
    if race.spans:  # of those that ran for long enough to have a clock of their own
        result["alone"] = {name: stand.telemetry.within(race.spans[name]) for name in names}
    if race.turns:
        result["turns_us"] = {name: by_place(race.turns[name]) for name in names}
    if wrong := sample.complaint(race.launches[best][0]):  # on a hot card: a race may show only there
        race.refuse(best, f"after timing: {wrong}")
    result["seconds"] = {"setup": round(measured_from - begun, 2), "rounds": round(ended - measured_from, 2)}
    return result


def _screened(race: Race, contenders: list[Contender], stand: Stand, state: str) -> dict[str, Any]:
    """Bind and screen all contenders, and return what the result begins with."""
    for contender in contenders:
        stand.watch.begin(contender.name)
        race.enter(contender)
    screened = {**race.screen(OURS), **race.screen(BASELINE)}
    return {
        "work": race.operands.work.plain(),
        "state": state,
        "sets": race.operands.sets,
        "rotated_bytes": race.operands.total_bytes,
        "screened_us": {name: round(ms * 1e3, 3) for name, ms in screened.items()},
        "refused": race.refused,
    }


def _right(race: Race, sample: Sample, side: str, count: int) -> list[str]:
    """Return a side's fastest contenders whose numbers are right; the wrong ones before them are refused."""
    right: list[str] = []
    for name in race.of(side):
        if len(right) == count:
            break
        wrong = sample.complaint(race.launches[name][0], side)
        if wrong:
            race.refuse(name, wrong)
        else:
            right.append(name)
    return right


def _timed(race: Race, names: list[str], stand: Stand, state: str) -> tuple[float, dict[str, list[float]]]:
    """Time the finalists; return when that began, the way to the state excluded, and each one's times."""
    protocol = stand.protocol
    race.prepare(names, protocol.burst_rounds if state == "burst" else protocol.rounds)
    if state == "steady":
        race.load(names, protocol.rewarm_s if stand.warm else protocol.warm_up_s)
        stand.warm = True
    begun = time.perf_counter()
    if state == "solo":
        return begun, {name: race.alone(name) for name in names}
    return begun, round_times(race.steady(names) if state == "steady" else race.burst(names))


def _memory(work: Work, result: dict[str, Any], stand: Stand) -> dict[str, float]:
    """Return the rate at which the weights are read, once each, beside that of a copy in the same run."""
    copy = copy_bytes_per_s(stand.stream)
    rate = work.weight_bytes / (result["figures"][result["ours"]]["time_us"] * 1e-6)
    return {
        "weights_gb_per_s": round(rate * 1e-9, 1),
        "copy_gb_per_s": round(copy * 1e-9, 1),
        "of_copy": round(rate / copy, 4),
    }
