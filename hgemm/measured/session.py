"""One session of measurements, as the file `measurements/<session>.jsonl` of a library says it.

A line is 16 hexadecimal digits, a blank and a JSON object. The digits begin the SHA-256 of the digits of the line before it
(none for the first) and of the object's text, so that a line that was changed, moved, or taken out before others is seen: damage,
not malice. The first object is the header; each later one is a variant, whose number is its place among them, or the result of
one problem. Files only grow; a last line that is not whole is what a writer that was killed left, and counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hgemm.disk import told
from hgemm.dtypes import OUTPUTS
from hgemm.errors import LibraryError
from hgemm.kinds import ACCUMULATIONS, LAYOUTS, TYPES, Kind
from hgemm.problem import MAX_EXTENT
from hgemm.record import SYMBOL
from hgemm.schema import (
    NAME,
    TEXT,
    Mismatch,
    boolean,
    either,
    fields,
    integer,
    list_of,
    map_of,
    plain,
    scalar,
    text,
)

FOLDER = "measurements"
SCHEMA = 1
_DIGITS = 16
_LOG = logging.getLogger(__name__)

NAMED = text(r"[0-9]{8}t[0-9]{12}z_[0-9a-f]{8}", "a session's name: date, time to the microsecond, 8 digits")
_DATE = text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a date and time in UTC")
_EXTENT = integer(low=1, high=MAX_EXTENT)
_HEADER = fields(
    {
        "schema": integer(low=SCHEMA, high=SCHEMA),
        "session": NAMED,
        "program": NAME,
        "date": _DATE,
        "device": TEXT,
        "capability": integer(low=10, high=999),
        "sms": integer(low=1, high=100_000),
        "driver": TEXT,
        "clocks": map_of(NAME, scalar),
    },
    optional={"protocol": map_of(NAME, scalar), "seed": integer(), "run": TEXT, "baseline": TEXT},
)
_VARIANT = fields(
    {
        "symbol": SYMBOL,
        "key": text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal"),
        "toolchain": map_of(NAME, either(list_of(TEXT), TEXT)),
    }
)
_WORDS = {"layout": LAYOUTS, "dtype_a": TYPES, "dtype_b": TYPES, "acc": ACCUMULATIONS, "dtype_d": OUTPUTS}
_PROBLEM = fields(
    {
        **dict.fromkeys(("m", "n", "k", "batch"), _EXTENT),
        **{name: text("|".join(words), f"one of {', '.join(words)}") for name, words in _WORDS.items()},
    }
)
_LEAST_US = 1e-6


def _times(value: Any, field: str) -> None:
    """Accept a list of a variant's number and microseconds, where it was timed in rounds also their spread and number.

    A session has thousands of them: they are looked at here, at once.
    """
    if type(value) is not list:
        raise Mismatch(f"{field} must be a list")
    for place, time in enumerate(value):
        if type(time) is not list or len(time) not in (2, 4) or type(time[0]) is not int:
            raise Mismatch(
                f"{field}[{place}] must be a number of a variant and a time, and may have a spread and rounds"
            )
        if any(type(one) not in (int, float) or not 0 <= one < 1e18 for one in time):
            raise Mismatch(f"{field}[{place}] must have finite numbers of 0 or more")


_RESULT = fields(
    {"problem": _PROBLEM, "state": NAME, "date": _DATE, "times": _times},
    optional={"decided": boolean, "clocks": plain, "baseline": plain},
)


@dataclass(frozen=True)
class Problem:
    """A problem whose operands lie dense. Shapes: as in hgemm.facts.Facts."""

    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype_a: str
    dtype_b: str
    acc: str
    dtype_d: str

    @property
    def kind(self) -> Kind:
        return Kind(self.layout, self.dtype_a, self.dtype_b, self.dtype_d, self.acc)

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.batch

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Tested:
    """A variant that was measured: its name, its content key, and what made it."""

    symbol: str
    key: str
    toolchain: Mapping[str, Any]


@dataclass(frozen=True)
class Time:
    """What one variant took. Fields: `variant` is its number; one that was only screened has no rounds and no spread."""

    variant: int
    time_us: float
    spread_us: float = 0.0
    rounds: int = 0


@dataclass(frozen=True)
class Result:
    """One problem: the times of its variants, the one that was decided for first, and the others by their time."""

    problem: Problem
    state: str
    date: str
    times: tuple[Time, ...]
    decided: bool = False
    clocks: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Session:
    """What a program measured on one device, as far as it came; `lines` are the file's that were read."""

    header: Mapping[str, Any]
    variants: tuple[Tested, ...]
    results: tuple[Result, ...]
    lines: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.header["session"]


def chained(before: str, entry: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the digits of the line after the one with the digits `before`, and that line."""
    document = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    digits = hashlib.sha256((before + document).encode()).hexdigest()[:_DIGITS]
    return digits, f"{digits} {document}\n".encode()


def session_paths(library: Path) -> list[Path]:
    """Return the files of a library's sessions, the oldest first; without those whose writer was stopped in the first line."""
    return sorted(path for path in (library / FOLDER).glob("*.jsonl") if _is_begun(path))


def _is_begun(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whoever reads it is told why that fails


def read_sessions(library: Path) -> list[Session]:
    """Return the sessions of a library, the oldest first. What cannot be trusted is told of, and left out."""
    found = []
    for path in session_paths(library):
        try:
            found.append(read_session(path))
        except LibraryError as error:
            _LOG.warning("%s", error)
    return found


def read_session(path: Path) -> Session:
    """Read one session. Raises LibraryError where a line before the last is not what was written, or has another schema."""
    with told("read", path):
        *lines, _ = path.read_bytes().split(b"\n")  # after the last whole line there is nothing, or what was cut short
    try:
        return _parse(path, lines)
    except Mismatch as error:
        raise LibraryError(
            f"{path}: {error}: its measurements are not used; restore the file, or move it away"
        ) from None


def _parse(path: Path, lines: list[bytes]) -> Session:
    entries = list(_entries(lines))
    if not entries:
        raise Mismatch("it has no whole line")
    _HEADER(entries[0], "the header")
    if entries[0]["session"] != path.stem:
        raise Mismatch(f"its session is {entries[0]['session']}, not its name")
    variants: list[Tested] = []
    results: list[Result] = []
    for number_of_line, entry in enumerate(entries[1:], 2):
        field = f"line {number_of_line}"
        if "symbol" in entry:
            _VARIANT(entry, field)
            variants.append(Tested(**entry))
        else:
            _RESULT(entry, field)
            results.append(_result(entry, field, len(variants)))
    return Session(entries[0], tuple(variants), tuple(results), tuple(lines[: len(entries)]))


def _result(entry: Mapping[str, Any], field: str, variants: int) -> Result:
    times = tuple(Time(*time) for time in entry["times"])
    for time in times:
        if time.variant not in range(variants):
            raise Mismatch(f"{field} names variant {time.variant}, which no line before it has")
        if time.time_us < _LEAST_US:
            raise Mismatch(f"{field} has a time of {time.time_us:g} us")
    return Result(**{**entry, "problem": Problem(**entry["problem"]), "times": times})


def _entries(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    before = ""
    for place, line in enumerate(lines, 1):
        digits, _, document = line.partition(b" ")
        expected = hashlib.sha256(before.encode() + document).hexdigest()[:_DIGITS]
        if digits.decode("ascii", "replace") != expected:
            raise Mismatch(f"line {place} is not what was written (its hash differs)")
        try:
            entry = json.loads(document)
        except (ValueError, RecursionError):
            raise Mismatch(f"line {place} is no JSON") from None
        if not isinstance(entry, dict):
            raise Mismatch(f"line {place} is no object")
        before = expected
        yield entry
