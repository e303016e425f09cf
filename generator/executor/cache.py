"""Compiled objects kept by the content that they were made from, in the user's cache folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from generator.store.disk import told
from generator.store.whole import temporary_name
from hgemm.folders import TEMPORARY, is_stale

OPTION = "HGEMM_CACHE_DIR"
KEPT_BYTES = 512 * 2**20
"""Beyond this the objects that were used least recently are dropped."""
_KEPT_S = 60.0
"""An object so young may be on its way into a process."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of compiled executors: below HGEMM_CACHE_DIR, XDG_CACHE_HOME or ~/.cache."""
    named = environment.get(OPTION)
    if named:
        return Path(named) / "executor"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm" / "executor"


def kept(folder: Path, name: str) -> Path | None:
    """Return the object `name` where the cache has it, and note that it was used."""
    path = folder / name
    try:
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError:  # a cache that others own can be read all the same
        return path if path.is_file() else None
    return path


def place(folder: Path, text: str = "") -> Path:
    """Return a path in the cache to make an object at, which `keep` then gives its name, with `text` there.

    Raises: LibraryError where the folder cannot be written.
    """
    with told("write to the cache", folder, OPTION):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / temporary_name()
        path.touch(exist_ok=False)
        path.write_text(text)
    return path


def keep(made: Path, name: str) -> Path:
    """Give a finished object its name; another process may have made the same one meanwhile. Raises: LibraryError."""
    path = made.with_name(name)
    with told("write to the cache", made.parent, OPTION):
        os.replace(made, path)
    return path


def trim(folder: Path, kept_bytes: int = KEPT_BYTES) -> int:
    """Drop what was used least recently until the rest fits, and what dead processes left; return the bytes freed."""
    found: list[tuple[float, int, Path]] = []
    freed = 0
    for path in folder.glob("*"):
        with suppress(OSError):
            status = path.stat()
            if TEMPORARY.match(path.name):
                freed += _drop(path, status.st_size) if is_stale(path) else 0
            else:
                found.append((status.st_mtime, status.st_size, path))
    total, newest = sum(size for _, size, _ in found), time.time() - _KEPT_S
    for used, size, path in sorted(found):
        if total <= kept_bytes or used > newest:
            break
        total -= size
        freed += _drop(path, size)
    return freed


def _drop(path: Path, size_bytes: int) -> int:
    with suppress(OSError):
        path.unlink()
        return size_bytes
    return 0
