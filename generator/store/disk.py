"""What the disk says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.errors import LibraryError

_REASONS = {
    errno.ENOSPC: "no space is left on the disk: free some or choose another --library",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another --library",
    errno.EROFS: "it is read-only: choose another --library",
    errno.EACCES: "permission is denied: change its permissions or choose another --library",
    errno.EPERM: "permission is denied: change its permissions or choose another --library",
    errno.ENOTDIR: "a file stands where a folder is needed: move it or choose another --library",
    errno.EEXIST: "a file stands where a folder is needed: move it or choose another --library",
    errno.ELOOP: "it is a symbolic link, which a library may not hold: remove it",
}
_DATABASE_REASONS = {
    "readonly database": _REASONS[errno.EROFS],
    "disk is full": _REASONS[errno.ENOSPC],
    "locked": "another process holds it: try again when that is done",
    "unable to open": "it cannot be opened: check that it is a file and its permissions",
}


@contextmanager
def told(doing: str, place: Path) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error)}") from error


def reason_of(error: OSError | sqlite3.Error) -> str:
    """Say why the disk or a database refused, and what to do."""
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, f"{error.strerror or error}: check the folder and try again")
    return next((reason for words, reason in _DATABASE_REASONS.items() if words in str(error)), str(error))
