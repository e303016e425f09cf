"""The index of a library: conditions on records, and the SQLite database that keeps the flat records.

A condition is a tree, which `matches` evaluates. A comparison with a missing field is false. Numbers compare with numbers, texts
with texts. A field alone is true if it is a number other than zero.

The database is a cache of the folders. Its schema and a hash of each row are checked before a row is used.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import operator
import os
import re
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from generator.errors import LibraryError
from generator.store.files import temporary_name
from hgemm.disk import locked
from hgemm.record import SCHEMA, Record, Scalar

_OPERATORS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}


@dataclass(frozen=True)
class Literal:
    """A value as text and, if it is one, as a number."""

    text: str
    number: int | float | None = None


@dataclass(frozen=True)
class Compare:
    """`field op literal`, with `op` one of < <= = >= >."""

    field: str
    op: str
    value: Literal


@dataclass(frozen=True)
class Like:
    """`field like 'a*b'`: the whole text matches; * stands for any characters, ? for one."""

    field: str
    pattern: str


@dataclass(frozen=True)
class Truth:
    """A field alone: a number other than zero, or true."""

    field: str


@dataclass(frozen=True)
class Not:
    item: Node


@dataclass(frozen=True)
class And:
    """True if all `items` are true."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """True if any of `items` is true."""

    items: tuple[Node, ...]


Node = Compare | Like | Truth | Not | And | Or
EVERYTHING = And(())
"""The condition that every record meets."""


def any_like(fields: tuple[str, ...], patterns: tuple[str, ...]) -> Node:
    """Return the condition that one of the fields is like one of the patterns."""
    return Or(tuple(Like(field, pattern) for field in fields for pattern in patterns))


def matches(node: Node, flat: Mapping[str, Scalar]) -> bool:
    """Return whether a flat record meets a condition."""
    if isinstance(node, And):
        return all(matches(item, flat) for item in node.items)
    if isinstance(node, Or):
        return any(matches(item, flat) for item in node.items)
    if isinstance(node, Not):
        return not matches(node.item, flat)
    value = flat.get(node.field)
    if value is None:
        return False
    if isinstance(node, Truth):
        return not isinstance(value, str) and value != 0
    if isinstance(node, Like):
        return isinstance(value, str) and fnmatch.fnmatchcase(value, _glob(node.pattern))
    return _compares(value, node.op, node.value)


def _compares(value: Scalar, op: str, literal: Literal) -> bool:
    if not isinstance(value, str):
        return literal.number is not None and _OPERATORS[op](value, literal.number)
    if op != "=" and literal.number is not None:
        return False
    return _OPERATORS[op](value, literal.text)


def _glob(pattern: str) -> str:
    """Write a pattern of * and ? for fnmatch. Escape [, which is special there."""
    return re.sub(r"\*+", "*", pattern).replace("[", "[[]")


# ---- The SQLite database --------------------------------------------------------------------------------------------

INDEX_NAME = "index.db"
VERSION = 1000 * SCHEMA + 7
BUSY_TIMEOUT_S = 15.0
BATCH_ROWS = 100
MAX_BYTES = 512 * 2**20

TABLES = """
CREATE TABLE kernels (symbol TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL, flat TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE sessions (name TEXT PRIMARY KEY, stamp TEXT NOT NULL);
CREATE TABLE measurements (id INTEGER PRIMARY KEY, session TEXT NOT NULL, symbol TEXT NOT NULL, key TEXT NOT NULL,
    problem TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL, clocks TEXT NOT NULL, date TEXT NOT NULL,
    toolchain TEXT NOT NULL, time_us REAL NOT NULL, details TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX measurements_symbol ON measurements (symbol);
CREATE INDEX measurements_session ON measurements (session);
"""
"""`hash` is that of the other columns of its row, without `id`."""


@dataclass(frozen=True)
class Measurement:
    """The time of one kernel on one problem, with everything needed to repeat the measurement.

    `problem`, `clocks`, `toolchain` and `details` are JSON documents, `date` is ISO 8601 in UTC, `key` is the content key of
    the kernel.
    """

    session: str
    symbol: str
    key: str
    problem: str
    device: str
    driver: str
    clocks: str
    date: str
    toolchain: str
    time_us: float
    details: str = "{}"


SessionRows = tuple[str, str, list[Measurement]]
"""The name of a session, its stamp, and its measurements."""
MEASURED = ", ".join(field.name for field in fields(Measurement))
_VALUES = ", ".join("?" * (len(fields(Measurement)) + 1))
_ADD_MEASUREMENT = f"INSERT INTO measurements ({MEASURED}, hash) VALUES ({_VALUES})"
_HASH_DIGITS = 16


def _row_hash(*values: str | float) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:_HASH_DIGITS]


class Damaged(sqlite3.DatabaseError):
    """The index is missing, damaged, or of another version, and must be rebuilt."""


@contextmanager
def open_index(library: Path) -> Iterator[Index]:
    """Open the index of a library for one piece of work.

    Raises: Damaged if it must be replaced first; sqlite3.Error if it cannot be used now.
    """
    path = library / INDEX_NAME
    _require_regular(path)
    with closing(_connect(path)) as database:
        try:
            yield Index(database)
        except sqlite3.DatabaseError as error:
            if type(error) is sqlite3.DatabaseError or "no such" in str(error):
                raise Damaged(str(error)) from error
            raise


def _require_regular(path: Path) -> None:
    """Raise Damaged unless the index is a regular file of a sound size, and its journals are regular files, if any."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        try:
            status = os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            if not suffix:
                raise Damaged("it does not exist") from None
            continue
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{path.name}{suffix} is not a regular file")
        if status.st_size > MAX_BYTES:
            raise Damaged(f"{path.name}{suffix} has {status.st_size} B, more than {MAX_BYTES}")


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database. Write nothing if its folder is read-only."""
    place = "file:" + quote(os.fsencode(path.absolute()))
    try:
        return _checked(place + "?mode=rw")
    except sqlite3.OperationalError:
        wal = path.with_name(path.name + "-wal")
        if os.access(path.parent, os.W_OK) or (wal.exists() and wal.stat().st_size):
            raise
        return _checked(place + "?mode=ro&immutable=1")


def _checked(uri: str) -> sqlite3.Connection:
    database = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    database.text_factory = lambda text: text.decode(errors="replace")  # the hash of a damaged row differs
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise LibraryError(
                f"{INDEX_NAME} was written by a newer hgemm (version {version} > {VERSION}): update this one"
            )
        if version != VERSION:
            raise Damaged(f"it has version {version}, not {VERSION}")
        database.execute("PRAGMA trusted_schema = OFF")
        if _schema_of(database) != _expected_schema():
            raise Damaged("its schema is not that of an index")
        database.execute("PRAGMA synchronous = NORMAL")
        return database
    except sqlite3.DatabaseError as error:
        database.close()
        if type(error) is sqlite3.DatabaseError:
            raise Damaged(str(error)) from error
        raise


def _flat_record(symbol: str, flat: str) -> dict[str, Scalar]:
    try:
        row = json.loads(flat)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the row of {symbol!a:.80} is not JSON: {error}") from error
    if type(row) is not dict or row.get("symbol") != symbol or not _SCALARS.issuperset(map(type, row.values())):
        raise Damaged(f"the row of {symbol!a:.80} is not a flat record")
    return row


_SCALARS = frozenset((str, int, float, bool))


def _schema_of(database: sqlite3.Connection) -> list[tuple[str, str, str, str]]:
    """Return the definition of each table, index, view and trigger."""
    return sorted(database.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))


@cache
def _expected_schema() -> list[tuple[str, str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES)
        return _schema_of(database)


class Index:
    """An open index."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def stamps(self) -> dict[str, str]:
        """Return the stamp of each indexed record, by symbol."""
        return dict(self._database.execute("SELECT symbol, stamp FROM kernels"))

    def rows(self, where: Node = EVERYTHING) -> list[dict[str, Scalar]]:
        """Return the flat records that meet a condition, sorted by symbol. Raises Damaged if a row was changed."""
        found = []
        for symbol, stamp, flat, digest in self._database.execute(
            "SELECT symbol, stamp, flat, hash FROM kernels ORDER BY symbol"
        ):
            if digest != _row_hash(symbol, stamp, flat):
                raise Damaged(f"the row of {symbol!a:.80} was changed (its hash differs)")
            found.append(_flat_record(symbol, flat))
        return [row for row in found if matches(where, row)]

    def check(self) -> None:
        """Check every page. Raises Damaged if one is corrupt."""
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise Damaged(verdict)

    def replace(self, rows: Iterable[tuple[Record, str]], sessions: Iterable[SessionRows]) -> None:
        """Replace all rows at once: other processes read the old ones until then.

        Fields: `rows` are records and their stamps.
        """
        with self._transaction():
            for table in ("kernels", "measurements", "sessions"):
                self._database.execute(f"DELETE FROM {table}")
            for record, stamp in rows:
                self._upsert(record, stamp)
            for session in sessions:
                self._put_session(*session)

    def upsert(self, rows: Iterable[tuple[Record, str]]) -> set[str]:
        """Insert or replace records and their stamps, in short transactions. Return their symbols."""
        coming, written = iter(rows), set()
        while batch := list(islice(coming, BATCH_ROWS)):
            with self._transaction():
                for record, stamp in batch:
                    self._upsert(record, stamp)
            written.update(record.symbol for record, _ in batch)
        return written

    def _upsert(self, record: Record, stamp: str) -> None:
        row = (record.symbol, stamp, json.dumps(record.flat()))
        self._database.execute("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?)", (*row, _row_hash(*row)))

    def delete(self, rows: list[tuple[str, str]]) -> None:
        """Remove the rows of these symbols that still have these stamps."""
        with self._transaction():
            self._database.executemany("DELETE FROM kernels WHERE symbol = ? AND stamp = ?", rows)

    def session_stamps(self) -> dict[str, str]:
        """Return the stamp of each indexed session of measurements, by name."""
        return dict(self._database.execute("SELECT name, stamp FROM sessions"))

    def put_session(self, name: str, stamp: str, measurements: list[Measurement]) -> None:
        """Replace the measurements of a session."""
        with self._transaction():
            self._put_session(name, stamp, measurements)

    def _put_session(self, name: str, stamp: str, measurements: list[Measurement]) -> None:
        self._database.execute("DELETE FROM measurements WHERE session = ?", (name,))
        rows = map(astuple, measurements)
        self._database.executemany(_ADD_MEASUREMENT, ((*row, _row_hash(*row)) for row in rows))
        self._database.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (name, stamp))

    def delete_session(self, name: str) -> None:
        """Delete a session whose file no longer exists."""
        with self._transaction():
            self._database.execute("DELETE FROM measurements WHERE session = ?", (name,))
            self._database.execute("DELETE FROM sessions WHERE name = ?", (name,))

    def measurements(self, symbol: str | None = None) -> list[Measurement]:
        """Return the measurements of one kernel, or of all, oldest session first."""
        query = f"SELECT {MEASURED}, hash FROM measurements WHERE ?1 IS NULL OR symbol = ?1 ORDER BY session, id"
        found = []
        for *row, digest in self._database.execute(query, (symbol,)):
            if digest != _row_hash(*row):
                raise Damaged(f"a measurement of {row[1]!a:.80} was changed (its hash differs)")
            found.append(Measurement(*row))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


# ---- Rebuilding a missing or damaged index --------------------------------------------------------------------------

LOCK_NAME = "index.db.lock"


def replace_index(library: Path) -> None:
    """Replace a missing or damaged index by an empty one. Keep one that another process has just written.

    Raises: OSError or sqlite3.Error if the folder cannot be written.
    """
    path = library / INDEX_NAME
    with locked(library / LOCK_NAME, timeout_s=4 * BUSY_TIMEOUT_S):
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
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _is_sound(library: Path) -> bool:
    path_exists = (library / INDEX_NAME).exists()
    try:
        with open_index(library) as index:
            index.check()
            index.rows()
            index.measurements()
            return True
    except sqlite3.OperationalError as error:
        if path_exists and "locked" in str(error):  # in use, not damaged
            raise
        return False
    except sqlite3.DatabaseError:
        return False
