"""Files and folders of a library: errors in one line, files written whole or not at all, folders that processes share."""

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
from typing import BinaryIO

from hgemm.errors import LibraryError

LIBRARY_OPTION = "--library"
REASONS = {
    errno.ENOSPC: "no space is left on the disk: free some or choose another {option}",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another {option}",
    errno.EROFS: "it is read-only: choose another {option}",
    errno.EACCES: "permission is denied: change its permissions or choose another {option}",
    errno.EPERM: "permission is denied: change its permissions or choose another {option}",
    errno.ENOTDIR: "a file is in the place of a folder: move it or choose another {option}",
    errno.EEXIST: "a file is in the place of a folder: move it or choose another {option}",
    errno.ELOOP: "it is a symbolic link, and a library may contain none: remove it",
}


@contextmanager
def disk_errors(doing: str, place: Path, option: str = LIBRARY_OPTION) -> Iterator[None]:
    """Turn an OSError into a LibraryError that says what failed and what to do.

    Fields: `doing` is a verb such as "write"; `option` is the command-line option that chose the place.
    """
    try:
        yield
    except OSError as error:
        raise LibraryError(f"cannot {doing} {place}: {disk_reason(error, option)}") from error


_DAMAGE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EFBIG, errno.EOPNOTSUPP)
)
"""Errors of a file that is missing, is no regular file, or is too large."""


def is_unreadable(error: LibraryError) -> bool:
    """Return whether the file system refused to read what may be sound: permissions, a failing disk, too many open files."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _DAMAGE


def is_writable(folder: Path) -> bool:
    """Return whether this user may write to a folder, and its file system allows it."""
    return os.access(folder, os.W_OK)


def require_writable(place: Path | None, option: str) -> None:
    """Raise LibraryError if a file cannot be written at `place`. Commands call it before long work."""
    if place is None:
        return
    with disk_errors("write", place, option):
        if not place.exists():
            tempfile.TemporaryFile(dir=_target_of(place).parent).close()
        elif not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif place.is_file():
            tempfile.TemporaryFile(dir=_target_of(place).parent).close()


def _target_of(path: Path) -> Path:
    """Return the path behind symbolic links, which may not exist yet. Raises: OSError if the links form a loop."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.EINVAL, "its symbolic links form a loop")
    return target


def write_atomically(path: Path, content: bytes, option: str) -> None:
    """Replace a file so that readers see the old content or the new one. Pipes and devices are written directly.

    Fields: `option` is the command-line option that chose the path.
    Raises: LibraryError if the file system rejects it.
    """
    with disk_errors("write", path, option):
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        place = _target_of(path)
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
    """Return why the file system rejected an operation, and the fix. `option` chose the place."""
    if error.errno in REASONS:
        return REASONS[error.errno].format(option=option)
    return f"{error.strerror or error}: check the folder, or choose another {option}"


MAX_TEXT_BYTES = 64 * 2**20
"""The largest file of a user that is read. A device such as /dev/zero has no end."""


def open_input(path: Path) -> BinaryIO:
    """Open a file of a user. Raises OSError if it is a named pipe, which could wait forever. `/dev/stdin` may be a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.path.exists(os.path.realpath(path)):
        file.close()
        raise OSError(errno.EINVAL, "it is a named pipe: write its content to a file")
    os.set_blocking(descriptor, True)
    return file


def read_text(path: Path, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file in UTF-8. Raises OSError if it cannot be read or is too large, ValueError if it is not UTF-8."""
    with open_input(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes:,} B")
    return content.decode("utf-8")


# ==== Folders of a library ====

TEMPORARY = re.compile(r"\.tmp-(?P<pid>[0-9]{1,10})-[0-9a-f]{16}(?:\.(?P<name>[a-z0-9_]+))?", re.ASCII)
"""Names of temporary files and folders: the writer's process and, if a folder is being replaced, its name."""
ABANDONED_AFTER_S = 3600.0
"""The age at which an unlocked temporary folder counts as abandoned, even if its process id is in use."""


def open_folder(path: Path) -> int:
    """Open a folder, to read several files of one version of it. Symbolic links are rejected."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Opening a pipe does not wait, and a symbolic link is rejected."""


def read_regular(name: str, folder: int, limit_bytes: int) -> bytes:
    """Read a regular file of an open folder, up to `limit_bytes` + 1 bytes. Symbolic links are rejected."""
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        return _read_some(file, limit_bytes)


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """Read a regular file of at most `limit_bytes`. Symbolic links are rejected. Raises OSError otherwise."""
    with os.fdopen(os.open(path, _READ), "rb") as file:
        content = _read_some(file, limit_bytes)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} B")
    return content


def _read_some(file: BinaryIO, limit_bytes: int) -> bytes:
    """Read up to `limit_bytes` + 1 bytes. The size is asked first: a buffer of the limit's size would cost 1 ms a file."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file.read(min(status.st_size, limit_bytes) + 1)


# ==== Exchanging two folders ====

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Source: Linux, fcntl.h and fs.h."""


def exchange(one: Path, other: Path) -> bool:
    """Exchange two existing paths in one step. Return whether the system can do that. Raises OSError if it fails."""
    code = _call("renameat2", _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if code and code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        raise OSError(code, os.strerror(code), str(other))
    return not code


def sync_disk(folder: int) -> None:
    """Force everything that was written to the file system of an open folder to disk."""
    code = _call("syncfs", folder)
    if code == errno.ENOSYS:
        os.sync()
    elif code:
        raise OSError(code, os.strerror(code))


def _call(function: str, *arguments: int | bytes) -> int:
    """Call a function of the C library, which Python lacks. Return 0 or its errno."""
    import ctypes  # rarely needed, so `hgemm list` does not import it

    found = getattr(ctypes.CDLL(None, use_errno=True), function, None)
    if found is None:
        return errno.ENOSYS
    return ctypes.get_errno() if found(*arguments) else 0


# ==== A lock ====

_LOCK_PAUSE_S = 0.05


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing. Symbolic links are rejected.

    Raises: OSError if the file cannot be opened, or another process holds the lock for `timeout_s` seconds.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor, end = os.open(path, flags, 0o666), time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def is_stale(path: Path) -> bool:
    """Return whether the writer of a temporary file or folder has died."""
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
    """Return whether a live process is replacing the folder at `place`: the old one is moved aside, the new one not there."""
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
