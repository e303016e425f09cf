"""The contenders of one problem on the device: bound, screened, checked, and timed in pairs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from hgemm.bench.contenders import Contender, Launch
from hgemm.bench.operands import Operands
from hgemm.bench.protocol import Protocol, abba, block_launches
from hgemm.bench.stream import Graph, Stream
from hgemm.errors import DeviceError, HgemmError

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
