"""Making an index anew where it is missing or damaged, without losing the measurements in it."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from generator.store.index import BUSY_TIMEOUT_S, INDEX_NAME, MEASURED, TABLES, VERSION, Index, Measurement, open_index
from generator.store.whole import temporary_name

LOCK_NAME = "index.db.lock"
DAMAGED_NAME = "index.db.damaged"
_LOG = logging.getLogger(__name__)


def replace_index(library: Path) -> None:
    """Make a missing or damaged index anew with no variants in it, carrying over what measurements can be read.

    A damaged one is kept beside it as `index.db.damaged`. An index that another process made meanwhile stays.
    Raises: OSError or sqlite3.Error where the folder cannot be written.
    """
    from filelock import FileLock  # rarely needed, and every listing would pay for it

    path = library / INDEX_NAME
    with FileLock(library / LOCK_NAME, timeout=4 * BUSY_TIMEOUT_S):
        if _is_sound(library):
            return
        kept = _salvage(path)
        fresh = library / (temporary_name() + ".db")
        try:
            with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
                database.executescript(f"PRAGMA journal_mode = WAL; {TABLES} PRAGMA user_version = {VERSION};")
                Index(database).add_measurements(kept)
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


def _salvage(path: Path) -> list[Measurement]:
    """Return the measurements that can still be read from an index that is to be replaced, however few."""
    kept: list[Measurement] = []
    if not path.exists():
        return kept
    shutil.copyfile(path, path.with_name(DAMAGED_NAME))
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as database:
            for row in database.execute(f"SELECT {MEASURED} FROM measurements ORDER BY id"):
                kept.append(Measurement(*row))
    except (sqlite3.Error, ValueError) as error:
        _LOG.warning("%s is damaged (%s): it is made anew, with %d measurements saved", path, error, len(kept))
    return kept
