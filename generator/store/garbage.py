"""What may be removed from a library: leavings of dead writers, and variants that cannot be trusted."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from generator.errors import LibraryError
from generator.failures import failures_of, forget_failure
from generator.store.disk import told
from generator.store.library import Library
from generator.store.variants import is_ours
from generator.store.whole import rename_to_free, retire
from hgemm.folders import TEMPORARY, is_stale, open_folder
from hgemm.measured.session import FOLDER
from hgemm.record import RECORD_NAME, SOURCE_NAMES
from hgemm.variants import is_symbol, read_artefact, read_record, read_variant, scan


@dataclass(frozen=True)
class Removal:
    """One thing that was removed, or would be, why, and the bytes that this frees."""

    name: str
    reason: str
    freed_bytes: int


def collect_garbage(library: Library, dry_run: bool = False) -> list[Removal]:
    """Remove what no one can use, or only say what that is where `dry_run` is set.

    Sources without a record, and whatever the generator did not write, stay.
    Raises: LibraryError where the folder cannot be read or written.
    """
    symbols = scan(library.folder)
    orphans = [Removal(symbol, "row of a variant that is gone", 0) for symbol in library.orphan_rows()]
    with told("clean up", library.folder):
        places = [*library.folder.iterdir(), *(library.folder / FOLDER).glob(".tmp-*")]
        leavings = [path for path in sorted(places) if is_stale(path)]
        removals = [_remove_leaving(path, dry_run) for path in leavings]
        removals += [_remove_failure(path, dry_run) for path in failures_of(library.folder)]
        broken = [_remove_broken(library.folder / symbol, dry_run) for symbol in sorted(symbols)]
    if not dry_run:
        library.rows()
    return removals + [removal for removal in broken if removal] + orphans


def _remove_leaving(path: Path, dry_run: bool) -> Removal:
    """Remove a temporary file or folder; a folder that was moved aside and never replaced is put back."""
    aside = TEMPORARY.fullmatch(path.name)
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and aside and aside["name"] and is_symbol(aside["name"]):
        place = path.parent / aside["name"]
        if not place.exists():
            if not dry_run:
                rename_to_free(path, place)
            return Removal(path.name, f"moved aside by a dead process, put back as {place.name}", 0)
        size_bytes = _size_bytes(path)
        return Removal(path.name, "replaced by a dead process", size_bytes if dry_run else retire(path, place, is_ours))
    size_bytes = _size_bytes(path) if is_folder else path.lstat().st_size
    if not dry_run:
        shutil.rmtree(path) if is_folder else path.unlink()
    return Removal(path.name, "left by a dead process", size_bytes)


def _remove_failure(place: Path, dry_run: bool) -> Removal:
    """Remove what was kept of a variant that did not compile."""
    size_bytes = _size_bytes(place)
    if not dry_run:
        forget_failure(place.parents[1], place.name)
    return Removal(f"{place.parent.name}/{place.name}", "source and log of a failed compilation", size_bytes)


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _remove_broken(place: Path, dry_run: bool) -> Removal | None:
    """Remove a variant that does not pass its own checks; its source stays unless it is known to be wrong."""
    try:
        folder = open_folder(place)
    except FileNotFoundError:
        return None
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
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)


def _is_kept(entry: os.DirEntry[str], place: Path, folder: int) -> bool:
    """Tell whether a file stays: folders do, and a source does unless a sound record says that it is another."""
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
    except LibraryError:
        return False


def _fault(place: Path) -> str:
    """Return why a variant cannot be trusted, or nothing."""
    try:
        read_variant(place.parent, place.name)
    except LibraryError as error:
        return str(error).rpartition(": ")[0]
    return ""
