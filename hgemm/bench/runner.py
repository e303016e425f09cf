"""Runs a benchmark: problem after problem, each result saved at once, within a budget, resumable."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from hgemm.bench.baselines import CublasLt, Torch
from hgemm.bench.contenders import one_per_kernel, query_of, symbol_of
from hgemm.bench.device import Watchdog
from hgemm.bench.measure import (
    STATES,
    Baseline,
    BenchContext,
    LostDevice,
    lowest_estimates,
    measure,
    open_context,
    quietly,
)
from hgemm.bench.protocol import Protocol
from hgemm.bench.results import best_of, line
from hgemm.bench.work import Work, checked, grid, names, read_suite, require_rows
from hgemm.cases import Shape
from hgemm.device import Device, driver_cuda, open_device
from hgemm.disk import read_text, require_writable, write_atomically
from hgemm.dtypes import stored_dtype
from hgemm.errors import DeviceError, LibraryError, RequestError, unknown_word
from hgemm.junit import junit_option, write_junit
from hgemm.kernel import Kernel
from hgemm.library import open_library
from hgemm.measured import DISPATCH_STATES, KernelTime, MeasuredKernel, MeasuredProblem, SessionWriter
from hgemm.options import FILE, SEED, FiniteRange, RenamedOption, kind_option, type_options
from hgemm.problem import ACTIVATIONS, BIASES, MAX_EXTENT, LaunchOptions
from hgemm.selection_query import Target

_CLOCKS = ("sm_mhz", "power_w", "temperature_c", "limited_by")
_STATES = ("power_limit_w", "sm_mhz_max", "temperature_c")


def problem_of(work: Work) -> MeasuredProblem:
    """Return a problem in the form that sessions store."""
    fields = {name: value for name, value in work.plain().items() if name not in ("group", "expression")}
    return MeasuredProblem(**fields, epilogue=work.kind.epilogue)


def scaled_to_rounds(result: Mapping[str, Any]) -> dict[str, float]:
    """Return a result's screened times, scaled to the clocks of its rounds.

    Short samples run at other clocks than rounds. The scale is the median ratio of finalists' times in rounds to their
    screened times. Without it, kernels that were only screened would seem faster or slower than finalists.
    """
    screened, figures = result["screened_us"], result["figures"]
    both = [figures[name]["time_us"] / us for name, us in screened.items() if name in figures and us > 0]
    scale = statistics.median(both) if both else 1.0
    return {name: us * scale for name, us in screened.items()}


def times_of(result: Mapping[str, Any]) -> dict[str, KernelTime]:
    """Return our times by contender, one per kernel: the choice first, then finalists by time, then the screened ones."""
    figures, refused = result["figures"], result["refused"]
    options = {name: LaunchOptions(**one) for name, one in result.get("options", {}).items()}
    finalists = sorted(figures, key=lambda name: (name != result["ours"], figures[name]["time_us"]))
    screened = {name: us for name, us in scaled_to_rounds(result).items() if us > 0}
    others = sorted((name for name in screened if name not in figures), key=screened.__getitem__)
    names = one_per_kernel([name for name in (*finalists, *others) if name not in refused])
    found = {}
    for name in names:
        timed = {field: figures[name][field] for field in _TIMED} if name in figures else {"time_us": screened[name]}
        found[name] = KernelTime(0, **timed, options=options.get(name))
    return found


_TIMED = ("time_us", "spread_us", "rounds")


class Recorder:
    """Writes results to a session of the library's measurements. The first result starts the session."""

    def __init__(
        self, library: Path, context: BenchContext, program: str, kernels: Iterable[Kernel] = (), **header: Any
    ) -> None:
        self._library, self._context = library, context
        self._writer: SessionWriter | None = None
        self._kernels = {kernel.traits.symbol: kernel for kernel in kernels}
        self._header = {"program": program, **header}

    def register(self, kernels: Iterable[Kernel]) -> None:
        """Register kernels that later results may name."""
        self._kernels |= {kernel.traits.symbol: kernel for kernel in kernels}

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a result of `measure`: our finalists, the best first, then the kernels that were only screened.

        Each kernel has the time of its fastest launch options.
        """
        if not best_of(result):
            return
        telemetry = result.get("telemetry") or {}
        self._session().add(
            problem_of(Work(**result["work"])),
            result["state"],
            [
                (self._measured_kernel(symbol_of(name)), time)
                for name, time in times_of(result).items()
                if symbol_of(name) in self._kernels
            ],
            decided=True,
            clocks={name: telemetry[name] for name in _CLOCKS if name in telemetry} or None,
            baseline=_baseline(result),
        )

    @property
    def session(self) -> str:
        """Return the session's name. Empty if no result was added."""
        return self._writer.name if self._writer else ""

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _measured_kernel(self, symbol: str) -> MeasuredKernel:
        record = self._kernels[symbol].record
        toolchain = {key: value for key, value in record.get("toolchain", {}).items() if key != "options"}
        return MeasuredKernel(symbol, record["key"], toolchain)

    def _session(self) -> SessionWriter:
        if self._writer is None:
            device, state = self._context.device, self._context.telemetry.state()
            header = {
                "device": device.name,
                "capability": Target.of(device).number,
                "sms": device.sms,
                "dram_gbytes_per_s": device.dram_gbytes_per_s,
                "driver": state.get("driver") or f"CUDA {driver_cuda()}",
                "clocks": {name: state[name] for name in _STATES if name in state},
                "protocol": asdict(self._context.protocol),
                "seed": self._context.seed,
            }
            given = {name: value for name, value in self._header.items() if value is not None}
            self._writer = SessionWriter(self._library, **header, **given)
        return self._writer


def _baseline(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the times of the baseline's first and best contenders, if they were measured."""
    names: Sequence[str] = [role for role in ("first", "best") if result.get(role)]
    return {role: result["figures"][result[role]]["time_us"] for role in names} or None


# ---- A run -----------------------------------------------------------------------------------------------------------


SCHEMA = 1
Log = Callable[[str], None]


@dataclass(frozen=True)
class BenchPlan:
    """The problems, kernels and limits of a benchmark.

    Fields: `keep` is the results file; a resumed run reads it first. `limit_s` is the time after which a contender has
        hung.
        `record` is a library to which the results are added. `chosen` gives the only kernel to measure for a problem, with
        its launch options. `options` is the number of launch options to measure of a kernel that leaves some open.
    """

    works: Sequence[Work]
    kernels: Sequence[Kernel]
    states: Sequence[str] = ("steady",)
    protocol: Protocol = Protocol()
    baseline: Callable[[Device], Baseline] | None = CublasLt
    budget_s: float = float("inf")
    seed: int = 0
    keep: Path | None = None
    resume: bool = False
    limit_s: float = 60.0
    record: Path | None = None
    chosen: Callable[[Work], Selected | None] | None = None
    options: int = 1


Selected = tuple[str, LaunchOptions | None]
"""The symbol of a kernel, and the options of its launch."""


def run(plan: BenchPlan, device: Device, log: Log) -> dict[str, Any]:
    """Measure a plan and return the document: device state, protocol and results.

    If a kernel fault ends the run, `lost` names the kernel.
    Raises: LibraryError if the kept results are unreadable or from another device.
    """
    began = time.perf_counter()
    document = _new_document(plan, device)
    requested = [(work, state) for state in plan.states for work in plan.works]
    left, total = _remaining(requested, document), len({(work.key, state) for work, state in requested})
    with ExitStack() as stack:
        context = context_of(plan, device, document, stack)
        kernels = [kernel for kernel in plan.kernels if kernel.traits.symbol not in document["hung"]]
        recorder = _recorder(plan, context, document, stack)
        logged: set[str] = set()
        for at, (work, state) in enumerate(left):
            spent = time.perf_counter() - began
            if at and spent + spent / at > plan.budget_s:
                document["not_measured"] = [f"{other.key} {its}" for other, its in left[at:]]
                log(f"budget of {plan.budget_s:g} s: {len(left) - at} of {total} problems are not measured")
                break
            try:
                result = _measured(work, state, kernels, plan, context)
            except LostDevice as error:
                document["lost"] = str(error)
                break
            except DeviceError as error:  # for example, too little memory for the operands
                result = {"work": work.plain(), "state": state, "refused": {"all": str(error)}}
            document["results"].append(result)
            _save(plan, document)
            _log_unsupported_baseline(result, context, logged, log)
            if recorder:
                recorder.add(result)
            ahead = (time.perf_counter() - began) / (at + 1) * (len(left) - at - 1)
            log(f"[{total - len(left) + at + 1}/{total}] {line(result)}  {time_left(ahead)} left")
        document["seconds"] = round(time.perf_counter() - began, 1)
        _in_every_group(requested, document)
        _save(plan, document)
    return document


def _log_unsupported_baseline(result: Mapping[str, Any], context: BenchContext, logged: set[str], log: Log) -> None:
    """Log why the baseline does not compute a problem, once per reason."""
    why = result["refused"].get(context.baseline.name) if context.baseline else None
    if why and why not in logged:
        logged.add(why)
        log(f"note: {why}")


def _measured(
    work: Work, state: str, kernels: Sequence[Kernel], plan: BenchPlan, context: BenchContext
) -> dict[str, Any]:
    """Measure a problem with all kernels, or the selected one. Raises DeviceError if that is not among them."""
    if plan.chosen is None:
        return measure(work, kernels, context, state, partial(lowest_estimates, context.device, plan.options))
    symbol, options = plan.chosen(work) or ("", None)
    found = [kernel for kernel in kernels if kernel.traits.symbol == symbol]
    if symbol and not found:
        raise DeviceError(f"the library selects {symbol}, which a filter excludes: use --dispatched without filters")
    return measure(work, found, context, state, lambda kernel, work: [options])


def context_of(plan: BenchPlan, device: Device, document: dict[str, Any], stack: ExitStack) -> BenchContext:
    """Open the state that all measurements of a plan share. Add the device's state to the document."""
    watchdog = Watchdog(plan.keep, plan.limit_s)
    stack.callback(watchdog.stop)
    if plan.resume and watchdog.unfinished():
        document["hung"] = sorted({*document["hung"], watchdog.unfinished()})
    context = open_context(device, plan.protocol, plan.seed, watchdog, stack)
    document["state"] = context.telemetry.state()
    if plan.baseline:
        context.baseline = plan.baseline(device)
        stack.callback(quietly, context.baseline.free)
        document["baseline"] = context.baseline.name
    return context


def _recorder(plan: BenchPlan, context: BenchContext, document: dict[str, Any], stack: ExitStack) -> Recorder | None:
    if plan.record is None:
        return None
    recorder = Recorder(plan.record, context, "bench", plan.kernels, baseline=document.get("baseline"))
    stack.callback(recorder.close)
    return recorder


def heading(protocol: Protocol, seed: int, device: Device) -> dict[str, Any]:
    """Return the first fields of a document: where, when and how it was measured."""
    return {
        "schema": SCHEMA,
        "device": device.name,
        "sms": device.sms,
        "l2_bytes": device.l2_bytes,
        "driver_cuda": driver_cuda(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "data": "normal(0, 1)",
        "seed": seed,
        "protocol": asdict(protocol),
    }


def _new_document(plan: BenchPlan, device: Device) -> dict[str, Any]:
    """Return a new document, or the kept one for a resumed run."""
    document: dict[str, Any] = {
        **heading(plan.protocol, plan.seed, device),
        "kernels": {},
        "hung": [],
        "lost": "",
        "results": [],
    }
    if plan.resume and plan.keep and plan.keep.exists():
        kept = _read(plan.keep)
        if kept.get("device") != device.name:
            raise LibraryError(
                f"{plan.keep} was measured on {kept.get('device')}; this device is {device.name}. Use another file."
            )
        kept["kernels"] = {**kept.pop("variants", {}), **kept.get("kernels", {})}  # older files say variants
        document = {**document, **kept}
        document.pop("not_measured", None)
        document["lost"] = ""
    for kernel in plan.kernels:
        record = kernel.record
        document["kernels"][kernel.traits.symbol] = {
            name: record.get(name) for name in ("key", "arch", "spec", "launch", "resources")
        }
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise LibraryError(f"{path} cannot be read: {error}") from None
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
        raise LibraryError(f"{path} is no benchmark results file of schema {SCHEMA}: use another file")
    return kept


def _save(plan: BenchPlan, document: dict[str, Any]) -> None:
    if plan.keep:
        write_document(plan.keep, document)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON, atomically. Raises LibraryError on a disk error."""
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode(), "--keep")


def _remaining(requested: Sequence[tuple[Work, str]], document: dict[str, Any]) -> list[tuple[Work, str]]:
    """Return the problems without a result, each once."""
    done = {(Work(**result["work"]).key, result["state"]) for result in document["results"]}
    left = {(work.key, state): (work, state) for work, state in reversed(requested)}
    return [one for key, one in reversed(left.items()) if key not in done]


def _in_every_group(requested: Sequence[tuple[Work, str]], document: dict[str, Any]) -> None:
    """Copy each result to all groups that contain its problem, in the requested order."""
    found = {(Work(**result["work"]).key, result["state"]): result for result in document["results"]}
    copies = [
        {**found[work.key, state], "work": work.plain()} for work, state in requested if (work.key, state) in found
    ]
    keys = {(work.key, state) for work, state in requested}
    others = [one for one in document["results"] if (Work(**one["work"]).key, one["state"]) not in keys]
    document["results"] = others + copies


def time_left(seconds: float) -> str:
    """Format a duration for display."""
    return f"{seconds / 60:.1f} min" if seconds > 90 else f"{seconds:.0f} s"


# ---- Command line ----------------------------------------------------------------------------------------------------


Function = TypeVar("Function", bound=Callable[..., Any])
BASELINES: dict[str, Callable[[Device], Baseline] | None] = {"cublaslt": CublasLt, "torch": Torch, "none": None}
_OUTPUT_FILES = ("keep", "csv", "junit")
"""Options that name output files."""
_NUMBER = FiniteRange(min=0.0)

_PROBLEMS = (
    click.option(
        "--suite", default="", metavar="NAME|FILE", help=f"Problems of a suite: {', '.join(names())}, or a JSON file."
    ),
    click.option(
        "--group",
        default="",
        metavar="NAMES",
        help="Only groups of the suite whose names contain one of these words: square,llm.",
    ),
    click.option(
        "--shapes", default="", metavar="SHAPES", help="Problem sizes: MxNxK or MxNxK@BATCH, separated by commas."
    ),
    click.option("--m", default="", metavar="RANGE", help="Values of m: 4096, 512,1024 or 1024:4096:256."),
    click.option("--n", default="", metavar="RANGE", help="Values of n. Default: n equals m."),
    click.option("--k", default="", metavar="RANGE", help="Values of k. Default: k equals m."),
    click.option(
        "--batch", type=click.IntRange(1, MAX_EXTENT), default=1, metavar="N", help="Batch size for --m, --n and --k."
    ),
    *type_options(
        several=("layout",),
        old={"layout": ("--layouts",), "dtype": ("--in",)},
        note="Default: the suite's, or {default}.",
    ),
    *(
        kind_option(f"--{name}", words, help, "Default: none; to tune a pack, that of its layers.", default="")
        for name, words, help in (("bias", BIASES, "Bias"), ("activation", ACTIVATIONS, "Activation"))
    ),
    click.option(
        "--epilogue",
        default="",
        metavar="EPILOGUE",
        help="Measure the kernels of this epilogue: a formula or, if the generator is installed, FILE.py:FUNCTION.",
    ),
)


def number_option(
    flag: str, kind: click.ParamType[Any], default: float | None, help: str, old: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Return a numeric option with its default in the help. Metavar: N for integers, X for other numbers."""
    metavar = "N" if isinstance(kind, click.IntRange) else "X"
    shown = {"default": default, "show_default": default is not None, "help": help}
    return click.option(flag, cls=RenamedOption, old=old, type=kind, metavar=metavar, **shown)


def options_option(default: int) -> Callable[[Function], Function]:
    """Return the option --options."""
    return number_option(
        "--options",
        click.IntRange(1),
        default,
        "How many launch options, such as splits of k, to measure for each kernel that leaves them to the launch. "
        "Those with the lowest estimates are measured.",
    )


def protocol_options(protocol: Protocol) -> tuple[Callable[[Function], Function], ...]:
    """Return the options for measurement length and repetition, with defaults from `protocol`."""
    return (
        number_option("--seconds", _NUMBER, protocol.seconds, "Time of the paired rounds of each problem."),
        number_option("--rounds", click.IntRange(3), protocol.rounds, "Minimum number of rounds."),
        number_option(
            "--finalists", click.IntRange(1, 16), protocol.finalists, "Number of kernels that are timed in rounds."
        ),
        number_option("--screen-ms", _NUMBER, protocol.screen_ms, "Milliseconds of a screening sample."),
        number_option("--warm-up", _NUMBER, protocol.warm_up_s, "Seconds of load before the first problem."),
        number_option("--rewarm", _NUMBER, protocol.rewarm_s, "Seconds of load before each later problem."),
        number_option("--budget", _NUMBER, None, "Stop before this many seconds have passed."),
        number_option(
            "--timeout", _NUMBER, 60.0, "Stop if a kernel does not finish within this many seconds.", old=("--limit",)
        ),
        number_option("--seed", SEED, None, "Seed of the operands. Default: from the clock."),
    )


_OPTIONS = (
    click.option(
        "--dispatched",
        is_flag=True,
        help="For each problem, measure only the kernel that the library selects on this device.",
    ),
    click.option(
        "--baseline",
        type=click.Choice(list(BASELINES)),
        default="cublaslt",
        show_default=True,
        help="Library to compare with.",
    ),
    click.option(
        "--state",
        default="",
        metavar="STATES",
        help=f"States to measure in: {', '.join(STATES)}. Default: steady; with --record, model,steady.",
    ),
    options_option(BenchPlan.options),
    *protocol_options(Protocol()),
    number_option(
        "--block-ms",
        _NUMBER,
        Protocol.block_ms,
        "Maximum milliseconds of a block, the launches that are timed together.",
    ),
    number_option(
        "--turn-blocks",
        click.IntRange(1),
        Protocol.turn_blocks,
        "Blocks of each contender in a turn. Only the second half counts.",
    ),
    number_option("--burst-rounds", click.IntRange(1), Protocol.burst_rounds, "Rounds of --state burst."),
    number_option("--cool-down", _NUMBER, Protocol.cool_down_s, "Seconds of the pauses in --state burst."),
    number_option(
        "--duty",
        _NUMBER,
        Protocol.duty,
        "Bytes that the kernel between products moves in --state model, as a multiple of the bytes of A and D.",
    ),
    number_option("--algorithms", click.IntRange(1, 100), Protocol.algorithms, "Number of cuBLASLt algorithms to try."),
    click.option("--keep", type=FILE, metavar="FILE", help="Write the results to this JSON file after each problem."),
    click.option("--resume", is_flag=True, help="Skip problems that are already in the --keep file."),
    click.option("--record", is_flag=True, help="Add the results to the library. Selection uses them."),
    click.option("--csv", type=FILE, metavar="FILE", help="Write a CSV file with one row per problem."),
    junit_option,
    click.option("--json", "as_json", is_flag=True, help="Print the JSON document to stdout instead of the table."),
)


def problem_options(function: Function) -> Function:
    """Add the options that name problems. `works_of` reads them."""
    for option in reversed(_PROBLEMS):
        function = option(function)
    return function


def bench_options(function: Function) -> Function:
    """Add all options except those that choose kernels."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return problem_options(function)


def bench(kernels: Sequence[Kernel], options: dict[str, Any], library: Path, **changed: Any) -> int:
    """Run the benchmark, print the results, and return the exit status: 1 if a result is wrong or missing.

    `library` is the folder of the kernels. `changed` overrides fields of the BenchPlan, for example with another
    baseline.
    """
    from hgemm.bench.results import junit_suites, table, write_csv

    if kernels and not options["epilogue"] and all(kernel.traits.epilogue for kernel in kernels):
        formula = kernels[0].traits.epilogue
        raise RequestError(f'all selected kernels have an epilogue: name it; the first one has --epilogue "{formula}"')
    plan = replace(plan_of(kernels, options), record=library if options["record"] else None, **changed)
    for name in _OUTPUT_FILES:
        require_writable(options[name], f"--{name}")
    if plan.record and DISPATCH_STATES[0] not in plan.states:
        click.echo(
            f"note: selection prefers results of the state {DISPATCH_STATES[0]}, which is not measured: add it to --state",
            err=True,
        )
    device = open_device()
    if options["dispatched"]:
        plan = replace(plan, chosen=_dispatch_function(library, Target.of(device)))
    document = run(plan, device, lambda text: click.echo(text, err=True))
    results = document["results"]
    if options["csv"]:
        write_csv(options["csv"], results)
    if options["junit"]:
        write_junit(options["junit"], "hgemm bench", junit_suites(results))
    click.echo(json.dumps(document, indent=1) if options["as_json"] else table(results))
    for written in filter(None, (options[name] for name in _OUTPUT_FILES)):
        click.echo(f"hgemm: wrote {written}", err=True)
    if document["lost"]:
        raise DeviceError(document["lost"])
    return int(not results or not all(map(best_of, results)) or "not_measured" in document)


def _dispatch_function(library: Path, target: Target) -> Callable[[Work], Selected | None]:
    """Return a function that gives what a library selects for a problem, or None if no kernel supports it."""
    selector = open_library(library).selector(target)

    def chosen(work: Work) -> Selected | None:
        found = selector.find(query_of(work))
        return (found.symbol, found.options) if found else None

    return chosen


def plan_of(kernels: Sequence[Kernel], options: dict[str, Any]) -> BenchPlan:
    """Return the plan for these options. Raises RequestError if they are malformed."""
    text = options["state"] or ("model,steady" if options["record"] else "steady")
    states = [word.strip() for word in text.split(",") if word.strip()]
    for state in states:
        if state not in STATES:
            raise unknown_word("state", state, STATES)
    if options["resume"] and not options["keep"]:
        raise RequestError("--resume requires --keep with the file of an earlier run")
    fields = (
        *("seconds", "rounds", "block_ms", "turn_blocks", "burst_rounds"),
        *("duty", "finalists", "algorithms", "screen_ms"),
    )
    seconds = {f"{name}_s": options[name] for name in ("warm_up", "rewarm", "cool_down")}
    protocol = Protocol(**{name: options[name] for name in fields}, **seconds)
    return BenchPlan(
        works=works_of(options),
        kernels=kernels,
        states=states,
        protocol=protocol,
        baseline=BASELINES[options["baseline"]],
        budget_s=float("inf") if options["budget"] is None else options["budget"],
        seed=time.time_ns() % 2**31 if options["seed"] is None else options["seed"],
        keep=options["keep"],
        resume=options["resume"],
        limit_s=options["timeout"],
        options=options["options"],
    )


def works_of(options: dict[str, Any]) -> list[Work]:
    """Return the problems that the options name, each once per group. Raises RequestError if there are none."""
    given = {"dtype_a": options["dtype"], "dtype_b": options["dtype"], "acc": options["acc"]}
    given["dtype_d"] = options["out"] or stored_dtype(options["dtype"])
    given |= {name: options[name] for name in ("bias", "activation")}
    changed = {name: value for name, value in given.items() if value}
    if options.get("epilogue"):
        from hgemm.epilogue_language import epilogue_text  # imports `ast` and `inspect`

        changed["expression"] = epilogue_text(options["epilogue"])
    require_rows(options)
    if options["group"] and not options["suite"]:
        raise RequestError("--group selects groups of a suite: add --suite, such as --suite public")
    works: list[Work] = []
    if options["suite"]:
        works += read_suite(options["suite"], options["group"])
    shapes = Shape.parse_list(options["shapes"]) if options["shapes"] else ()
    works += [Work(shape.m, shape.n, shape.k, shape.batch) for shape in shapes]
    if options["m"]:
        works += grid(options["m"], options["n"], options["k"], Work(1, 1, 1, options["batch"]))
    if not works:
        raise RequestError("no problems given: use --suite public, --shapes 4096x4096x4096 or --m 1024:4096:256")
    layouts = [word.strip() for word in options["layout"].split(",") if word.strip()]
    found: dict[tuple[str, str], Work] = {}
    for work in works:
        for layout in layouts or [work.layout]:
            one = checked(replace(work, layout=layout, **changed))
            found.setdefault((one.key, one.group), one)
    return list(found.values())
