"""A library: a folder of kernels. The folders are the truth; an index answers queries about them."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from generator.errors import LibraryError
from generator.store.files import (
    disk_errors,
    reason_of,
    reject_export,
    rename_to_free,
    retire,
    sync_folder,
    temporary_name,
    write_folders,
)
from generator.store.index import (
    EVERYTHING,
    INDEX_NAME,
    Damaged,
    Index,
    Measurement,
    Node,
    SessionRows,
    matches,
    open_index,
    replace_index,
)
from generator.store.planned import require_planned
from hgemm.disk import LIBRARY_OPTION, is_writable
from hgemm.library import (
    MissingKernelError,
    StoredKernel,
    UnusableKernelError,
    check_symbol,
    read_stored,
    read_usable_records,
    require_library,
    scan,
    stamp_of,
    warn_once,
)
from hgemm.measured import FOLDER, Session, read_session, session_paths
from hgemm.problem import unknown_kind_word
from hgemm.record import ARTEFACTS, MODULE_NAME, RECORD_NAME, Record, Scalar, is_canonical
from hgemm.record import dump as dump_record


def is_ours(name: str) -> bool:
    """Return whether a file of this name in a kernel's folder was written by the generator."""
    return name in (RECORD_NAME, MODULE_NAME, *ARTEFACTS)


def write_stored(
    library: Path, data: dict[str, Any], artefacts: Mapping[str, bytes], option: str = LIBRARY_OPTION
) -> tuple[Record, str]:
    """Write the folder of a kernel, replace an existing one, and return the record and its stamp.

    `option` is the option that named the library; errors repeat it.
    Raises: LibraryError where the record is malformed, does not describe the artefacts, or cannot be written; or if the library
        lies in an exported C library.
    """
    record = Record.parse(dump_record(data), f"the record of {ascii(data.get('symbol'))[:80]}")
    check_symbol(record.symbol)
    if sorted(record.files) != sorted(artefacts):
        raise LibraryError(
            f"{record.symbol}: the record names {sorted(record.files)}, but the files are {sorted(artefacts)}"
        )
    for name, content in artefacts.items():
        if record.files[name]["sha256"] != hashlib.sha256(content).hexdigest():
            raise LibraryError(
                f"{record.symbol}: the SHA-256 in the record is not that of {name}: write the record from these files"
            )
    found = StoredKernel(record, library / record.symbol, artefacts, record.dump().encode())
    return record, _write_all(library, [found], option)[record.symbol]


def _write_all(library: Path, stored_kernels: Sequence[StoredKernel], option: str) -> dict[str, str]:
    """Write the folders of kernels whose records describe their artefacts. Return the stamps of the records by symbol."""
    reject_export(library)
    for stored in stored_kernels:
        _refuse_collision(library / check_symbol(stored.symbol), stored.record)
    doing = library / stored_kernels[0].symbol if len(stored_kernels) == 1 else library
    with disk_errors("write", doing, option):
        library.mkdir(parents=True, exist_ok=True)
        folders = {}
        for stored in stored_kernels:
            place = library / stored.symbol
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(place).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, "a file has the name of this folder")
            as_written = stored.document if is_canonical(stored.document) else stored.record.dump().encode()
            folders[place] = {**stored.artefacts, RECORD_NAME: as_written}
        written = write_folders(folders, is_ours)
    return {place.name: stamp_of(files[RECORD_NAME]) for place, files in written.items()}


def _refuse_collision(place: Path, record: Record) -> None:
    """Raise LibraryError if a kernel of another spec has this symbol: the hashes of two specs begin alike."""
    if not os.path.lexists(place):
        return
    try:
        present = read_stored(place.parent, place.name, verify=False).record.data["spec"]
    except LibraryError:
        return
    spec = record.data["spec"]
    differ = [name for name in present.keys() & spec.keys() if present[name] != spec[name]]
    if differ:
        message = ", ".join(f"{name} {present[name]} and {spec[name]}" for name in sorted(differ))
        raise LibraryError(
            f"{place} holds a kernel of another spec with the same symbol ({message}): use another --library for the new kernel"
        )


# ---- The library ----------------------------------------------------------------------------------------------------

Answer = TypeVar("Answer")
_LOG = logging.getLogger(__name__)
_REPLACEMENTS = 2


@dataclass(frozen=True)
class Library:
    """The library in a folder. It keeps no file open, so it can be copied and shared. It logs each warning once.

    Fields: `option` is the command-line option that named the folder; errors repeat it.
    """

    folder: Path
    option: str = field(default=LIBRARY_OPTION, compare=False)
    _warned: set[str] = field(default_factory=set, init=False, compare=False, repr=False)

    def publish(self, record: dict[str, Any], files: Mapping[str, bytes]) -> Path:
        """Write a kernel, replace one of the same symbol, and return its folder.

        Raises: LibraryError if the record or the files are malformed, or the disk fails.
        """
        written, stamp = write_stored(self.folder, record, files, self.option)
        self._add_to_index([(written, stamp)])
        return self.folder / written.symbol

    def publish_read(self, stored_kernels: Sequence[StoredKernel]) -> None:
        """Write kernels that were read, with their files, from other libraries. The disk is waited for once.

        Raises: LibraryError if the disk fails.
        """
        stamps = _write_all(self.folder, stored_kernels, self.option)
        self._add_to_index([(stored.record, stamps[stored.symbol]) for stored in stored_kernels])

    def remove(self, symbols: Iterable[str]) -> None:
        """Delete kernels. Files in their folders that the generator did not write stay.

        Raises: LibraryError if the disk fails.
        """
        with disk_errors("delete kernels", self.folder, self.option):
            for symbol in symbols:
                place, aside = self.folder / symbol, self.folder / temporary_name(symbol)
                try:
                    os.rename(place, aside)
                except FileNotFoundError:  # another process has deleted it
                    continue
                retire(aside, place, is_ours)
                if aside.exists():
                    rename_to_free(aside, place)

    def _add_to_index(self, rows: list[tuple[Record, str]]) -> None:
        try:
            self._with_index(lambda index: index.upsert(rows))
        except (sqlite3.Error, OSError) as error:
            _LOG.info("kernels are written; the index of %s will be updated later (%s)", self.folder, error)

    def load(self, symbol: str, verify: bool = True) -> StoredKernel:
        """Read a kernel. With `verify`, read its files too and check their hashes.

        Raises: RequestError for a malformed symbol; LibraryError if the kernel is missing or fails a check.
        """
        stored = read_stored(self.folder, symbol, verify)
        require_planned(stored.record, stored.folder)
        return stored

    def get(self, symbol: str, verify: bool = True) -> StoredKernel | None:
        """Read a kernel like `load`, or return None if it is missing."""
        try:
            return self.load(symbol, verify)
        except MissingKernelError:
            return None

    def rows(self, where: Node = EVERYTHING) -> list[dict[str, Scalar]]:
        """Return the flat records that meet a condition, sorted by symbol."""
        found = self._ask(lambda index: index.rows(where), lambda: self._scan_rows(where))
        return [row for row in found if self._is_usable(row)]

    def _is_usable(self, row: Mapping[str, Scalar]) -> bool:
        """Return whether this version has the words of a kernel. The index may be older. Warn if not."""
        word = unknown_kind_word(row)
        if word:
            warn_once(str(UnusableKernelError.of(self.folder / str(row["symbol"]), word)))
        return not word

    def _scan_rows(self, where: Node) -> list[dict[str, Scalar]]:
        flats = (record.flat() for record in self._read(scan(self.folder)))
        return [flat for flat in flats if matches(where, flat)]

    def damaged(self) -> dict[str, LibraryError]:
        """Return the errors of damaged records by symbol. `rows` skips them, but a kernel that nothing checks is no success."""
        found = {}
        for symbol in sorted(scan(self.folder).keys() - {str(row["symbol"]) for row in self.rows()}):
            try:
                read_usable_records(self.folder, [symbol])
            except LibraryError as error:
                found[symbol] = error
        return found

    def records(self, where: Node = EVERYTHING) -> Iterator[Record]:
        """Yield the records that meet a condition, read from their folders and checked."""
        for row in self.rows(where):
            stored = self.get(str(row["symbol"]), verify=False)
            if stored:
                yield stored.record

    def field_names(self) -> set[str]:
        """Return the names of all fields that any kernel has."""
        return {name for row in self.rows() for name in row}

    def measurements(self, symbol: str | None = None) -> list[Measurement]:
        """Return the measurements of one kernel, or of all. Return none if the index cannot be read."""
        return self._ask(lambda index: index.measurements(symbol), list)

    def reindex(self) -> int:
        """Rebuild the index from the folders and the measurement files, and return the number of kernels.

        Raises: LibraryError if the folder cannot be read or the index cannot be written.
        """
        require_library(self.folder)
        with disk_errors("write the index", self.folder / INDEX_NAME, self.option):
            return len(self._with_index(self._rebuild))

    def _rebuild(self, index: Index) -> dict[str, str]:
        index.check()
        stamps = scan(self.folder)  # before the records are read: a later change differs from its stamp
        index.replace(
            [(record, stamps[record.symbol]) for record in self._read(stamps)],
            [_session_rows(self.folder, name, stamp) for name, stamp in _stamps(self.folder).items()],
        )
        return index.stamps()

    def orphan_rows(self) -> list[str]:
        """Return the symbols in the index that have no folder. The next query removes them."""
        require_library(self.folder)
        try:
            rows = self._with_index(Index.stamps)
        except (sqlite3.Error, OSError):
            return []
        return sorted(rows.keys() - scan(self.folder).keys())

    def _ask(self, question: Callable[[Index], Answer], otherwise: Callable[[], Answer]) -> Answer:
        """Update the index and answer from it. If it cannot be used, answer from the folders."""
        require_library(self.folder)
        try:
            return self._with_index(lambda index: question(self._healed(index)))
        except (sqlite3.Error, OSError) as error:
            if scan(self.folder) and is_writable(self.folder):  # else nobody can repair the index
                self._warn(
                    f"the index of {self.folder} cannot be used ({reason_of(error, self.option)}): reading the folders instead"
                )
            return otherwise()

    def _with_index(self, work: Callable[[Index], Answer]) -> Answer:
        """Run `work` on the index. Replace a damaged index first."""
        for _ in range(_REPLACEMENTS):
            try:
                with open_index(self.folder) as index:
                    return work(index)
            except Damaged as error:
                _LOG.info("rebuilding the index of %s: %s", self.folder, error)
                replace_index(self.folder)
        with open_index(self.folder) as index:
            return work(index)

    def _healed(self, index: Index) -> Index:
        """Update the rows that differ from the folders, and return the index."""
        heal_sessions(index, self.folder)
        rows, folders = index.stamps(), scan(self.folder)
        if rows == folders:
            return index
        changed = {symbol: stamp for symbol, stamp in folders.items() if rows.get(symbol) != stamp}
        read = index.upsert((record, changed[record.symbol]) for record in self._read(changed))
        gone = [
            (symbol, stamp) for symbol, stamp in rows.items() if folders.get(symbol) != stamp and symbol not in read
        ]
        if gone:
            index.delete(gone)
        return index

    def _read(self, symbols: Mapping[str, str]) -> Iterator[Record]:
        """Yield the records of these kernels. Skip one that fails a check, with a warning.

        They are not compared with their plans: a list shows what is there, and `load` decides what is used.
        """
        for symbol in sorted(symbols):
            try:
                yield read_stored(self.folder, symbol, verify=False).record
            except MissingKernelError:
                continue
            except UnusableKernelError as error:
                warn_once(str(error))
            except LibraryError as error:
                self._warn(str(error))

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _LOG.warning("%s", text)


# ---- Measurement sessions: their rows in the index, and merging with the sessions of other libraries -----------------


def heal_sessions(index: Index, library: Path) -> None:
    """Update the measurement rows from the session files. Skip a file that fails a check, with a warning."""
    known, there = index.session_stamps(), _stamps(library)
    for name in sorted(there.keys() | known.keys()):
        if name not in there:
            index.delete_session(name)
        elif known.get(name) != there[name]:
            index.put_session(*_session_rows(library, name, there[name]))


def _session_rows(library: Path, name: str, stamp: str) -> SessionRows:
    return name, stamp, list(_rows(library / FOLDER / f"{name}.jsonl"))


def _stamps(library: Path) -> dict[str, str]:
    stamps = {}
    for path in session_paths(library):
        with suppress(FileNotFoundError):
            stamps[path.stem] = stamp_of(os.lstat(path))
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
            tested = session.kernels[time.index]
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

    def write(self, target: Path, option: str) -> None:
        """Write each session as a whole file. Raises LibraryError, which repeats the `option` that named the target."""
        for session in self.sessions:
            folder = target / FOLDER
            with disk_errors("write", folder, option):
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


def join_sessions(sources: Iterable[Path], target: Path) -> Joined:
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
