"""The folder of one variant, written whole."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from generator.errors import LibraryError
from generator.store.disk import told
from generator.store.whole import write_folder
from hgemm.record import ARTEFACTS, MODULE_NAME, RECORD_NAME, Record
from hgemm.record import dump as dump_record
from hgemm.variants import check_symbol, stamp_of


def is_ours(name: str) -> bool:
    """Tell whether a file of this name in a variant's folder was written by the generator."""
    return name in (RECORD_NAME, MODULE_NAME, *ARTEFACTS)


def write_variant(library: Path, data: dict[str, Any], artefacts: Mapping[str, bytes]) -> tuple[Record, str]:
    """Write a variant whole, replacing one of its name, and return its record and stamp.

    Raises: LibraryError where the record is malformed, does not describe the artefacts, or cannot be written.
    """
    record = Record.parse(dump_record(data), f"the record of {ascii(data.get('symbol'))[:80]}")
    place = library / check_symbol(record.symbol)
    if sorted(record.files) != sorted(artefacts):
        raise LibraryError(f"{record.symbol}: record names {sorted(record.files)}, given were {sorted(artefacts)}")
    for name, content in artefacts.items():
        if record.files[name]["sha256"] != hashlib.sha256(content).hexdigest():
            raise LibraryError(f"{record.symbol}: the record has another SHA-256 than {name}: describe what is given")
    with told("write", place):
        library.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "a file stands where a folder is needed")
        written = write_folder(place, {**artefacts, RECORD_NAME: record.dump().encode()}, is_ours)
    return record, stamp_of(written[RECORD_NAME])
