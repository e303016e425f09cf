"""What the disk or a database says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.errors import LibraryError
from hgemm import disk
from hgemm.disk import LIBRARY_OPTION

_DATABASE_REASONS = {
    "readonly database": disk.reason_of(OSError(errno.EROFS, "")),
    "disk is full": disk.reason_of(OSError(errno.ENOSPC, "")),
    "locked": "another process holds it: try again when that is done",
    "unable to open": "it cannot be opened: check that it is a file and its permissions",
}


@contextmanager
def told(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do; `option` named the place."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error, option)}") from error


def reason_of(error: OSError | sqlite3.Error, option: str = LIBRARY_OPTION) -> str:
    """Say why the disk or a database refused, and what to do about a place that `option` named."""
    if isinstance(error, OSError):
        return disk.reason_of(error, option)
    return next((reason for words, reason in _DATABASE_REASONS.items() if words in str(error)), str(error))
