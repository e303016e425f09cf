"""What is wanted of a kernel: the spec, field by field, and the request that leaves some fields open."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any

from generator.arch import MMA_SYNC, MMA_SYNC_TMA, WGMMA_SM90, parse_arch
from generator.errors import RequestError, unknown
from generator.values import Cluster, Raster, Schedule, Smem, Tile, WarpTile


@dataclass(frozen=True)
class Spec:
    """Every decision behind one kernel, computing D = activation(alpha * A B + beta * C + bias).

    Shapes: A (m, k), B (k, n), C and D (m, n), row-major D. `layout` names A and B in BLAS letters read
    column-major: A is `t` when k is contiguous and `n` when m is; B is `n` when k is contiguous and `t`
    when n is. Bias is a row (n,) or a column (m,) of D's type. The fields with defaults are those that only some kernels
    have a choice in; `swapped` multiplies B and A transposed, so that the n of an instruction runs along m, and
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
    swapped: bool = False
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
        missing = [field.name for field in fields(cls) if field.name not in values and field.default is MISSING]
        if missing:
            raise RequestError(f"spec lacks {', '.join(missing)}: name every field or plan them")
        return cls(**{name: parse_field(name, str(value)) for name, value in values.items()})

    def having(self, **values: Any) -> Spec:
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
        raise unknown(what, text, words)

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
    raise unknown(what, text, ("on", "off"))


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
    "copy": _choice("cp_async", "vector", "scalar", "shifted", "tma"),
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
    "swapped": _switch,
    "store_spacing": _whole(0, 64),
    "prefetch": _switch,
    "smem_alloc": _choice("dynamic", "static"),
    "form": _choice(*FORMS),
}


@lru_cache(4096)
def parse_field(name: str, text: str, called: str = "") -> Any:
    """Return the value of one field from its text.

    Raises: RequestError with the values that it takes, which names the field as it was `called`, such as by its option.
    """
    if name not in PARSERS:
        raise RequestError(f"spec has no field '{name}': the fields are {', '.join(PARSERS)}")
    return PARSERS[name](text, called or name)


DTYPE_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4}
"""Of an element in memory; tf32 are floats there, of whose digits the tensor cores take the upper ones."""
