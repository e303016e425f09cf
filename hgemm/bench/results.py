"""Formats results: ratios, lines, tables, geometric means, CSV and JUnit files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgemm.bench.protocol import Ratio, geometric_mean
from hgemm.bench.work import Work
from hgemm.disk import write_atomically
from hgemm.junit import JunitSuite, JunitTest

Result = Mapping[str, Any]
WORST = 5


def ratios(times: Mapping[str, Sequence[float]], chosen: Result) -> dict[str, Any]:
    """Return our paired speedups over the baseline's first and best contenders, if they were measured."""
    found = {}
    for against in ("first", "best"):
        if chosen[against]:
            ratio = Ratio.of(times[chosen[against]], times[chosen["ours"]])
            found[f"ratio_{against}"] = {**asdict(ratio), "wins": ratio.wins}
    return found


def best_of(result: Result) -> str:
    """Return the name of our fastest contender, "" if there is none or its output is wrong."""
    name: str = result.get("ours") or ""
    return "" if name in result["refused"] else name


def row(result: Result) -> dict[str, Any]:
    """Return one result as a flat row for tables and CSV."""
    work, figures = Work(**result["work"]), result.get("figures", {})
    seen = result.get("telemetry") or {}
    found: dict[str, Any] = {
        "group": work.group,
        **{key: value for key, value in work.plain().items() if key != "group"},
    }
    found["state"] = result["state"]
    for role in ("ours", "first", "best"):
        name = result.get(role)
        found[role] = name
        for field in ("tflops", "time_us"):
            found[f"{role}_{field}"] = figures[name][field] if name else None
    for against in ("first", "best"):
        ratio = result.get(f"ratio_{against}") or {}
        found[f"ratio_{against}"] = ratio.get("median")
        found[f"spread_{against}"] = (ratio["p90"] - ratio["p10"]) / 2 if ratio else None
    memory = result.get("memory") or {}
    found |= {"sm_mhz": seen.get("sm_mhz"), "power_w": seen.get("power_w"), "of_copy": memory.get("of_copy")}
    return found


def line(result: Result) -> str:
    """Format one result as a line: problem, rate and kernel, both ratios, clock and power."""
    work, it = Work(**result["work"]), row(result)
    name = f"{work.shape} {work.layout}{work.epilogue}"
    if not it["ours"]:
        why = next(iter(result["refused"].values()), "no kernel of this layout, these types and this epilogue")
        return f"{name:26} {'-':>8}  not measured: {why}"
    spread = it["spread_best"] if it["spread_best"] is not None else 0.0
    parts = [
        f"{name:26} {it['ours_tflops']:8.1f} {it['ours_time_us']:10.2f}",
        f"{_rate(it['first_tflops'])} {_rate(it['best_tflops'])}",
        f"{_ratio(it['ratio_first'])} {_ratio(it['ratio_best'])} {100 * spread:5.1f}",
        f"{it['sm_mhz'] or 0:5.0f} {it['power_w'] or 0:5.0f}",
    ]
    memory = f"  {100 * it['of_copy']:.0f} % of copy" if it["of_copy"] is not None else ""
    return "  ".join(parts) + f"  {it['ours']}{memory}"


HEADER = "  ".join(
    [f"{'problem':26} {'TFLOP/s':>8} {'us':>10}", f"{'first':>7} {'best':>7}", f"{'/first':>6} {'/best':>6} {'+-%':>5}"]
    + [f"{'MHz':>5} {'W':>5}", "kernel"]
)


def table(results: Sequence[Result]) -> str:
    """Format all results by state and group. Geometric means follow each group; the worst ratios are at the end."""
    lines = []
    for state in dict.fromkeys(result["state"] for result in results):
        of_state = [result for result in results if result["state"] == state]
        groups = list(dict.fromkeys(result["work"]["group"] for result in of_state))
        for group in groups:
            chosen = [result for result in of_state if result["work"]["group"] == group]
            lines += [f"{group}, {state}", HEADER]
            for result in chosen:
                lines += [line(result), *_solo_lines(result)]
            lines += [*means(chosen), ""]
        if len(groups) > 1:
            lines += [f"all, {state}", *means(of_state), *_relative_to_tn(of_state), *_worst(of_state), ""]
    return "\n".join(lines)


def _solo_lines(result: Result) -> list[str]:
    """Format what each contender did alone, with its own clock and power."""
    figures = result.get("figures", {})
    return [
        f"    {figures[name]['tflops']:8.1f} TFLOP/s  {seen['sm_mhz']:5.0f} MHz  {seen['power_w']:5.0f} W  {name}"
        for name, seen in result.get("alone", {}).items()
        if seen
    ]


def _problems(values: Sequence[float]) -> str:
    return f"{len(values)} problem{'s' * (len(values) != 1)}"


def _relative_to_tn(results: Sequence[Result]) -> list[str]:
    """Format the rates of our other layouts relative to tn, for problems measured in both."""
    rates = {}
    for result in results:
        if result.get("ours"):
            same = {**result["work"], "layout": "", "group": ""}
            rates[tuple(same.values()), result["work"]["layout"]] = result["figures"][result["ours"]]["tflops"]
    lines = []
    for layout in ("nn", "nt", "tt"):
        found = [
            rate / rates[same, "tn"] for (same, its), rate in rates.items() if its == layout and (same, "tn") in rates
        ]
        if found:
            lines.append(
                f"  ours, {layout} of tn: {geometric_mean(found):.3f} (minimum {min(found):.3f}, {_problems(found)})"
            )
    return lines


def means(results: Sequence[Result]) -> list[str]:
    """Format the geometric means of both ratios: of all results, and of small and large m."""
    lines = []
    parts = (("all", 0, 2**31), ("m <= 16", 0, 17), ("m <= 128", 0, 129), ("m >= 512", 512, 2**31))
    total = len(results)
    for name, low, high in parts:
        of_part = [one for one in results if low <= one["work"]["m"] < high]
        if not of_part or (name != "all" and len(of_part) == total):
            continue
        summaries = []
        for against in ("first", "best"):
            values = [one[f"ratio_{against}"]["median"] for one in of_part if f"ratio_{against}" in one]
            if values:
                summaries.append(
                    f"{geometric_mean(values):.4f} of {against} (minimum {min(values):.3f}, {_problems(values)})"
                )
        if summaries:
            lines.append(f"  geometric mean, {name}: {', '.join(summaries)}")
    return lines


def _worst(results: Sequence[Result]) -> list[str]:
    measured = sorted((one for one in results if "ratio_best" in one), key=lambda one: one["ratio_best"]["median"])
    return ["  worst:"] + [f"    {line(one)}" for one in measured[:WORST]] if measured else []


def _rate(value: float | None) -> str:
    return f"{value:7.1f}" if value is not None else "      -"


def _ratio(value: float | None) -> str:
    return f"{value:6.3f}" if value is not None else "     -"


# ---- CSV and JUnit files ---------------------------------------------------------------------------------------------


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write one row per result. Raises LibraryError if the file cannot be written."""
    rows = [row(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(), "--csv")


def junit_suites(results: Sequence[Result]) -> list[JunitSuite]:
    """Return a suite for each group and a test for each result. A test fails if our output is wrong."""
    groups: dict[str, list[JunitTest]] = {}
    for result in results:
        groups.setdefault(result["work"]["group"], []).append(_junit_test(result))
    return [JunitSuite(group, tuple(tests)) for group, tests in groups.items()]


def _junit_test(result: Result) -> JunitTest:
    name = f"{Work(**result['work']).key} {result['state']}"
    if not result.get("ours"):
        return JunitTest(name, "skipped", line(result))
    if result["ours"] in result["refused"]:
        return JunitTest(name, "failure", result["refused"][result["ours"]])
    return JunitTest(name, message=line(result))
