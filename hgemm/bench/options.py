"""The click options of the benchmark, shared by `hgemm bench` and `python -m hgemm.bench`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hgemm.bench.cublaslt import CublasLt
from hgemm.bench.protocol import Protocol
from hgemm.bench.runner import BenchPlan, run
from hgemm.bench.torch_matmul import Torch
from hgemm.bench.work import Work, checked, grid, names, read_suite
from hgemm.cases import Shape
from hgemm.device import open_device
from hgemm.disk import require_writable
from hgemm.dtypes import stored_dtype
from hgemm.errors import DeviceError, RequestError, unknown_word
from hgemm.kernel import Kernel
from hgemm.library import open_library
from hgemm.options import RenamedOption, type_options
from hgemm.problem import MAX_EXTENT, Kind
from hgemm.selection_query import SelectionQuery, Target

Function = TypeVar("Function", bound=Callable[..., Any])
STATES = ("steady", "burst", "solo")
BASELINES = {"cublaslt": CublasLt, "torch": Torch, "none": None}
_FILE = click.Path(path_type=Path, dir_okay=False)
_OUTPUT_FILES = ("keep", "csv", "junit")
"""Options that name output files."""
_NUMBER = click.FloatRange(min=0.0)

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
        several=("layout",), old={"layout": ("--layouts",), "dtype": ("--in",)}, note="Default: the suite's."
    ),
)


def number_option(
    flag: str, kind: click.ParamType, default: float | None, help: str, old: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Return a numeric option with its default in the help. Metavar: N for integers, X for other numbers."""
    metavar = "N" if isinstance(kind, click.IntRange) else "X"
    shown = {"default": default, "show_default": default is not None, "help": help}
    return click.option(flag, cls=RenamedOption, old=old, type=kind, metavar=metavar, **shown)


def protocol_options(protocol: Protocol) -> tuple[Callable[[Function], Function], ...]:
    """Return the options for measurement length and repetition, with defaults from `protocol`."""
    return (
        number_option("--seconds", _NUMBER, protocol.seconds, "Time of the paired rounds of each problem."),
        number_option("--rounds", click.IntRange(3), protocol.rounds, "Minimum number of rounds."),
        number_option(
            "--finalists", click.IntRange(1, 16), protocol.finalists, "Number of variants that are timed in rounds."
        ),
        number_option("--screen-ms", _NUMBER, protocol.screen_ms, "Milliseconds of a screening sample."),
        number_option("--warm-up", _NUMBER, protocol.warm_up_s, "Seconds of load before the first problem."),
        number_option("--rewarm", _NUMBER, protocol.rewarm_s, "Seconds of load before each later problem."),
        number_option("--budget", _NUMBER, None, "Stop before this many seconds have passed."),
        number_option(
            "--timeout", _NUMBER, 60.0, "Stop if a kernel does not finish within this many seconds.", old=("--limit",)
        ),
        number_option("--seed", click.IntRange(min=0), None, "Seed of the operands. Default: from the clock."),
    )


_OPTIONS = (
    click.option(
        "--dispatched",
        is_flag=True,
        help="For each problem, measure only the variant that the library selects on this device.",
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
        default="steady",
        show_default=True,
        metavar="STATES",
        help="Measurement states: steady, burst, solo.",
    ),
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
    number_option("--algorithms", click.IntRange(1, 100), Protocol.algorithms, "Number of cuBLASLt algorithms to try."),
    click.option("--keep", type=_FILE, metavar="FILE", help="Write the results to this JSON file after each problem."),
    click.option("--resume", is_flag=True, help="Skip problems that are already in the --keep file."),
    click.option("--record", is_flag=True, help="Add the results to the library. Selection uses them."),
    click.option("--csv", type=_FILE, metavar="FILE", help="Write a CSV file with one row per problem."),
    click.option("--junit", type=_FILE, metavar="FILE", help="Write a JUnit file."),
    click.option("--json", "as_json", is_flag=True, help="Print the JSON document to stdout instead of the table."),
)


def problem_options(function: Function) -> Function:
    """Add the options that name problems. `works_of` reads them."""
    for option in reversed(_PROBLEMS):
        function = option(function)
    return function


def bench_options(function: Function) -> Function:
    """Add all options except those that choose variants."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return problem_options(function)


def bench(kernels: Sequence[Kernel], options: dict[str, Any], library: Path, **changed: Any) -> int:
    """Run the benchmark, print the results, and return the exit status: 1 if a result is wrong or missing.

    `library` is the folder of the variants. `changed` overrides fields of the BenchPlan, for example with another
    baseline.
    """
    from hgemm.bench.results import table, write_csv, write_junit

    plan = replace(plan_of(kernels, options), record=library if options["record"] else None, **changed)
    for name in _OUTPUT_FILES:
        require_writable(options[name], f"--{name}")
    device = open_device()
    if options["dispatched"]:
        plan = replace(plan, chosen=_dispatch_function(library, Target.of(device)))
    document = run(plan, device, lambda text: click.echo(text, err=True))
    results = document["results"]
    if options["csv"]:
        write_csv(options["csv"], results)
    if options["junit"]:
        write_junit(options["junit"], results)
    click.echo(json.dumps(document, indent=1) if options["as_json"] else table(results))
    for written in filter(None, (options[name] for name in _OUTPUT_FILES)):
        click.echo(f"hgemm: wrote {written}", err=True)
    if document["lost"]:
        raise DeviceError(document["lost"])
    measured = all(result.get("ours") and not _wrong(result) for result in results)
    return int(not results or not measured or "not_measured" in document)


def _dispatch_function(library: Path, target: Target) -> Callable[[Work], str | None]:
    """Return a function that gives the symbol a library selects for a problem, or None if no variant supports it."""
    selector = open_library(library).selector(target)

    def chosen(work: Work) -> str | None:
        kind = Kind(work.layout, work.dtype_a, work.dtype_b, work.dtype_d, work.acc)
        found = selector.find(SelectionQuery.dense(kind, work.extents))
        return found.symbol if found else None

    return chosen


def _wrong(result: dict[str, Any]) -> bool:
    return result.get("ours") in result["refused"]


def plan_of(kernels: Sequence[Kernel], options: dict[str, Any]) -> BenchPlan:
    """Return the plan for these options. Raises RequestError if they are malformed."""
    states = [word.strip() for word in options["state"].split(",") if word.strip()]
    for state in states:
        if state not in STATES:
            raise unknown_word("state", state, STATES)
    if options["resume"] and not options["keep"]:
        raise RequestError("--resume requires --keep with the file of an earlier run")
    fields = ("seconds", "rounds", "block_ms", "turn_blocks", "burst_rounds", "finalists", "algorithms", "screen_ms")
    seconds = {"warm_up_s": options["warm_up"], "rewarm_s": options["rewarm"]}
    protocol = Protocol(**{name: options[name] for name in fields}, **seconds)
    return BenchPlan(
        works=works_of(options),
        kernels=kernels,
        states=states,
        protocol=protocol,
        baseline=BASELINES[options["baseline"]],
        budget_s=options["budget"] or float("inf"),
        seed=time.time_ns() % 2**31 if options["seed"] is None else options["seed"],
        keep=options["keep"],
        resume=options["resume"],
        limit_s=options["timeout"],
    )


def works_of(options: dict[str, Any]) -> list[Work]:
    """Return the problems that the options name, each once per group. Raises RequestError if there are none."""
    given = {"dtype_a": options["dtype"], "dtype_b": options["dtype"], "acc": options["acc"]}
    given["dtype_d"] = options["out"] or stored_dtype(options["dtype"])
    changed = {name: value for name, value in given.items() if value}
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
    found = {}
    for work in works:
        for layout in layouts or [work.layout]:
            one = checked(replace(work, layout=layout, **changed))
            found.setdefault((one.key, one.group), one)
    return list(found.values())
