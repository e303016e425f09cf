"""Problems drawn at random, and what a library's variants take on them: what the model and dispatch are judged by.

python -m benchmarks.drawn suite --seed 20261123 --count 50 > drawn.json
python -m hgemm.bench --library LIB --suite drawn.json --baseline none --finalists 1 --rounds 3 --seconds 0.05 --json > bench.json
python -m benchmarks.drawn data --library LIB --arch sm_90a bench.json --json benchmarks/data/drawn_sm90a_h200.json

Extents are log-uniform: m in one of five bands, each as often, so that few rows are not rare; n and k, and m from 64 on, are
multiples of 8, every other time of 128. None is of the public suite.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hgemm.bench.work import read_suite
from hgemm.library import open_library

BANDS = ((1, 16), (16, 64), (64, 256), (256, 2048), (2048, 16384))
N, K = (512, 28672), (256, 18432)
MOST_FLOPS = 8e12
"""A product of more takes a hundred variants too long."""
KEPT = ("symbol", "arch", "spec", "launch", "resources")


def drawn(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Return so many problems of m, n and k."""
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
    """Return a document of `hgemm bench` as a file of benchmarks/data: what each variant of `arch` took when it was screened."""
    records = open_library(library).records
    results = [result for result in document["results"] if result.get("screened_us")]
    measured = set.intersection(*(set(result["screened_us"]) for result in results))
    symbols = sorted(symbol for symbol in measured if records[symbol].data["arch"] == arch)
    return {
        "what": f"What {len(symbols)} variants took on {len(results)} problems of benchmarks/drawn.py, screened in turns",
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    suite = verbs.add_parser("suite", help="print problems as a suite")
    suite.add_argument("--seed", type=int, required=True)
    suite.add_argument("--count", type=int, default=48)
    data = verbs.add_parser("data", help="write what was measured as a file of benchmarks/data")
    data.add_argument("document", type=Path, help="what `hgemm bench --json` printed")
    data.add_argument("--library", type=Path, required=True)
    data.add_argument("--arch", required=True, help="whose variants are kept: sm_90a")
    data.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.verb == "suite":
        shapes = drawn(arguments.seed, arguments.count)
        print(json.dumps([{"name": f"drawn_{arguments.seed}", "layout": "tn", "shapes": shapes}]))
        return 0
    document = json.loads(arguments.document.read_text(encoding="utf-8"))
    found = data_of(document, arguments.library, arguments.arch)
    lines = [f"{json.dumps(name)}: {_rows(value)}" for name, value in found.items()]
    arguments.json.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


def _rows(value: Any) -> str:
    """Return JSON, a list's entries each on a line."""
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
