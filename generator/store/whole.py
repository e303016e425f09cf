"""Folders that are written whole or not at all, and read without being led elsewhere.

A folder is filled under a temporary name beside its place, forced to disk, and renamed. A temporary name is
`.tmp-<pid>-<random>`; what a replaced folder is moved aside to has `.<its name>` after that, so that it can be put
back should the writer die between the two renames.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

TEMPORARY = re.compile(r"\.tmp-(?P<pid>[0-9]{1,10})-[0-9a-f]{16}(?:\.(?P<name>[a-z0-9_]+))?", re.ASCII)
ABANDONED_AFTER_S = 3600.0
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


def open_folder(path: Path) -> int:
    """Open a folder, which may be no symbolic link, to read files in it that belong together."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_regular(name: str, folder: int, limit_bytes: int) -> bytes:
    """Read a regular file of an open folder, at most `limit_bytes` and one more. Symbolic links are refused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(limit_bytes + 1)


def is_stale(path: Path) -> bool:
    """Tell whether the writer of a temporary file or folder has died."""
    match = TEMPORARY.match(path.name)
    if not match or _is_locked(path):
        return False
    try:
        os.kill(int(match["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    try:
        return time.time() - path.lstat().st_ctime > ABANDONED_AFTER_S
    except FileNotFoundError:
        return False


def is_being_replaced(place: Path) -> bool:
    """Tell whether a live process has moved the folder at `place` aside and not put the new one there yet."""
    try:
        names = os.listdir(place.parent)
    except OSError:
        return False
    aside = [name for name in names if name.startswith(".tmp-") and name.endswith("." + place.name)]
    return any(TEMPORARY.fullmatch(name) and not is_stale(place.parent / name) for name in aside)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = open_folder(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
