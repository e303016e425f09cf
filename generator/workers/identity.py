"""What a machine builds variants from and with, so that machines that differ are told apart before they work together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from generator import __version__
from generator.compile import versions
from generator.toolchain import templates_folder

_PACKAGES = ("generator", "hgemm")
_SHOWN_DIGITS = 12


@cache
def identity() -> dict[str, str]:
    """Return the versions of this package and of the compilers, and the hashes of this package's sources and templates.

    Raises: HgemmError where a wheel is missing.
    """
    root, templates = Path(__file__).resolve().parents[2], templates_folder()
    sources = (path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    return {
        "generator": __version__,
        "sources": _hash_of(sources, root),
        "templates": _hash_of((path for path in templates.rglob("*") if path.is_file()), templates),
        **versions(),
    }


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Say in what two identities differ, or nothing."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return ", ".join(f"{name} {_short(there, name)} there, {_short(here, name)} here" for name in names)


def _short(found: Mapping[str, str], name: str) -> str:
    return found.get(name, "none")[:_SHOWN_DIGITS]


def _hash_of(paths: Iterable[Path], root: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(f"{path.relative_to(root).as_posix()}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
