"""Checks and times contenders on one problem on the current CUDA device, by torch's streams, graphs and events."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict

from contenders import Buffers, Contender, LaunchError, Problem
from protocol import Protocol, Tolerance, abba, round_times, summarise
from telemetry import Telemetry


class Bench:
    """One problem's buffers, graphs and clocks on the current CUDA device."""

    def __init__(self, problem: Problem, protocol: Protocol, telemetry: Telemetry, seed: int) -> None:
        import torch

        self.torch, self.problem, self.protocol, self.telemetry = torch, problem, protocol, telemetry
        self.stream = torch.cuda.Stream()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2_bytes = properties.L2_cache_size
        wanted = math.ceil(protocol.l2_multiple * self.l2_bytes / problem.operand_bytes)
        sets = max(protocol.sets_min, wanted)
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(rows: int, columns: int):
            return torch.randn(rows, columns, device="cuda", generator=generator, dtype=torch.float32).half()

        self.sets = [
            Buffers(
                problem,
                normal(problem.m, problem.k),
                normal(problem.n, problem.k),
                torch.empty(problem.m, problem.n, device="cuda", dtype=torch.float16),
            )
            for _ in range(sets)
        ]
        self.reference = self._reference(self.sets[0])
        self.graphs: dict[str, tuple[object, int]] = {}  # name -> graph, launches in it
        torch.cuda.synchronize()

    def _reference(self, buffers: Buffers):
        """The exact product, rounded once to float32; float64 in slices that keep the memory small."""
        torch = self.torch
        b = buffers.b.double()
        rows = max(1, 2**27 // max(self.problem.n, self.problem.k))
        return torch.cat([(part.double() @ b.T).float() for part in buffers.a.split(rows)])

    def check(self, contender: Contender) -> str | None:
        """Run once into poisoned output; return what is wrong with the result, or None."""
        torch, buffers = self.torch, self.sets[0]
        torch.cuda.synchronize()  # what prepare() did lies on another stream
        with torch.cuda.stream(self.stream):
            buffers.d.fill_(float("nan"))
            contender.launch(self.stream.cuda_stream, buffers)
            self.stream.synchronize()
            out = buffers.d.float()
            unwritten = int((~torch.isfinite(out)).sum())
            if unwritten:
                return f"{unwritten} elements are not finite"
            error = (out - self.reference).abs()
            tolerance = Tolerance.of(self.problem.k, contender.acc)
            over = int((error > tolerance.absolute + tolerance.relative * self.reference.abs()).sum())
            norm = float(error.norm() / self.reference.norm())
            if over or norm > tolerance.norm:
                return f"{over} elements off, largest error {float(error.max()):.4g}, relative norm {norm:.3g}"
        return None

    def capture(self, contender: Contender) -> None:
        """Capture about block_ms of launches that go round the buffer sets."""
        torch, handle = self.torch, self.stream.cuda_stream
        with torch.cuda.stream(self.stream):
            # The least of three turns, since the first ones may run at an idle card's clock.
            ms = min(self._timed(contender) for _ in range(3)) / len(self.sets)
            turns = max(1, round(self.protocol.block_ms / (max(ms, 2e-3) * len(self.sets))))
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(turns):
                    for buffers in self.sets:
                        contender.launch(handle, buffers)
            finally:
                graph.capture_end()
        self.graphs[contender.name] = (graph, turns * len(self.sets))

    def _timed(self, contender: Contender) -> float:
        """Return the milliseconds of one launch on each buffer set."""
        begin, end = self._event(), self._event()
        begin.record(self.stream)
        for buffers in self.sets:
            contender.launch(self.stream.cuda_stream, buffers)
        end.record(self.stream)
        end.synchronize()
        return begin.elapsed_time(end)

    def _event(self):
        return self.torch.cuda.Event(enable_timing=True)

    def block(self, name: str):
        """Enqueue one block between two events; return a function that waits and gives milliseconds a launch."""
        graph, launches = self.graphs[name]
        begin, end = self._event(), self._event()
        begin.record(self.stream)
        graph.replay()
        end.record(self.stream)

        def wait() -> float:
            end.synchronize()
            return begin.elapsed_time(end) / launches

        return wait

    def warm_up(self, names: list[str], seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for wait in [self.block(name) for name in names]:
                wait()

    # Each state returns its rounds: a list of (name, milliseconds) a round.

    def steady(self, names: list[str], budget_s: float) -> list[list[tuple[str, float]]]:
        protocol = self.protocol
        with self.torch.cuda.stream(self.stream):
            self.warm_up(names, protocol.warm_up_s)
            until = time.perf_counter() + budget_s
            rounds, pending = [], None
            while True:
                # One round is always queued behind the one that runs, so the card never waits for the host.
                enqueued = [(name, self.block(name)) for name in abba(names)]
                if pending:
                    rounds.append([(name, wait()) for name, wait in pending])
                pending = enqueued
                count = len(rounds) + 1
                if count >= protocol.rounds_max or (count >= protocol.rounds_min and time.perf_counter() > until):
                    return rounds + [[(name, wait()) for name, wait in pending]]

    def burst(self, names: list[str], budget_s: float) -> list[list[tuple[str, float]]]:
        protocol = self.protocol
        until = time.perf_counter() + budget_s
        rounds = []
        with self.torch.cuda.stream(self.stream):
            while len(rounds) < protocol.rounds_max:
                begun = time.perf_counter()
                row = []
                for name in abba(names):
                    self.stream.synchronize()
                    time.sleep(protocol.cool_down_s)
                    self.block(name)  # untimed: the clock comes up from idle
                    row.append((name, self.block(name)()))
                rounds.append(row)
                now = time.perf_counter()
                if len(rounds) >= protocol.burst_rounds_min and now + (now - begun) > until:
                    break
        return rounds

    def solo(self, name: str) -> dict:
        """Run one contender alone for solo_s and return its rate, clock and power over the second half."""
        with self.torch.cuda.stream(self.stream):
            begun = time.perf_counter()
            times = []
            while time.perf_counter() < begun + self.protocol.solo_s:
                waits = [self.block(name) for _ in range(4)]
                times.append((time.perf_counter(), statistics.fmean(wait() for wait in waits)))
        ended = time.perf_counter()
        middle = (begun + ended) / 2
        late = [ms for at, ms in times if at >= middle] or [times[-1][1]]
        seen = self.telemetry.between(middle, ended) or {}
        return dict(
            tflops=round(self.problem.flops / statistics.median(late) * 1e-9, 1),
            sm_mhz=seen.get("sm_mhz"),
            power_w=seen.get("power_w"),
            temperature_c=seen.get("temperature_c"),
        )


def measure(
    problem: Problem,
    contenders: list[Contender],
    baseline: str,
    states: list[str],
    budget_s: float,
    protocol: Protocol,
    telemetry: Telemetry,
    seed: int = 0,
) -> list[dict]:
    """Check and time all contenders on one problem; return one JSON-ready dict a state.

    `budget_s` is shared among the states after set-up; minimum round counts are kept even when it is exceeded.
    """
    begun = time.perf_counter()
    bench = Bench(problem, protocol, telemetry, seed)
    refused: dict[str, str] = {}
    for contender in contenders:
        try:
            contender.prepare(problem)
            wrong = bench.check(contender)
            if wrong:
                refused[contender.name] = wrong
            else:
                bench.capture(contender)
        except LaunchError as error:
            refused[contender.name] = str(error).removeprefix(f"{contender.name}: ")
        except RuntimeError as error:  # a fault inside a kernel ends the context: nothing after it could be measured
            raise SystemExit(f"{contender.name} on {problem} lost the device: {error}") from error
    names = [contender.name for contender in contenders if contender.name in bench.graphs]
    accs = {contender.name: contender.acc for contender in contenders}
    setup_s = time.perf_counter() - begun
    if not names:
        return [dict(problem=asdict(problem), state=state, rows=[], refused=refused) for state in states]

    results = []
    timed = [state for state in states if state != "solo"]
    share = max(0.0, budget_s - setup_s - protocol.warm_up_s * ("steady" in states)) / max(1, len(timed))
    for state in timed:
        start = time.perf_counter()
        rounds = bench.steady(names, share) if state == "steady" else bench.burst(names, share)
        end = time.perf_counter()
        measured_from = start + (protocol.warm_up_s if state == "steady" else 0)
        results.append(
            dict(
                problem=asdict(problem),
                layout="tn",
                state=state,
                sets=len(bench.sets),
                l2_bytes=bench.l2_bytes,
                rows=summarise(round_times(rounds), accs, problem, baseline),
                refused=refused,
                telemetry=telemetry.between(measured_from, end),
                seconds=dict(setup=round(setup_s, 1), timing=round(end - start, 1)),
            )
        )
    if "solo" in states and results:
        alone = {name: bench.solo(name) for name in names}
        for row in results[0]["rows"]:
            row["solo"] = alone[row["name"]]

    # The same kernels once more, now on a hot card: a race may show only there.
    for contender in contenders:
        if contender.name in bench.graphs:
            wrong = bench.check(contender)
            if wrong:
                refused[contender.name] = f"after timing: {wrong}"
    return results
