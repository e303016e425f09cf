"""Folders of a library, read without being led elsewhere, and the names that they have while they are being replaced.

A temporary name is `.tmp-<pid>-<random>`; what a replaced folder is moved aside to has `.<its name>` after that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from pathlib import Path

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
