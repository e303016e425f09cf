"""Files of a library: errors of the disk as one line, folders that are written whole or not at all, kept failures."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from generator.errors import BuildError, LibraryError
from hgemm import disk
from hgemm.checks import Mismatch, fields, integer, map_of, plain, text
from hgemm.disk import LIBRARY_OPTION, open_folder
from hgemm.library import EXPORT_MANIFEST, is_symbol
from hgemm.record import SOURCE_NAMES

_DATABASE_REASONS = {
    "readonly database": disk.REASONS[errno.EROFS],
    "disk is full": disk.REASONS[errno.ENOSPC],
    "disk I/O error": "the disk is full or fails: free some space, or choose another {option}",
    "locked": "another process uses it: try again when that process is done",
    "unable to open": "it cannot be opened: check that it is a file and its permissions",
}


@contextmanager
def disk_errors(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn an error of the file system into a LibraryError of one line that says what to do.

    `option` is the option that named `place`; the error repeats it."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error, option)}") from error


def reason_of(error: OSError | sqlite3.Error, option: str = LIBRARY_OPTION) -> str:
    """Return why the disk or the database failed, and what the user can do."""
    if isinstance(error, OSError):
        return disk.disk_reason(error, option)
    known = (reason for words, reason in _DATABASE_REASONS.items() if words in str(error))
    return next((reason.format(option=option) for reason in known), str(error))


# ---- Folders of exported C libraries, which the next export replaces -----------------------------------------------

EXPORT_FORMAT = 1
_MAX_MANIFEST_BYTES = 64 * 2**20
_MANIFEST = fields(
    {
        "format": integer(low=EXPORT_FORMAT, high=EXPORT_FORMAT),
        "files": map_of(text(r"(?!/)(?!.*(?:^|/)\.\.(?:/|$)).{1,512}", "a relative path without .."), plain),
    },
    others=plain,
)


def exported_files(folder: Path) -> frozenset[str] | None:
    """Return the files that the manifest of an exported C library lists, or None if the folder has no such manifest."""
    try:
        manifest = json.loads(disk.read_whole(folder / EXPORT_MANIFEST, _MAX_MANIFEST_BYTES))
        _MANIFEST(manifest, "")
    except (OSError, ValueError, RecursionError, Mismatch):
        return None
    return frozenset(manifest["files"]) | {EXPORT_MANIFEST}


def reject_export(library: Path) -> None:
    """Raise LibraryError if a library's folder is an exported C library or lies inside one."""
    place = Path(os.path.realpath(library))
    export = next((folder for folder in (place, *place.parents) if exported_files(folder) is not None), None)
    if export:
        where = "is" if export == place else f"lies in {export},"
        raise LibraryError(
            f"library {library} {where} an exported C library, which holds only what `hgemm export` wrote: name another folder"
        )


# ---- Folders that are written whole or not at all -------------------------------------------------------------------

_SWAP_ATTEMPTS = 1000


def temporary_name(after: str = "") -> str:
    """Return a new temporary name of this process. `after` is the name of the folder that is moved aside to it, if any."""
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}" + (f".{after}" if after else "")


def write_folder(place: Path, files: Mapping[str, bytes], ours: Callable[[str], bool]) -> dict[str, os.stat_result]:
    """Write the folder `place` with exactly `files`, replace an existing one, and return the status of each file.

    Entries of the old folder whose names are not `ours` move to the new folder.
    Raises: OSError. It leaves no partial folder. A killed process leaves a temporary folder, which `hgemm gc` removes.
    """
    return write_folders({place: files}, ours)[place]


def write_folders(
    folders: Mapping[Path, Mapping[str, bytes]], ours: Callable[[str], bool]
) -> dict[Path, dict[str, os.stat_result]]:
    """Write folders of one parent as `write_folder` does, and wait for the disk once for all of them."""
    (parent,) = {place.parent for place in folders}
    one = len(folders) == 1
    staged: dict[Path, tuple[Path, int]] = {}
    written = {}
    try:
        for place, files in folders.items():
            temporary = parent / temporary_name()
            os.mkdir(temporary)
            lock = open_folder(temporary)
            staged[place] = temporary, lock
            fcntl.flock(lock, fcntl.LOCK_EX)
            written[place] = {name: _write_file(temporary / name, content, one) for name, content in files.items()}
            if one:
                os.fsync(lock)
        if not one:
            disk.sync_disk(lock)
        aside = [(folder, place) for place, (temporary, _) in staged.items() for folder in _swap(temporary, place)]
        sync_folder(parent)
        for folder, place in aside:
            retire(folder, place, ours)
    except BaseException:
        for temporary, _ in staged.values():
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        for _, lock in staged.values():
            os.close(lock)
    return written


def _write_file(path: Path, content: bytes, sync: bool) -> os.stat_result:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
        return os.fstat(file.fileno())


def _swap(temporary: Path, place: Path) -> list[Path]:
    """Rename `temporary` to `place`, and return the new paths of the folders that it replaced.

    Where the system can exchange paths, a complete folder is at `place` at any moment.
    """
    aside: list[Path] = []
    try:
        for _ in range(_SWAP_ATTEMPTS):
            if rename_to_free(temporary, place):
                return aside
            old = place.parent / temporary_name(after=place.name)
            if _exchange(temporary, place, old):
                return [*aside, old]
            with suppress(FileNotFoundError):
                os.rename(place, old)
                aside.append(old)
        raise OSError(errno.EBUSY, "other processes keep replacing this folder")
    except BaseException:
        if aside:
            rename_to_free(aside[-1], place)
        raise


def _exchange(temporary: Path, place: Path, old: Path) -> bool:
    """Give `temporary` the path `place`, and the folder that was there the path `old`. Return whether that was possible."""
    os.rename(temporary, old)  # first, so that the name tells whose old folder it is if the process is killed
    try:
        with suppress(FileNotFoundError):  # another process removed the folder at `place`
            if disk.exchange(old, place):
                return True
    except BaseException:
        os.rename(old, temporary)
        raise
    os.rename(old, temporary)
    return False


def rename_to_free(folder: Path, place: Path) -> bool:
    """Rename a folder to `place` unless a folder with entries exists there. Return whether it was renamed."""
    try:
        os.rename(folder, place)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def retire(folder: Path, place: Path, ours: Callable[[str], bool]) -> int:
    """Delete a folder that was moved aside, move entries that are not `ours` to `place`, and return the bytes freed."""
    freed_bytes = 0
    for entry in list(os.scandir(folder)):
        if ours(entry.name) and not entry.is_dir(follow_symlinks=False):
            freed_bytes += entry.stat(follow_symlinks=False).st_size
            os.unlink(entry.path)
        elif not os.path.lexists(place / entry.name):
            with suppress(FileNotFoundError):  # another process replaces `place`: leave the entry here
                os.rename(entry.path, place / entry.name)
    if not any(os.scandir(folder)):
        os.rmdir(folder)
    return freed_bytes


def replace_folder(temporary: Path, place: Path) -> None:
    """Give a complete temporary folder the path `place`, and delete the folder that was there.

    A process that is killed meanwhile leaves one of the two folders at `place`, on systems that can exchange paths.
    """
    if not place.exists():
        os.rename(temporary, place)
        return
    old = temporary
    if not disk.exchange(temporary, place):
        old = place.parent / temporary_name()
        os.rename(place, old)
        os.rename(temporary, place)
    shutil.rmtree(old)


def remove_abandoned(folder: Path) -> None:
    """Delete temporary files and folders of dead processes. Folders that a publication moved aside stay."""
    for path in folder.glob(".tmp-*"):
        found = disk.TEMPORARY.fullmatch(path.name)
        if found and not found["name"] and disk.is_stale(path):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Failures: the source and the compiler's log of a kernel that did not compile, until it does --------------------

FAILED_NAME = "failed"
LOG_NAME = "compile.log"


def keep_failure(library: Path, source: str, source_name: str, error: BuildError, option: str) -> BuildError:
    """Write the source and the log to `<library>/failed/<symbol>/`, and return the error with their paths.

    `option` is the option that named the library.
    Raises: LibraryError if the folder cannot be written.
    """
    place = library / FAILED_NAME / error.symbol
    with disk_errors("write", place, option):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_folder(place, {source_name: source.encode(), LOG_NAME: error.log.encode()}, lambda name: True)
    return BuildError(error.symbol, error.log, place / source_name, place / LOG_NAME)


def forget_failure(library: Path, symbol: str) -> None:
    """Remove the failure of a kernel that now compiles."""
    place = library / FAILED_NAME / symbol
    if _is_kept(place):
        for name in (*SOURCE_NAMES, LOG_NAME):
            with suppress(OSError):
                (place / name).unlink()
        with suppress(OSError):  # other failures stay
            place.rmdir()
            place.parent.rmdir()


def failures_of(library: Path) -> list[Path]:
    """Return the folders of kept failures, sorted by name. Other folders belong to the user."""
    return sorted(filter(_is_kept, library.glob(f"{FAILED_NAME}/*")))


def _is_kept(place: Path) -> bool:
    """Return whether `keep_failure` wrote this folder: no other file, no link."""
    if place.parent.is_symlink() or place.is_symlink() or not place.is_dir() or not is_symbol(place.name):
        return False
    try:
        return {*os.listdir(place)} <= {*SOURCE_NAMES, LOG_NAME}
    except FileNotFoundError:  # another process removed it
        return False
