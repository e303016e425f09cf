"""`hgemm.tune`: measures the kernels of a library from Python, and records what is fastest."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from os import PathLike
from typing import Any

import click

from hgemm.bench.contenders import symbol_of
from hgemm.bench.results import best_of
from hgemm.bench.work import Work, read_kernels
from hgemm.device import open_device
from hgemm.errors import DeviceError, RequestError
from hgemm.library import Library
from hgemm.locations import existing_library, named_folder
from hgemm.selection_query import Target
from hgemm.tuning.runner import LibraryCandidates, plan_of, run, tune_options

_LOG = logging.getLogger("hgemm")
_OF_COMMANDS = {"gpus": 1, "part": "1/1", "as_json": False}
"""Options that only the command has, with the values that a call takes."""


@dataclass(frozen=True)
class Tuned:
    """The result of tuning one problem.

    Units: `time_us` and `tflops` are those of the fastest kernel, in the state with the largest weight.
    Fields: `problem` has the sizes, layout and types. `symbol` is the fastest kernel, empty if the problem was not tuned; `reason`
        says why.
    """

    problem: str
    symbol: str
    time_us: float = 0.0
    tflops: float = 0.0
    reason: str = ""


def tune(
    shapes: str = "", *, library: str | PathLike[str] | Library | None = None, kernels: str = "", **options: Any
) -> list[Tuned]:
    """Measure the kernels of a library on this GPU, record the measurements, and return the fastest kernel of each problem.

    This is the command `hgemm tune --no-generate`, with the same options:

        hgemm.tune("512x4096x4096,2048x4096x4096", library="kernels", dtype="bf16", budget=60)

    Libraries that are opened afterwards select by these measurements. One line per problem goes to the logger `hgemm`, at
    level INFO.

    Units: `budget` and `timeout` are seconds.
    Fields: `shapes` are problem sizes, MxNxK or MxNxK@BATCH; options such as `suite`, `m`, `n` and `k` name problems, too.
        `library` is a folder or an open library; default: as `hgemm.open`. `kernels` are globs of the kernels to measure.
        `epilogue` is a function, a text, or a traced function, as in `Library.matmul`.
    Raises: RequestError for an illegal request; LibraryError if the library has no such kernel or cannot be written; DeviceError if
        there is no GPU, or a kernel faults, after which this process can use the GPU no more.
    """
    given = _parsed({"shapes": shapes, **options})
    if isinstance(library, Library):
        folder = library.folder
    else:
        folder = existing_library().absolute() if library is None else named_folder(library)
    plan = plan_of(folder, given)
    found = read_kernels(folder, kernels)
    device = open_device()
    document = run(plan, LibraryCandidates(found, Target.of(device), plan.candidates), device, _LOG.info)
    if document["lost"]:
        raise DeviceError(document["lost"])
    tuned: dict[str, Tuned] = {}
    for result in document["results"]:
        key = Work(**result["work"]).key
        tuned.setdefault(key, _tuned(key, result))
    ended = [Tuned(key, "", reason=f"the budget of {plan.budget_s:g} s has ended") for key in document["not_tuned"]]
    return [*tuned.values(), *ended]


def _tuned(key: str, result: dict[str, Any]) -> Tuned:
    name = best_of(result)
    if not name:
        return Tuned(key, "", reason=next(iter(result["refused"].values()), "no kernel supports this problem"))
    return Tuned(key, symbol_of(name), result["figures"][name]["time_us"], result["figures"][name]["tflops"])


def _parsed(options: dict[str, Any]) -> dict[str, Any]:
    """Return all options of the command, with defaults. Raises: RequestError if one is unknown or malformed."""
    command = tune_options(click.Command("hgemm.tune"))
    command.params = [one for one in command.params if one.name not in _OF_COMMANDS]
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "epilogue" and value:
            value = _expression_text(value)
        if isinstance(value, bool):
            arguments += [flag] * value
        elif value not in (None, ""):
            arguments.append(f"{flag}={value}")
    try:
        context = command.make_context("hgemm.tune", arguments)
    except click.UsageError as error:
        raise RequestError(f"hgemm.tune: {error.format_message()}") from None
    return {**context.params, **_OF_COMMANDS}


def _expression_text(epilogue: Any) -> str:
    """Return the text of an expression: a function, a text, or a traced function."""
    from hgemm.epilogue_language import as_epilogue  # most programs need no tracer

    found = as_epilogue(epilogue)
    return found.text if found else ""
