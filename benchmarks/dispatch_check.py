"""How good dispatch is on problems that were not measured: leave a part of them out, and see what is chosen for these.

python -m benchmarks.dispatch_check [--data benchmarks/data/screened_sm90a_h200.json] [--splits 20] [--leave-out 0.2] [--json FILE]
python -m benchmarks.dispatch_check --library DIR        with what was measured of a library

A figure is the time of the best that was measured over the time of what is chosen: 1 is the best, and cannot be reached, since
the best of many noisy times is faster than that variant is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.bench.protocol import geometric_mean, percentile
from hgemm.dispatch_table import Table
from hgemm.errors import LibraryError
from hgemm.library import open_library
from hgemm.measured import Problem, Result, Session, Tested, Time, read_sessions, standings
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

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
    """Records of variants, and their times in microseconds on problems, on one kind of device."""

    records: Sequence[Mapping[str, Any]]
    times_us: Mapping[Problem, Mapping[str, float]]
    capability: int
    sms: int

    @property
    def target(self) -> Target:
        return Target.typical(f"sm_{self.capability}", self.sms)

    def session(self, problems: Sequence[Problem]) -> Session:
        """Return the times on some problems as a session, the fastest variant of each first."""
        symbols = [record["symbol"] for record in self.records]
        places = {symbol: place for place, symbol in enumerate(symbols)}
        tested = tuple(Tested(record["symbol"], record["key"], {}) for record in self.records)
        results = []
        for problem in problems:
            ordered = sorted(self.times_us[problem].items(), key=lambda item: item[1])
            times = tuple(Time(places[symbol], time_us) for symbol, time_us in ordered)
            results.append(Result(problem, "steady", "", times))
        return Session({"device": "", "capability": self.capability, "sms": self.sms}, tested, tuple(results), ())


def read_data(path: Path = DATA) -> Measured:
    """Read a file of benchmarks/data."""
    data = json.loads(path.read_text(encoding="utf-8"))
    records = [{**record, "key": KEY, "traits": TRAITS} for record in data["records"]]
    symbols = [record["symbol"] for record in records]
    times = {
        Problem(*extents, 1, "tn", "f16", "f16", "f32", "f16"): dict(zip(symbols, row, strict=True))
        for extents, row in zip(data["problems"], data["screened_us"], strict=True)
    }
    return Measured(records, times, data["capability"], data["sms"])


def read_library(folder: Path) -> Measured:
    """Read what stands in a library, of the device of which most was measured."""
    records = [record.data for record in open_library(folder).records.values()]
    sessions = read_sessions(folder)
    found = standings(sessions, {record["symbol"]: record["key"] for record in records})
    problems = {(r.problem.kind.code, *r.problem.extents): r.problem for one in sessions for r in one.results}
    devices = [place[:2] for place in found]
    if not devices:
        raise LibraryError(f"{folder} has no measurements: `hgemm tune --library {folder}` makes them")
    here = max(set(devices), key=devices.count)
    times = {problems[place[2:]]: standing.times_us for place, standing in found.items() if place[:2] == here}
    return Measured(records, times, *here)


def left_out(measured: Measured, part: float, seed: int) -> dict[Problem, float]:
    """Return how good what is chosen is for each problem of a part that is drawn, going by the others."""
    problems = [*measured.times_us]
    out = random.Random(seed).sample(problems, round(part * len(problems)))
    session = measured.session([problem for problem in problems if problem not in out])
    selector = Selector(Table.of(measured.records, [session]), measured.target)
    return {problem: _quality(measured, selector, problem) for problem in out}


def _quality(measured: Measured, selector: Selector, problem: Problem) -> float:
    choice = selector.choose(SelectionQuery.dense(problem.kind, problem.extents))
    times_us = measured.times_us[problem]
    return min(times_us.values()) / times_us[choice.symbol] if choice.symbol in times_us else float("nan")


def estimated_only(measured: Measured) -> list[float]:
    """Return the same of the estimates alone."""
    selector = Selector(Table.of(measured.records), measured.target)
    return [_quality(measured, selector, problem) for problem in measured.times_us]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--leave-out", type=float, default=0.2)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    measured = read_library(arguments.library) if arguments.library else read_data(arguments.data)
    drawn = [left_out(measured, arguments.leave_out, seed) for seed in range(arguments.splits)]
    found = [[value for value in one.values() if value == value] for one in drawn]
    together = [value for values in found for value in values]
    worst = sorted((value, problem.extents) for one in drawn for problem, value in one.items())[:5]
    figures = {
        "problems": len(measured.times_us),
        "variants": len(measured.records),
        "left_out": arguments.leave_out,
        "splits": arguments.splits,
        "of_best": round(geometric_mean(together), 4),
        "of_best_by_split": [round(geometric_mean(values), 4) for values in found],
        "p10": round(percentile(together, 10), 4),
        "never_measured_near": sum(map(len, drawn)) - len(together),
        "of_best_by_estimates": round(geometric_mean([v for v in estimated_only(measured) if v == v]), 4),
        "worst": [[round(value, 4), *extents] for value, extents in worst],
    }
    text = json.dumps(figures, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
