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
def told(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn a failure of the file system into one LibraryError line that says what to do; `option` named the place."""
    try:
        yield
    except OSError as error:
        raise LibraryError(f"cannot {doing} {place}: {reason_of(error, option)}") from error


def require_writable(place: Path | None, option: str) -> None:
    """Raise LibraryError where a file cannot be written at a place that an option named, before work is done in vain."""
    if place is None:
        return
    with told("write", place, option):
        if not place.exists():
            tempfile.TemporaryFile(dir=place.parent).close()
        elif not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif place.is_file():
            tempfile.TemporaryFile(dir=place.resolve().parent).close()


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a file so that a reader finds the old one or the new one; what is no file, as a pipe, is written to as it is.

    `option` is the one that named the file.

    Raises: LibraryError where the disk refuses.
    """
    with told("write", path, option):
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


def reason_of(error: OSError, option: str = LIBRARY_OPTION) -> str:
    """Say why the disk refused, and what to do about a place that `option` named."""
    if error.errno in _REASONS:
        return _REASONS[error.errno].format(option=option)
    return f"{error.strerror or error}: check the folder, or choose another {option}"
