"""The variants of a library as data of a page: a row of the table each, and packs of what their own pages show."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from generator.drawing.picture import Pictures
from generator.errors import HgemmError
from generator.plan import plan_of
from generator.reporting.points import Point
from generator.spec import Spec
from hgemm.model.cards import usual_card
from hgemm.model.report import report
from hgemm.record import Record

COLUMNS = (
    ("symbol", "variant", "its symbol"),
    ("arch", "arch", "architecture"),
    ("layout", "layout", "BLAS letters of A and B"),
    ("dtype_a", "in", "type of A and B"),
    ("acc", "acc", "accumulator"),
    ("dtype_d", "out", "type of D"),
    ("cta_tile", "CTA tile", "m x n x k of a CTA"),
    ("mma", "mma", "tensor instruction"),
    ("stages", "stages", "k-tiles in shared memory"),
    ("schedule", "schedule", "which tiles a CTA computes"),
    ("registers", "registers", "a thread"),
    ("smem_bytes", "smem B", "bytes of shared memory a CTA"),
    ("ctas_per_sm", "CTAs/SM", "that live on an SM"),
    ("occupancy", "occupancy", "part of an SM's warps"),
    ("spill_bytes", "spills B", "bytes of registers in memory"),
    ("proof_bank_conflicts", "conflicts", "bank conflicts of a k-tile's reads"),
    ("proved", "proved", "shapes that it was run on on the CPU; 0: it has no such proof"),
    ("tflops", "TFLOP/s", "the most that was measured"),
    ("wins", "wins", "measured problems on which it was the fastest of ours"),
)
"""Name of the field, head of the column, and what it says."""
CHOSEN = ("arch", "layout", "dtype_a", "acc", "dtype_d", "cta_tile", "schedule")
"""Columns with a list of their values to choose from."""
PACK = 32
"""Variants that are compressed together: few enough to unpack at once, and enough to have much in common."""
_LEVEL = 9
_UNSHOWN = ("schema", "symbol", "inputs")


@dataclass(frozen=True)
class Entry:
    """A variant as it was read: its checked record, and its source."""

    record: Record
    source: str


def variants(entries: Sequence[Entry], points: Sequence[Point]) -> dict[str, Any]:
    """Return the data of the page's table and of the variants' own pages, as JSON values.

    Fields: `columns` and `rows` are the table's; `packs` and `pictures` are JSON texts, compressed (zlib) and in base64: the
        place of a variant is its row's, and what its page shows names pictures by theirs.
    """
    known = {entry.record.symbol: entry.record.key for entry in entries}
    measured = _measured(points, known)
    pictures = _Drawn()
    shown = [_shown(entry, measured.get(entry.record.symbol, []), pictures) for entry in entries]
    packs = (shown[at : at + PACK] for at in range(0, len(shown), PACK))
    return {
        "columns": [
            {"name": name, "head": head, "says": says, "choose": name in CHOSEN} for name, head, says in COLUMNS
        ],
        "rows": [_row(entry.record, measured.get(entry.record.symbol, [])) for entry in entries],
        "pack": PACK,
        "packs": [_packed(pack) for pack in packs],
        "pictures": [_packed(picture) for picture in pictures.places],
    }


@dataclass(frozen=True)
class _Time:
    """A variant on a problem: `ratio` is its speed over the baseline's fastest, and `won` that no other of ours was faster."""

    point: Point
    time_us: float
    won: bool

    @property
    def tflops(self) -> float:
        return self.point.tflops(self.time_us)

    def plain(self) -> dict[str, Any]:
        point, best_us = self.point, min(self.point.baseline_us.values(), default=None)
        kind = point.kind
        return {
            "problem": f"{point.work.shape}",
            "types": f"{kind.dtype_a} {kind.acc} {kind.dtype_d}",
            "us": round(self.time_us, 3),
            "tflops": round(self.tflops, 1),
            "of_cublaslt": None if best_us is None else round(best_us / self.time_us, 3),
            "fastest": "yes" if self.won else "",
            "state": point.state,
            "device": point.device,
            "date": point.date,
        }


def _measured(points: Iterable[Point], known: dict[str, str]) -> dict[str, list[_Time]]:
    """Return the times of each known variant; those of another kernel of its name, by the content key, are left out."""
    found: dict[str, list[_Time]] = {}
    for point in points:
        for symbol, time_us in point.times_us.items():
            if symbol in known and point.keys.get(symbol, known[symbol]) == known[symbol]:
                found.setdefault(symbol, []).append(_Time(point, time_us, symbol == point.ours))
    return found


def _row(record: Record, times: Sequence[_Time]) -> list[Any]:
    flat = {
        **record.flat(),
        "proved": len(record.data["proof"].get("shapes", ())),
        "tflops": round(max(time.tflops for time in times), 1) if times else None,
        "wins": sum(time.won for time in times) if times else None,
    }
    return [flat.get(name) for name, _, _ in COLUMNS]


# ---- A variant's own page -------------------------------------------------------------------------------------------


class _Drawn:
    """Pictures by their places in the page's list, each there once."""

    def __init__(self) -> None:
        self._pictures = Pictures()
        self.places: dict[str, int] = {}

    def of(self, record: Record) -> list[list[Any]]:
        """Return what each picture of a variant shows and its place; none where this version cannot plan its spec."""
        try:
            drawn = self._pictures.of(plan_of(Spec.from_dict(record.data["spec"])))
        except (HgemmError, ValueError, KeyError, TypeError):
            return []
        return [[says, self.places.setdefault(picture, len(self.places))] for says, picture in drawn]


def _shown(entry: Entry, times: Sequence[_Time], pictures: _Drawn) -> dict[str, Any]:
    data = entry.record.data
    return {
        "record": {name: value for name, value in data.items() if name not in _UNSHOWN},
        "source": entry.source,
        "pictures": pictures.of(entry.record),
        "model": _model(entry.record),
        "measured": [time.plain() for time in sorted(times, key=lambda time: (-time.tflops, time.point.date))],
    }


def _model(record: Record) -> dict[str, Any] | None:
    """Return what bounds a variant on its architecture's usual card, None where no table says."""
    card = usual_card(int("".join(filter(str.isdigit, record.arch))))
    try:
        told = report(record.data["spec"], record.data["resources"], card) if card else {}
    except (HgemmError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {
        name: value for name, value in told.items() if value is not None and name not in record.data["resources"]
    } or None


def _packed(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def read_entries(library: Any, symbols: Iterable[str]) -> Iterator[Entry | HgemmError]:
    """Yield each variant, its hashes checked, or the error that says why it cannot be trusted."""
    for symbol in symbols:
        try:
            variant = library.get(symbol)
            if variant is not None:
                yield Entry(variant.record, variant.source.decode("utf-8", "replace"))
        except HgemmError as error:
            yield error
