"""What is kept of a variant that did not compile: its source and the compiler's whole log, until it does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from generator.errors import BuildError
from generator.store.disk import told
from generator.store.whole import write_folder
from hgemm.record import SOURCE_NAMES
from hgemm.variants import is_symbol

FAILED_NAME = "failed"
LOG_NAME = "compile.log"


def keep_failure(library: Path, source: str, source_name: str, error: BuildError) -> BuildError:
    """Write `<library>/failed/<symbol>/` and return the error with the paths of what lies there.

    Raises: LibraryError where the folder cannot be written.
    """
    place = library / FAILED_NAME / error.symbol
    with told("write", place):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_folder(place, {source_name: source.encode(), LOG_NAME: error.log.encode()}, lambda name: True)
    return BuildError(error.symbol, error.log, place / source_name, place / LOG_NAME)


def forget_failure(library: Path, symbol: str) -> None:
    """Remove what an earlier run kept of a variant that now compiles."""
    place = library / FAILED_NAME / symbol
    if _is_kept(place):
        for name in (*SOURCE_NAMES, LOG_NAME):
            with suppress(OSError):
                (place / name).unlink()
        with suppress(OSError):  # others have failed too, and stay
            place.rmdir()
            place.parent.rmdir()


def failures_of(library: Path) -> list[Path]:
    """Return the folders of what is kept, by name; others that lie there are the user's."""
    return sorted(filter(_is_kept, library.glob(f"{FAILED_NAME}/*")))


def _is_kept(place: Path) -> bool:
    """Tell whether a folder is one that `keep_failure` wrote, with nothing else in it and no link on the way."""
    if place.parent.is_symlink() or place.is_symlink() or not place.is_dir() or not is_symbol(place.name):
        return False
    return {entry.name for entry in place.iterdir()} <= {*SOURCE_NAMES, LOG_NAME}
