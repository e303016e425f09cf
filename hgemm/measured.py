"""Measurements of a library: sessions as files, how they are read and written, and the best known kernels after all of them.

A session is one run of a program on one device. It is the file `measurements/<session>.jsonl` of a library: a header, kernels,
and one result per problem. Each line begins with a hash of all lines up to it, so damage is detected.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from hgemm.checks import (
    NAME,
    TEXT,
    Mismatch,
    boolean,
    check,
    either,
    fields,
    integer,
    list_of,
    map_of,
    one_of,
    plain,
    scalar,
    text,
)
from hgemm.disk import disk_errors, read_whole
from hgemm.epilogue import HASH_DIGITS, NONE
from hgemm.errors import LibraryError
from hgemm.problem import MAX_EXTENT, REQUEST_WORDS, Kind, LaunchOptions, legal_raster
from hgemm.record import SYMBOL

# ==== The schema of a session ====

FOLDER = "measurements"
MAX_SESSION_BYTES = 128 * 2**20
_MAX_LINE_BYTES = 2**20
SCHEMA = 1
_HASH_DIGITS = 16
_LOG = logging.getLogger(__name__)

SESSION_NAME = text(r"[0-9]{8}t[0-9]{12}z_[0-9a-f]{8}", "a session's name: date, time to the microsecond, 8 digits")
_DATE = text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "a date and time in UTC")
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
    optional={
        "protocol": map_of(NAME, scalar),
        "seed": integer(),
        "run": TEXT,
        "baseline": TEXT,
        "dram_gbytes_per_s": integer(low=0, high=1_000_000),
    },
)
_KERNEL = fields(
    {
        "symbol": SYMBOL,
        "key": text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal"),
        "toolchain": map_of(NAME, either(list_of(TEXT), TEXT)),
    }
)
_WORDS = {name: one_of(*words) for name, words in REQUEST_WORDS.items()}
EPILOGUE_FIELDS = {name: _WORDS.pop(name) for name in ("bias", "activation")}
"""The optional fields of a problem in files."""
PROBLEM_FIELDS = {**dict.fromkeys(("m", "n", "k", "batch"), integer(low=1, high=MAX_EXTENT)), **_WORDS}
"""The required fields of a problem in files."""
_HASH = text(f"[0-9a-f]{{{HASH_DIGITS}}}", "the hash of an expression")
_PROBLEM = fields(PROBLEM_FIELDS, optional={**EPILOGUE_FIELDS, "epilogue": _HASH})
_MIN_TIME_US = 1e-6


@check({"type": "array"})
def _check_times(value: Any, field: str) -> None:
    """Accept a list of [kernel, time_us] or [kernel, time_us, spread_us, rounds].

    A session has thousands of them, so one function checks them all.
    """
    if type(value) is not list:
        raise Mismatch(f"{field} must be a list")
    for at, time in enumerate(value):
        if type(time) is not list or len(time) not in (2, 4) or type(time[0]) is not int:
            raise Mismatch(
                f"{field}[{at}] must be the number of a kernel and a time, then optionally a spread and rounds"
            )
        if any(type(one) not in (int, float) or not 0 <= one < 1e18 for one in time):
            raise Mismatch(f"{field}[{at}] must have finite numbers from 0")


_MAX_SPLITS = 2**16


@check({"type": "array"})
def _check_options(value: Any, field: str) -> None:
    """Accept a list of [kernel, splits, whole_tiles, raster_tiles]."""
    if type(value) is not list:
        raise Mismatch(f"{field} must be a list")
    for at, one in enumerate(value):
        if type(one) is not list or len(one) != 4 or any(type(number) is not int for number in one):
            raise Mismatch(f"{field}[{at}] must be the numbers of a kernel, splits, whole tiles and raster tiles")
        _, splits, whole_tiles, raster_tiles = one
        legal = 1 <= splits <= _MAX_SPLITS and 0 <= whole_tiles <= MAX_EXTENT
        if not (legal and legal_raster(raster_tiles)):
            raise Mismatch(f"{field}[{at}] has launch options {one[1:]}, which no launch takes")


_RESULT = fields(
    {"problem": _PROBLEM, "state": NAME, "date": _DATE, "times": _check_times},
    optional={"decided": boolean, "clocks": plain, "baseline": plain, "options": _check_options},
)


# ==== A session in memory ====


@dataclass(frozen=True)
class MeasuredProblem:
    """A problem whose operands are dense. `epilogue` is the hash of D's expression, or `none`.

    Shapes: as in hgemm.launch_traits.LaunchTraits.
    """

    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype_a: str
    dtype_b: str
    acc: str
    dtype_d: str
    bias: str = "none"
    activation: str = "none"
    epilogue: str = NONE

    @property
    def kind(self) -> Kind:
        types = (self.dtype_a, self.dtype_b, self.dtype_d, self.acc)
        return Kind(self.layout, *types, self.bias, self.activation, self.epilogue)

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.batch

    def plain(self) -> dict[str, Any]:
        """Return the problem as a dictionary, without a bias, an activation or an epilogue that it does not have."""
        optional = ("bias", "activation", "epilogue")
        return {name: value for name, value in asdict(self).items() if name not in optional or value != "none"}


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel that was measured: its symbol, its content key and its toolchain."""

    symbol: str
    key: str
    toolchain: Mapping[str, Any]


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel.

    Fields: `index` is the kernel's place in the session's `kernels`. `rounds` is 0 for a kernel that was only screened. `options`
        are those of its launches, None if the kernel leaves none open.
    """

    index: int
    time_us: float
    spread_us: float = 0.0
    rounds: int = 0
    options: LaunchOptions | None = None


@dataclass(frozen=True)
class Result:
    """The times of the kernels for one problem: the chosen kernel first, the others by their time."""

    problem: MeasuredProblem
    state: str
    date: str
    times: tuple[KernelTime, ...]
    decided: bool = False
    clocks: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Session:
    """The measurements of one run on one device. It may be incomplete. `lines` are those read from the file."""

    header: Mapping[str, Any]
    kernels: tuple[MeasuredKernel, ...]
    results: tuple[Result, ...]
    lines: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return str(self.header["session"])


# ==== Reading sessions ====


def session_paths(library: Path) -> list[Path]:
    """Return the files of a library's sessions, the oldest first. Files without a complete first line are ignored.

    A folder of measurements that is a symbolic link is ignored with a warning.
    """
    folder = library / FOLDER
    if folder.is_symlink():
        _LOG.warning("%s is a symbolic link, and a library may contain none: its measurements are not used", folder)
        return []
    return sorted(path for path in folder.glob("*.jsonl") if _is_begun(path))


def _is_begun(path: Path) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return True  # reading it reports the error
        with path.open("rb") as file:
            return file.readline(_MAX_LINE_BYTES).endswith(b"\n")
    except FileNotFoundError:
        return False
    except OSError:
        return True  # as above


def read_sessions(library: Path) -> list[Session]:
    """Return the sessions of a library, the oldest first. Invalid ones are logged as warnings and ignored."""
    found = []
    for path in session_paths(library):
        try:
            found.append(read_session(path))
        except LibraryError as error:
            _LOG.warning("%s", error)
    return found


def read_session(path: Path) -> Session:
    """Read one session. Raises LibraryError if a complete line is damaged or has another schema."""
    with disk_errors("read", path):
        *lines, _ = read_whole(path, MAX_SESSION_BYTES).split(
            b"\n"
        )  # the rest is empty, or a line that was not completed
    try:
        return _parse(path, lines)
    except Mismatch as error:
        raise LibraryError(
            f"{path}: {error}: its measurements are not used; restore the file, or move it away"
        ) from None


def _parse(path: Path, lines: list[bytes]) -> Session:
    entries = list(_entries(lines))
    if not entries:
        raise Mismatch("it has no complete line")
    _HEADER(entries[0], "the header")
    if entries[0]["session"] != path.stem:
        raise Mismatch(f"its header names session {entries[0]['session']}, not the file")
    kernels: list[MeasuredKernel] = []
    results: list[Result] = []
    for number_of_line, entry in enumerate(entries[1:], 2):
        field = f"line {number_of_line}"
        if "symbol" in entry:
            _KERNEL(entry, field)
            kernels.append(MeasuredKernel(**entry))
        else:
            _RESULT(entry, field)
            results.append(_result(entry, field, len(kernels)))
    return Session(entries[0], tuple(kernels), tuple(results), tuple(lines[: len(entries)]))


def _result(entry: dict[str, Any], field: str, kernels: int) -> Result:
    options = {kernel: LaunchOptions(*numbers) for kernel, *numbers in entry.pop("options", ())}
    times = tuple(replace(KernelTime(*time), options=options.get(time[0])) for time in entry["times"])
    for time in times:
        if time.index not in range(kernels):
            raise Mismatch(f"{field} uses kernel {time.index}, but no earlier line defines it")
        if time.time_us < _MIN_TIME_US:
            raise Mismatch(f"{field} has a time of {time.time_us:g} us")
    return Result(**{**entry, "problem": MeasuredProblem(**entry["problem"]), "times": times})


def _entries(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    before = ""
    for number, line in enumerate(lines, 1):
        digits, _, document = line.partition(b" ")
        expected = hashlib.sha256(before.encode() + document).hexdigest()[:_HASH_DIGITS]
        if digits.decode("ascii", "replace") != expected:
            raise Mismatch(f"line {number} was changed (its hash differs)")
        try:
            entry = json.loads(document)
        except (ValueError, RecursionError):
            raise Mismatch(f"line {number} is not JSON") from None
        if not isinstance(entry, dict):
            raise Mismatch(f"line {number} is not an object")
        before = expected
        yield entry


# ==== Writing a session: lines are appended, each synced to disk before the next problem is measured ====


def chained(before: str, entry: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the hash and the text of a line. `before` is the hash of the previous line, empty for the first one."""
    document = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    digits = hashlib.sha256((before + document).encode()).hexdigest()[:_HASH_DIGITS]
    return digits, f"{digits} {document}\n".encode()


def now() -> str:
    """Return the date and time in UTC, in the format of sessions."""
    return _written(datetime.datetime.now(datetime.timezone.utc))


def _written(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class SessionWriter:
    """Writes a new session of a library. Raises LibraryError if the file cannot be written."""

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
        self, problem: MeasuredProblem, state: str, tested: Sequence[tuple[MeasuredKernel, KernelTime]], **more: Any
    ) -> None:
        """Append the result of one problem. `tested` is in the order of preference; kernels are numbered here."""
        entries: list[Mapping[str, Any]] = []
        times, options = [], []
        for one, time in tested:
            known = (one.symbol, one.key)
            if known not in self._numbers:
                self._numbers[known] = len(self._numbers)
                entries.append({"symbol": one.symbol, "key": one.key, "toolchain": dict(one.toolchain)})
            paired = [time.spread_us, time.rounds] if time.rounds else []
            times.append([self._numbers[known], time.time_us, *paired])
            if time.options:
                options.append([self._numbers[known], *astuple(time.options)])
        more = {name: value for name, value in more.items() if value is not None}
        more |= {"options": options} if options else {}
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
            while text:  # a nearly full disk writes a part
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)


# ==== The best known kernels after all sessions ====

ProblemKey = tuple[int, int, int, int, int, int, int]
"""Compute capability, SMs, kind, m, n, k and batch."""
DISPATCH_STATES = ("model", "steady")
"""Selection uses a problem's measurements in the first of these states that has any."""


@dataclass(frozen=True)
class BestKnown:
    """The measurements of one problem on one type of device, combined from all sessions.

    Fields: `order` holds the kernels that were compared with the best one, which is first. `times_us` also holds kernels of
        other sessions, scaled to the session that `order`, `device` and `date` come from. `options` are those of the launches,
        for kernels that leave some open. `dram_gbytes_per_s` is the speed of the device's DRAM, 0 if it is unknown.
    """

    order: tuple[str, ...]
    times_us: Mapping[str, float]
    device: str
    date: str
    options: Mapping[str, LaunchOptions] = field(default_factory=dict)
    dram_gbytes_per_s: int = 0


def best_known(sessions: Iterable[Session], keys: Mapping[str, str]) -> dict[ProblemKey, BestKnown]:
    """Return the best known kernels of each problem. `keys` holds the content keys of the library's kernels by symbol.

    A session supersedes an older one if it re-measured the current best: only then was that one compared with the new best.
    """
    found: dict[str, dict[ProblemKey, BestKnown]] = {state: {} for state in DISPATCH_STATES}
    for session in sessions:
        device = session.header["capability"], session.header["sms"]
        for result in session.results:
            times = _current_times(session, result, keys)
            if result.state in found and times:
                key = (*device, result.problem.kind.code, *result.problem.extents)
                options = _current_options(session, result, times)
                dram = session.header.get("dram_gbytes_per_s", 0)
                new = BestKnown(tuple(times), times, session.header["device"], result.date, options, dram)
                of_state = found[result.state]
                of_state[key] = _combined(of_state.get(key), new)
    merged: dict[ProblemKey, BestKnown] = {}
    for state in reversed(DISPATCH_STATES):
        merged |= found[state]
    return merged


def _current_times(session: Session, result: Result, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the times by symbol, in the order of the result. Kernels that changed since are left out."""
    tested = ((session.kernels[time.index], time.time_us) for time in result.times)
    return {one.symbol: time_us for one, time_us in tested if keys.get(one.symbol) == one.key}


def _current_options(session: Session, result: Result, times: Mapping[str, float]) -> dict[str, LaunchOptions]:
    """Return the options of the launches by symbol, of those kernels that have times."""
    tested = ((session.kernels[time.index].symbol, time.options) for time in result.times)
    return {symbol: options for symbol, options in tested if options and symbol in times}


def _combined(old: BestKnown | None, new: BestKnown) -> BestKnown:
    if old is None:
        return new
    best = old.order[0]
    if best in new.times_us:
        kept, other, scale = new, old, (old.times_us[best], new.times_us[best])
    else:
        common = next((symbol for symbol in old.times_us if symbol in new.times_us), None)
        scale = (new.times_us[common], old.times_us[common]) if common else (1.0, 1.0)
        kept, other = old, new
    times_us = {**_scaled(other, *scale), **kept.times_us}
    options = {symbol: its for symbol, its in other.options.items() if symbol not in kept.times_us}
    return replace(kept, times_us=times_us, options={**options, **kept.options})


def _scaled(known: BestKnown, from_us: float, to_us: float) -> dict[str, float]:
    return {symbol: time_us * to_us / from_us for symbol, time_us in known.times_us.items()}
