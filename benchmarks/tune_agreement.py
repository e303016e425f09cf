"""How well two tunings from scratch agree: in performance, problem by problem.

python -m hgemm.tune --library LIB --suite public --fresh --seed 1
python -m hgemm.tune --library LIB --suite public --fresh --seed 2
python -m benchmarks.tune_agreement LIB [--sessions OLDER NEWER] [--json FILE]
python -m benchmarks.tune_agreement LIB OTHER      of two copies of a library, one tuned with --gpus 2, say: all their sessions

Both winners' times are compared as one session measured them, in the same rounds where it could: then no clock or
temperature is between them. Where neither session measured both, each one's own time of its winner is taken, the devices'
difference, as the variants that both measured show it, taken out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hgemm.errors import LibraryError
from hgemm.measured import Problem, Session, read_sessions

WITHIN = 0.02


Sessions = Sequence[Session]
Order = dict[str, tuple[float, int]]
"""Times and rounds by symbol, the winner first."""


def agreement(one: Sessions, other: Sessions) -> dict[str, Any]:
    """Return for how many problems that both have the winners' times are within 2 %, and how far apart the others are."""
    first, second = _orders(one), _orders(other)
    apart: dict[Problem, float] = {}
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


def _orders(sessions: Sessions) -> dict[Problem, Order]:
    return {
        result.problem: {session.variants[time.variant].symbol: (time.time_us, time.rounds) for time in result.times}
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


def _sessions(library: Path) -> list[Session]:
    return [one for one in read_sessions(library) if one.header["program"] == "tune"]


def _chosen(library: Path, names: Sequence[str] | None) -> tuple[Sessions, Sessions]:
    sessions = _sessions(library)
    if names:
        sessions = [one for name in names for one in sessions if one.name == name]
    if len(sessions) < 2:
        raise LibraryError(f"{library} has {len(sessions)} such sessions of tuning, not two: tune it again")
    return [sessions[-2]], [sessions[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("other", type=Path, nargs="?", help="another library, tuned in its own way")
    parser.add_argument("--sessions", nargs=2, metavar="NAME", help="two of measurements/; the last two, if not given")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.other:
        pair = _sessions(arguments.library), _sessions(arguments.other)
    else:
        pair = _chosen(arguments.library, arguments.sessions)
    text = json.dumps(agreement(*pair), indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
