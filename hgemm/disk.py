"""What the disk says when it refuses, as one line for people."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hgemm.errors import LibraryError

REASONS = {
    errno.ENOSPC: "no space is left on the disk: free some or choose another --library",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another --library",
    errno.EROFS: "it is read-only: choose another --library",
    errno.EACCES: "permission is denied: change its permissions or choose another --library",
    errno.EPERM: "permission is denied: change its permissions or choose another --library",
    errno.ENOTDIR: "a file stands where a folder is needed: move it or choose another --library",
    errno.EEXIST: "a file stands where a folder is needed: move it or choose another --library",
    errno.ELOOP: "it is a symbolic link, which a library may not hold: remove it",
}


@contextmanager
def told(doing: str, place: Path) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do."""
    try:
        yield
    except OSError as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error)}") from error


def require_writable(*places: Path | None) -> None:
    """Raise LibraryError where a file cannot be written at one of the places that are given, before work is done in vain."""
    for place in filter(None, places):
        with told("write", place):
            if not place.exists():
                tempfile.TemporaryFile(dir=place.parent).close()
            elif not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            elif place.is_file():
                tempfile.TemporaryFile(dir=place.resolve().parent).close()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old one or the new one; what is no file, as a pipe, is written to as it is.

    Raises: LibraryError where the disk refuses.
    """
    with told("write", path):
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


def reason_of(error: OSError) -> str:
    """Say why the disk refused, and what to do."""
    return REASONS.get(error.errno or 0, f"{error.strerror or error}: check the folder and try again")
