"""Matrix products: the sizes and addresses that a kernel takes, and the words for everything else.

The tuples of words below define the layouts, types, biases and activations. Specs, records, `hgemm.h` and the checks use them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hgemm.dtypes import OUTPUTS, stored_dtype
from hgemm.epilogue import HASH_DIGITS, NONE
from hgemm.errors import RequestError, unknown_word

MAX_EXTENT = 2**31 - 1024
"""Largest m, n, k and batch. Kernels round up to a cluster of 4 tiles of 256 in 32-bit indices. hgemm.h has the same limit."""
PROBLEM_BYTES = 160
_LAYOUT = struct.Struct("<6Q4q5q4i2f2IiI")
AUX_BYTES = 32
_AUX = struct.Struct("<Qqqf4x")


@dataclass(frozen=True)
class Aux:
    """One input of a kernel's expression, as struct Aux of templates/common/expression.cuh.

    Units: `pointer` is a device address; strides count elements. A batch stride of 0 uses one input for the whole batch.
    Fields: a scalar without a pointer has this `value`.
    """

    pointer: int = 0
    leading: int = 0
    batch_stride: int = 0
    value: float = 0.0


BY_GPC = 1 << 16
"""Added to the absolute value of `raster_tiles`: each GPC of an idle H100 or H200 gets tiles that follow one another. Kernels with
clusters of two CTAs only; others ignore it.
"""


def legal_raster(raster_tiles: int) -> bool:
    """Return whether a launch takes this value of `raster_tiles`: a width from 1 to BY_GPC - 1, with or without BY_GPC."""
    return abs(raster_tiles) % BY_GPC > 0 and abs(raster_tiles) < 2 * BY_GPC


_RASTER = re.compile(r"(-?)([0-9]{1,5})(-by-gpc)?", re.ASCII)


def raster_text(raster_tiles: int) -> str:
    """Return a value of `raster_tiles` as commands show it, such as 8, -3 or -1-by-gpc."""
    width = abs(raster_tiles) % BY_GPC
    return f"{width if raster_tiles > 0 else -width}{'-by-gpc' if abs(raster_tiles) >= BY_GPC else ''}"


def parse_raster(text: str) -> int:
    """Return the value of `raster_tiles` that commands show as this text. Raises RequestError if no launch takes it."""
    match = _RASTER.fullmatch(text)
    found = (int(match[2]) + BY_GPC * bool(match[3])) * (-1 if match[1] else 1) if match else 0
    if not legal_raster(found) or raster_text(found) != text:
        raise RequestError(
            f"raster {text!a} is no order of tiles: use 8, -3 or -1-by-gpc, with widths of 1 to {BY_GPC - 1}"
        )
    return found


@dataclass(frozen=True)
class LaunchOptions:
    """Options of a launch, for kernels that leave them open: splits of k and order of tiles.

    Fields: `splits` is the number of CTAs that share the k of a tile. The first `whole_tiles` tiles of the batch are not
        split: use it for whole waves, so that only the last wave is split. With serial_parts, one CTA adds k of a whole tile
        in `splits` parts. `raster_tiles` is the number of rows of tiles in a group. If it is negative, its absolute value is the
        number of columns of tiles in a panel. This number is below BY_GPC. With BY_GPC added to the absolute value, each GPC
        gets tiles that follow one another in this order, if clusters have two CTAs.
    Units: `whole_tiles` and `raster_tiles` count tiles of whole clusters.
    """

    splits: int = 1
    whole_tiles: int = 0
    raster_tiles: int = 8

    def __str__(self) -> str:
        whole = f" after {self.whole_tiles} tiles" if self.whole_tiles else ""
        return f"splits={self.splits}{whole} raster={raster_text(self.raster_tiles)}"

    @property
    def width(self) -> int:
        """Rows of tiles in a group, or columns in a panel."""
        return abs(self.raster_tiles) % BY_GPC

    def text(self, splits: bool | int, raster: bool | int) -> str:
        """Return the options as text, with or without the splits and the raster."""
        of_splits, of_raster = str(self).rsplit(" ", 1)
        return " ".join([of_splits] * bool(splits) + [of_raster] * bool(raster))


@dataclass(frozen=True)
class Problem:
    """The argument of a kernel: D = activation(alpha * A B + beta * C + bias), `batch` times.

    The fields are those of templates/common/problem.cuh.

    Units: pointers are device addresses, 0 for none. Leading dimensions and batch strides count elements. A batch stride of 0
        uses one matrix for the whole batch.
    Fields: `bias_kind` and `options` matter to kernels that leave them to the launch. Without options, a launch takes the
        defaults (hgemm.dispatch_table.default_options). `aux` are the inputs of the kernel's expression, in its order. With
        `pointer_arrays`, a, b, c and d are arrays of addresses in device memory, one for each matrix of the batch. Their batch
        strides are ignored.
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
    bias_kind: str = "none"
    options: LaunchOptions | None = None
    aux: tuple[Aux, ...] = ()
    pointer_arrays: bool = False

    def pack(self) -> bytes:
        """Return what the kernel takes by value: PROBLEM_BYTES, and AUX_BYTES for each input of an expression."""
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
        options = self.options or LaunchOptions()
        at_launch = (
            options.splits,
            options.whole_tiles,
            options.raster_tiles,
            BIASES.index(self.bias_kind) if self.bias else 0,
        )
        packed = _LAYOUT.pack(*pointers, *leading, *strides, *sizes, self.alpha, self.beta, *at_launch)
        return packed + b"".join(_AUX.pack(one.pointer, one.leading, one.batch_stride, one.value) for one in self.aux)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


# ==== The words of a product ====

LAYOUTS = ("tn", "nn", "nt", "tt")
TYPES = ("f16", "bf16", "f32", "tf32")
"""Types of A and B as they are multiplied. D has any of them except tf32."""
ACCUMULATIONS = ("f32", "f16_promoted", "f16")
"""Accumulator types, the most exact first. A kernel also supports requests for a less exact accumulation."""
BIASES = ("none", "row", "column")
LAUNCH = "launch"
"""The value of a kernel's field that each launch decides: schedule, raster or bias."""


@dataclass(frozen=True)
class Activation:
    """An activation of the epilogue.

    Fields: hgemm.h shows `formula`. `is_long` tells that the device code has more than two instructions: kernels plan more
        registers for it, and its subtiles share one loop.
    """

    formula: str
    is_long: bool = False


ACTIVATION_TABLE = {
    "none": Activation("x"),
    "relu": Activation("max(x, 0)"),
    "gelu": Activation("x * (1 + erf(x / sqrt(2))) / 2", is_long=True),
    "silu": Activation("x / (1 + exp(-x))", is_long=True),
    "leaky_relu": Activation("x if x > 0, else 0.01 x"),
}
"""Activations by their word. Add new ones at the end: positions are numbers in hgemm.h.

docs/how-to/add-activation.md lists what else an activation needs.
"""
ACTIVATIONS = tuple(ACTIVATION_TABLE)
LONG_ACTIVATIONS = frozenset(word for word, activation in ACTIVATION_TABLE.items() if activation.is_long)

_WORDS = {
    "layout": LAYOUTS,
    "dtype_a": TYPES,
    "dtype_b": TYPES,
    "dtype_d": OUTPUTS,
    "acc": ACCUMULATIONS,
    "bias": (*BIASES, LAUNCH),
    "activation": ACTIVATIONS,
}
"""The fields of a kind in the order of their digits in `Kind.code`, the lowest first."""
REQUEST_WORDS = {**_WORDS, "bias": BIASES}
"""The words of the fields of a requested kind. Only kernels leave the bias to the launch."""
DIGIT_BITS = 4
EPILOGUE_SHIFT = DIGIT_BITS * len(_WORDS)
POINTER_ARRAYS = 1 << EPILOGUE_SHIFT + 4 * HASH_DIGITS + 1
"""The bit of kinds with pointer arrays, above the hash of an expression and its 1."""
_HASH = re.compile(rf"[0-9a-f]{{{HASH_DIGITS}}}")
ACC_SHIFT = DIGIT_BITS * list(_WORDS).index("acc")
ACC_MASK = (1 << DIGIT_BITS) - 1 << ACC_SHIFT
BIAS_SHIFT = DIGIT_BITS * list(_WORDS).index("bias")
BIAS_MASK = (1 << DIGIT_BITS) - 1 << BIAS_SHIFT
BIAS_AT_LAUNCH = len(BIASES) << BIAS_SHIFT
"""The digit of kernels that support every bias."""


@dataclass(frozen=True)
class Kind:
    """The kind of a product, which is all but its sizes: layout, types, accumulation, bias and activation, or an expression.

    Kernels with bias `launch` support every bias. `epilogue` is the hash of an expression (hgemm.epilogue). With `pointer_arrays`,
    pointer arrays give the matrices of a batch (see Problem).

    Raises: RequestError for an unknown word.
    """

    layout: str = "tn"
    dtype_a: str = "f16"
    dtype_b: str = "f16"
    dtype_d: str = "f16"
    acc: str = "f32"
    bias: str = "none"
    activation: str = "none"
    epilogue: str = NONE
    pointer_arrays: bool = False

    def __post_init__(self) -> None:
        if self.epilogue != NONE and not _HASH.fullmatch(self.epilogue):
            raise RequestError(f"epilogue {self.epilogue!a:.20} is not the hash of an expression")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise unknown_word(name, getattr(self, name), words)

    @classmethod
    def from_code(cls, code: int) -> Kind:
        """Return the kind that has this `code`."""
        digits = f"{(code & ~POINTER_ARRAYS) >> EPILOGUE_SHIFT:x}"[1:]
        words = {name: kind_word(code, name) for name in _WORDS}
        return cls(**words, epilogue=digits or NONE, pointer_arrays=bool(code & POINTER_ARRAYS))

    @cached_property
    def code(self) -> int:
        """The kind as one number, with DIGIT_BITS per field, and the hash of an expression above them."""
        digits = [words.index(getattr(self, name)) for name, words in _WORDS.items()]
        epilogue = 0 if self.epilogue == NONE else int(f"1{self.epilogue}", 16)  # the 1 keeps zeros
        above = epilogue << EPILOGUE_SHIFT | POINTER_ARRAYS * self.pointer_arrays
        return sum((digit << DIGIT_BITS * place for place, digit in enumerate(digits)), above)

    @property
    def words(self) -> dict[str, Any]:
        """The fields that a layer or a measurement names: all but `epilogue` and `pointer_arrays`."""
        return {name: getattr(self, name) for name in _WORDS}

    @property
    def cover_options(self) -> str:
        """The options of `hgemm cover` that request this kind. Its kernels accumulate in f32, which supports every `acc`."""
        types = self.dtype_a + (f" --out {self.dtype_d}" if self.dtype_d != stored_dtype(self.dtype_a) else "")
        extras = [f"--{name} {getattr(self, name)}" for name in ("bias", "activation") if getattr(self, name) != "none"]
        return " ".join([f"--dtype {types} --layout {self.layout}", *extras])

    def __str__(self) -> str:
        types = f"{self.layout} {self.dtype_a}" + (f"*{self.dtype_b}" if self.dtype_b != self.dtype_a else "")
        extras = [f"bias {self.bias}"] * (self.bias != "none") + [self.activation] * (self.activation != "none")
        extras += [f"epilogue {self.epilogue}"] * (self.epilogue != NONE) + ["pointer arrays"] * self.pointer_arrays
        return " ".join([f"{types}->{self.dtype_d} acc {self.acc}", *extras])


def unknown_kind_word(spec: Mapping[str, Any]) -> str:
    """Return the first field of a spec whose word no kind has, such as `activation 'tanh'`; "" if all are known."""
    return next(
        (f"{name} {spec[name]!a}" for name, words in _WORDS.items() if name in spec and spec[name] not in words), ""
    )


def kind_word(code: int, field: str) -> str:
    """Return one field of the kind that has this code."""
    return _WORDS[field][code >> DIGIT_BITS * list(_WORDS).index(field) & (1 << DIGIT_BITS) - 1]


def kind_supports(offered: int, requested: int) -> bool:
    """Return whether kernels of one kind compute another kind.

    All fields but `acc` and `bias` agree, `acc` is at least as exact, and `bias` agrees or is decided at the launch.
    """
    either = ACC_MASK | (BIAS_MASK if offered & BIAS_MASK == BIAS_AT_LAUNCH else 0)
    same = (offered ^ requested) & ~either == 0
    return same and (offered & ACC_MASK) <= (requested & ACC_MASK)
