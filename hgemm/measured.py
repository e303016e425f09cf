"""How near problems are, and what the measured ones near a problem say of the estimates there.

Octaves are whole numbers, sixteenths of a power of 2, that templates/capi/src/select.c counts in the same way.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hgemm.disk import disk_errors
from hgemm.dtypes import OUTPUTS
from hgemm.errors import LibraryError
from hgemm.problem import ACCUMULATIONS, LAYOUTS, MAX_EXTENT, TYPES, Kind
from hgemm.record import (
    NAME,
    SYMBOL,
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

# ==== One session of measurements, as the file `measurements/<session>.jsonl` of a library says it ====


FOLDER = "measurements"
SCHEMA = 1
_DIGITS = 16
_LOG = logging.getLogger(__name__)

SESSION_NAME = text(r"[0-9]{8}t[0-9]{12}z_[0-9a-f]{8}", "a session's name: date, time to the microsecond, 8 digits")
_DATE = text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a date and time in UTC")
_EXTENT = integer(low=1, high=MAX_EXTENT)
_HEADER = fields(
    {
        "schema": integer(low=SCHEMA, high=SCHEMA),
        "session": SESSION_NAME,
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


def _session_times(value: Any, field: str) -> None:
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
    {"problem": _PROBLEM, "state": NAME, "date": _DATE, "times": _session_times},
    optional={"decided": boolean, "clocks": plain, "baseline": plain},
)


@dataclass(frozen=True)
class MeasuredProblem:
    """A problem whose operands lie dense. Shapes: as in hgemm.launch_traits.LaunchTraits."""

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
class MeasuredVariant:
    """A variant that was measured: its name, its content key, and what made it."""

    symbol: str
    key: str
    toolchain: Mapping[str, Any]


@dataclass(frozen=True)
class VariantTime:
    """What one variant took. Fields: `variant` is its number; one that was only screened has no rounds and no spread."""

    variant: int
    time_us: float
    spread_us: float = 0.0
    rounds: int = 0


@dataclass(frozen=True)
class Result:
    """One problem: the times of its variants, the one that was decided for first, and the others by their time."""

    problem: MeasuredProblem
    state: str
    date: str
    times: tuple[VariantTime, ...]
    decided: bool = False
    clocks: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Session:
    """What a program measured on one device, as far as it came; `lines` are the file's that were read."""

    header: Mapping[str, Any]
    variants: tuple[MeasuredVariant, ...]
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
    with disk_errors("read", path):
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
    variants: list[MeasuredVariant] = []
    results: list[Result] = []
    for number_of_line, entry in enumerate(entries[1:], 2):
        field = f"line {number_of_line}"
        if "symbol" in entry:
            _VARIANT(entry, field)
            variants.append(MeasuredVariant(**entry))
        else:
            _RESULT(entry, field)
            results.append(_result(entry, field, len(variants)))
    return Session(entries[0], tuple(variants), tuple(results), tuple(lines[: len(entries)]))


def _result(entry: Mapping[str, Any], field: str, variants: int) -> Result:
    times = tuple(VariantTime(*time) for time in entry["times"])
    for time in times:
        if time.variant not in range(variants):
            raise Mismatch(f"{field} names variant {time.variant}, which no line before it has")
        if time.time_us < _LEAST_US:
            raise Mismatch(f"{field} has a time of {time.time_us:g} us")
    return Result(**{**entry, "problem": MeasuredProblem(**entry["problem"]), "times": times})


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


# ==== Writing a session: lines are only added, each forced to disk before the next is measured ====


def now() -> str:
    """Return the date and time in UTC, as sessions write it."""
    return _written(datetime.datetime.now(datetime.timezone.utc))


def _written(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class SessionWriter:
    """A new session of a library; its file appears with its first line. Raises LibraryError where it cannot be written."""

    def __init__(self, library: Path, **header: Any) -> None:
        begun = datetime.datetime.now(datetime.timezone.utc)
        date, self.name = _written(begun), f"{begun:%Y%m%dt%H%M%S%fz}_{secrets.token_hex(4)}"
        self.path = library / FOLDER / f"{self.name}.jsonl"
        self._numbers: dict[tuple[str, str], int] = {}
        self._digits = ""
        with disk_errors("write", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._add([{"schema": SCHEMA, "session": self.name, "date": date, **header}])

    def add(
        self, problem: MeasuredProblem, state: str, tested: Sequence[tuple[MeasuredVariant, VariantTime]], **more: Any
    ) -> None:
        """Add the result of one problem: variants and times in the order of preference; their numbers are set here."""
        entries: list[Mapping[str, Any]] = []
        times = []
        for one, time in tested:
            known = (one.symbol, one.key)
            if known not in self._numbers:
                self._numbers[known] = len(self._numbers)
                entries.append({"symbol": one.symbol, "key": one.key, "toolchain": dict(one.toolchain)})
            paired = [time.spread_us, time.rounds] if time.rounds else []
            times.append([self._numbers[known], time.time_us, *paired])
        more = {name: value for name, value in more.items() if value is not None}
        entries.append({"problem": problem.plain(), "state": state, "date": now(), "times": times, **more})
        self._add(entries)

    def close(self) -> None:
        os.close(self._file)

    def _add(self, entries: Sequence[Mapping[str, Any]]) -> None:
        text = b""
        for entry in entries:
            self._digits, line = chained(self._digits, entry)
            text += line
        with disk_errors("write", self.path):
            while text:  # a disk that is nearly full takes a part
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)


# ==== What stands for a problem after all sessions ====


ProblemKey = tuple[int, int, int, int, int, int, int]
"""Compute capability, SMs, kind, m, n, k and batch."""
DISPATCH_STATE = "steady"
"""What dispatch goes by: the state of a device that works all the time."""


@dataclass(frozen=True)
class BestKnown:
    """What was measured for one problem on one kind of device.

    Fields: `order` has the variants that were compared with the best one, which is first; `times_us` has those too that
        were only measured in other sessions, in terms of the session that stands; `device` and `date` are that session's.
    """

    order: tuple[str, ...]
    times_us: Mapping[str, float]
    device: str
    date: str


def best_known(sessions: Iterable[Session], keys: Mapping[str, str]) -> dict[ProblemKey, BestKnown]:
    """Return what stands for each problem, of the variants whose content keys are `keys` by symbol.

    A session puts its order in the place of an older one where it measured the variant that stood: only then was that
    one compared with what is to be preferred to it.
    """
    found: dict[ProblemKey, BestKnown] = {}
    for session in sessions:
        device = session.header["capability"], session.header["sms"]
        for result in session.results:
            times = _standing_times(session, result, keys)
            if result.state == DISPATCH_STATE and times:
                place = (*device, result.problem.kind.code, *result.problem.extents)
                new = BestKnown(tuple(times), times, session.header["device"], result.date)
                found[place] = _joined(found.get(place), new)
    return found


def _standing_times(session: Session, result: Result, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the times by symbol, in the order of the result, of variants that are still what was measured."""
    tested = ((session.variants[time.variant], time.time_us) for time in result.times)
    return {one.symbol: time_us for one, time_us in tested if keys.get(one.symbol) == one.key}


def _joined(old: BestKnown | None, new: BestKnown) -> BestKnown:
    if old is None:
        return new
    stands = old.order[0]
    if stands in new.times_us:
        kept, added = new, _scaled(old, old.times_us[stands], new.times_us[stands])
    else:
        both = next((symbol for symbol in old.times_us if symbol in new.times_us), None)
        scale = (new.times_us[both], old.times_us[both]) if both else (1.0, 1.0)
        kept, added = old, _scaled(new, *scale)
    return BestKnown(kept.order, {**added, **kept.times_us}, kept.device, kept.date)


def _scaled(standing: BestKnown, its: float, other: float) -> dict[str, float]:
    return {symbol: time * other / its for symbol, time in standing.times_us.items()}
