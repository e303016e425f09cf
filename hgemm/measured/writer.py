"""Writing a session: lines are only added, each forced to disk before the next is measured."""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hgemm.disk import told
from hgemm.measured.session import FOLDER, SCHEMA, Problem, Tested, Time, chained


def now() -> str:
    """Return the date and time in UTC, as sessions write it."""
    return _written(datetime.datetime.now(datetime.timezone.utc))


def _written(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


class Writer:
    """A new session of a library; its file appears with its first line. Raises LibraryError where it cannot be written."""

    def __init__(self, library: Path, **header: Any) -> None:
        begun = datetime.datetime.now(datetime.timezone.utc)
        date, self.name = _written(begun), f"{begun:%Y%m%dt%H%M%S%fz}_{secrets.token_hex(4)}"
        self.path = library / FOLDER / f"{self.name}.jsonl"
        self._numbers: dict[tuple[str, str], int] = {}
        self._digits = ""
        with told("write", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._add([{"schema": SCHEMA, "session": self.name, "date": date, **header}])

    def add(self, problem: Problem, state: str, tested: Sequence[tuple[Tested, Time]], **more: Any) -> None:
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
        with told("write", self.path):
            while text:  # a disk that is nearly full takes a part
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)
