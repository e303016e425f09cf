"""The click options of tuning, shared by `hgemm tune` and `python -m hgemm.tune`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hgemm.bench.options import number_option, problem_options, protocol_options, works_of
from hgemm.bench.results import table
from hgemm.bench.runner import time_left
from hgemm.device import open_device
from hgemm.errors import DeviceError, RequestError
from hgemm.selection_query import Target
from hgemm.tune.runner import PROTOCOL, Supply, TunePlan, in_parts, part_of, run

Function = TypeVar("Function", bound=Callable[..., Any])
MakeSupply = Callable[[TunePlan, Target], Supply]

_OPTIONS = (
    number_option(
        "--candidates", click.IntRange(1), TunePlan.candidates, "Number of variants to try for each problem."
    ),
    *protocol_options(PROTOCOL),
    click.option("--fresh", is_flag=True, help="Ignore earlier sessions."),
    click.option("--resume", is_flag=True, help="Skip problems that an earlier run with the same options tuned."),
    number_option("--gpus", click.IntRange(1, 64), 1, "Number of GPUs, with one process each."),
    click.option("--part", default="1/1", metavar="I/N", hidden=True),
    click.option("--json", "as_json", is_flag=True, help="Print the JSON document to stdout instead of the table."),
)


def tune_options(function: Function) -> Function:
    """Add all options except those that choose the library and its variants."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return problem_options(function)


def tune(library: Path, make_supply: MakeSupply, options: dict[str, Any]) -> int:
    """Run the tuning, print the results, and return the exit status: 1 if a problem was not tuned."""
    plan = _plan(library, options)
    if options["gpus"] > 1:
        return in_parts(options["gpus"], plan.seed, options["as_json"])
    device = open_device()
    document = run(plan, make_supply(plan, Target.of(device)), device, lambda text: click.echo(text, err=True))
    results = document["results"]
    if options["as_json"]:
        click.echo(json.dumps(document, indent=1))
    elif results:
        click.echo(
            table(results)
            + f"{len(results)} problem{'s' * (len(results) != 1)} tuned in {time_left(document['seconds'])}"
        )
    else:
        click.echo("nothing is left to tune")
    if document["lost"]:
        raise DeviceError(document["lost"])
    tuned = all(result.get("ours") and result["ours"] not in result["refused"] for result in results)
    return int(not tuned or bool(document["not_tuned"]))


def _plan(library: Path, options: dict[str, Any]) -> TunePlan:
    if options["resume"] and options["seed"] is None:
        raise RequestError("--resume requires the --seed of the earlier run")
    fields = {name: options[name] for name in ("seconds", "rounds", "finalists", "screen_ms")}
    protocol = replace(PROTOCOL, **fields, warm_up_s=options["warm_up"], rewarm_s=options["rewarm"])
    return TunePlan(
        works=works_of(options),
        library=library,
        protocol=protocol,
        candidates=options["candidates"],
        budget_s=float("inf") if options["budget"] is None else options["budget"],
        seed=time.time_ns() % 2**31 if options["seed"] is None else options["seed"],
        fresh=options["fresh"],
        resume=options["resume"],
        part=part_of(options["part"]),
        limit_s=options["timeout"],
    )
