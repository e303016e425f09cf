"""Making an index anew where it is missing or damaged."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from generator.store.index import BUSY_TIMEOUT_S, INDEX_NAME, TABLES, VERSION, open_index
from generator.store.whole import temporary_name

LOCK_NAME = "index.db.lock"


def replace_index(library: Path) -> None:
    """Make a missing or damaged index anew, empty. An index that another process made meanwhile stays.

    Raises: OSError or sqlite3.Error where the folder cannot be written.
    """
    from filelock import FileLock  # rarely needed, and every listing would pay for it

    path = library / INDEX_NAME
    with FileLock(library / LOCK_NAME, timeout=4 * BUSY_TIMEOUT_S):
        if _is_sound(library):
            return
        fresh = library / (temporary_name() + ".db")
        try:
            with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
                database.executescript(f"PRAGMA journal_mode = WAL; {TABLES} PRAGMA user_version = {VERSION};")
            _remove_journals(path)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
            _remove_journals(fresh)


def _remove_journals(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _is_sound(library: Path) -> bool:
    path_exists = (library / INDEX_NAME).exists()
    try:
        with open_index(library) as index:
            index.check()
            index.rows()
            index.names()
            return True
    except sqlite3.OperationalError as error:
        if path_exists and "locked" in str(error):  # in use, not damaged
            raise
        return False
    except sqlite3.DatabaseError:
        return False
