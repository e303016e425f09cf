"""What the disk or a database says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from generator.errors import LibraryError
from hgemm import disk
from hgemm.disk import LIBRARY_OPTION, open_folder

_DATABASE_REASONS = {
    "readonly database": disk.disk_reason(OSError(errno.EROFS, "")),
    "disk is full": disk.disk_reason(OSError(errno.ENOSPC, "")),
    "locked": "another process holds it: try again when that is done",
    "unable to open": "it cannot be opened: check that it is a file and its permissions",
}


@contextmanager
def disk_errors(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do; `option` named the place."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error, option)}") from error


def reason_of(error: OSError | sqlite3.Error, option: str = LIBRARY_OPTION) -> str:
    """Say why the disk or a database refused, and what to do about a place that `option` named."""
    if isinstance(error, OSError):
        return disk.disk_reason(error, option)
    return next((reason for words, reason in _DATABASE_REASONS.items() if words in str(error)), str(error))


# ==== Folders that are written whole or not at all ====


_SWAP_ATTEMPTS = 1000


def temporary_name(after: str = "") -> str:
    """Return a fresh temporary name of this process, for the folder `after` moved aside where one is given."""
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}" + (f".{after}" if after else "")


def write_folder(place: Path, files: Mapping[str, bytes], ours: Callable[[str], bool]) -> dict[str, os.stat_result]:
    """Make the folder `place` hold exactly `files`, replacing one that is there; return what was written.

    Entries of a replaced folder whose names are not `ours` are kept, moved into the new one.
    Raises: OSError, with nothing left behind but, after a kill, a temporary folder.
    """
    parent, temporary = place.parent, place.parent / temporary_name()
    os.mkdir(temporary)
    lock = open_folder(temporary)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written = {name: _write_file(temporary / name, content) for name, content in files.items()}
        os.fsync(lock)
        aside = _swap(temporary, place)
        sync_folder(parent)
        for folder in aside:
            retire(folder, place, ours)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    return written


def _write_file(path: Path, content: bytes) -> os.stat_result:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno())


def _swap(temporary: Path, place: Path) -> list[Path]:
    """Rename `temporary` to `place`; return where the folders that stood there were moved to."""
    aside: list[Path] = []
    try:
        for _ in range(_SWAP_ATTEMPTS):
            if rename_to_free(temporary, place):
                return aside
            old = place.parent / temporary_name(after=place.name)
            with suppress(FileNotFoundError):
                os.rename(place, old)
                aside.append(old)
        raise OSError(errno.EBUSY, "other processes replace this folder all the time")
    except BaseException:
        if aside:
            rename_to_free(aside[-1], place)
        raise


def rename_to_free(folder: Path, place: Path) -> bool:
    """Rename a folder to `place` unless a folder with something in it stands there; tell whether it was done."""
    try:
        os.rename(folder, place)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def retire(folder: Path, place: Path, ours: Callable[[str], bool]) -> int:
    """Delete a folder that was moved aside and return the bytes freed; entries not `ours` move to `place`."""
    freed_bytes = 0
    for entry in list(os.scandir(folder)):
        if ours(entry.name) and not entry.is_dir(follow_symlinks=False):
            freed_bytes += entry.stat(follow_symlinks=False).st_size
            os.unlink(entry.path)
        elif not os.path.lexists(place / entry.name):
            with suppress(FileNotFoundError):  # `place` is being replaced in turn: the entry stays where it is
                os.rename(entry.path, place / entry.name)
    if not any(os.scandir(folder)):
        os.rmdir(folder)
    return freed_bytes


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
