"""Measured points, from documents of `hgemm bench --keep` and from the measurements of a library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import LibraryError
from hgemm.bench.contenders import symbol_of
from hgemm.bench.work import WORK, Work
from hgemm.checks import NAME, TEXT, Mismatch, either, fields, integer, list_of, map_of, null, number, plain
from hgemm.disk import read_text
from hgemm.measured import KernelTime, Result, Session

_SCHEMA = 1
_US = number(low=1e-6)


_RESULT = fields(
    {"work": WORK, "state": NAME},
    others=plain,
    optional={
        **dict.fromkeys(("ours", "first", "best"), either(null, TEXT)),
        "refused": map_of(TEXT, TEXT),
        "figures": map_of(TEXT, fields({"time_us": _US}, others=plain)),
        **dict.fromkeys(("ratio_first", "ratio_best"), fields({"median": number(low=1e-6)}, others=plain)),
    },
)
_DOCUMENT = fields(
    {"schema": integer(_SCHEMA, _SCHEMA), "device": TEXT, "date": TEXT, "results": list_of(_RESULT)}, others=plain
)


@dataclass(frozen=True)
class Point:
    """One measurement of one problem.

    Fields: `times_us` maps our kernels to their times; `ours` is the fastest of them.
        `baseline_us` and `ratios` have `first` (the baseline's own choice) and `best` (its fastest proposal), if measured.
        A ratio is the baseline's time over ours. `keys` maps kernels to content keys, if the file has them.
    """

    work: Work
    state: str
    device: str
    date: str
    times_us: Mapping[str, float]
    ours: str
    baseline_us: Mapping[str, float]
    ratios: Mapping[str, float]
    keys: Mapping[str, str]

    @property
    def kind(self) -> PointKind:
        work = self.work
        return PointKind(self.device, self.state, work.layout, work.dtype_a, work.dtype_b, work.acc, work.dtype_d)

    @property
    def ratio(self) -> float | None:
        """The speedup over the baseline's fastest proposal, or over its first choice if only that was measured."""
        return self.ratios.get("best", self.ratios.get("first"))

    def tflops(self, time_us: float) -> float:
        return self.work.flops / time_us * 1e-6


@dataclass(frozen=True, order=True)
class PointKind:
    """The properties that all problems of one chart share."""

    device: str
    state: str
    layout: str
    dtype_a: str
    dtype_b: str
    acc: str
    dtype_d: str

    def __str__(self) -> str:
        operands = self.dtype_a if self.dtype_a == self.dtype_b else f"{self.dtype_a} and {self.dtype_b}"
        return f"{self.layout}, {operands} in, {self.acc} accumulate, {self.dtype_d} out, {self.state}, {self.device}"


def kinds_of(points: Iterable[Point]) -> dict[PointKind, list[Point]]:
    """Group points by kind, kinds with most problems first. Of several measurements of a problem, keep the latest.

    A measurement with a baseline is preferred to one without.
    """
    found: dict[PointKind, dict[str, Point]] = {}
    for point in sorted(points, key=lambda one: (bool(one.baseline_us), one.date)):
        found.setdefault(point.kind, {})[point.work.key] = point
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {kind: [*by_work.values()] for kind, by_work in ordered}


# ==== Documents of `hgemm bench` ====


def read_bench(path: Path) -> list[Point]:
    """Return the points of a document of `hgemm bench --keep`. Raises: LibraryError if the file is not one."""
    try:
        document = json.loads(read_text(path))
        _DOCUMENT(document, "")
    except OSError as error:
        raise LibraryError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, Mismatch) as error:
        raise LibraryError(f"{path}: {error}: name a file that `hgemm bench --keep` wrote") from None
    return [point for result in document["results"] for point in _of_result(document, result)]


def _of_result(document: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[Point]:
    ours, times = result.get("ours"), {name: one["time_us"] for name, one in result.get("figures", {}).items()}
    if ours not in times or ours in result.get("refused", {}):
        return
    roles = {role: result.get(role) for role in ("first", "best")}
    ratios = {role: result[f"ratio_{role}"]["median"] for role in roles if f"ratio_{role}" in result}
    times_us: dict[str, float] = {}
    for name in filter(lambda name: name.startswith("hgemm_"), times):  # a kernel may have several launch options
        symbol = symbol_of(name)
        times_us[symbol] = min(times[name], times_us.get(symbol, times[name]))
    yield Point(
        work=Work(**result["work"]),
        state=result["state"],
        device=document["device"],
        date=document["date"].removesuffix(" UTC").replace(" ", "T") + "Z",  # sorts with the dates of sessions
        times_us=times_us,
        ours=symbol_of(ours),
        baseline_us={role: times[name] for role, name in roles.items() if name in times},
        ratios=ratios,
        keys={},
    )


# ==== Sessions of a library ====


def of_sessions(sessions: Sequence[Session]) -> list[Point]:
    """Return the points of a library's sessions."""
    return [_of_session(session, result) for session in sessions for result in session.results if result.times]


def _of_session(session: Session, result: Result) -> Point:
    tested = [(session.kernels[time.index], time.time_us) for time in _in_rounds(result.times)]
    _, ours_us = tested[0]
    baseline = _baseline(result.baseline)
    return Point(
        work=Work(**result.problem.plain()),
        state=result.state,
        device=session.header["device"],
        date=result.date,
        times_us={one.symbol: time_us for one, time_us in tested},
        ours=tested[0][0].symbol,
        baseline_us=baseline,
        ratios={role: time_us / ours_us for role, time_us in baseline.items()},
        keys={one.symbol: one.key for one, _ in tested},
    )


def _in_rounds(times: Sequence[KernelTime]) -> Sequence[KernelTime]:
    """Return the times measured in rounds, or all times if there are none."""
    return [time for time in times if time.rounds] or times


def _baseline(times_us: Any) -> dict[str, float]:
    """Return the baseline's times of a session. The schema does not check them."""
    entries = times_us.items() if isinstance(times_us, dict) else ()
    return {
        role: float(value)
        for role, value in entries
        if role in ("first", "best") and type(value) in (int, float) and value > 0
    }
