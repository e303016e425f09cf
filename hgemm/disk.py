"""What the disk says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hgemm.errors import LibraryError

LIBRARY_OPTION = "--library"
_REASONS = {
    errno.ENOSPC: "no space is left on the disk: free some or choose another {option}",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another {option}",
    errno.EROFS: "it is read-only: choose another {option}",
    errno.EACCES: "permission is denied: change its permissions or choose another {option}",
    errno.EPERM: "permission is denied: change its permissions or choose another {option}",
    errno.ENOTDIR: "a file stands where a folder is needed: move it or choose another {option}",
    errno.EEXIST: "a file stands where a folder is needed: move it or choose another {option}",
    errno.ELOOP: "it is a symbolic link, which a library may not hold: remove it",
}


@contextmanager
def disk_errors(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do; `option` named the place."""
    try:
        yield
    except OSError as error:
        raise LibraryError(f"cannot {doing} {place}: {disk_reason(error, option)}") from error


def require_writable(place: Path | None, option: str) -> None:
    """Raise LibraryError where a file cannot be written at a place that an option named, before work is done in vain."""
    if place is None:
        return
    with disk_errors("write", place, option):
        if not place.exists():
            tempfile.TemporaryFile(dir=place.parent).close()
        elif not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif place.is_file():
            tempfile.TemporaryFile(dir=place.resolve().parent).close()


def write_atomically(path: Path, content: bytes, option: str) -> None:
    """Write a file so that a reader finds the old one or the new one; what is no file, as a pipe, is written to as it is.

    `option` is the one that named the file.

    Raises: LibraryError where the disk refuses.
    """
    with disk_errors("write", path, option):
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        place = path.resolve()
        temporary = place.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)


def disk_reason(error: OSError, option: str = LIBRARY_OPTION) -> str:
    """Say why the disk refused, and what to do about a place that `option` named."""
    if error.errno in _REASONS:
        return _REASONS[error.errno].format(option=option)
    return f"{error.strerror or error}: check the folder, or choose another {option}"


# ==== Folders of a library ====


TEMPORARY = re.compile(r"\.tmp-(?P<pid>[0-9]{1,10})-[0-9a-f]{16}(?:\.(?P<name>[a-z0-9_]+))?", re.ASCII)
ABANDONED_AFTER_S = 3600.0


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
