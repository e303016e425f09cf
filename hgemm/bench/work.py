"""What is measured: one problem with its layout and types, and the group of a suite that it stands in."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from hgemm.cases import Shape
from hgemm.dtypes import DTYPES, OUTPUTS
from hgemm.errors import RequestError, unknown
from hgemm.facts import Facts
from hgemm.problem import MAX_EXTENT
from hgemm.schema import TEXT, fields, integer, text

LAYOUTS = ("tn", "nn", "nt", "tt")
ACCUMULATORS = ("f32", "f16", "f16_promoted")
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})(?::([0-9]{1,10}))?", re.ASCII)

MOST_PROBLEMS = 1_000_000
"""That the ranges of --m, --n and --k may name: a million take 4 s and 0.2 GiB to list, and more are taken for a slip."""

_EXTENT = integer(low=1, high=MAX_EXTENT)
_KINDS = {"layout": LAYOUTS, **{f"dtype_{name}": tuple(DTYPES) for name in "abd"}, "acc": ACCUMULATORS}
WORK = fields(
    {
        **dict.fromkeys(("m", "n", "k", "batch"), _EXTENT),
        **{name: text("|".join(values), f"one of {', '.join(values)}") for name, values in _KINDS.items()},
        "group": TEXT,
    }
)
"""What a problem is in documents that were kept: `Work.plain`."""


@dataclass(frozen=True)
class Work:
    """One problem, its operands dense: leading dimensions are the contiguous extents.

    Shapes: as in hgemm.facts.Facts, whose names `layout` and the types have.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "tn"
    dtype_a: str = "f16"
    dtype_b: str = "f16"
    acc: str = "f32"
    dtype_d: str = "f16"
    group: str = "shapes"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def weight_bytes(self) -> int:
        """Bytes of B, which a product of few rows cannot read less than once."""
        return self.n * self.k * self.batch * DTYPES[self.dtype_b].bytes

    @property
    def key(self) -> str:
        """Name the problem, not its group: what is measured once serves every group."""
        return f"{self.shape} {self.layout} {self.dtype_a} {self.dtype_b} {self.acc} {self.dtype_d}"

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.batch

    @property
    def shape(self) -> Shape:
        return Shape(self.m, self.n, self.k, self.batch)

    def fits(self, facts: Facts) -> bool:
        """Tell whether a variant computes such problems: the same layout and types, and a plain epilogue."""
        same = all(getattr(facts, name) == getattr(self, name) for name in _COMPARED)
        return same and facts.bias == "none" and facts.activation == "none"

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def transposed(self) -> Work:
        """The product whose D is this one's transposed: B^T A^T."""
        a = "t" if self.layout[1] == "n" else "n"
        b = "n" if self.layout[0] == "t" else "t"
        return replace(self, m=self.n, n=self.m, layout=a + b, dtype_a=self.dtype_b, dtype_b=self.dtype_a)


_COMPARED = ("layout", "dtype_a", "dtype_b", "acc", "dtype_d")


def checked(work: Work) -> Work:
    """Return the work. Raises RequestError where a layout, a type or an extent is unknown."""
    known = {"layout": LAYOUTS, "dtype_a": DTYPES, "dtype_b": DTYPES, "acc": ACCUMULATORS, "dtype_d": OUTPUTS}
    for name, values in known.items():
        if getattr(work, name) not in values:
            raise unknown(f"{work.group}: {name}", getattr(work, name), values)
    Shape.parse(str(work.shape))
    return work


def extents(text: str, name: str) -> list[int]:
    """Read 512, 512,1024 or 1024:4096:256 (the end included). Raises RequestError where that is malformed or too long."""
    found: list[int] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _RANGE.fullmatch(word)
        if match:
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            added = range(first, last + 1, step) if step else range(0)
        elif _NUMBER.fullmatch(word):
            added = range(int(word), int(word) + 1)
        else:
            raise RequestError(f"--{name} {word!a} is malformed: write 4096, 512,1024 or 1024:4096:256")
        _refuse_too_many(len(found) + len(added), f"--{name} {text!a}")
        found += added
    if not found or min(found) < 1:
        raise RequestError(f"--{name} {text!a} names no positive number: write 4096, 512,1024 or 1024:4096:256")
    return found


def grid(m: str, n: str, k: str, like: Work) -> list[Work]:
    """Return every combination of extents; where n or k is not given it is m's: squares. Raises RequestError as `extents` does."""
    all_rows = extents(m, "m")
    all_columns, all_depths = (extents(text, name) if text else [] for text, name in ((n, "n"), (k, "k")))
    _refuse_too_many(
        len(all_rows) * max(1, len(all_columns)) * max(1, len(all_depths)), "the ranges of --m, --n and --k"
    )
    return [
        replace(like, m=rows, n=columns, k=depth)
        for rows in all_rows
        for columns in all_columns or [rows]
        for depth in all_depths or [rows]
    ]


def _refuse_too_many(count: int, what: str) -> None:
    if count > MOST_PROBLEMS:
        raise RequestError(
            f"{what}: {count:,} problems are more than {MOST_PROBLEMS:,}: take larger steps, as in 1024:4096:256"
        )
