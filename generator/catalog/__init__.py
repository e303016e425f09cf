"""The catalog: the shipped kernels, as data. Each group is a spec file in this folder; further groups are in `extra`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from generator.arch import ARCHS, parse_arch_list
from generator.build.emit import EmittedKernel, emit
from generator.build.toolchain import templates_folder
from generator.errors import RequestError
from generator.spec import Texts, spec_hash
from generator.store.files import disk_errors, write_folder
from generator.store.library import is_ours
from generator.sweep import read_spec_file, sweep
from hgemm.disk import write_atomically
from hgemm.locations import CHECKOUT_LOCK as LOCK

FOLDER = Path(__file__).resolve().parent
EXTRA = FOLDER / "extra"
"""Groups that are not in the catalog: `all` leaves them out, and nothing proves them before a release."""
ALL = "all"
GOLDEN = "golden.toml"
HASH_DIGITS = 16
LOCK_HEADER = f"""\
# The kernels of the catalog: symbol, and the first {HASH_DIGITS} digits of the SHA-256 of its spec and of its source.
# `make catalog` writes this file.
"""


def group_names() -> tuple[str, ...]:
    """Return the names of the groups of the catalog, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def extra_names() -> tuple[str, ...]:
    """Return the names of the groups that `all` leaves out, in alphabetical order."""
    return tuple(sorted(path.stem for path in EXTRA.glob("*.toml")))


def complete(begun: str) -> list[str]:
    """Return the words of --catalog that begin with `begun`."""
    return [name for name in (ALL, *group_names(), *extra_names()) if name.startswith(begun)]


def load_catalog(names: Sequence[str] = (ALL,), without: Sequence[str] = ()) -> list[Texts]:
    """Return the requests of the named groups, each group once.

    `all` names every group of the catalog except those in `without`.
    Raises: RequestError for an unknown name, or if no group is named.
    """
    known, extra = group_names(), extra_names()
    named = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    unknown = [name for name in named if name not in (ALL, *known, *extra)]
    if unknown or not named:
        problem = f"has no group {unknown[0]!a}" if unknown else "names no group"
        groups = f"the groups are {', '.join(known)}, {', '.join(extra)}. '{ALL}' means all of these except {', '.join(extra)}"
        raise RequestError(f"--catalog {problem}: {groups}")
    chosen = [name for name in named if name != ALL]
    if ALL in named:
        chosen = [*(name for name in known if name not in without), *(name for name in chosen if name in extra)]
    folders = {**dict.fromkeys(known, FOLDER), **dict.fromkeys(extra, EXTRA)}
    return [texts for name in chosen for texts in read_spec_file(folders[name] / f"{name}.toml")]


def for_older_chips(names: Sequence[str]) -> list[str]:
    """Return the groups for chips without cp.async that only `all` names."""
    if ALL not in names:
        return []
    return [name for name in group_names() if name not in names and not _has_cp_async(load_catalog([name]))]


def _has_cp_async(group: Sequence[Texts]) -> bool:
    return any(ARCHS[arch].has_cp_async for texts in group for arch in parse_arch_list(texts["arch"]))


def catalog_kernels() -> list[EmittedKernel]:
    """Emit every kernel of the catalog. Nothing is compiled."""
    templates = templates_folder()
    return [emit(plan, templates) for plan in sweep(load_catalog()).plans]


def golden_kernels(folder: Path) -> list[EmittedKernel]:
    """Emit the kernels that `golden.toml` in a folder names: one of each family and form. Without that file there are none."""
    file = folder / GOLDEN
    if not file.is_file():
        return []
    templates = templates_folder()
    return [emit(plan, templates) for plan in sweep(read_spec_file(file)).plans]


def lock_text(kernels: Iterable[EmittedKernel]) -> str:
    """Return the text of a lock file: one line per kernel with its symbol and the hashes of its spec and source."""
    return LOCK_HEADER + "".join(
        f"{kernel.symbol} {spec_hash(kernel.plan.spec)[:HASH_DIGITS]} {_hash(kernel.source)}\n" for kernel in kernels
    )


def read_lock(text: str) -> dict[str, tuple[str, str]]:
    """Return the hashes of spec and source by symbol."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {symbol: (spec, source) for symbol, spec, source in rows}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def write_lock(folder: Path, kernels: Iterable[EmittedKernel]) -> bool:
    """Write the lock file of kernels to a folder. Return whether it changed. Raises: LibraryError if the disk fails."""
    place, text = folder / LOCK, lock_text(kernels)
    with disk_errors("write", place):
        if place.is_file() and place.read_text(encoding="ascii") == text:
            return False
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(place, text.encode(), "FOLDER")
    return True


def write_sources(folder: Path, kernels: Iterable[EmittedKernel]) -> list[Path]:
    """Write the sources that differ from those in the library `folder`. Return the paths written.

    Files that were built from another source are removed. Raises: LibraryError if the disk fails.
    """
    written = []
    for kernel in kernels:
        place, name = folder / kernel.symbol, kernel.source_name
        text = kernel.source.encode()
        with disk_errors("write", place):
            if (place / name).is_file() and (place / name).read_bytes() == text:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            write_folder(place, {name: text}, is_ours)
        written.append(place / name)
    return written
