"""Compiled objects in a cache folder: a private folder, and a hash at the end of each object that is checked before it is loaded.

The hash shows damage. It does not protect from somebody who may write to the folder, so only its owner may.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from hgemm.disk import locked
from hgemm.errors import LibraryError

CACHE_VARIABLE = "HGEMM_CACHE_DIR"
PRIVATE_MODE = 0o700
MARK = b"\nhgemm object, sha256 "
"""Precedes the hash, in hexadecimal. Linkers and loaders ignore what follows an ELF file."""
_SEAL_BYTES = len(MARK) + 64
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_OBJECT_BYTES = 256 * 2**20


def cache_base(environment: Mapping[str, str]) -> Path:
    """Return the absolute path of the user's cache: HGEMM_CACHE_DIR, or `hgemm` below XDG_CACHE_HOME or ~/.cache.

    Raises: LibraryError if no variable names a folder, and the user has no home.
    """
    if named := environment.get(CACHE_VARIABLE):
        return Path(named).absolute()
    try:
        caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user may have none
        raise LibraryError(
            f"this user has no home folder for the cache: set {CACHE_VARIABLE} to a folder of your own"
        ) from None
    return caches.absolute() / "hgemm"


def private_folder(folder: Path) -> None:
    """Create a cache folder that only this user may use, or make the user's own folder private.

    Raises: LibraryError if the folder belongs to another user; OSError if it cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
    reject_foreign(folder)
    status = os.stat(folder)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != PRIVATE_MODE:
        with suppress(OSError):  # of a read-only file system
            os.chmod(folder, PRIVATE_MODE)


def reject_foreign(folder: Path) -> None:
    """Raise LibraryError if a cache folder exists and belongs to another user than this one and root."""
    try:
        owner = os.stat(folder).st_uid
    except OSError:
        return
    if owner not in (os.geteuid(), 0):
        raise LibraryError(
            f"the cache {folder} belongs to user {owner}, whose programs would run here: "
            f"set {CACHE_VARIABLE} to a folder of your own"
        )


def get_or_build(place: Path, build: Callable[[], None], timeout_s: float) -> Path:
    """Return the path of a sealed object, which `build` writes if it is missing or damaged. Only one process builds it.

    Raises: LibraryError if the folder belongs to another user; OSError if it cannot be written, or another process builds for
        `timeout_s` seconds.
    """
    private_folder(place.parent)
    if not _is_there(place):
        with locked(place.with_suffix(".lock"), timeout_s):
            if not _is_there(place):
                build()
    return place


def _is_there(place: Path) -> bool:
    try:
        return is_sound(place)
    except FileNotFoundError:
        return False


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
    try:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0)
        if not ours or status.st_mode & _WRITABLE_BY_OTHERS or status.st_size > _MAX_OBJECT_BYTES:
            return False
        with open(descriptor, "rb", closefd=False) as file:
            content = memoryview(file.read(status.st_size))
    finally:
        os.close(descriptor)
    body, found = content[:-_SEAL_BYTES], bytes(content[-_SEAL_BYTES:])
    return found == MARK + hashlib.sha256(body).hexdigest().encode()
