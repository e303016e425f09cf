"""The value types of a spec: small frozen things that know how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from generator.errors import RequestError, nearest, unknown


def _integers(text: str, pattern: str, what: str, example: str) -> list[int]:
    """Return the integers of `text`, which must match `pattern` whole, or refuse it with an example; `what` is its name."""
    match = re.fullmatch(pattern, text.strip().lower())
    if not match:
        raise RequestError(f"{what} {text!a} is malformed: write it as {example}")
    return [int(group) for group in match.groups()]


@dataclass(frozen=True, order=True)
class Tile:
    """A CTA tile, in elements of D (m, n) and of the shared dimension (k)."""

    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str, what: str = "tile") -> Tile:
        return cls(*_integers(text, r"(\d{1,5})x(\d{1,5})x(\d{1,5})", what, "MxNxK, such as 128x128x32"))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, order=True)
class WarpTile:
    """The part of a CTA tile that one warp computes, in elements of D."""

    m: int
    n: int

    @classmethod
    def parse(cls, text: str, what: str = "warp_tile") -> WarpTile:
        return cls(*_integers(text, r"(\d{1,5})x(\d{1,5})", what, "MxN, such as 64x64"))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


@dataclass(frozen=True, order=True)
class Cluster:
    """CTAs that share operands: m of them down a column of tiles, which share B, and n along a row, which share A."""

    m: int
    n: int

    @classmethod
    def parse(cls, text: str, what: str = "cluster") -> Cluster:
        return cls(*_integers(text, r"([1-9]\d?)x([1-9]\d?)", what, "MxN, such as 2x1"))

    @property
    def ctas(self) -> int:
        return self.m * self.n

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


_PADDED = {"pad": "each", "pad_alternate": "every second"}


@dataclass(frozen=True, order=True)
class Smem:
    """The placement of one operand's tile in shared memory.

    `none` stores rows one after the other, `pad:H` leaves H elements after each row, `pad_alternate:H` after every
    second row, and `xor:B,M,S` XORs B bits of an element's offset, those from bit M, with the B bits S above them
    (the Swizzle<B, M, S> of CuTe, in elements of the operand).
    """

    kind: str
    parameters: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, what: str = "smem") -> Smem:
        kind, _, rest = text.strip().lower().partition(":")
        if kind == "none" and not rest:
            return cls("none")
        if kind in _PADDED:
            example = f"{kind}:8 (elements after {_PADDED[kind]} row)"
            return cls(kind, tuple(_integers(text, kind + r":(\d{1,3})", what, example)))
        if kind == "xor":
            found = _integers(text, r"xor:(\d),(\d{1,2}),(\d{1,2})", what, "xor:B,M,S, such as xor:2,3,3")
            return cls("xor", tuple(found))
        raise unknown(what, text, ("auto", "none", "pad:H", "pad_alternate:H", "xor:B,M,S"))

    @property
    def pad_elements(self) -> int:
        """Elements after each padded row."""
        return self.parameters[0] if self.kind in _PADDED else 0

    @property
    def row_pad(self) -> int:
        """Elements after every row."""
        return self.pad_elements if self.kind == "pad" else 0

    @property
    def pair_pad(self) -> int:
        """Elements after every second row."""
        return self.pad_elements if self.kind == "pad_alternate" else 0

    @property
    def has_one_pitch(self) -> bool:
        """Whether every row begins as far from the one before, and its elements follow one another."""
        return self.kind in ("none", "pad")

    @property
    def swizzle(self) -> tuple[int, int, int]:
        """(bits, base, shift), with no bits where nothing is XORed."""
        return self.parameters if self.kind == "xor" else (0, 3, 3)  # type: ignore[return-value]

    def __str__(self) -> str:
        return self.kind + (":" + ",".join(map(str, self.parameters)) if self.parameters else "")


@dataclass(frozen=True, order=True)
class _Sized:
    """A word with, for some words, a number after a colon: what stands for it in help, and what it counts, with an example."""

    kind: str
    size: int = 0

    plain: ClassVar[tuple[str, ...]] = ()
    sized: ClassVar[dict[str, tuple[str, str]]] = {}
    unserved: ClassVar[dict[str, str]] = {}

    @classmethod
    def parse(cls, text: str, what: str):
        kind, colon, rest = text.strip().lower().partition(":")
        if kind in cls.plain and not colon:
            return cls(kind)
        if kind in cls.sized and re.fullmatch(r"\d{1,6}", rest) and int(rest) >= 1:
            return cls(kind, int(rest))
        if kind in cls.unserved:
            raise RequestError(f"{what} '{kind}' is not served yet: use {cls.unserved[kind]}")
        if kind in cls.plain:
            raise RequestError(f"{what} '{text}': {kind} takes no number")
        if kind in cls.sized:
            raise RequestError(f"{what} '{text}': {kind} takes {cls.sized[kind][1]}")
        ways = {word: word for word in cls.plain} | {
            word: f"{word}:{number}" for word, (number, _) in cls.sized.items()
        }
        meant = "".join(f"did you mean {ways[word]}? " for word in nearest(kind, ways))
        raise RequestError(f"{what} {text!a} is unknown: {meant}use {', '.join(ways.values())}")

    def __str__(self) -> str:
        return self.kind + (f":{self.size}" if self.size else "")


@dataclass(frozen=True, order=True)
class Raster(_Sized):
    """Which CTA computes which tile: `row`, `column`, `group:TILES` (rows of tiles), `panel:COLUMNS` (of D)."""

    plain: ClassVar[tuple[str, ...]] = ("row", "column")
    sized: ClassVar[dict[str, tuple[str, str]]] = {
        "group": ("TILES", "1 or more rows of tiles, as group:8"),
        "panel": ("COLUMNS", "columns of D, as panel:1024"),
    }
    unserved: ClassVar[dict[str, str]] = {"hilbert": "group:TILES"}


@dataclass(frozen=True, order=True)
class Schedule(_Sized):
    """How CTAs take work: one tile each, persistently, or S CTAs a tile along k.

    Those of `split_k:S` leave their sums in a workspace, those of `cluster_k:S` in the shared memory of their cluster. Those of
    `stream_k` take whole waves of tiles persistently, and share the k-tiles of the last one to two evenly, in a workspace.
    """

    plain: ClassVar[tuple[str, ...]] = ("one_tile", "persistent", "stream_k")
    sized: ClassVar[dict[str, tuple[str, str]]] = {
        "split_k": ("S", "2 to 64 parts, as split_k:4"),
        "cluster_k": ("S", "2 to 8 CTAs, as cluster_k:2"),
    }

    @property
    def splits(self) -> int:
        return self.size or 1

    @property
    def in_workspace(self) -> bool:
        """Tell whether sums of parts of a tile meet in a workspace."""
        return self.kind in ("split_k", "stream_k")
