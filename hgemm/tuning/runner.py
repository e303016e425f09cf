"""Runs a tuning: problem after problem, each result recorded at once, within a budget, resumable, on one or more GPUs."""

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from hgemm.bench.contenders import query_of, symbol_of
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import LostDevice, open_context
from hgemm.bench.protocol import Protocol
from hgemm.bench.results import best_of, junit_suites, line, table
from hgemm.bench.runner import (
    Recorder,
    heading,
    number_option,
    options_option,
    problem_of,
    problem_options,
    protocol_options,
    time_left,
    times_of,
    works_of,
)
from hgemm.bench.work import Work, extents
from hgemm.device import Device, open_device
from hgemm.disk import disk_errors, require_writable
from hgemm.dispatch_table import DispatchTable, kind_of, row_of, row_order
from hgemm.errors import DeviceError, RequestError
from hgemm.junit import JunitSuite, JunitTest, junit_option, write_junit
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.measured import FOLDER, MeasuredProblem, Session, best_known, read_sessions
from hgemm.packed import PACK_NAME, read_pack
from hgemm.selection import Selector
from hgemm.selection_query import Target
from hgemm.tuning.problem import DEFAULT_MIX, TUNED_STATES, Mix, Ranking, parse_mix, tune


class CandidateSource(typing.Protocol):
    """Source of the kernels that tuning measures."""

    ranking: Ranking

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """Records of the kernels that exist before tuning."""

    @property
    def keys(self) -> Mapping[str, str]:
        """Content keys of the available kernels, by symbol."""

    def ready(self, works: Sequence[Work]) -> Work:
        """Wait until the kernels of some problem are available, and return that problem."""

    def kernels(self, work: Work) -> list[Kernel]:
        """Return the kernels to measure for a problem."""

    def keep(self, chosen: Collection[str]) -> None:
        """Stop making kernels, and remove those that were made for this tuning and are not chosen."""

    def close(self) -> None:
        """Stop making kernels."""


class LibraryCandidates:
    """Kernels that already exist."""

    def __init__(self, kernels: Iterable[Kernel], target: Target, candidates: int) -> None:
        self._kernels = {kernel.traits.symbol: kernel for kernel in kernels}
        self._candidates = candidates
        self.records = [kernel.record for kernel in self._kernels.values()]
        self.keys = {symbol: kernel.record["key"] for symbol, kernel in self._kernels.items()}
        rows = {symbol: (kind_of(one.traits), row_of(one.traits, one.record)) for symbol, one in self._kernels.items()}
        self.ranking = Ranking(rows, target)

    def ready(self, works: Sequence[Work]) -> Work:
        return works[0]

    def kernels(self, work: Work) -> list[Kernel]:
        return [self._kernels[symbol] for symbol in self.ranking.best(work, self._candidates)]

    def keep(self, chosen: Collection[str]) -> None:
        pass

    def close(self) -> None:
        pass


def simplicity(traits: LaunchTraits) -> tuple[Any, ...]:
    """Return the sort key among equally fast kernels: fewer splits, smaller clusters, then the table's order."""
    return traits.splits, traits.cluster_ctas, row_order(traits)


# ---- A run -----------------------------------------------------------------------------------------------------------


Log = Callable[[str], None]

PROTOCOL = Protocol(
    seconds=0.15,
    rounds=6,
    finalists=4,
    screen_ms=0.5,
    warm_up_s=1.0,
    rewarm_s=0.05,
    cool_down_s=0.1,
    burst_rounds=3,
)
"""A shorter protocol than the benchmark's: halving drops most candidates, and the figures are not published."""


@dataclass(frozen=True)
class TunePlan:
    """The problems and limits of a tuning run.

    Fields: `library` receives the measurements. `options` is the number of launch options to screen of a kernel that leaves some
        open. `fresh` ignores earlier ones. `part` is (number, count) if several
        processes share the problems. `limit_s` is the time after which a contender has hung.
    """

    works: Sequence[Work]
    library: Path
    protocol: Protocol = PROTOCOL
    mix: Mix = field(default_factory=lambda: DEFAULT_MIX)
    candidates: int = 40
    options: int = 4
    budget_s: float = float("inf")
    seed: int = 0
    fresh: bool = False
    resume: bool = False
    part: tuple[int, int] = (1, 1)
    limit_s: float = 60.0

    @property
    def run(self) -> str:
        """Return an identifier shared by all parts and resumed runs of one tuning."""
        identity = [
            sorted({work.key for work in self.works}),
            asdict(self.protocol),
            sorted(self.mix.items()),
            self.candidates,
            self.options,
            self.seed,
            self.fresh,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def run(plan: TunePlan, source: CandidateSource, device: Device, log: Log) -> dict[str, Any]:
    """Tune all problems of a plan and return the document: device, protocol and results.

    If a kernel fault ends the run, `lost` names the kernel.
    """
    began = time.perf_counter()
    sessions = read_sessions(plan.library)
    own_sessions = [
        one for one in sessions if one.header.get("run") == plan.run and one.header["device"] == device.name
    ]
    if plan.fresh:
        sessions = own_sessions if plan.resume else []
    _learn(source, sessions, device)
    left = _remaining(plan, own_sessions)
    selected = _selected(source, sessions, device, left)
    document = {**heading(plan.protocol, plan.seed, device), "run": plan.run, "hung": [], "lost": ""}
    document |= {"results": [], "not_tuned": []}
    total = len(left)
    with ExitStack() as stack:
        stack.callback(source.close)
        watchdog = _watchdog(plan, stack)
        document["hung"] = _hung(plan, watchdog) if plan.resume else []
        context = open_context(device, plan.protocol, plan.seed, watchdog, stack)
        document["state"] = context.telemetry.state()
        recorder = Recorder(plan.library, context, "tune", run=plan.run)
        stack.callback(recorder.close)
        while left:
            done = total - len(left)
            spent = time.perf_counter() - began
            if done and spent + spent / done > plan.budget_s:
                document["not_tuned"] = [work.key for work in left]
                log(f"budget of {plan.budget_s:g} s: {len(left)} of {total} problems are not tuned")
                break
            work = source.ready(left)
            left.remove(work)
            kernels = [one for one in source.kernels(work) if one.traits.symbol not in document["hung"]]
            try:
                options_of = partial(source.ranking.options, work, plan.options)
                results = tune(work, kernels, context, _order(kernels), plan.mix, options_of, selected[work.key])
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # for example, too little memory for the operands
                results = [{"work": work.plain(), "state": TUNED_STATES[0], "refused": {"all": str(error)}}]
            document["results"] += results
            recorder.register(kernels)
            for result in results:
                recorder.add(result)
            _learn_result(source, work, results[0])
            ahead = (time.perf_counter() - began) / (total - len(left)) * len(left)
            log(f"[{total - len(left)}/{total}] {line(results[0])}  {time_left(ahead)} left")
        if not document["lost"] and plan.part[1] == 1:  # another part may have chosen the same kernel
            source.keep({symbol_of(result["ours"]) for result in document["results"] if result.get("ours")})
        document["session"] = recorder.session
    document["seconds"] = round(time.perf_counter() - began, 1)
    return document


def _watchdog(plan: TunePlan, stack: ExitStack) -> Watchdog:
    folder = plan.library / FOLDER
    with disk_errors("write", folder):
        folder.mkdir(exist_ok=True)
    watchdog = Watchdog(folder / f"{plan.run}-{plan.part[0]}", plan.limit_s)
    stack.callback(watchdog.stop)
    return watchdog


def _hung(plan: TunePlan, watchdog: Watchdog) -> list[str]:
    """Return the kernels that hung in any earlier part of this run. A file keeps them."""
    path = plan.library / FOLDER / f"{plan.run}.hung"
    with disk_errors("write", path), path.open("a+", encoding="utf-8") as file:
        if watchdog.unfinished():
            file.write(watchdog.unfinished() + "\n")
        file.seek(0)
        return sorted(set(file.read().split()))


def _order(kernels: Sequence[Kernel]) -> Callable[[str], Any]:
    """Return a sort key: the simplest kernel first."""
    traits = {kernel.traits.symbol: kernel.traits for kernel in kernels}
    return lambda name: simplicity(traits[symbol_of(name)])


def _selected(
    source: CandidateSource, sessions: Sequence[Session], device: Device, works: Sequence[Work]
) -> dict[str, str]:
    """Return the kernels that the library selects so far, by problem, and make them candidates. Empty if there is none."""
    selector = Selector(DispatchTable.of(source.records, sessions), Target.of(device))
    found = {work.key: choice.symbol if (choice := selector.find(query_of(work))) else "" for work in works}
    for work in works:
        source.ranking.require(work, found[work.key])
    return found


def _remaining(plan: TunePlan, own_sessions: Sequence[Session]) -> list[Work]:
    """Return this part's problems, each once, except those that a resumed run has tuned."""
    works = list({work.key: work for work in reversed(plan.works)}.values())[::-1]
    part = works[plan.part[0] - 1 :: plan.part[1]]
    done = {result.problem for session in own_sessions for result in session.results} if plan.resume else set()
    return [work for work in part if problem_of(work) not in done]


def _learn(source: CandidateSource, sessions: Sequence[Session], device: Device) -> None:
    """Pass the results of earlier sessions on devices like this one to the ranking."""
    here = (Target.of(device).number, device.sms)
    problems: dict[tuple[int, ...], MeasuredProblem] = {}
    for session in sessions:
        for result in session.results:
            problems[(result.problem.kind.code, *result.problem.extents)] = result.problem
    for place, found in best_known(sessions, source.keys).items():
        if place[:2] == here:
            source.ranking.learn(problems[place[2:]], found.times_us, found.order, found.options)


def _learn_result(source: CandidateSource, work: Work, result: dict[str, Any]) -> None:
    if best_of(result):
        times = {symbol_of(name): time for name, time in times_of(result).items()}
        source.ranking.learn(
            problem_of(work),
            {symbol: time.time_us for symbol, time in times.items()},
            [symbol for symbol, time in times.items() if time.rounds],
            {symbol: time.options for symbol, time in times.items() if time.options},
        )


# ---- Several GPUs: one process each ----------------------------------------------------------------------------------


_PART = re.compile(r"([0-9]{1,3})/([0-9]{1,3})")


def parse_part(text: str) -> tuple[int, int]:
    """Parse I/N, with 1 <= I <= N. Raises RequestError if malformed."""
    match = _PART.fullmatch(text)
    part = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise RequestError(f"--part {text!a} is malformed: use I/N with 1 <= I <= N, such as 2/4")
    return part


def visible_gpus(count: int, given: str | None) -> list[str]:
    """Return the names of the first `count` visible GPUs. `given` is the value of CUDA_VISIBLE_DEVICES.

    Raises: RequestError if there are fewer.
    """
    names = [str(at) for at in range(count)]
    if given is not None:  # an empty value hides all GPUs
        names = [name.strip() for name in given.split(",") if name.strip()]
    if len(names) < count:
        raise RequestError(f"--gpus {count} exceeds the {len(names)} GPUs of CUDA_VISIBLE_DEVICES={given}")
    return names[:count]


def run_on_gpus(count: int, seed: int, as_json: bool) -> int:
    """Run this command once per GPU, each on its part of the problems with one seed. Return the worst exit status.

    Each GPU's messages are prefixed with its name. The results are printed one after another, or as one JSON list.
    """
    names = visible_gpus(count, os.environ.get("CUDA_VISIBLE_DEVICES"))
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
    relays = [threading.Thread(target=_relay, args=(process.stderr, name)) for process, name in zip(processes, names)]
    answers: list[str] = [""] * count
    read = [threading.Thread(target=_read, args=(process.stdout, answers, at)) for at, process in enumerate(processes)]
    for thread in (*relays, *read):
        thread.start()
    try:
        for thread in (*relays, *read):
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


# ---- Command line ----------------------------------------------------------------------------------------------------


Function = TypeVar("Function", bound=Callable[..., Any])
MakeSource = Callable[[TunePlan, Target], CandidateSource]

_OPTIONS = (
    number_option("--candidates", click.IntRange(1), TunePlan.candidates, "Number of kernels to try for each problem."),
    click.option(
        "--mix",
        default="model",
        show_default=True,
        metavar="WEIGHTS",
        help=f"Weights of the states in the choice: {', '.join(TUNED_STATES)}. Example: model=2,steady=1.",
    ),
    options_option(TunePlan.options),
    *protocol_options(PROTOCOL),
    click.option("--fresh", is_flag=True, help="Ignore earlier sessions."),
    click.option("--resume", is_flag=True, help="Skip problems that an earlier run with the same options tuned."),
    click.option(
        "--rows",
        default="",
        metavar="ROWS",
        help="Rows (tokens) of the layers of a pack: 1,2,4,8:512:8. Default: the powers of two in its range, and both ends.",
    ),
    number_option("--gpus", click.IntRange(1, 64), 1, "Number of GPUs, with one process each."),
    click.option("--part", default="1/1", metavar="I/N", hidden=True),
    junit_option,
    click.option("--json", "as_json", is_flag=True, help="Print the JSON document to stdout instead of the table."),
)


def tune_options(function: Function) -> Function:
    """Add all options except those that choose the library and its kernels."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return problem_options(function)


def tune_library(library: Path, make_source: MakeSource, options: dict[str, Any]) -> int:
    """Run the tuning, print the results, and return the exit status: 1 if a problem was not tuned."""
    plan = plan_of(library, options)
    if options["gpus"] > 1 and options["junit"]:
        raise RequestError("--junit is written by one process: use --gpus 1, or --json")
    require_writable(options["junit"], "--junit")
    if options["gpus"] > 1:
        return run_on_gpus(options["gpus"], plan.seed, options["as_json"])
    device = open_device()
    document = run(plan, make_source(plan, Target.of(device)), device, lambda text: click.echo(text, err=True))
    results = document["results"]
    tuned = len({Work(**result["work"]).key for result in results})
    if options["junit"]:
        suites = junit_suites(results)
        if document["not_tuned"]:
            left = tuple(
                JunitTest(key, "skipped", "the budget ended before this problem") for key in document["not_tuned"]
            )
            suites.append(JunitSuite("not tuned", left))
        write_junit(options["junit"], "hgemm tune", suites)
    if options["as_json"]:
        click.echo(json.dumps(document, indent=1))
    elif results:
        click.echo(table(results) + f"{tuned} problem{'s' * (tuned != 1)} tuned in {time_left(document['seconds'])}")
    else:
        click.echo("nothing is left to tune")
    if document["lost"]:
        raise DeviceError(document["lost"])
    return int(not all(map(best_of, results)) or bool(document["not_tuned"]))


def _works(library: Path, options: dict[str, Any]) -> list[Work]:
    """Return the problems that the options name. If they name none, return those of the library's packs.

    Raises: RequestError if there are none.
    """
    if any(options[name] for name in ("suite", "shapes", "m", "n", "k", "epilogue")):  # a pack has no expressions
        if options["rows"]:
            raise RequestError(
                "--rows is for the layers of a pack, but other problems are named: omit --rows, or omit --suite, --shapes, "
                "--m, --n, --k and --epilogue"
            )
        return works_of(options)
    layers = read_pack(library)
    if not layers:
        raise RequestError(
            f"no problems given, and {library / PACK_NAME} does not exist: use --suite public, --shapes 4096x4096x4096, "
            "--m 1024:4096:256, or a library of `hgemm pack`"
        )
    words = {name: [word.strip() for word in options[name].split(",") if word.strip()] for name in _FILTERS}
    chosen = [
        layer
        for layer in layers
        if all(not words[name] or getattr(layer.kind, field) in words[name] for name, field in _FILTERS.items())
    ]
    if not chosen:
        given = " ".join(f"--{name} {options[name]}" for name in _FILTERS if options[name])
        has = ", ".join(dict.fromkeys(str(layer.kind) for layer in layers))
        raise RequestError(f"no layer of {library / PACK_NAME} has {given}: it has {has}")
    named = dict.fromkeys(extents(options["rows"], "rows")) if options["rows"] else ()
    works = [
        Work(m, layer.n, layer.k, group=layer.name, **layer.kind.words)
        for layer in chosen
        for m in named or layer.rows_to_tune
    ]
    if options["part"] == "1/1":
        rows = [f"{m:,}" for m in sorted({work.m for work in works})]
        listed = ", ".join(rows if len(rows) < 5 else [*rows[:3], f"... {rows[-1]}"])
        least, most = (time_left(seconds * len(works) / options["gpus"]) for seconds in PROBLEM_SECONDS)
        click.echo(
            f"no problems given: tuning the layers of {library / PACK_NAME} for {listed} rows, "
            f"{len(works)} problem{'s' * (len(works) != 1)}; with 16 cores, this takes about {least} to {most}. "
            "--rows names other rows, and --budget limits the time",
            err=True,
        )
    return works


PROBLEM_SECONDS = 3, 6
"""The time of a problem, with few and with many kernels to compile on 16 cores. Source: docs/how-to/tune.md, "What it costs"."""


_FILTERS = {
    "layout": "layout",
    "dtype": "dtype_a",
    "acc": "acc",
    "out": "dtype_d",
    "bias": "bias",
    "activation": "activation",
}
"""Options that choose among the layers of a pack, with their fields."""


def plan_of(library: Path, options: dict[str, Any]) -> TunePlan:
    """Return the plan that the options describe. Raises: RequestError if they name no problem, or a malformed one."""
    if options["resume"] and options["seed"] is None:
        raise RequestError("--resume requires the --seed of the earlier run")
    fields = {name: options[name] for name in ("seconds", "rounds", "finalists", "screen_ms")}
    protocol = replace(PROTOCOL, **fields, warm_up_s=options["warm_up"], rewarm_s=options["rewarm"])
    return TunePlan(
        works=_works(library, options),
        library=library,
        protocol=protocol,
        mix=parse_mix(options["mix"]),
        candidates=options["candidates"],
        options=options["options"],
        budget_s=float("inf") if options["budget"] is None else options["budget"],
        seed=time.time_ns() % 2**31 if options["seed"] is None else options["seed"],
        fresh=options["fresh"],
        resume=options["resume"],
        part=parse_part(options["part"]),
        limit_s=options["timeout"],
    )
