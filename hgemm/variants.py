"""The folder of one variant: how it is found, and checked before it is trusted."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hgemm.advice import on, way_out
from hgemm.disk import told
from hgemm.errors import LibraryError, RequestError
from hgemm.folders import is_being_replaced, open_folder, read_regular
from hgemm.record import MAX_RECORD_BYTES, RECORD_NAME, Record

_SYMBOL = re.compile(r"[a-z0-9_]{1,200}", re.ASCII)
_READ_ATTEMPTS = 50
_SWAP_PAUSE_S = 0.002


class NoVariant(LibraryError):
    """There is no folder of that name, or it holds a source without a record."""


@dataclass(frozen=True)
class Variant:
    """A variant that was read: its record, its folder, and its artefacts where their hashes were checked."""

    record: Record
    folder: Path
    artefacts: Mapping[str, bytes]

    @property
    def symbol(self) -> str:
        return self.record.symbol

    @property
    def source(self) -> bytes:
        """The text that it was made from, where its artefacts were read."""
        return self.artefacts[self.record.source_name]

    def path(self, name: str) -> Path:
        """Return where the artefact `name` lies."""
        return self.folder / name


def is_symbol(text: str) -> bool:
    """Tell whether a text may be the name of a variant, and so of a folder."""
    return bool(_SYMBOL.fullmatch(text))


def check_symbol(symbol: str) -> str:
    """Return the symbol. Raises RequestError where it may not become part of a path."""
    if not is_symbol(symbol):
        raise RequestError(f"symbol {ascii(symbol)[:80]} is malformed: use a to z, 0 to 9 and _ only")
    return symbol


def stamp_of(status: os.stat_result) -> str:
    """Return what changes when a record is written anew: its time of writing and its size."""
    return f"{status.st_mtime_ns}:{status.st_size}"


def require(library: Path) -> None:
    """Raise LibraryError where there is no library at this place."""
    if not library.exists():
        raise LibraryError(f"library {library} does not exist: run `generate` first, or name another folder")
    refuse_file(library)


def refuse_file(library: Path) -> None:
    """Raise LibraryError where a library cannot be, since a file is there."""
    if library.exists() and not library.is_dir():
        raise LibraryError(f"library {library} is a file: name a folder")


def scan(library: Path) -> dict[str, str]:
    """Return the stamp of every variant of a library, by symbol; sources without a record are left out.

    Raises: LibraryError where the library is missing, is no folder, or cannot be read.
    """
    require(library)
    stamps: dict[str, str] = {}
    with told("read the library", library), os.scandir(library) as entries:
        for entry in entries:
            if is_symbol(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    stamps[entry.name] = stamp_of(os.lstat(f"{entry.path}/{RECORD_NAME}"))
                except (FileNotFoundError, NotADirectoryError):
                    continue
    return stamps


def read_variant(library: Path, symbol: str, verify: bool = True) -> Variant:
    """Read a variant, with its artefacts where `verify` asks for their hashes to be checked.

    Raises: RequestError for a malformed symbol, NoVariant where there is none, LibraryError where the record
        is malformed or an artefact is not what the record says.
    """
    place = library / check_symbol(symbol)
    for attempt in range(_READ_ATTEMPTS):
        try:
            return _read_once(place, verify)
        except _Replaced:
            time.sleep(_SWAP_PAUSE_S)
        except NoVariant:
            if attempt and not is_being_replaced(place):
                raise
            if attempt:
                time.sleep(_SWAP_PAUSE_S)
    raise LibraryError(f"{place} is being replaced all the time: try again when the other run is done")


class _Replaced(Exception):
    """The folder being read was replaced by another process; what was read says nothing."""


def _read_once(place: Path, verify: bool) -> Variant:
    if place.is_symlink():
        raise LibraryError(f"{place} is a symbolic link, which a library may not hold: remove it")
    try:
        with told("read", place):
            folder = open_folder(place)
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NoVariant(
                f"no variant {place.name} in {place.parent}: `hgemm list{on(place.parent)}` shows those that are"
            ) from None
        raise
    try:
        record = read_record(place, folder)
        artefacts = {name: read_artefact(place, folder, record, name) for name in record.files} if verify else {}
        return Variant(record, place, artefacts)
    except LibraryError:
        if not _is_at(folder, place):
            raise _Replaced from None
        raise
    finally:
        os.close(folder)


def _is_at(folder: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.lstat(place))
    except FileNotFoundError:
        return False


def read_record(place: Path, folder: int) -> Record:
    """Read and check the record in the open `folder` that stands at `place`. Raises LibraryError, or NoVariant."""
    path = place / RECORD_NAME
    try:
        with told("read", path):
            document = read_regular(RECORD_NAME, folder, MAX_RECORD_BYTES)
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NoVariant(f"{place} holds no {RECORD_NAME}: `generate` completes it") from None
        raise
    if len(document) > MAX_RECORD_BYTES:
        raise LibraryError(f"{path} is larger than {MAX_RECORD_BYTES} B: {way_out(place.parent)}")
    record = Record.parse(document, str(path), place.parent)
    if record.symbol != place.name:
        raise LibraryError(f"{path}: symbol is {record.symbol}, not its folder's name: {way_out(place.parent)}")
    return record


def read_artefact(place: Path, folder: int, record: Record, name: str) -> bytes:
    """Read a file of the open `folder` that stands at `place`. Raises LibraryError where it is not as recorded."""
    path, expected = place / name, record.files[name]
    try:
        with told("read", path):
            content = read_regular(name, folder, expected["bytes"])
    except LibraryError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise LibraryError(f"{path} is missing: {way_out(place.parent)}") from None
        raise
    if len(content) != expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise LibraryError(
            f"{path} is not the file that its record describes (SHA-256 differs): {way_out(place.parent)}"
        )
    return content
