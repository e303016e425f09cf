"""Maintenance of libraries: merge several into one, and remove unusable files."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from generator.errors import LibraryError
from generator.store.files import (
    disk_errors,
    failures_of,
    forget_failure,
    reject_export,
    rename_to_free,
    retire,
)
from generator.store.library import Library, is_ours
from generator.store.library import join_sessions as join
from generator.store.proofs import unproved
from generator.tables import counted
from hgemm.disk import TEMPORARY, is_stale, is_unreadable, open_folder, require_writable
from hgemm.library import StoredKernel, is_symbol, read_artefact, read_record, read_stored, require_library, scan
from hgemm.measured import FOLDER
from hgemm.record import RECORD_NAME, SOURCE_NAMES, Record

Tell = Callable[[str, str, float], None]
"""Receives for each kernel its symbol, `added`, `replaced` or `present`, and the seconds that it took."""

_LOG = logging.getLogger(__name__)
_MAX_SHOWN = 20
_KEY_DIGITS = 16
TARGET_OPTION = "--to"
"""The option of `hgemm merge` that names the library to write, for errors."""
_BATCH = 128
"""Kernels that a merge writes before it waits for the disk."""


@dataclass(frozen=True)
class Merged:
    """The number of kernels that were added, that replaced one without a proof, and that were present; measurements added."""

    library: Path
    added: int
    replaced: int
    present: int
    measurements: int


@dataclass(frozen=True)
class _Found:
    """A kernel of one library that passed all checks. `files` are the hashes of its files."""

    library: Path
    key: str
    files: tuple[str, ...]
    proved: bool


def merge(sources: Sequence[Path], target: Path, tell: Tell, executor: str = "") -> Merged:
    """Add the kernels and measurements of the libraries at `sources` to `target`, which may be one of them.

    Every library is read and every hash is checked before anything is written. After an interrupted run, run it again. Of
    equal kernels, one with a proof is taken: a proof about these files, of version `executor` if that is given.
    Raises: LibraryError if a source is damaged, or kernels of one symbol have different content keys or files.
    """
    reject_export(target)
    folders = _distinct(sources)
    measurements = join((folder for folder in folders if not _same(folder, target)), target)
    found = _sound_of_target(target, executor)
    for folder in folders:
        if not _same(folder, target):
            for symbol in sorted(scan(folder)):
                found.setdefault(symbol, []).append(_check(folder, symbol, executor))
    _refuse_conflicts(found)
    with disk_errors("write", target, TARGET_OPTION):
        target.mkdir(parents=True, exist_ok=True)
    require_writable(target, TARGET_OPTION)
    library, counts = Library(target, TARGET_OPTION), dict.fromkeys(("added", "replaced", "present"), 0)
    chosen = [(symbol, _best(candidates), candidates[0]) for symbol, candidates in sorted(found.items())]
    for first in range(0, len(chosen), _BATCH):
        start, batch, statuses = time.perf_counter(), [], {}
        for symbol, best, first_found in chosen[first : first + _BATCH]:
            statuses[symbol] = (
                "present" if best.library == target else "replaced" if first_found.library == target else "added"
            )
            if statuses[symbol] != "present":
                batch.append(_loaded(best, symbol))
        if batch:
            library.publish_read(batch)
        for symbol, status in statuses.items():
            counts[status] += 1
            tell(symbol, status, (time.perf_counter() - start) / len(statuses))
    measurements.write(target, TARGET_OPTION)
    return Merged(target, **counts, measurements=measurements.timings)


def _distinct(sources: Iterable[Path]) -> list[Path]:
    """Return the folders without repetitions. Raises: LibraryError if one does not exist."""
    kept: list[Path] = []
    for folder in sources:
        require_library(folder)
        if not any(_same(folder, other) for other in kept):
            kept.append(folder)
    return kept


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _check(folder: Path, symbol: str, executor: str) -> _Found:
    """Read a kernel and check all hashes. Raises: LibraryError if a check fails."""
    return _described(folder, Library(folder).load(symbol).record, executor)


def _described(folder: Path, record: Record, executor: str) -> _Found:
    files = tuple(record.files[name]["sha256"] for name in sorted(record.files))
    return _Found(folder, record.key, files, not unproved(record.data, executor))


def _sound_of_target(target: Path, executor: str) -> dict[str, list[_Found]]:
    """Return the kernels of the target. A damaged one counts as missing. Raises: LibraryError if one cannot be read."""
    found: dict[str, list[_Found]] = {}
    for symbol in sorted(scan(target)) if target.exists() else ():
        try:
            found[symbol] = [_check(target, symbol, executor)]
        except LibraryError as error:
            if is_unreadable(error):
                raise
            _LOG.warning("%s is damaged and will be replaced: %s", symbol, error)
    return found


def _refuse_conflicts(found: dict[str, list[_Found]]) -> None:
    """Raises: LibraryError that lists each symbol with different keys, and the libraries."""
    lines = []
    for symbol, candidates in sorted(found.items()):
        keys = {candidate.key: candidate.library for candidate in reversed(candidates)}
        files = {candidate.files: candidate.library for candidate in reversed(candidates)}
        if len(keys) > 1:
            places = [f"{key[:_KEY_DIGITS]} in {keys[key]}" for key in sorted(keys, key=lambda key: str(keys[key]))]
            lines.append(f"  {symbol}: key {', '.join(places)}")
        elif len(files) > 1:
            places = sorted(map(str, files.values()))
            lines.append(
                f"  {symbol}: one key, other files in {', '.join(places)}; `hgemm verify --rebuild` finds the sound ones"
            )
    if lines:
        count = counted(len(lines), "kernel")
        more = [f"  and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
        raise LibraryError(
            "\n".join(
                [
                    f"{count} differ{'s' * (len(lines) == 1)} between the libraries, so nothing was written: "
                    "build them with one version of the generator, or merge without one of the libraries",
                    *lines[:_MAX_SHOWN],
                    *more,
                ]
            )
        )


def _best(candidates: Sequence[_Found]) -> _Found:
    return next((one for one in candidates if one.proved), candidates[0])


def _loaded(found: _Found, symbol: str) -> StoredKernel:
    stored = read_stored(found.library, symbol)
    now = _described(found.library, stored.record, "")
    if (now.key, now.files) != (found.key, found.files):
        raise LibraryError(
            f"{stored.folder} was replaced by another process: run the merge again when that process is done"
        )
    return stored


# ---- Garbage: temporary files of killed processes, kept failures, damaged kernels ----------------------------------


@dataclass(frozen=True)
class Removal:
    """A file, folder or row that was removed or would be removed, the reason, and the bytes freed."""

    name: str
    reason: str
    freed_bytes: int


def collect_garbage(library: Library, dry_run: bool = False) -> list[Removal]:
    """Remove unusable files and folders. With `dry_run`, only return what would be removed.

    Sources without a record stay, and so do files that the generator did not write.
    Raises: LibraryError if the folder cannot be read or written.
    """
    symbols = scan(library.folder)
    orphans = [Removal(symbol, "row of a deleted kernel", 0) for symbol in library.orphan_rows()]
    with disk_errors("clean up", library.folder):
        sessions = library.folder / FOLDER
        inner = [] if sessions.is_symlink() else sessions.glob(".tmp-*")  # behind a link, files belong to others
        places = [*library.folder.iterdir(), *inner]
        stale = [path for path in sorted(places) if is_stale(path)]
        removals = _removed(_remove_stale, stale, dry_run)
        removals += _removed(_remove_failure, failures_of(library.folder), dry_run)
        broken = _removed(_remove_broken, [library.folder / symbol for symbol in sorted(symbols)], dry_run)
    if not dry_run:
        library.rows()
    return removals + broken + orphans


def _removed(remove: Callable[[Path, bool], Removal | None], places: Iterable[Path], dry_run: bool) -> list[Removal]:
    """Return what `remove` removes. A place that another process removed meanwhile counts for nothing."""
    removals = []
    for place in places:
        with suppress(FileNotFoundError):
            removals.append(remove(place, dry_run))
    return [removal for removal in removals if removal]


def _remove_stale(path: Path, dry_run: bool) -> Removal:
    """Remove a temporary file or folder. Put back a folder that was moved aside and never replaced."""
    aside = TEMPORARY.fullmatch(path.name)
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and aside and aside["name"] and is_symbol(aside["name"]):
        place = path.parent / aside["name"]
        if not place.exists():
            if not dry_run:
                rename_to_free(path, place)
            return Removal(path.name, f"moved aside by a killed process, restored as {place.name}", 0)
        size_bytes = _size_bytes(path)
        return Removal(
            path.name, "replaced by a killed process", size_bytes if dry_run else retire(path, place, is_ours)
        )
    size_bytes = _size_bytes(path) if is_folder else path.lstat().st_size
    if not dry_run:
        shutil.rmtree(path) if is_folder else path.unlink()
    return Removal(path.name, "left by a killed process", size_bytes)


def _remove_failure(place: Path, dry_run: bool) -> Removal:
    """Remove the source and log of a kernel that did not compile."""
    size_bytes = _size_bytes(place)
    if not dry_run:
        forget_failure(place.parents[1], place.name)
    return Removal(f"{place.parent.name}/{place.name}", "source and log of a failed compilation", size_bytes)


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _remove_broken(place: Path, dry_run: bool) -> Removal | None:
    """Remove a kernel that fails a check. Its source stays unless a sound record rejects it."""
    folder = open_folder(place)
    try:
        reason = _fault(place)
        if not reason or not os.path.samestat(os.fstat(folder), os.lstat(place)):
            return None
        doomed = [entry for entry in os.scandir(folder) if is_ours(entry.name) and not _is_kept(entry, place, folder)]
        freed_bytes = sum(entry.stat(follow_symlinks=False).st_size for entry in doomed)
        if not dry_run:
            for entry in sorted(doomed, key=lambda entry: entry.name == RECORD_NAME):
                os.unlink(entry.name, dir_fd=folder)
            if not os.listdir(folder):
                os.rmdir(place)
        return Removal(place.name, reason, freed_bytes)
    finally:
        os.close(folder)


def _is_kept(entry: os.DirEntry[str], place: Path, folder: int) -> bool:
    """Return whether a file stays: folders do, and so does a source that no sound record rejects."""
    if entry.is_dir(follow_symlinks=False):
        return True
    if entry.name not in SOURCE_NAMES or entry.is_symlink():
        return False
    try:
        record = read_record(place, folder)
    except LibraryError:
        return True
    try:
        read_artefact(place, folder, record, entry.name)
        return True
    except LibraryError as error:
        return is_unreadable(error)


def _fault(place: Path) -> str:
    """Return the failed check of a kernel, or an empty text. A kernel that cannot be read may be sound."""
    try:
        Library(place.parent).load(place.name)
    except LibraryError as error:
        if is_unreadable(error):
            _LOG.warning("%s stays: %s", place.name, error)
            return ""
        reason = str(error).rpartition(": ")[0]
        return reason.removeprefix(str(place)).lstrip("/: ")
    return ""
