"""What the disk or a database says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.errors import LibraryError
from hgemm import disk
from hgemm.disk import REASONS

_DATABASE_REASONS = {
    "readonly database": REASONS[errno.EROFS],
    "disk is full": REASONS[errno.ENOSPC],
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
        return disk.reason_of(error)
    return next((reason for words, reason in _DATABASE_REASONS.items() if words in str(error)), str(error))
