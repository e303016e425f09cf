"""Writes what benchmarks/micro/cpi.py measured into a card's table of the cost model, in place of what documents say.

    python -m benchmarks.micro.cpi_table benchmarks/data/cpi_h200.json --card h200
    python -m benchmarks.micro.cpi_table benchmarks/data/cpi_h200.json --card h100 --sm-only      # the same chip

Of several numbers of warps the fewest cycles count. What comes from L2 counts as all SMs read it while twelve read the same,
as CTAs in a row of tiles do; `_alone` is one SM's, and `_disjoint` that of all SMs, each reading its own.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hgemm.model.cards import FOLDER, parse_card

MEASURED = "measured"
_AS_IT_IS = r"hmma_\w+|hgmma_\w+|lds\d+|sts\d+|ldsm_\w+|stsm_\w+|ldg\d+_l1|cp_async\d+_ca_l1"
_FROM_L2 = r"(ldg\d+|cp_async128_cg|cp_async32_ca|cp_async64_ca)_l2"
_RATES = (
    ("smem", r"ldsm_x4", 1),
    ("l2", r"ldg128_l2_shared", 2),
    ("l2_disjoint", r"ldg128_l2", 2),
    ("tma", r"bulk\d+k_l2_shared", 2),
)
"""Rates, the rows that they are of, and on how many SMs at least."""
_OF_THE_SM = ("cpi.", "latency.", "tma_", "smem_")


def figures(report: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the names and values of figures that a report gives."""
    rows = report["cpi"]
    for name, cycles in _fewest(row for row in rows if not row["latency"] and re.fullmatch(_AS_IT_IS, row["name"])):
        yield f"cpi.{name.replace('_ca_l1', '_l1')}", cycles
    for name, cycles in _fewest(row for row in rows if re.fullmatch(_FROM_L2 + "_shared", row["name"])):
        yield f"cpi.{name.partition('_l2')[0].removesuffix('_cg').removesuffix('_ca')}", cycles
    alone = (row for row in rows if re.fullmatch(_FROM_L2, row["name"]) and row["sms"] == 1 and not row["latency"])
    for name, cycles in _fewest(alone):
        yield f"cpi.{name.partition('_l2')[0].removesuffix('_cg').removesuffix('_ca')}_alone", cycles
    for name, cycles in _fewest(row for row in rows if re.fullmatch(r"stg\d+_l2", row["name"]) and row["sms"] > 1):
        yield f"cpi.{name.removesuffix('_l2')}", cycles
    for name, cycles in _fewest(row for row in rows if row["latency"]):
        yield f"latency.{name}", cycles
    for name, pattern, sms in _RATES:
        moving = [
            row for row in rows if re.fullmatch(pattern, row["name"]) and not row["latency"] and row["sms"] >= sms
        ]
        if moving:
            yield f"{name}_bytes_per_clock_per_sm", round(max(row["bytes_per_clock_per_sm"] for row in moving), 1)
    for way in ("read", "write", "copy"):
        yield f"dram_{way}_gbytes_per_s", max(row["gbytes_per_s"] for row in rows if row["name"] == f"dram_{way}")
    yield from ((f"launch_{way}_us", entry[f"{way}_us"]) for entry in report["launch"] for way in ("stream", "graph"))
    for row in report["steady"]:
        yield from (
            (f"steady_{what}_{row['name']}", row[key]) for what, key in (("tflops", "tflops"), ("mhz", "sm_mhz"))
        )
    yield from (("sms", report["sms"]), ("sm_mhz", report["max_sm_mhz"]), ("l2_bytes", report["l2_bytes"]))


def _fewest(rows: Iterator[dict]) -> Iterator[tuple[str, float]]:
    found: dict[str, float] = {}
    for row in rows:
        found[row["name"]] = min(row["cycles"], found.get(row["name"], row["cycles"]))
    for name, cycles in found.items():
        yield name, round(cycles, 2)


def merged(table: dict[str, Any], report: dict[str, Any], sm_only: bool) -> dict[str, Any]:
    """Return a table with a report's figures; sources of which nothing is left are dropped."""
    source = {"text": report["command"], "date": report["date"], "device": report["device"]}
    measured = {
        name: [value, MEASURED]
        for name, value in figures(report)
        if not sm_only or (name.startswith(_OF_THE_SM) and "dram" not in name)
    }
    every = {**table["figures"], **measured}
    used = {name for _, name in every.values()}
    sources = {name: entry for name, entry in {**table["sources"], MEASURED: source}.items() if name in used}
    return {**table, "sources": sources, "figures": dict(sorted(every.items()))}


def written(table: dict[str, Any]) -> str:
    """Return a table as its file holds it: a source and a figure a line."""
    head = "".join(f' "{name}": {json.dumps(table[name])},\n' for name in ("schema", "name", "arch"))
    parts = {
        part: ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in table[part].items())
        for part in ("sources", "figures")
    }
    return f'{{\n{head} "sources": {{\n{parts["sources"]}\n }},\n "figures": {{\n{parts["figures"]}\n }}\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.cpi_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", type=Path, help="what cpi.py wrote with --json")
    parser.add_argument("--card", required=True, help="the table's name: h200")
    parser.add_argument(
        "--sm-only", action="store_true", help="only what an SM does, for another card of the same chip"
    )
    arguments = parser.parse_args()
    path = FOLDER / f"{arguments.card}.json"
    table = merged(json.loads(path.read_text()), json.loads(arguments.report.read_text()), arguments.sm_only)
    parse_card(arguments.card, table)
    path.write_text(written(table))
    print(f"{path}: {sum(source == MEASURED for _, source in table['figures'].values())} figures measured")


if __name__ == "__main__":
    main()
