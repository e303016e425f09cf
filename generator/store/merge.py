"""Several libraries to one: every variant once, no two of one name that differ, and every measurement."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.errors import LibraryError
from generator.store.disk import told
from generator.store.library import Library
from generator.store.measurements import join
from hgemm.disk import require_writable
from hgemm.variants import read_variant, require, scan

Tell = Callable[[str, str, float], None]
"""Told of each variant its symbol, `added`, `replaced` or `present`, and the seconds that it took."""

_LOG = logging.getLogger(__name__)
_MAX_SHOWN = 20
_KEY_DIGITS = 16


@dataclass(frozen=True)
class Merged:
    """How many variants were added, took the place of one without a proof, or were there; and how many measurements were added."""

    library: Path
    added: int
    replaced: int
    present: int
    measurements: int


@dataclass(frozen=True)
class _Found:
    """A sound variant of one library."""

    library: Path
    key: str
    proved: bool


def merge(sources: Sequence[Path], target: Path, tell: Tell) -> Merged:
    """Add to `target`, which may be one of them, what the libraries at `sources` hold.

    All are read and checked, with every hash, before anything is written. What a stopped run has added is present in the next.
    Raises: LibraryError where a source is damaged, or variants of one symbol have different content keys.
    """
    folders = _once(sources)
    measurements = join((folder for folder in folders if not _same(folder, target)), target)
    found = _sound_of_target(target)
    for folder in folders:
        if not _same(folder, target):
            for symbol in sorted(scan(folder)):
                found.setdefault(symbol, []).append(_check(folder, symbol))
    _refuse_conflicts(found)
    with told("write", target, "--to"):
        target.mkdir(parents=True, exist_ok=True)
    require_writable(target, "--to")
    library, counts = Library(target), dict.fromkeys(("added", "replaced", "present"), 0)
    for symbol, candidates in sorted(found.items()):
        start = time.perf_counter()
        best = next((one for one in candidates if one.proved), candidates[0])
        status = "present" if best.library == target else "replaced" if candidates[0].library == target else "added"
        if status != "present":
            _copy(best, symbol, library)
        counts[status] += 1
        tell(symbol, status, time.perf_counter() - start)
    measurements.write(target)
    return Merged(target, **counts, measurements=measurements.timings)


def _once(sources: Iterable[Path]) -> list[Path]:
    """Return the folders without those that are named again. Raises: LibraryError where one does not exist."""
    kept: list[Path] = []
    for folder in sources:
        require(folder)
        if not any(_same(folder, other) for other in kept):
            kept.append(folder)
    return kept


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _check(folder: Path, symbol: str) -> _Found:
    """Read a variant with all its hashes. Raises: LibraryError where it cannot be trusted."""
    record = read_variant(folder, symbol).record
    return _Found(folder, record.key, "executor" in record.data["proof"])


def _sound_of_target(target: Path) -> dict[str, list[_Found]]:
    """Return what the target has already; what is damaged there counts as missing."""
    found: dict[str, list[_Found]] = {}
    for symbol in sorted(scan(target)) if target.exists() else ():
        try:
            found[symbol] = [_check(target, symbol)]
        except LibraryError as error:
            _LOG.warning("%s counts as missing: %s", symbol, error)
    return found


def _refuse_conflicts(found: dict[str, list[_Found]]) -> None:
    """Raises: LibraryError that names each symbol with different keys, the keys, and where they are."""
    lines = []
    for symbol, candidates in sorted(found.items()):
        keys = {candidate.key: candidate.library for candidate in reversed(candidates)}
        if len(keys) > 1:
            places = [f"{key[:_KEY_DIGITS]} in {keys[key]}" for key in sorted(keys, key=lambda key: str(keys[key]))]
            lines.append(f"  {symbol}: key {', '.join(places)}")
    if lines:
        more = [f"  and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
        raise LibraryError(
            "\n".join(
                [
                    f"{len(lines)} variants were made from different inputs in different libraries, and nothing is written: "
                    "make them all with one version of the generator, or leave a library out",
                    *lines[:_MAX_SHOWN],
                    *more,
                ]
            )
        )


def _copy(found: _Found, symbol: str, library: Library) -> None:
    variant = read_variant(found.library, symbol)
    if variant.record.key != found.key:
        raise LibraryError(f"{variant.folder} was replaced meanwhile: run this again when the other run is done")
    library.publish(variant.record.data, variant.artefacts)
