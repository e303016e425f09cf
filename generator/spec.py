"""The value types of a spec: small frozen things that know how they are written."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90, parse_arch
from generator.errors import RequestError, closest_words, unknown_word
from hgemm.errors import DeprecatedWord
from hgemm.record import current_spec, current_word


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
        raise unknown_word(what, text, ("auto", "none", "pad:H", "pad_alternate:H", "xor:B,M,S"))

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
        meant = "".join(f"did you mean {ways[word]}? " for word in closest_words(kind, ways))
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

    Those of `split_k:S` leave their sums in a workspace, those of `split_k_cluster:S` in the shared memory of their cluster. Those of
    `stream_k` take whole waves of tiles persistently, and share the k-tiles of the last one to two evenly, in a workspace.
    """

    plain: ClassVar[tuple[str, ...]] = ("one_tile", "persistent", "stream_k")
    sized: ClassVar[dict[str, tuple[str, str]]] = {
        "split_k": ("S", "2 to 64 parts, as split_k:4"),
        "split_k_cluster": ("S", "2 to 8 CTAs, as split_k_cluster:2"),
    }

    @property
    def splits(self) -> int:
        return self.size or 1

    @property
    def in_workspace(self) -> bool:
        """Tell whether sums of parts of a tile meet in a workspace."""
        return self.kind in ("split_k", "stream_k")


# ==== What is wanted of a kernel: the spec, field by field, and the request that leaves some fields open ====


@dataclass(frozen=True)
class Spec:
    """Every decision behind one kernel, computing D = activation(alpha * A B + beta * C + bias).

    Shapes: A (m, k), B (k, n), C and D (m, n), row-major D. `layout` names A and B in BLAS letters read
    column-major: A is `t` when k is contiguous and `n` when m is; B is `n` when k is contiguous and `t`
    when n is. Bias is a row (n,) or a column (m,) of D's type. The fields with defaults are those that only some kernels
    have a choice in; `swap_ab` multiplies B and A transposed, so that the n of an instruction runs along m, and
    `store_spacing` is how many tensor instructions part two stores of a staged copy (0: all follow the last one), and without
    `prefetch` such a copy loads a k-tile when the one before it is multiplied, and waits for it. `form` is in what the kernel
    is written: on CuTe's atoms alone, in CuTe's whole vocabulary, or in Python, as a module of CuTe DSL.
    """

    arch: str
    dtype_a: str
    dtype_b: str
    acc: str
    dtype_d: str
    layout: str
    cta_tile: Tile
    warp_tile: WarpTile
    mma: str
    stages: int
    fragment_stages: int
    copy: str
    smem_a: Smem
    smem_b: Smem
    mma_order: str
    raster: Raster
    schedule: Schedule
    ctas_per_sm: int
    beta: bool
    bias: str
    activation: str
    store: str
    align_a: int
    align_b: int
    align_d: int
    consumers: int = 0
    cooperation: str = "cooperative"
    cluster: Cluster = Cluster(1, 1)
    swap_ab: bool = False
    store_spacing: int = 0
    prefetch: bool = True
    smem_alloc: str = "dynamic"
    form: str = "atoms"

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return the fields as JSON scalars, which `parse_field` reads back."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if isinstance(value, (bool, int, str)) else str(value) for name, value in plain.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Spec:
        """Read what `to_dict` wrote, now or before a field with a default was added.

        Raises: RequestError for a missing, unknown or malformed field.
        """
        values = current_spec(values)
        missing = [field.name for field in fields(cls) if field.name not in values and field.default is MISSING]
        if missing:
            raise RequestError(f"spec lacks {', '.join(missing)}: name every field or plan them")
        return cls(**{name: parse_field(name, str(value)) for name, value in values.items()})

    def replace(self, **values: Any) -> Spec:
        """Return the spec with other values in some fields, as dataclasses.replace does, in a fraction of its time."""
        return Spec(**{**vars(self), **values})

    @property
    def family(self) -> str:
        """The family of the kernel, which the tensor instruction and the way of its operands decide."""
        return family_of(self.mma, self.copy)

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of A, and of B where a kernel takes them."""
        return DTYPE_BYTES[self.dtype_a]

    @property
    def a_k_major(self) -> bool:
        return self.layout[0] == "t"

    @property
    def b_k_major(self) -> bool:
        return self.layout[1] == "n"


HASH_DIGITS = 8
"""Digits of a spec's hash in a symbol."""


def spec_hash(spec: Spec) -> str:
    """Return the SHA-256 of a spec, in hexadecimal.

    A field that has the default of `Spec` is left out, so that a new field with a default changes no hash.
    """
    defaults = {field.name: field.default for field in fields(Spec)}
    values = {name: value for name, value in spec.to_dict().items() if getattr(spec, name) != defaults[name]}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Request = dict[str, Any]
"""The fields that a user set, by the names of `Spec`; the others are planned."""


FORMS = ("atoms", "cute", "dsl")
"""In what a kernel may be written, what can say the least last."""

WGMMA = "wgmma"
"""The instruction of a request that leaves its width to the tile; a spec says `m64n256k16`."""

WMMA = "wmma16"
"""Fragments of 16 x 16 x 16 that the compiler loads and multiplies by the instructions that an architecture has."""

_WGMMA_ATOM = re.compile(r"m64n(\d{1,3})k(?:16|8)", re.ASCII)


def family_of_mma(mma: str) -> str:
    """Return the family that a tensor instruction belongs to."""
    return WGMMA_SM90 if mma == WGMMA or mma.startswith("m64n") else MMA_SYNC


def family_of(mma: str, copy: str) -> str:
    """Return the family of kernels on a tensor instruction whose operands are copied so."""
    family = family_of_mma(mma)
    return MMA_SYNC_TMA if family == MMA_SYNC and copy == "tma" else family


Parser = Callable[[str, str], Any]
"""Returns the value of a text, the first argument; the second is what its errors call it."""


def _mma(text: str, what: str) -> str:
    if _WGMMA_ATOM.fullmatch(text.strip().lower()):
        return text.strip().lower()
    return _choice("m16n8k16", "m16n8k8", WMMA, WGMMA, "m64nNk16", "m64nNk8")(text, what)


def _choice(*words: str) -> Parser:
    def parse(text: str, what: str) -> str:
        if text.strip().lower() in words:
            return text.strip().lower()
        raise unknown_word(what, text, words)

    return parse


def _whole(low: int, high: int, readable: int = 0) -> Parser:
    """Parse a whole number; rules refuse those above `high`, by kernel, of which `readable` is the largest."""

    def parse(text: str, what: str) -> int:
        if text.strip().isdecimal() and low <= int(text) <= max(high, readable):
            return int(text)
        raise RequestError(f"{what} {text!a} is not a whole number from {low} to {high}")

    return parse


def _switch(text: str, what: str) -> bool:
    word = text.strip().lower()
    if word in ("on", "true", "yes", "1"):
        return True
    if word in ("off", "false", "no", "0"):
        return False
    raise unknown_word(what, text, ("on", "off"))


def _align(text: str, what: str) -> int:
    return int(_choice("8", "4", "2", "1")(text, what))


PARSERS: dict[str, Parser] = {
    "arch": parse_arch,
    "dtype_a": _choice("f16", "bf16", "tf32"),
    "dtype_b": _choice("f16", "bf16", "tf32"),
    "acc": _choice("f32", "f16", "f16_promoted"),
    "dtype_d": _choice("f16", "bf16", "f32"),
    "layout": _choice("tn", "nn", "nt", "tt"),
    "cta_tile": Tile.parse,
    "warp_tile": WarpTile.parse,
    "mma": _mma,
    "stages": _whole(1, 16, readable=64),
    "fragment_stages": _whole(1, 2, readable=8),
    "copy": _choice("cp_async", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned", "tma"),
    "smem_a": Smem.parse,
    "smem_b": Smem.parse,
    "mma_order": _choice("row", "zigzag"),
    "raster": Raster.parse,
    "schedule": Schedule.parse,
    "ctas_per_sm": _whole(1, 32),
    "beta": _switch,
    "bias": _choice("none", "row", "column"),
    "activation": _choice("none", "relu", "gelu", "silu"),
    "store": _choice("direct", "smem", "tma"),
    "align_a": _align,
    "align_b": _align,
    "align_d": _align,
    "consumers": _whole(0, 3),
    "cooperation": _choice("cooperative", "pingpong"),
    "cluster": Cluster.parse,
    "swap_ab": _switch,
    "store_spacing": _whole(0, 64),
    "prefetch": _switch,
    "smem_alloc": _choice("dynamic", "static"),
    "form": _choice(*FORMS),
}


def parse_field(name: str, text: str, called: str = "") -> Any:
    """Return the value of one field from its text; warn of renamed words.

    Raises: RequestError with the values that it takes, which names the field as it was `called`, such as by its option.
    """
    current = current_word(name, text)
    if current != text:
        deprecated(f"{called or name} {text}", current)
    return _parse_field(name, current, called)


def deprecated(old: str, new: str) -> None:
    """Warn that a word has a new name."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecatedWord, stacklevel=2)


@lru_cache(4096)
def _parse_field(name: str, text: str, called: str) -> Any:
    if name not in PARSERS:
        raise RequestError(f"spec has no field '{name}': the fields are {', '.join(PARSERS)}")
    return PARSERS[name](text, called or name)


DTYPE_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4}
"""Of an element in memory; tf32 are floats there, of whose digits the tensor cores take the upper ones."""
