"""Compiled objects in a cache folder: a private folder, and a hash at the end of each object that is checked before it is loaded.

The hash shows damage. It does not protect from somebody who may write to the folder, so only its owner may.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from hgemm.errors import LibraryError

PRIVATE_MODE = 0o700
MARK = b"\nhgemm object, sha256 "
"""Precedes the hash, in hexadecimal. Linkers and loaders ignore what follows an ELF file."""
_SEAL_BYTES = len(MARK) + 64
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: Path, variable: str) -> None:
    """Create a cache folder that only this user may use, or make the user's own folder private.

    Fields: `variable` is the environment variable that chooses the folder.
    Raises: LibraryError if the folder belongs to another user; OSError if it cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
    reject_foreign(folder, variable)
    status = os.stat(folder)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != PRIVATE_MODE:
        with suppress(PermissionError):
            os.chmod(folder, PRIVATE_MODE)


def reject_foreign(folder: Path, variable: str) -> None:
    """Raise LibraryError if a cache folder exists and belongs to another user than this one and root."""
    try:
        owner = os.stat(folder).st_uid
    except OSError:
        return
    if owner not in (os.geteuid(), 0):
        raise LibraryError(
            f"the cache {folder} belongs to user {owner}, whose programs would run here: set {variable} to a folder of your own"
        )


def seal(path: Path) -> None:
    """Append the hash of an object to its file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("ab") as file:
        file.write(MARK + digest.encode())


def is_sound(path: Path) -> bool:
    """Return whether a file is a sealed object of this user or root that nobody else may write.

    Raises: FileNotFoundError if there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise
        return False
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0)
        if not ours or status.st_mode & _WRITABLE_BY_OTHERS:
            return False
        content = memoryview(file.read())
    body, found = content[:-_SEAL_BYTES], bytes(content[-_SEAL_BYTES:])
    return found == MARK + hashlib.sha256(body).hexdigest().encode()
