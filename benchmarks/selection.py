"""Judge how well kernels are selected for problems that were not measured.

\b
    python -m benchmarks.selection left-out --data benchmarks/data/screened_sm90a_h200.json --splits 20
    python -m benchmarks.selection left-out --library DIR
    python -m benchmarks.selection covers benchmarks/data/{screened,drawn*}_sm90a_h200.json
    python -m benchmarks.selection agreement LIBRARY
    python -m benchmarks.selection problems --seed 20261123 --count 50 > problems.json
    hgemm bench --library LIB --suite problems.json --baseline none --finalists 1 --rounds 3 --seconds 0.05 --json > bench.json
    python -m benchmarks.selection times --library LIB --arch sm_90a bench.json --json times.json

`left-out` hides a part of the measurements and selects without them. `covers` chooses packs of kernels. `agreement` compares two
tunings. `problems` draws random problems, and `times` stores how long the kernels of a library take on them.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from generator.pack.kernels import cheap_cover
from hgemm.bench.protocol import geometric_mean, percentile
from hgemm.bench.work import read_suite
from hgemm.dispatch_table import DispatchTable, estimate_clocks, row_of
from hgemm.errors import LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.measured import KernelTime, MeasuredKernel, MeasuredProblem, Result, Session, best_known, read_sessions
from hgemm.record import current_spec
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

# ---- Problems left out -----------------------------------------------------------------------------------------------

DATA = Path(__file__).parent / "data" / "screened_sm90a_h200.json"
KEY = "0" * 64
TRAITS = {
    "min_align": dict.fromkeys("abd", 8),
    "workspace": {},
    "exact_tiles_only": False,
    "deterministic": True,
    "graph_safe": True,
}


@dataclass(frozen=True)
class Measured:
    """Records of kernels, and their times in microseconds on problems, on one kind of device."""

    records: Sequence[Mapping[str, Any]]
    times_us: Mapping[MeasuredProblem, Mapping[str, float]]
    capability: int
    sms: int

    @property
    def target(self) -> Target:
        return Target.typical(f"sm_{self.capability}", self.sms)

    def session(self, problems: Sequence[MeasuredProblem]) -> Session:
        """Return the times on some problems as a session, the fastest kernel first."""
        symbols = [record["symbol"] for record in self.records]
        places = {symbol: place for place, symbol in enumerate(symbols)}
        tested = tuple(MeasuredKernel(record["symbol"], record["key"], {}) for record in self.records)
        results = []
        for problem in problems:
            ordered = sorted(self.times_us[problem].items(), key=lambda item: item[1])
            times = tuple(KernelTime(places[symbol], time_us) for symbol, time_us in ordered)
            results.append(Result(problem, "steady", "", times))
        return Session({"device": "", "capability": self.capability, "sms": self.sms}, tested, tuple(results), ())


def read_data(path: Path = DATA) -> Measured:
    """Read a file of benchmarks/data."""
    data = json.loads(path.read_text(encoding="utf-8"))
    records = [
        {**record, "spec": current_spec(record["spec"]), "key": KEY, "traits": TRAITS} for record in data["records"]
    ]
    symbols = [record["symbol"] for record in records]
    times = {
        MeasuredProblem(*extents, 1, "tn", "f16", "f16", "f32", "f16"): dict(zip(symbols, row, strict=True))
        for extents, row in zip(data["problems"], data["screened_us"], strict=True)
    }
    return Measured(records, times, data["capability"], data["sms"])


def read_library(folder: Path) -> Measured:
    """Read the measurements of a library, on the device with the most of them."""
    records = [record.data for record in open_library(folder).records.values()]
    sessions = read_sessions(folder)
    found = best_known(sessions, {record["symbol"]: record["key"] for record in records})
    problems = {(r.problem.kind.code, *r.problem.extents): r.problem for one in sessions for r in one.results}
    devices = [place[:2] for place in found]
    if not devices:
        raise LibraryError(f"{folder} has no measurements: `hgemm tune --library {folder}` makes them")
    here = max(set(devices), key=devices.count)
    times = {problems[place[2:]]: best_known.times_us for place, best_known in found.items() if place[:2] == here}
    return Measured(records, times, *here)


def left_out(measured: Measured, part: float, seed: int) -> dict[MeasuredProblem, float]:
    """Leave a random part of the problems out. Return for each the best measured time over that of the selected kernel."""
    problems = [*measured.times_us]
    out = random.Random(seed).sample(problems, round(part * len(problems)))
    session = measured.session([problem for problem in problems if problem not in out])
    selector = Selector(DispatchTable.of(measured.records, [session]), measured.target)
    return {problem: _quality(measured, selector, problem) for problem in out}


def _quality(measured: Measured, selector: Selector, problem: MeasuredProblem) -> float:
    choice = selector.choose(SelectionQuery.dense(problem.kind, problem.extents))
    times_us = measured.times_us[problem]
    return min(times_us.values()) / times_us[choice.symbol] if choice.symbol in times_us else float("nan")


def estimated_only(measured: Measured) -> list[float]:
    """Return the same for all problems, if nothing was measured."""
    selector = Selector(DispatchTable.of(measured.records), measured.target)
    return [_quality(measured, selector, problem) for problem in measured.times_us]


# ---- Packs of kernels ------------------------------------------------------------------------------------------------


def cover(measured: Measured, max_loss: float) -> tuple[int, list[float]]:
    """Choose the kernels of a pack, as `hgemm pack` does. Return their number, and the quality of the selected kernels.

    The quality is the best measured time over that of the kernel that estimates alone select in the pack.
    """
    rows = [row_of(LaunchTraits.of(record), record) for record in measured.records]
    problems = [*measured.times_us]
    queries = [SelectionQuery.dense(problem.kind, problem.extents) for problem in problems]
    clocks = np.array([[estimate_clocks(row, query, measured.target) for row in rows] for query in queries], float)
    chosen = cheap_cover(clocks / clocks.min(axis=1, keepdims=True) - 1, max_loss, np.ones(len(rows)))
    selected = [rows[chosen[place]].symbol for place in clocks[:, chosen].argmin(axis=1)]
    times = [measured.times_us[problem] for problem in problems]
    return len(chosen), [min(one.values()) / one[symbol] for one, symbol in zip(times, selected) if symbol in one]


# ---- Two tunings -----------------------------------------------------------------------------------------------------

WITHIN = 0.02


Sessions = Sequence[Session]
Order = dict[str, tuple[float, int]]
"""Times and rounds by symbol, the winner first."""


def agreement(one: Sessions, other: Sessions) -> dict[str, Any]:
    """Return for how many common problems the times of the two winners are within 2 %, and the largest differences."""
    first, second = _orders(one), _orders(other)
    apart: dict[MeasuredProblem, float] = {}
    same = 0
    for problem in first.keys() & second.keys():
        same += next(iter(first[problem])) == next(iter(second[problem]))
        apart[problem] = _apart(first[problem], second[problem])
    worst = sorted(apart.items(), key=lambda item: -item[1])[:5]
    return {
        "sessions": [[session.name for session in sessions] for sessions in (one, other)],
        "device": one[0].header["device"],
        "driver": one[0].header["driver"],
        "problems": len(apart),
        "same_winner": same,
        "within_2_percent": round(sum(value <= WITHIN for value in apart.values()) / max(len(apart), 1), 4),
        "median_apart": round(statistics.median(apart.values()), 5) if apart else None,
        "worst": [[round(value, 4), *problem.plain().values()] for problem, value in worst],
    }


def _orders(sessions: Sessions) -> dict[MeasuredProblem, Order]:
    return {
        result.problem: {session.kernels[time.index].symbol: (time.time_us, time.rounds) for time in result.times}
        for session in sessions
        for result in session.results
        if result.state == "steady"
    }


def _apart(first: Order, second: Order) -> float:
    winners = next(iter(first)), next(iter(second))
    if winners[0] == winners[1]:
        return 0.0
    both = [order for order in (first, second) if all(winner in order for winner in winners)]
    if both:
        times = max(both, key=lambda order: min(order[winner][1] for winner in winners))
        one, other = (times[winner][0] for winner in winners)
    else:
        ratios = [first[symbol][0] / second[symbol][0] for symbol in first.keys() & second.keys()]
        one, other = first[winners[0]][0], second[winners[1]][0] * (statistics.median(ratios) if ratios else 1.0)
    return max(one, other) / min(one, other) - 1


def _tunings(library: Path) -> list[Session]:
    return [one for one in read_sessions(library) if one.header["program"] == "tune"]


def _two_of(library: Path, names: Sequence[str] | None) -> tuple[Sessions, Sessions]:
    sessions = _tunings(library)
    if names:
        sessions = [one for name in names for one in sessions if one.name == name]
    if len(sessions) < 2:
        raise LibraryError(f"{library} has {len(sessions)} sessions of tuning, and two are needed: tune it again")
    return [sessions[-2]], [sessions[-1]]


# ---- Random problems -------------------------------------------------------------------------------------------------

BANDS = ((1, 16), (16, 64), (64, 256), (256, 2048), (2048, 16384))
N, K = (512, 28672), (256, 18432)
MOST_FLOPS = 8e12
"""Larger products would take too long with a hundred kernels."""
KEPT = ("symbol", "arch", "spec", "launch", "resources")


def random_problems(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Return `count` problems m, n, k. None is in the public suite."""
    rng = random.Random(seed)
    known = {(work.m, work.n, work.k) for work in read_suite("public")}
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        band, grain = BANDS[len(found) % len(BANDS)], rng.choice((8, 128))
        m, n, k = (_extent(rng, low, high, 1 if low < 64 else grain) for low, high in (band, N, K))
        if 2 * m * n * k <= MOST_FLOPS and (m, n, k) not in known:
            found.append((m, n, k))
    return found


def _extent(rng: random.Random, low: int, high: int, grain: int) -> int:
    return max(1, round(math.exp(rng.uniform(math.log(low), math.log(high))) / grain)) * grain


def data_of(document: Mapping[str, Any], library: Path, arch: str) -> dict[str, Any]:
    """Return what `hgemm bench` measured as a file of benchmarks/data: the screening time of each kernel of `arch`."""
    records = open_library(library).records
    results = [result for result in document["results"] if result.get("screened_us")]
    measured = set.intersection(*(set(result["screened_us"]) for result in results))
    symbols = sorted(symbol for symbol in measured if records[symbol].data["arch"] == arch)
    return {
        "what": f"Times of {len(symbols)} kernels on {len(results)} random problems, screened in turns",
        "device": document["device"],
        "capability": int("".join(digit for digit in arch if digit.isdigit())),
        "sms": document["sms"],
        "driver": document["state"]["driver"],
        "date": document["date"],
        "protocol": document["protocol"],
        "records": [{name: records[symbol].data[name] for name in KEPT} for symbol in symbols],
        "problems": [[result["work"][name] for name in "mnk"] for result in results],
        "screened_us": [[result["screened_us"][symbol] for symbol in symbols] for result in results],
    }


def _rows(value: Any) -> str:
    """Return JSON, a list's entries each on a line."""
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


# ---- Commands --------------------------------------------------------------------------------------------------------

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "json_path", type=_PATH, help="Write the figures there.")


def _print(figures: Mapping[str, Any], json_path: Path | None) -> None:
    text = json.dumps(figures, indent=1)
    if json_path:
        json_path.write_text(text + "\n", encoding="utf-8")
    click.echo(text)


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("left-out")
@click.option("--data", type=_PATH, default=DATA, help="A file of benchmarks/data.")
@click.option("--library", type=_PATH, help="A library with measurements, instead of a file.")
@click.option("--splits", type=int, default=20, show_default=True, help="Repetitions with other parts.")
@click.option("--leave-out", "part", type=float, default=0.2, show_default=True, help="The part that is left out.")
@_JSON
def left_out_command(data: Path, library: Path | None, splits: int, part: float, json_path: Path | None) -> None:
    """Leave a part of the problems out, select for these, and print best measured time / selected time.

    1 is the best and cannot be reached: the best of many noisy times is faster than its kernel.
    """
    measured = read_library(library) if library else read_data(data)
    drawn = [left_out(measured, part, seed) for seed in range(splits)]
    found = [[value for value in one.values() if value == value] for one in drawn]
    together = [value for values in found for value in values]
    worst = sorted((value, problem.extents) for one in drawn for problem, value in one.items())[:5]
    figures = {
        "problems": len(measured.times_us),
        "kernels": len(measured.records),
        "left_out": part,
        "splits": splits,
        "of_best": round(geometric_mean(together), 4),
        "of_best_by_split": [round(geometric_mean(values), 4) for values in found],
        "p10": round(percentile(together, 10), 4),
        "never_measured_near": sum(map(len, drawn)) - len(together),
        "of_best_by_estimates": round(geometric_mean([v for v in estimated_only(measured) if v == v]), 4),
        "worst": [[round(value, 4), *extents] for value, extents in worst],
    }
    _print(figures, json_path)


@main.command("covers")
@click.argument("files", type=_PATH, nargs=-1, required=True)
@click.option(
    "--loss", default="0,3,5,10", show_default=True, metavar="PERCENTS", help="Values of `hgemm pack --loss`."
)
@_JSON
def covers_command(files: tuple[Path, ...], loss: str, json_path: Path | None) -> None:
    """Print best measured time / selected time for packs of the kernels in FILES of benchmarks/data."""
    data = [read_data(file) for file in files]
    figures = {}
    for percent in map(float, loss.split(",")):
        found = [cover(measured, percent / 100) for measured in data]
        together = [value for _, values in found for value in values]
        figures[f"{percent:g}"] = {
            "kernels": [count for count, _ in found],
            "of_best": round(geometric_mean(together), 4),
            "of_best_by_file": [round(geometric_mean(values), 4) for _, values in found],
            "p10": round(percentile(together, 10), 4),
        }
    _print({"problems": sum(len(measured.times_us) for measured in data), "loss": figures}, json_path)


@main.command("agreement")
@click.argument("library", type=_PATH)
@click.argument("other", type=_PATH, required=False)
@click.option("--sessions", nargs=2, metavar="OLDER NEWER", help="Two of measurements/; default: the last two.")
@_JSON
def agreement_command(
    library: Path, other: Path | None, sessions: tuple[str, str] | None, json_path: Path | None
) -> None:
    """Compare the winners of two tunings of LIBRARY, or of LIBRARY and its copy OTHER.

    Both winners' times come from one session where possible, so that no clock or temperature is between them. Elsewhere each
    session's time of its own winner counts, corrected by the kernels that both measured.
    """
    pair = (_tunings(library), _tunings(other)) if other else _two_of(library, sessions)
    _print(agreement(*pair), json_path)


@main.command("problems")
@click.option("--seed", type=int, required=True)
@click.option("--count", type=int, default=48, show_default=True)
def problems_command(seed: int, count: int) -> None:
    """Print random problems as a suite for `hgemm bench`.

    Extents are log-uniform. m comes from five bands, each as often. n and k, and m from 64 on, are multiples of 8 or of 128.
    """
    shapes = random_problems(seed, count)
    click.echo(json.dumps([{"name": f"drawn_{seed}", "layout": "tn", "shapes": shapes}]))


@main.command("times")
@click.argument("document", type=_PATH)
@click.option("--library", type=_PATH, required=True)
@click.option("--arch", required=True, help="Keep the kernels of this architecture: sm_90a.")
@click.option("--json", "json_path", type=_PATH, required=True, help="Write the times there.")
def times_command(document: Path, library: Path, arch: str, json_path: Path) -> None:
    """Write the times in DOCUMENT, the output of `hgemm bench --json`, as a file of benchmarks/data."""
    found = data_of(json.loads(document.read_text(encoding="utf-8")), library, arch)
    lines = [f"{json.dumps(name)}: {_rows(value)}" for name, value in found.items()]
    json_path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
