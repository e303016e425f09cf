"""Where the variants come from that are measured: a library that has them all, or what makes them on the way."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import click

from hgemm.bench.device import Watch
from hgemm.bench.measure import LostDevice, open_stand
from hgemm.bench.protocol import Protocol
from hgemm.bench.results import line
from hgemm.bench.runner import Recorder, as_in_rounds, heading, problem_of, time_left
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.disk import disk_errors
from hgemm.dispatch_table import kind_of, row_of, row_order
from hgemm.errors import DeviceError, RequestError
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.measured import DISPATCH_STATE, FOLDER, MeasuredProblem, Session, best_known, read_sessions
from hgemm.selection_query import Target
from hgemm.tune.problem import Ranking, tune


class Supply(typing.Protocol):
    """What tuning asks of the variants."""

    ranking: Ranking
    keys: Mapping[str, str]
    """The content keys of the variants that there are, by symbol."""

    def ready(self, works: Sequence[Work]) -> Work:
        """Return which problem is to be tuned next, after waiting until its variants are there."""

    def kernels(self, work: Work) -> list[Kernel]:
        """Return the variants to measure on a problem."""

    def close(self) -> None:
        """Wait for nothing more."""


class Prebuilt:
    """Variants that are there."""

    def __init__(self, kernels: Iterable[Kernel], target: Target, candidates: int) -> None:
        self._kernels = {kernel.traits.symbol: kernel for kernel in kernels}
        self._candidates = candidates
        self.keys = {symbol: kernel.record["key"] for symbol, kernel in self._kernels.items()}
        rows = {symbol: (kind_of(one.traits), row_of(one.traits, one.record)) for symbol, one in self._kernels.items()}
        self.ranking = Ranking(rows, target)

    def ready(self, works: Sequence[Work]) -> Work:
        return works[0]

    def kernels(self, work: Work) -> list[Kernel]:
        return [self._kernels[symbol] for symbol in self.ranking.best(work, self._candidates)]

    def close(self) -> None:
        pass


def plainness(traits: LaunchTraits) -> tuple[Any, ...]:
    """Return by what variants are sorted of which none is faster: fewer splits, smaller clusters, the table's order."""
    return traits.splits, traits.cluster_ctas, row_order(traits)


# ==== A whole tuning: problem after problem, each recorded at once in the library, within a budget, resumable ====


Tell = Callable[[str], None]

PROTOCOL = Protocol(seconds=0.4, rounds=9, finalists=4, screen_ms=1.0, warm_up_s=2.0, rewarm_s=0.15)
"""Most of the way is cut off by halving, and nothing of it is a figure to be published: less than a benchmark's."""


@dataclass(frozen=True)
class Plan:
    """What is to be tuned, and until when.

    Fields: `library` takes the measurements; a `fresh` tuning begins with none of those it has; `part` is which of how
        many parts of the problems this process has; a problem that takes `limit_s` has hung.
    """

    works: Sequence[Work]
    library: Path
    protocol: Protocol = PROTOCOL
    candidates: int = 16
    budget_s: float = float("inf")
    seed: int = 0
    fresh: bool = False
    resume: bool = False
    part: tuple[int, int] = (1, 1)
    limit_s: float = 60.0

    @property
    def run(self) -> str:
        """Return what the sessions of one run have in common, whatever their parts and however often it was stopped."""
        asked = [
            sorted({work.key for work in self.works}),
            asdict(self.protocol),
            self.candidates,
            self.seed,
            self.fresh,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def run(plan: Plan, supply: Supply, device: Device, tell: Tell) -> dict[str, Any]:
    """Tune all problems of a plan and return the document: the device, the rules, and the results.

    Where a kernel's fault ends it early, `lost` says which.
    """
    begun = time.perf_counter()
    sessions = read_sessions(plan.library)
    mine = [one for one in sessions if one.header.get("run") == plan.run and one.header["device"] == device.name]
    if plan.fresh:
        sessions = mine if plan.resume else []
    _learn(supply, sessions, device)
    left = _left_over(plan, mine)
    document = {**heading(plan.protocol, plan.seed, device), "run": plan.run, "hung": [], "lost": ""}
    document |= {"results": [], "not_tuned": []}
    total = len(left)
    with ExitStack() as stack:
        stack.callback(supply.close)
        watch = _watch(plan, stack)
        document["hung"] = _hung(plan, watch) if plan.resume else []
        stand = open_stand(device, plan.protocol, plan.seed, watch, stack)
        document["state"] = stand.telemetry.state()
        recorder = Recorder(plan.library, stand, "tune", run=plan.run)
        stack.callback(recorder.close)
        while left:
            done = total - len(left)
            spent = time.perf_counter() - begun
            if done and spent + spent / done > plan.budget_s:
                document["not_tuned"] = [work.key for work in left]
                tell(f"budget of {plan.budget_s:g} s: {len(left)} of {total} problems are not tuned")
                break
            work = supply.ready(left)
            left.remove(work)
            kernels = [one for one in supply.kernels(work) if one.traits.symbol not in document["hung"]]
            try:
                result = tune(work, kernels, stand, _order(kernels, supply, work))
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # such as too little memory for the operands
                result = {"work": work.plain(), "state": DISPATCH_STATE, "refused": {"all": str(error)}}
            document["results"].append(result)
            recorder.know(kernels)
            recorder.add(result)
            _take_note(supply, work, result)
            ahead = (time.perf_counter() - begun) / (total - len(left)) * len(left)
            tell(f"[{total - len(left)}/{total}] {line(result)}  {time_left(ahead)} left")
        document["session"] = recorder.session
    document["seconds"] = round(time.perf_counter() - begun, 1)
    return document


def _watch(plan: Plan, stack: ExitStack) -> Watch:
    folder = plan.library / FOLDER
    with disk_errors("write", folder):
        folder.mkdir(exist_ok=True)
    watch = Watch(folder / f"{plan.run}-{plan.part[0]}", plan.limit_s)
    stack.callback(watch.stop)
    return watch


def _hung(plan: Plan, watch: Watch) -> list[str]:
    """Return the variants that the run did not come back from, however often it was resumed; they are kept in a file."""
    path = plan.library / FOLDER / f"{plan.run}.hung"
    with disk_errors("write", path), path.open("a+", encoding="utf-8") as file:
        if watch.unfinished():
            file.write(watch.unfinished() + "\n")
        file.seek(0)
        return sorted(set(file.read().split()))


def _order(kernels: Sequence[Kernel], supply: Supply, work: Work) -> Callable[[str], Any]:
    """What stood before is kept where nothing wins beyond the spread; of new ones the plainest."""
    traits = {kernel.traits.symbol: kernel.traits for kernel in kernels}
    stood = supply.ranking.stands(work)
    return lambda symbol: (symbol != stood, plainness(traits[symbol]))


def _left_over(plan: Plan, mine: Sequence[Session]) -> list[Work]:
    """Return this part's problems, each once, without those that a resumed run has."""
    works = list({work.key: work for work in reversed(plan.works)}.values())[::-1]
    part = works[plan.part[0] - 1 :: plan.part[1]]
    done = {result.problem for session in mine for result in session.results} if plan.resume else set()
    return [work for work in part if problem_of(work) not in done]


def _learn(supply: Supply, sessions: Sequence[Session], device: Device) -> None:
    """Take note of what earlier sessions say of devices like this one."""
    here = (device.capability[0] * 10 + device.capability[1], device.sms)
    problems: dict[tuple[int, ...], MeasuredProblem] = {}
    for session in sessions:
        for result in session.results:
            problems[(result.problem.kind.code, *result.problem.extents)] = result.problem
    for place, found in best_known(sessions, supply.keys).items():
        if place[:2] == here:
            supply.ranking.learn(problems[place[2:]], found.times_us, found.order)


def _take_note(supply: Supply, work: Work, result: dict[str, Any]) -> None:
    if result.get("ours") and result["ours"] not in result["refused"]:
        final = {name: figures["time_us"] for name, figures in result["figures"].items()}
        times_us = {name: us for name, us in {**as_in_rounds(result), **final}.items() if name not in result["refused"]}
        order = sorted(final, key=lambda name: (name != result["ours"], final[name]))
        supply.ranking.learn(problem_of(work), times_us, order)


# ==== Several GPUs of a host, each with a process that has a part of the problems ====


_PART = re.compile(r"([0-9]{1,3})/([0-9]{1,3})")


def part_of(text: str) -> tuple[int, int]:
    """Read I/N, 1 of N to N of N. Raises RequestError where that is malformed."""
    match = _PART.fullmatch(text)
    part = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise RequestError(f"--part {text!a} is malformed: write 1/4 to 4/4")
    return part


def visible(count: int, given: str | None) -> list[str]:
    """Return the names of the first GPUs of those that a process may see; `given` is CUDA_VISIBLE_DEVICES.

    Raises: RequestError where there are fewer.
    """
    names = [str(at) for at in range(count)]
    if given is not None:  # where it is empty, none is visible
        names = [name.strip() for name in given.split(",") if name.strip()]
    if len(names) < count:
        raise RequestError(f"--gpus {count} are more than the {len(names)} of CUDA_VISIBLE_DEVICES={given}")
    return names[:count]


def in_parts(count: int, seed: int, as_json: bool) -> int:
    """Run this very command once for each GPU, each on its part, all with one seed; return the worst exit status.

    What they tell is told with their GPU's name before it; their answers follow one another, or make one list of JSON.
    """
    names = visible(count, os.environ.get("CUDA_VISIBLE_DEVICES"))
    command = [*sys.orig_argv, "--gpus", "1", "--seed", str(seed)]
    processes = [
        subprocess.Popen(
            [*command, "--part", f"{at}/{count}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for at, name in enumerate(names, 1)
    ]
    disk_errors = [
        threading.Thread(target=_relay, args=(process.stderr, name)) for process, name in zip(processes, names)
    ]
    answers: list[str] = [""] * count
    read = [threading.Thread(target=_read, args=(process.stdout, answers, at)) for at, process in enumerate(processes)]
    for thread in (*disk_errors, *read):
        thread.start()
    try:
        for thread in (*disk_errors, *read):
            thread.join()
        statuses = [abs(process.wait()) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
    documents = [answer.strip() for answer in answers if answer.strip()]
    click.echo(f"[{','.join(documents)}]" if as_json else "\n".join(documents))
    return max(statuses)


def _relay(stream: IO[str], name: str) -> None:
    for text in stream:
        click.echo(f"gpu {name}: {text}", nl=False, err=True)


def _read(stream: IO[str], answers: list[str], at: int) -> None:
    answers[at] = stream.read()
