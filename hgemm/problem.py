"""One matrix product as a kernel takes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from hgemm.dtypes import OUTPUTS, stored_dtype
from hgemm.errors import unknown_word

MAX_EXTENT = 2**31 - 1024
"""Largest m, n, k and batch: 32-bit indices run past the edge by less than the tiles of a cluster, 4 of at most 256.

The C library has the same bound; how many batches launch depends on their CTA tiles, too.
"""
PROBLEM_BYTES = 144
_LAYOUT = struct.Struct("<6Q4q5q4i2f")


@dataclass(frozen=True)
class Problem:
    """D = activation(alpha * A B + beta * C + bias), `batch` times, as templates/common/problem.cuh declares it.

    Units: pointers are device addresses, 0 for none; leading dimensions and batch strides are elements; a batch stride
        of 0 uses one matrix for all.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    bias: int = 0
    workspace: int = 0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    batch_stride_a: int = 0
    batch_stride_b: int = 0
    batch_stride_c: int = 0
    batch_stride_d: int = 0
    batch_stride_bias: int = 0
    alpha: float = 1.0
    beta: float = 0.0

    def pack(self) -> bytes:
        """Return the 144 bytes that the kernel takes by value."""
        pointers = (self.a, self.b, self.c, self.d, self.bias, self.workspace)
        leading = (self.lda, self.ldb, self.ldc, self.ldd)
        strides = (
            self.batch_stride_a,
            self.batch_stride_b,
            self.batch_stride_c,
            self.batch_stride_d,
            self.batch_stride_bias,
        )
        sizes = (self.m, self.n, self.k, self.batch)
        return _LAYOUT.pack(*pointers, *leading, *strides, *sizes, self.alpha, self.beta)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


# ==== What a product computes beside its sizes ====


LAYOUTS = ("tn", "nn", "nt", "tt")
TYPES = ("f16", "bf16", "f32", "tf32")
"""Of A and B as they are multiplied: tf32 is stored as f32. D has any but that."""
ACCUMULATIONS = ("f32", "f16_promoted", "f16")
"""From the most exact to the least; a variant serves what asks for its own accumulation or a less exact one."""
BIASES = ("none", "row", "column")
ACTIVATIONS = ("none", "relu", "gelu", "silu")

_WORDS = {
    "layout": LAYOUTS,
    "dtype_a": TYPES,
    "dtype_b": TYPES,
    "dtype_d": OUTPUTS,
    "acc": ACCUMULATIONS,
    "bias": BIASES,
    "activation": ACTIVATIONS,
}
"""The fields of a kind in the order of their digits, the lowest first."""
DIGIT_BITS = 4
ACC_SHIFT = DIGIT_BITS * list(_WORDS).index("acc")
ACC_MASK = (1 << DIGIT_BITS) - 1 << ACC_SHIFT


@dataclass(frozen=True)
class Kind:
    """The kind of a product: D = activation(alpha * A B + beta * C + bias) in these types and this layout.

    Raises: RequestError, naming the words there are, for one that is unknown.
    """

    layout: str = "tn"
    dtype_a: str = "f16"
    dtype_b: str = "f16"
    dtype_d: str = "f16"
    acc: str = "f32"
    bias: str = "none"
    activation: str = "none"

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise unknown_word(name, getattr(self, name), words)

    @classmethod
    def of_code(cls, code: int) -> Kind:
        """Return the kind of a number that `code` gave."""
        return cls(**{name: kind_word(code, name) for name in _WORDS})

    @cached_property
    def code(self) -> int:
        """Return the kind as one number, a digit of 4 bits a field."""
        digits = [words.index(getattr(self, name)) for name, words in _WORDS.items()]
        return sum(digit << DIGIT_BITS * place for place, digit in enumerate(digits))

    @property
    def cover_options(self) -> str:
        """Write the options of `hgemm cover` that ask for the kind; what it makes accumulates in f32, which serves all."""
        types = self.dtype_a + (f":{self.dtype_d}" if self.dtype_d != stored_dtype(self.dtype_a) else "")
        extras = [f"--{name} {getattr(self, name)}" for name in ("bias", "activation") if getattr(self, name) != "none"]
        return " ".join([f"--types {types} --layout {self.layout}", *extras])

    def __str__(self) -> str:
        types = f"{self.layout} {self.dtype_a}" + (f"*{self.dtype_b}" if self.dtype_b != self.dtype_a else "")
        extras = [f"bias {self.bias}"] * (self.bias != "none") + [self.activation] * (self.activation != "none")
        return " ".join([f"{types}->{self.dtype_d} acc {self.acc}", *extras])


def kind_word(code: int, field: str) -> str:
    """Return one field of a kind from its code."""
    return _WORDS[field][code >> DIGIT_BITS * list(_WORDS).index(field) & (1 << DIGIT_BITS) - 1]


def kind_supports(offered: int, wanted: int) -> bool:
    """Tell whether variants of one kind's code compute what another asks for: the same, as exactly or more."""
    same = (offered ^ wanted) & ~ACC_MASK == 0
    return same and (offered & ACC_MASK) <= (wanted & ACC_MASK)
