"""Measurement sessions of a library: their rows in the index, and merging with the sessions of other libraries."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from generator.errors import LibraryError
from generator.store.files import disk_errors, sync_folder, temporary_name
from generator.store.index import Index, Measurement
from hgemm.library import stamp_of
from hgemm.measured import FOLDER, Session, read_session, session_paths

_LOG = logging.getLogger(__name__)


def heal_sessions(index: Index, library: Path) -> None:
    """Update the measurement rows from the session files. Skip a file that fails a check, with a warning."""
    known, there = index.session_stamps(), _stamps(library)
    for name in sorted(there.keys() | known.keys()):
        if name not in there:
            index.delete_session(name)
        elif known.get(name) != there[name]:
            index.put_session(name, there[name], list(_rows(library / FOLDER / f"{name}.jsonl")))


def _stamps(library: Path) -> dict[str, str]:
    stamps = {}
    for path in session_paths(library):
        with suppress(FileNotFoundError):
            stamps[path.stem] = stamp_of(os.stat(path))
    return stamps


def _rows(path: Path) -> Iterator[Measurement]:
    try:
        session = read_session(path)
    except LibraryError as error:
        _LOG.warning("%s", error)
        return
    yield from measurements_of(session)


def measurements_of(session: Session) -> Iterator[Measurement]:
    """Yield the rows of one session."""
    header = session.header
    for result in session.results:
        for place, time in enumerate(result.times):
            tested = session.variants[time.variant]
            details = {"state": result.state, "place": place, "spread_us": time.spread_us, "rounds": time.rounds}
            yield Measurement(
                session=session.name,
                symbol=tested.symbol,
                key=tested.key,
                problem=json.dumps(result.problem.plain()),
                device=header["device"],
                driver=header["driver"],
                clocks=json.dumps(result.clocks or header["clocks"]),
                date=result.date,
                toolchain=json.dumps(tested.toolchain),
                time_us=time.time_us,
                details=json.dumps(details),
            )


# ---- Merging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """Sessions that are new to the target library, or longer than its copy."""

    sessions: tuple[Session, ...]
    timings: int

    def write(self, target: Path) -> None:
        """Write each session as a whole file. Raises LibraryError if the disk fails."""
        for session in self.sessions:
            folder = target / FOLDER
            with disk_errors("write", folder):
                folder.mkdir(parents=True, exist_ok=True)
                temporary = folder / temporary_name()
                try:
                    with temporary.open("xb") as file:
                        file.write(b"".join(line + b"\n" for line in session.lines))
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(temporary, folder / f"{session.name}.jsonl")
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
                sync_folder(folder)


def join(sources: Iterable[Path], target: Path) -> Joined:
    """Return the sessions of `sources` that `target` does not have. Nothing is written.

    Raises: LibraryError if a session fails a check, or two sessions of one name differ.
    """
    there = {path.stem: read_session(path) for path in session_paths(target)}
    best = dict(there)
    for folder in sources:
        for path in session_paths(folder):
            session = read_session(path)
            other = best.setdefault(session.name, session)
            longer, shorter = sorted((session, other), key=lambda one: -len(one.lines))
            if longer.lines[: len(shorter.lines)] != shorter.lines:
                raise LibraryError(
                    f"{path} differs from another session of the same name: merge without one of the two libraries"
                )
            best[session.name] = other if len(other.lines) >= len(session.lines) else session
    added = {name: session for name, session in best.items() if session is not there.get(name)}
    counted = sum(
        _timings(session) - (_timings(there[name]) if name in there else 0) for name, session in added.items()
    )
    return Joined(tuple(added.values()), counted)


def _timings(session: Session) -> int:
    return sum(len(result.times) for result in session.results)
