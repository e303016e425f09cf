"""Compare the bits of tensor-core instructions with a model of their arithmetic.

\b
    python -m benchmarks.tensor_core_bits run --save bits.npz        # needs a GPU and cuda-bindings; 20 s
    python -m benchmarks.tensor_core_bits judge bits.npz             # no GPU: which parameters agree best
    python -m benchmarks.tensor_core_bits compile sm_90a             # no GPU: the kernels compile

`run` executes one instruction on thousands of random and adversarial operands. It compares each result with the model, bit by
bit, and prints the first mismatches of each kind of data. `--save` keeps the device's results; the operands follow from the seed.
With `--scan mismatch`, it tries other parameters of the model, one at a time, and prints how many results differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region

SOURCE = Path(__file__).with_suffix(".cu")
SEED = 22

# ==== Number formats ====


@dataclass(frozen=True)
class Format:
    """A binary floating-point format. Units: bits. `spare_bits` are the low bits of a word that the hardware ignores."""

    fraction_bits: int
    exponent_bits: int
    storage: type
    spare_bits: int = 0

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self) -> int:
        return 1 - self.bias

    @property
    def infinity(self) -> int:
        """The bits of infinity, without the spare ones."""
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.fraction_bits)


FORMATS = {
    "f16": Format(10, 5, np.uint16),
    "bf16": Format(7, 8, np.uint16),
    "tf32": Format(10, 8, np.uint32, spare_bits=13),
    "f32": Format(23, 8, np.uint32),
}
NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
"""What tensor cores write for every NaN. Source: MMA-Sim (see `Arithmetic`)."""


@dataclass(frozen=True)
class Numbers:
    """Decoded numbers. The value is `significand * 2**(exponent - fraction_bits)`; subnormals have the least exponent."""

    significand: np.ndarray
    exponent: np.ndarray
    special: np.ndarray
    """NaN, infinities with their sign, or 0 for a finite number."""
    fraction_bits: int


def decode(bits: np.ndarray, name: str) -> Numbers:
    form = FORMATS[name]
    words = bits.astype(np.int64) >> form.spare_bits
    negative = (words & form.sign) != 0
    magnitude = words & (form.sign - 1)
    field = magnitude >> form.fraction_bits
    fraction = magnitude & ((1 << form.fraction_bits) - 1)
    significand = np.where(field > 0, fraction + (1 << form.fraction_bits), fraction)
    finite = magnitude < form.infinity
    special = np.where(finite, 0.0, np.where(magnitude == form.infinity, np.inf, np.nan))
    return Numbers(
        np.where(negative, -significand, significand) * finite,
        np.maximum(field, 1) - form.bias,
        np.where(negative, -special, special),
        form.fraction_bits,
    )


# ==== The model ====

NEVER = -(1 << 20)
"""An exponent below all others."""


@dataclass(frozen=True)
class Arithmetic:
    """How a tensor core adds products to an accumulator.

    In each step, it multiplies exactly, aligns the products and the accumulator to the largest exponent, keeps
    `fraction_bits` below it, adds, and rounds the sum to the accumulator's type.

    Fields: `step` products are added at once; `strided` takes every (k / step)-th product instead of neighbours.
        `align` is how a term loses its low bits, `output` how a sum does: zero, nearest (ties to even), down, or via_f32
        (truncated to 24 bits, then rounded to nearest). None means that f32 sums are truncated and f16 sums are
        rounded to nearest.
        `normalized` tells whether a product in [2, 4) counts with the larger exponent.
        `zero` is the exponent of a zero: `ignored`, `least` (its type's least) or `f32` (-126).
        `accumulator` joins the products' alignment (`aligned`), or is added to their sum (`after`), or is kept whole
        beside aligned products (`whole`).
        `between` is the type that a sum has between two steps; None means the accumulator's.
        `subnormal` inputs keep their least exponent (`kept`), are normalised (`normalized`) or count as zero (`flushed`).
        `signed_zero` tells whether a negative sum that rounds to zero gives -0.
        `min_exponent` is the least exponent that terms are aligned to.
    Source: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330 (2021);
        Xie et al., "MMA-Sim", arXiv:2511.10909; Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores",
        arXiv:2512.07004.
    """

    step: int
    fraction_bits: int
    strided: bool = False
    align: str = "zero"
    output: str | None = None
    normalized: bool = False
    zero: str = "ignored"
    accumulator: str = "aligned"
    between: str | None = None
    subnormal: str = "kept"
    signed_zero: bool = False
    overflow: str = "infinity"
    min_exponent: int = -133


CHOICES: dict[str, tuple] = {
    "step": (16, 8, 4, 2, 1),
    "fraction_bits": (20, 21, 22, 23, 24, 25, 26, 27, 28, 30),
    "strided": (False, True),
    "align": ("zero", "nearest", "down"),
    "output": (None, "zero", "nearest", "down", "via_f32"),
    "normalized": (False, True),
    "zero": ("ignored", "f32", "least"),
    "accumulator": ("aligned", "after", "whole"),
    "between": (None, "f32"),
    "subnormal": ("kept", "normalized", "flushed"),
    "signed_zero": (False, True),
    "overflow": ("infinity", "largest"),
    "min_exponent": (-400, -149, -135, -134, -133, -132, -131, -126),
}


def arithmetic_of(arch: int, k: int, size: int) -> Arithmetic:
    """Return the arithmetic of an architecture, such as 90, for instructions of depth `k` on inputs of `size` bytes.

    sm_80 to sm_89 take 16 bytes of a row at once; later ones, and sm_75, take the whole depth.
    """
    ampere = 80 <= arch < 90
    return Arithmetic(step=min(k, 16 // size) if ampere else k, fraction_bits=25 if arch >= 90 else 24)


def shifted(value: np.ndarray, right: np.ndarray, rounding: str) -> np.ndarray:
    """Return value / 2**right, rounded to an integer. A negative `right` shifts left."""
    magnitude, negative = np.abs(value), value < 0
    count = np.clip(right, 0, 62)
    kept = magnitude >> count
    rest = magnitude - (kept << count)
    if rounding == "nearest":
        half = np.where(count > 0, np.int64(1) << np.maximum(count - 1, 0), np.int64(1))
        kept = kept + ((rest > half) | ((rest == half) & (kept % 2 == 1)))
    elif rounding == "down":
        kept = kept + (negative & (rest > 0))
    kept = kept << np.clip(-right, 0, 62)
    return np.where(negative, -kept, kept)


def exponent_of(value: np.ndarray) -> np.ndarray:
    """Return floor(log2 |value|) of integers below 2**53, and NEVER for 0."""
    return np.where(value == 0, NEVER, np.frexp(value.astype(np.float64))[1].astype(np.int64) - 1)


def encode(value: np.ndarray, unit: np.ndarray, name: str, how: Arithmetic) -> np.ndarray:
    """Return the bits of value * 2**unit in this format."""
    form = FORMATS[name]
    rounding = how.output or ("zero" if name == "f32" else "nearest")
    if rounding == "via_f32":
        low = np.maximum(exponent_of(value) - 23, 0)
        value, rounding = shifted(value, low, "zero") << low, "zero" if name == "f32" else "nearest"
    exponent = np.maximum(exponent_of(value) + unit, form.least_exponent)
    rounded = shifted(value, exponent - form.fraction_bits - unit, rounding)
    bits = np.abs(rounded) + ((exponent - form.least_exponent) << form.fraction_bits)
    bits = np.where(rounded == 0, 0, bits)
    largest = form.infinity - (how.overflow == "largest")
    bits = np.minimum(bits, largest)
    sign = (rounded < 0) | (how.signed_zero & (value < 0))
    return np.where(sign, bits | form.sign, bits)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, types: tuple[str, str], how: Arithmetic) -> np.ndarray:
    """Return the bits of c + sum of a * b over the last axis.

    Shapes: a and b (..., k), c (...), all bits. `types` are those of the inputs and of the accumulator.
    """
    k = a.shape[-1]
    step = min(how.step, k)
    steps = k // step
    kinds = [how.between or types[1]] * (steps - 1) + [types[1]]
    kind = types[1]
    for i, to in enumerate(kinds):
        part = slice(i, None, steps) if how.strided else slice(i * step, (i + 1) * step)
        c = _step(decode(a[..., part], types[0]), decode(b[..., part], types[0]), decode(c, kind), types[0], to, how)
        kind = to
    return c.astype(FORMATS[types[1]].storage)


def _normalized(x: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the significands and exponents with leading zeros of subnormals moved to the exponent."""
    zeros = np.where(x.significand == 0, 0, x.fraction_bits - exponent_of(np.abs(x.significand)))
    return x.significand << zeros, x.exponent - zeros


def _step(a: Numbers, b: Numbers, c: Numbers, kind: str, to: str, how: Arithmetic) -> np.ndarray:
    factors = []
    for x in (a, b):
        significand, exponent = x.significand, x.exponent
        small = np.abs(significand) < 1 << x.fraction_bits
        if how.subnormal == "normalized":
            significand, exponent = _normalized(x)
        elif how.subnormal == "flushed":
            significand = np.where(small, 0, significand)
        zero = {"ignored": NEVER, "least": FORMATS[kind].least_exponent, "f32": -126}[how.zero]
        factors.append((significand, exponent, np.where(significand == 0, zero, exponent)))
    product = factors[0][0] * factors[1][0]
    unit = factors[0][1] + factors[1][1] - 2 * a.fraction_bits
    exponent = np.maximum(factors[0][2] + factors[1][2], NEVER)
    if how.normalized:
        exponent = np.where(product == 0, exponent, exponent_of(np.abs(product)) + unit)
    c_zero = {"ignored": NEVER, "least": c.exponent, "f32": -126}[how.zero]
    c_exponent = np.where(c.significand == 0, c_zero, c.exponent)
    c_unit = c.exponent - c.fraction_bits

    top = exponent.max(axis=-1)
    if how.accumulator == "aligned":
        top = np.maximum(top, c_exponent)
    top = np.maximum(top, how.min_exponent)
    low = top - how.fraction_bits
    total = shifted(product, low[..., None] - unit, how.align).sum(axis=-1)
    if how.accumulator == "aligned":
        total = total + shifted(c.significand, low - c_unit, how.align)
    else:
        # Beside the products: aligned once more, with room for all bits that can matter.
        spare = 0 if how.accumulator == "after" else 60 - how.fraction_bits - 8
        highest = np.maximum(np.maximum(exponent_of(np.abs(total)) + low, c_exponent), -400)
        low_of_both = highest - how.fraction_bits - spare
        total = shifted(total, low_of_both - low, how.align) + shifted(c.significand, low_of_both - c_unit, how.align)
        low = low_of_both
    bits = encode(total, low, to, how)

    with np.errstate(invalid="ignore"):
        value_a, value_b = (np.where(x.special == 0, np.sign(x.significand), x.special) for x in (a, b))
        finite = (a.special == 0) & (b.special == 0)
        special = np.where(finite, 0.0, value_a * value_b).sum(axis=-1) + c.special
    form = FORMATS[to]
    infinite = np.where(special > 0, form.infinity, form.infinity | form.sign)
    bits = np.where(np.isinf(special), infinite, bits)
    return np.where(np.isnan(special), NAN[to], bits)


# ==== Instructions and operands ====


@dataclass(frozen=True)
class Instruction:
    """A kernel of tensor_core_bits.cu. `k` is the depth of one instruction, `blocks` how many follow one another."""

    name: str
    m: int
    k: int
    input: str
    sum: str
    blocks: int = 1

    @property
    def depth(self) -> int:
        return self.k * self.blocks

    def model(self, how: Arithmetic, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return the bits of d. Shapes: a (tiles, m, k), b (tiles, 8, k), c and d (tiles, m, 8)."""
        shape = (*c.shape, self.k)
        for i in range(self.blocks):
            part = slice(i * self.k, (i + 1) * self.k)
            left, right = a[:, :, None, part], b[:, None, :, part]
            c = multiply_add(
                np.broadcast_to(left, shape), np.broadcast_to(right, shape), c, (self.input, self.sum), how
            )
        return c


def instructions(arch: int) -> list[Instruction]:
    found = [Instruction("mma_k8_f16_f32", 16, 8, "f16", "f32"), Instruction("mma_k8_f16_f16", 16, 8, "f16", "f16")]
    if arch >= 80:
        found += [
            Instruction("mma_k16_f16_f32", 16, 16, "f16", "f32"),
            Instruction("mma_k16_bf16_f32", 16, 16, "bf16", "f32"),
            Instruction("mma_k16_f16_f16", 16, 16, "f16", "f16"),
            Instruction("mma_k8_bf16_f32", 16, 8, "bf16", "f32"),
            Instruction("mma_k8_tf32_f32", 16, 8, "tf32", "f32"),
            Instruction("mma_k4_tf32_f32", 16, 4, "tf32", "f32"),
        ]
    if arch == 90:
        found += [
            Instruction("wgmma_k16_f16_f32", 64, 16, "f16", "f32"),
            Instruction("wgmma_k16_bf16_f32", 64, 16, "bf16", "f32"),
            Instruction("wgmma_k16_f16_f16", 64, 16, "f16", "f16"),
            Instruction("wgmma_k8_tf32_f32", 64, 8, "tf32", "f32"),
            Instruction("wgmma_k64_f16_f32", 64, 16, "f16", "f32", blocks=4),
            Instruction("wgmma_k64_f16_f16", 64, 16, "f16", "f16", blocks=4),
        ]
    return found


class Draw:
    """Random operands of one tile after another. RandomState, because its numbers do not change between releases of NumPy."""

    def __init__(self, instruction: Instruction, tiles: int, seed: int) -> None:
        self.state = np.random.RandomState(seed)
        self.instruction = instruction
        self.a_shape = (tiles, instruction.m, instruction.depth)
        self.b_shape = (tiles, 8, instruction.depth)
        self.c_shape = (tiles, instruction.m, 8)

    def bits(self, value: np.ndarray, name: str) -> np.ndarray:
        """Return the bits of float64 numbers, rounded to nearest, with random spare bits."""
        form = FORMATS[name]
        with np.errstate(over="ignore", invalid="ignore"):
            fraction, exponent = np.frexp(value)
            exponent = np.maximum(exponent - 1, form.least_exponent)
            rounded = np.rint(np.ldexp(np.abs(value), form.fraction_bits - exponent))
        finite = np.isfinite(value)
        whole = np.where(finite, rounded, 0).astype(np.int64)
        bits = whole + np.where(whole > 0, (exponent - form.least_exponent) << form.fraction_bits, 0)
        bits = np.minimum(bits, form.infinity - 1)
        bits = np.where(finite, bits, np.where(np.isnan(value), form.infinity + 1, form.infinity))
        bits = np.where(np.signbit(value), bits | form.sign, bits) << form.spare_bits
        if form.spare_bits:
            bits = bits | self.state.randint(0, 1 << form.spare_bits, bits.shape)
        return bits.astype(form.storage)

    def operands(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            self.bits(a, self.instruction.input),
            self.bits(b, self.instruction.input),
            self.bits(c, self.instruction.sum),
        )

    def scaled(self, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """Return random numbers with exponents from `low` to `high`."""
        significand = 1 + self.state.randint(0, 1 << 24, shape) / 2.0**24
        sign = 1 - 2 * self.state.randint(0, 2, shape)
        return sign * np.ldexp(significand, self.state.randint(low, high + 1, shape))

    def sparse(self, shape: tuple[int, ...], share: float) -> np.ndarray:
        return self.state.random_sample(shape) < share

    # ---- Kinds of data ----------------------------------------------------------------------------------------------

    def integers(self) -> tuple:
        """Small integers: every sum is exact. A mismatch means that an operand lies elsewhere."""
        a, b, c = (
            self.state.randint(-8, 9, shape).astype(float) for shape in (self.a_shape, self.b_shape, self.c_shape)
        )
        return self.operands(a, b, c)

    def normal(self) -> tuple:
        c = self.state.standard_normal(self.c_shape) * self.instruction.depth**0.5
        return self.operands(self.state.standard_normal(self.a_shape), self.state.standard_normal(self.b_shape), c)

    def scales(self) -> tuple:
        """Each row of a tile has a scale of its own, from 2^-20 to 2^10."""
        a, b, c = (self.scaled(shape, -3, 0) for shape in (self.a_shape, self.b_shape, self.c_shape))
        scale_a = self.state.randint(-20, 11, (*self.a_shape[:2], 1))
        scale_b = self.state.randint(-20, 11, (*self.b_shape[:2], 1)) // (2 if self.instruction.input == "f16" else 1)
        scale_c = scale_a + scale_b[:, None, :, 0] + self.state.randint(-6, 7, self.c_shape)
        return self.operands(np.ldexp(a, scale_a), np.ldexp(b, scale_b), np.ldexp(c, scale_c))

    def spread(self) -> tuple:
        """Exponents differ within a row: every term is truncated elsewhere."""
        return self.operands(
            self.scaled(self.a_shape, -10, 2), self.scaled(self.b_shape, -10, 2), self.scaled(self.c_shape, -24, 4)
        )

    def gaps(self) -> tuple:
        """One large product in a row, others smaller by 2^16 to 2^32."""
        a = np.where(self.sparse(self.a_shape, 1.5 / self.a_shape[-1]), 4.0, 1.0) * self.scaled(self.a_shape, 0, 0)
        large = np.abs(a) >= 4
        a = np.where(large, a, np.ldexp(a, -self.state.randint(8, 14, self.a_shape)))
        b = self.scaled(self.b_shape, -12, 0)
        return self.operands(a, b, self.scaled(self.c_shape, -30, -10))

    def accumulator(self) -> tuple:
        """Accumulators larger or smaller than the products by up to 2^32."""
        c = self.scaled(self.c_shape, -32, 32 if self.instruction.sum == "f32" else 14)
        return self.operands(self.scaled(self.a_shape, -1, 0), self.scaled(self.b_shape, -1, 0), c)

    def cancellation(self) -> tuple:
        """Products that cancel, neighbours or not, and an accumulator that cancels others."""
        a, b = self.scaled(self.a_shape, -2, 0), self.scaled(self.b_shape, -2, 0)
        k = self.instruction.depth
        order = self.state.permutation(k)
        half = order[: k // 2]
        other = order[k // 2 : k // 2 * 2]
        a[..., other] = -a[..., half]
        b[..., other] = b[..., half]
        small = self.sparse(self.a_shape, 0.2)
        a = np.where(small, np.ldexp(a, -self.state.randint(6, 12, self.a_shape)), a)
        c = -a[:, :, None, 0] * b[:, None, :, 0] * np.where(self.sparse(self.c_shape, 0.5), 1, 1 + 2.0**-20)
        return self.operands(a, b, c)

    def groups(self) -> tuple:
        """Two large products that cancel and one small one at random places: a group loses the small one, another does not."""
        a, b = np.zeros(self.a_shape), np.ones(self.b_shape)
        tiles, m, k = self.a_shape
        for row in np.ndindex(tiles, m):
            places = self.state.permutation(k)
            a[row][places[0]], a[row][places[1]] = 2.0**12, -(2.0**12)
            a[row][places[2:4]] = self.scaled((len(places[2:4]),), -14, -9)
        c = np.where(self.sparse(self.c_shape, 0.5), 0, self.scaled(self.c_shape, -16, 0))
        return self.operands(a, b * np.ldexp(1.0, self.state.randint(-2, 1, self.b_shape)), c)

    def carries(self) -> tuple:
        """Significands near 1 and near 2: products on both sides of a power of two."""

        def near(shape: tuple[int, ...]) -> np.ndarray:
            edge = np.where(self.sparse(shape, 0.5), 2 - 2.0**-6, 1.0) + 2.0**-10 * self.state.randint(-8, 9, shape)
            return edge * (1 - 2 * self.state.randint(0, 2, shape)) * np.ldexp(1.0, -self.state.randint(0, 8, shape))

        c = self.scaled(self.c_shape, -20, 2)
        return self.operands(near(self.a_shape), near(self.b_shape), c)

    def ties(self) -> tuple:
        """Sums in the middle of two f16 or f32 numbers, or beside it by little: 2^-18 to 2^-32 of the sum."""
        ulp = 2.0 ** -FORMATS[self.instruction.sum].fraction_bits
        whole = 1 + self.state.randint(0, 256, self.c_shape) * ulp
        c = whole * (1 - 2 * self.state.randint(0, 2, self.c_shape))
        tiles, m, k = self.a_shape
        a, b = np.zeros(self.a_shape), np.ones(self.b_shape)
        for row in np.ndindex(tiles, m):
            places = self.state.permutation(k)
            a[row][places[0]] = self.state.choice([ulp / 2, -ulp / 2, 2.0**-24, 3 * ulp / 2])
            a[row][places[1]] = self.scaled((1,), -24, -18)[0]
            a[row][places[2]] = self.scaled((1,), -24, -18)[0] * self.state.randint(0, 2)
        return self.operands(a, b * np.ldexp(1.0, -self.state.randint(0, 9, (*self.b_shape[:2], 1))), c)

    def subnormals(self) -> tuple:
        """Inputs, accumulators or results at or below the least exponent."""
        kind, total = FORMATS[self.instruction.input], FORMATS[self.instruction.sum]
        low = kind.least_exponent
        a = self.scaled(self.a_shape, low - kind.fraction_bits, low + 4)
        partner = total.least_exponent - low
        b = self.scaled(self.b_shape, max(partner, low) - 6, max(partner, low) + 6)
        few = self.sparse(self.b_shape, 0.3)
        b = np.where(few, self.scaled(self.b_shape, 0, 4), b)
        c_low = total.least_exponent - total.fraction_bits
        c = self.scaled(self.c_shape, c_low, total.least_exponent + 4)
        c = np.where(self.sparse(self.c_shape, 0.3), 0, c)
        return self.operands(a, b, c)

    def zeros(self) -> tuple:
        """Rows of zeros of both signs beside large factors, and tiny accumulators."""
        low = FORMATS[self.instruction.sum].least_exponent
        a = np.where(
            self.sparse(self.a_shape, 0.1), self.scaled(self.a_shape, -14, 0), self.scaled(self.a_shape, 0, 0) * 0
        )
        a = np.where(self.sparse((*self.a_shape[:2], 1), 0.5), a, np.copysign(0.0, a))
        high = 15 if self.instruction.input == "f16" else 100
        b = np.where(
            self.sparse(self.b_shape, 0.5),
            self.scaled(self.b_shape, -14, high),
            np.copysign(0.0, self.scaled(self.b_shape, 0, 0)),
        )
        c = self.scaled(self.c_shape, max(low - 20, -149), 0)
        c = np.where(self.sparse(self.c_shape, 0.2), np.copysign(0.0, c), c)
        return self.operands(a, b, c)

    def underflow(self) -> tuple:
        """Products far below the accumulator's least number, of both signs."""
        low = FORMATS[self.instruction.sum].least_exponent - FORMATS[self.instruction.sum].fraction_bits
        half = low // 2
        a, b = self.scaled(self.a_shape, half - 4, half + 3), self.scaled(self.b_shape, half - 4, half + 3)
        c = np.where(
            self.sparse(self.c_shape, 0.5),
            np.copysign(0.0, self.scaled(self.c_shape, 0, 0)),
            self.scaled(self.c_shape, low, low + 3),
        )
        return self.operands(a, b, c)

    def overflow(self) -> tuple:
        """Sums near the largest number, and larger ones that cancel."""
        kind, total = FORMATS[self.instruction.input], FORMATS[self.instruction.sum]
        high = min(total.bias, 2 * kind.bias)
        half = high // 2
        a, b = self.scaled(self.a_shape, half - 2, half), self.scaled(self.b_shape, half - 3, high - half)
        c = self.scaled(self.c_shape, total.bias - 3, total.bias)
        return self.operands(a, b, c)

    def specials(self) -> tuple:
        """A few infinities, NaNs and zeros among normal numbers."""

        def some(value: np.ndarray) -> np.ndarray:
            for number, share in ((np.inf, 0.01), (-np.inf, 0.01), (np.nan, 0.004), (-np.nan, 0.002), (0.0, 0.05)):
                value = np.where(self.sparse(value.shape, share), number, value)
            return value

        return self.operands(*(some(self.state.standard_normal(s)) for s in (self.a_shape, self.b_shape, self.c_shape)))

    def uniform(self) -> tuple:
        """Random bits, with few of the largest exponent."""
        found = []
        for shape, name in (
            (self.a_shape, self.instruction.input),
            (self.b_shape, self.instruction.input),
            (self.c_shape, self.instruction.sum),
        ):
            form = FORMATS[name]
            bits = self.state.randint(0, 1 << 16, shape).astype(np.int64)
            if form.storage is np.uint32:
                bits |= self.state.randint(0, 1 << 16, shape).astype(np.int64) << 16
            special = (bits >> form.spare_bits & form.infinity) == form.infinity
            keep = self.sparse(shape, 0.02)
            bits = np.where(special & ~keep, bits ^ (1 << (form.fraction_bits + form.spare_bits)), bits)
            found.append(bits.astype(form.storage))
        return tuple(found)


KINDS = (
    *("integers", "normal", "scales", "spread", "gaps", "accumulator", "cancellation", "groups", "carries", "ties"),
    *("subnormals", "zeros", "underflow", "overflow", "specials", "uniform"),
)


def tiles_of(instruction: Instruction) -> int:
    return 64 if instruction.m == 16 else 16


def operands(instruction: Instruction, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a, b and c of a kind of data, the same at every call."""
    text = f"{SEED} {instruction.input} {instruction.sum} {instruction.m} {instruction.depth} {kind}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    return getattr(Draw(instruction, tiles_of(instruction), seed), kind)()


# ==== The device ====


def compile_for(arch: str, ptx: bool = False) -> bytes:
    """Return the cubin, or the PTX, of all kernels for an architecture such as sm_90a."""
    from cuda.bindings import nvrtc

    def checked(result: tuple) -> object:
        status, *values = result
        if int(status):
            raise click.ClickException(f"NVRTC failed: {status.name}")
        return values[0] if values else None

    number = int("".join(filter(str.isdigit, arch)))
    program = checked(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), SOURCE.name.encode(), 0, [], []))
    target = arch.replace("sm", "compute") if ptx else arch
    options = [f"--gpu-architecture={target}".encode(), b"--std=c++17", f"-DARCH={number}".encode()]
    status = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
    if status:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise click.ClickException(log.decode(errors="replace"))
    image = b" " * checked((nvrtc.nvrtcGetPTXSize if ptx else nvrtc.nvrtcGetCUBINSize)(program))
    checked((nvrtc.nvrtcGetPTX if ptx else nvrtc.nvrtcGetCUBIN)(program, image))
    return image


class Gpu:
    """The first GPU, with the kernels loaded."""

    def __init__(self) -> None:
        from hgemm.device import checked, driver, open_device

        self.checked, self.driver = checked, driver()
        self.device = open_device()
        major, minor = self.device.capability
        self.arch = major * 10 + minor
        cubin = compile_for(f"sm_{self.arch}{'a' if self.arch == 90 else ''}")
        with self.device.current():
            self.module = checked(self.driver.cuModuleLoadData(cubin), "load the kernels")

    def execute(self, instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        device, arrays = self.device, [np.ascontiguousarray(x) for x in (a, b, c)]
        result = np.zeros_like(arrays[2])
        pointers = [device.allocate(x.nbytes) for x in (*arrays, result)]
        try:
            for pointer, x in zip(pointers, (*arrays, result)):
                device.upload(pointer, x.ctypes.data, x.nbytes)
            values = [ctypes.c_uint64(pointer) for pointer in pointers]
            addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            with device.current():
                function = self.checked(
                    self.driver.cuModuleGetFunction(self.module, instruction.name.encode()), f"find {instruction.name}"
                )
                threads = 32 if instruction.m == 16 else 128
                self.checked(
                    self.driver.cuLaunchKernel(
                        function, len(a), 1, 1, threads, 1, 1, 0, 0, ctypes.addressof(addresses), 0
                    ),
                    f"launch {instruction.name}",
                )
            device.synchronize()
            device.download(result.ctypes.data, pointers[3], result.nbytes)
        finally:
            for pointer in pointers:
                device.free(pointer)
        return result


_SMEM_BYTES = 16384
"""At least what the kernels of wgmma declare."""


class Cpu:
    """The CPU executor. It runs the PTX of the same kernels."""

    def __init__(self, arch: int, toolchain: HostToolchain) -> None:
        self.arch, self.toolchain = arch, toolchain
        self.ptx = compile_for(f"sm_{arch}{'a' if arch == 90 else ''}", ptx=True).rstrip(b"\0").decode()

    def execute(self, instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        executable = Executable(self.toolchain.executable(instruction.name, self.ptx), self.ptx)
        arrays = [np.ascontiguousarray(x) for x in (a, b, c)] + [np.zeros_like(c)]
        flags = [abi.READABLE | abi.INITIALISED] * 3 + [abi.WRITABLE | abi.WRITE_ONCE]
        regions = tuple(
            Region(name, x.ctypes.data, 1, x.nbytes, x.nbytes, 1, 0, x.itemsize, flag)
            for name, x, flag in zip("ABCD", arrays, flags)
        )
        parameters = tuple(struct.pack("<Q", x.ctypes.data) for x in arrays)
        one, threads = (1, 1, 1), 32 if instruction.m == 16 else 128
        launch = Launch((len(a), 1, 1), one, threads, _SMEM_BYTES, parameters, regions, 1, 1 << 24, arch=self.arch)
        report = executable.run(launch, Adversary("late", "ahead_low", 1))
        if found := [str(one) for one in report.findings if one.kind != "poison"]:
            raise click.ClickException("; ".join(found))
        return arrays[3]


# ==== Verdicts ====


@dataclass(frozen=True)
class Verdict:
    """How one instruction compares with the model on each kind of data."""

    instruction: str
    how: Arithmetic
    results: dict[str, int]
    mismatches: dict[str, int]
    examples: tuple[str, ...]
    scan: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not any(self.mismatches.values())


def agreeing_results(
    instruction: Instruction, found: dict[str, np.ndarray], how: Arithmetic, kinds: tuple[str, ...]
) -> dict[str, int]:
    """Return how many results agree, by kind of data."""
    agreeing = {}
    for kind in kinds:
        d = instruction.model(how, *operands(instruction, kind))
        agreeing[kind] = int((d == found[kind]).sum())
    return agreeing


def judge_one(instruction: Instruction, found: dict[str, np.ndarray], arch: int, scan: str) -> Verdict:
    size = FORMATS[instruction.input].storage().itemsize
    how = arithmetic_of(arch, instruction.k, size)
    mismatches, examples = {}, []
    for kind in KINDS:
        a, b, c = operands(instruction, kind)
        d = instruction.model(how, a, b, c)
        wrong = np.argwhere(d != found[kind])
        mismatches[kind] = len(wrong)
        for tile, row, column in wrong[:3]:
            examples.append(
                f"{kind}: device {found[kind][tile, row, column]:#x} model {d[tile, row, column]:#x}"
                f" c {c[tile, row, column]:#x} a {a[tile, row].tobytes().hex()} b {b[tile, column].tobytes().hex()}"
            )
    wanted = scan == "always" or (scan == "mismatch" and any(mismatches.values()))
    text = scan_parameters(instruction, found, how) if wanted else ()
    return Verdict(
        instruction.name, how, {kind: found[kind].size for kind in KINDS}, mismatches, tuple(examples), tuple(text)
    )


def scan_parameters(instruction: Instruction, found: dict[str, np.ndarray], how: Arithmetic) -> Iterator[str]:
    """Vary one parameter at a time; continue from the best set until none is better."""
    kinds = tuple(kind for kind in KINDS if kind != "integers")
    total = sum(found[kind].size for kind in kinds)
    best, fewest = how, total - sum(agreeing_results(instruction, found, how, kinds).values())
    yield f"{fewest} of {total} differ with {how}"
    for _ in range(4):
        rivals = []
        for name, values in CHOICES.items():
            for value in values:
                if value == getattr(best, name) or (name == "step" and value > instruction.k):
                    continue
                rival = replace(best, **{name: value})
                agreeing = agreeing_results(instruction, found, rival, kinds)
                worse = {kind: found[kind].size - agreeing[kind] for kind in kinds if agreeing[kind] < found[kind].size}
                rivals.append((sum(worse.values()), f"{name}={value}", rival, worse))
        rivals.sort(key=lambda one: one[0])
        for count, text, _, worse in rivals[:_PRINTED]:
            yield f"  {text}: {count} differ {worse}"
        if rivals[0][0] >= fewest:
            return
        fewest, text, best, _ = rivals[0]
        yield f"best: {text}: {fewest} of {total} differ with {best}"
        if not fewest:
            return


_PRINTED = 6
"""Sets of parameters that a round of the scan prints, the best first."""


def judge_all(found: dict[str, dict[str, np.ndarray]], arch: int, scan: str, jobs: int) -> list[Verdict]:
    wanted = [instruction for instruction in instructions(arch) if instruction.name in found]
    arguments = [wanted, [found[one.name] for one in wanted], [arch] * len(wanted), [scan] * len(wanted)]
    if jobs == 1:
        return list(map(judge_one, *arguments))
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(judge_one, *arguments))


def report(verdicts: list[Verdict]) -> bool:
    for one in verdicts:
        wrong = {kind: f"{count}/{one.results[kind]}" for kind, count in one.mismatches.items() if count}
        total = sum(one.results.values())
        print(f"{one.instruction}: {'all ' + str(total) + ' agree' if one.good else f'MISMATCH {wrong}'}  {one.how}")
        for line in (*one.examples, *one.scan):
            print(f"    {line}")
    return all(one.good for one in verdicts)


def write_json(path: Path, device: str, date: str, verdicts: list[Verdict]) -> None:
    """Write the verdicts, one line for each instruction."""
    lines = [
        {
            "instruction": one.instruction,
            "results": sum(one.results.values()),
            "differing": sum(one.mismatches.values()),
            "step": one.how.step,
            "fraction_bits": one.how.fraction_bits,
            "min_exponent": one.how.min_exponent,
        }
        for one in verdicts
    ]
    head = json.dumps({"device": device, "date": date, "kinds": KINDS, "seed": SEED})[:-1]
    rows = ",\n  ".join(map(json.dumps, lines))
    path.write_text(f'{head},\n "instructions": [\n  {rows}\n ]}}\n')


SCANS = ("never", "mismatch", "always")


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--save", type=click.Path(path_type=Path), help="file for the device's results (.npz)")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="file for the verdicts")
@click.option(
    "--scan", type=click.Choice(SCANS), default="never", show_default=True, help="when to try other parameters"
)
@click.option("--jobs", default=8, show_default=True)
def run(save: Path | None, json_path: Path | None, scan: str, jobs: int) -> None:
    """Execute the instructions on this machine's GPU and judge them."""
    began = time.time()
    gpu = Gpu()
    found: dict[str, dict[str, np.ndarray]] = {}
    for instruction in instructions(gpu.arch):
        found[instruction.name] = {kind: gpu.execute(instruction, *operands(instruction, kind)) for kind in KINDS}
    print(f"{gpu.device.name}, sm_{gpu.arch}: executed in {time.time() - began:.1f} s", flush=True)
    if save:
        flat = {f"{name}/{kind}": bits for name, kinds in found.items() for kind, bits in kinds.items()}
        np.savez_compressed(save, arch=gpu.arch, device=gpu.device.name, date=time.strftime("%Y-%m-%d"), **flat)
    verdicts = judge_all(found, gpu.arch, scan, jobs)
    good = report(verdicts)
    print(f"{time.time() - began:.1f} s")
    if json_path:
        write_json(json_path, gpu.device.name, time.strftime("%Y-%m-%d"), verdicts)
    sys.exit(0 if good else 1)


@main.command()
@click.argument("saved", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="file for the verdicts")
@click.option(
    "--scan", type=click.Choice(SCANS), default="mismatch", show_default=True, help="when to try other parameters"
)
@click.option("--jobs", default=2, show_default=True)
def judge(saved: Path, json_path: Path | None, scan: str, jobs: int) -> None:
    """Judge saved results. Needs no GPU."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(saved) as data:
        arch, device, date = int(data["arch"]), str(data["device"]), str(data["date"])
        for key in data.files:
            name, _, kind = key.partition("/")
            if kind:
                found.setdefault(name, {})[kind] = data[key]
    verdicts = judge_all(found, arch, scan, jobs)
    good = report(verdicts)
    if json_path:
        write_json(json_path, device, date, verdicts)
    sys.exit(0 if good else 1)


@main.command("compile")
@click.argument("arch")
def compile_command(arch: str) -> None:
    """Compile the kernels."""
    print(f"{arch}: {len(compile_for(arch)):,} B")


if __name__ == "__main__":
    main()
