"""Where libraries are: the default one, that of an installed wheel, and the option that names another one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hgemm.errors import LibraryError, RequestError
from hgemm.object_cache import cache_base

LIBRARY_VARIABLE = "HGEMM_LIBRARY"
CHECKOUT_LIBRARY = "emitted"
"""The library of a checkout. Before 0.1.0, commands used a folder of this name in any current folder."""
CHECKOUT_LOCK = "catalog.lock"
"""The file in `emitted` that tells a checkout from an installed package."""
_ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the folder that the package is installed in."""
PACKAGE = "hgemm_kernels"
"""The package of a wheel with compiled kernels."""


def default_library(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the default library, which may not exist yet.

    The first of these: HGEMM_LIBRARY; `emitted` in the checkout that this package is part of; `hgemm/library` in the user's data
    folder, which is XDG_DATA_HOME or ~/.local/share. A package is part of a checkout if `emitted/catalog.lock` is beside it.
    The path is relative if the checkout is the current folder. If only the older default exists, `library` in the user's cache
    folder, the path is that one.

    Raises: LibraryError if no variable names a folder, and the user has no home.
    """
    known = os.environ if environment is None else environment
    if named := known.get(LIBRARY_VARIABLE):
        return Path(named)
    if (_ROOT / CHECKOUT_LIBRARY / CHECKOUT_LOCK).is_file():
        return (Path() if _is_current(_ROOT) else _ROOT) / CHECKOUT_LIBRARY
    try:
        data = Path(known.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:  # a container's user may have none
        raise LibraryError(
            f"this user has no home folder for the library: set {LIBRARY_VARIABLE} to a folder of your own"
        ) from None
    usual = data.absolute() / "hgemm" / "library"
    with suppress(LibraryError):
        older = cache_base(known) / "library"
        if older.is_dir() and not usual.exists():
            return older
    return usual


def _is_current(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except OSError:  # the current folder was removed
        return False


def existing_library() -> Path:
    """Return the default library if it exists or HGEMM_LIBRARY names it, else that of the wheel hgemm-kernels, if any."""
    default = default_library()
    found = find_spec(PACKAGE)
    if default.exists() or os.environ.get(LIBRARY_VARIABLE) or found is None or not found.submodule_search_locations:
        return default
    return Path(found.submodule_search_locations[0]) / "library"


def named_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a library that a caller names. Raises: RequestError for "", which would be the current folder."""
    if os.fspath(path) == "":
        raise RequestError("the path of the library is empty: pass a folder, or None for the default library")
    return Path(path)


# ==== Commands that a message suggests ====


def library_suffix(library: Path | None) -> str:
    """Return the --library option that a suggested command needs. It is empty for the default library, and for None."""
    with suppress(LibraryError):
        if library is None or library.absolute() == default_library().absolute():
            return ""
    return f" --library {shlex.quote(str(library))}"


def regenerate_hint(library: Path | None) -> str:
    """Return what to do about a damaged kernel of a library."""
    return f"build it again, or remove it with `hgemm gc{library_suffix(library)}`"


def missing_hint(library: Path) -> str:
    """Return what to do if there is no library at a path."""
    if not (library_suffix(library) or os.environ.get(LIBRARY_VARIABLE)) and Path(CHECKOUT_LIBRARY).is_dir():
        return f"name the folder `{CHECKOUT_LIBRARY}`, the default of older versions, or run `generate`"
    return "run `generate` first, or name another folder"
