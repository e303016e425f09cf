"""The semantics of PTX instructions on the CPU, beside NumPy: arithmetic, conversions, and what orders memory."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region, Report

THREADS = 64
LATE = Adversary("late", "ahead_low", 1)
READ, WRITE = abi.READABLE | abi.INITIALISED, abi.WRITABLE


def executed(
    made: HostToolchain, body: str, words: np.ndarray, results: int, adversary: Adversary = LATE, threads: int = THREADS
) -> tuple[np.ndarray, Report]:
    """Run statements that read %in and write %out, the addresses of a thread's words. Return the words of all threads."""
    text = (
        ".version 9.0\n.target sm_90a\n.address_size 64\n.shared .align 128 .b8 shared_bytes[4096];\n"
        ".visible .entry k(.param .u64 .ptr .global .align 4 k_param_0, .param .u64 k_param_1)\n{\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b32 %a, %b, %c, %d, %tid; .reg .b64 %rd<9>;\n"
        ".reg .b64 %in, %out; .reg .f64 %fd<9>; .reg .b64 %x;\n"
        "ld.param.u64 %in, [k_param_0]; ld.param.u64 %out, [k_param_1]; mov.u32 %tid, %tid.x;\n"
        f"mad.wide.u32 %in, %tid, {words.shape[-1] * 4}, %in; mad.wide.u32 %out, %tid, {results * 4}, %out;\n"
        f"{body}\nret;\n}}\n"
    )
    executable = Executable(made.ptx_executable("k", text), text)
    out = np.full((threads, results), 0x5EADBEEF, np.uint32)
    regions = (
        Region("in", words.ctypes.data, 1, words.nbytes, words.nbytes, 1, 0, 4, READ),
        Region("out", out.ctypes.data, 1, out.nbytes, out.nbytes, 1, 0, 4, WRITE),
    )
    parameters = tuple(struct.pack("<Q", one.ctypes.data) for one in (words, out))
    return out, executable.run(Launch(1, 1, threads, 4096, parameters, regions, 1, 100_000), adversary)


# ---- Arithmetic: each with its operands a, b and c, and the result d ------------------------------------------------


def f32(words: np.ndarray) -> np.ndarray:
    return words.view(np.float32)


def words_of(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32)


def low(words: np.ndarray) -> np.ndarray:
    return words.astype(np.uint16).view(np.float16).astype(np.float64)


def high(words: np.ndarray) -> np.ndarray:
    return low(words >> 16)


def halves(at: Callable) -> Callable:
    """Return the function of three words that applies `at` to the halves of the first ones."""

    def both(*words: np.ndarray) -> np.ndarray:
        words = words[: at.__code__.co_argcount]
        parts = [at(*map(of, words)).astype(np.float16).view(np.uint16).astype(np.uint32) for of in (low, high)]
        return parts[0] | parts[1] << 16

    return both


def bfloat(words: np.ndarray) -> np.ndarray:
    return (words << 16).view(np.float32).astype(np.float64)


def to_bfloat(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def toward_zero(values: np.ndarray) -> np.ndarray:
    nearest = values.astype(np.float16)
    past = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(past, np.nextafter(nearest, np.float16(0)), nearest).view(np.uint16).astype(np.uint32)


def signed(words: np.ndarray) -> np.ndarray:
    return words.view(np.int32).astype(np.int64)


HALF = "mov.b32 {{%h1, %h2}}, %a; mov.b32 {{%h3, %h4}}, %b; {}; cvt.u32.u16 %d, %h5;"
ARITHMETIC: dict[str, Callable] = {
    "add.f16x2 %d, %a, %b;": halves(lambda a, b: a + b),
    "sub.rn.f16x2 %d, %a, %b;": halves(lambda a, b: a - b),
    "mul.f16x2 %d, %a, %b;": halves(lambda a, b: a * b),
    "fma.rn.f16x2 %d, %a, %b, %c;": halves(lambda a, b, c: a * b + c),
    "fma.rn.relu.f16x2 %d, %a, %b, %c;": halves(lambda a, b, c: np.maximum(a * b + c, 0)),
    "max.f16x2 %d, %a, %b;": halves(lambda a, b: np.fmax(a, b)),
    "neg.f16x2 %d, %a;": halves(lambda a: -a),
    HALF.format("add.f16 %h5, %h1, %h3"): lambda a, b, c: halves(lambda a, b: a + b)(a, b, c) & 0xFFFF,
    HALF.format("add.bf16 %h5, %h2, %h4"): lambda a, b, c: to_bfloat(bfloat(a >> 16) + bfloat(b >> 16)),
    "cvt.rn.f16x2.f32 %d, %a, %b;": lambda a, b, c: (
        f32(b).astype(np.float16).view(np.uint16).astype(np.uint32)
        | f32(a).astype(np.float16).view(np.uint16).astype(np.uint32) << 16
    ),
    "cvt.rz.f16.f32 %h1, %a; cvt.u32.u16 %d, %h1;": lambda a, b, c: toward_zero(f32(a).astype(np.float64)),
    "cvt.rz.bf16.f32 %h1, %a; cvt.u32.u16 %d, %h1;": lambda a, b, c: a >> 16,
    "cvt.rz.tf32.f32 %d, %a;": lambda a, b, c: a & 0xFFFFE000,
    "cvt.rzi.s32.f32 %d, %a;": lambda a, b, c: np.trunc(f32(a)).astype(np.int32).view(np.uint32),
    "cvt.sat.u8.s32 %h1, %b; cvt.u32.u16 %d, %h1;": lambda a, b, c: np.clip(signed(b), 0, 255).astype(np.uint32),
    HALF.format("setp.gt.f16 %p1, %h1, %h3; selp.b16 %h5, 1, 0, %p1"): lambda a, b, c: (low(a) > low(b)) * np.uint32(1),
    "add.rz.f32 %d, %a, %c;": lambda a, b, c: exact_sum_cut(a, c),
    "add.sat.f32 %d, %a, %c;": lambda a, b, c: words_of(np.clip(f32(a) + f32(c), 0, 1)),
    "bfe.s32 %d, %b, 5, 7;": lambda a, b, c: (signed(b) << 52 >> 57).astype(np.int32).view(np.uint32),
    "bfe.s32 %d, %b, 28, 7;": lambda a, b, c: (signed(b) >> 28).astype(np.int32).view(np.uint32),
    "bfe.u32 %d, %b, 5, 7;": lambda a, b, c: b >> 5 & 127,
    "bfind.u32 %d, %b;": lambda a, b, c: np.floor(np.log2(b)).astype(np.uint32),
    "brev.b32 %d, %b;": lambda a, b, c: np.array([int(f"{int(x):032b}"[::-1], 2) for x in b], np.uint32),
    "cvt.u64.u32 %x, %b; clz.b64 %d, %x;": lambda a, b, c: 63 - np.floor(np.log2(b)).astype(np.uint32),
    "mad.hi.u32 %d, %b, %b, %c;": lambda a, b, c: ((b.astype(np.uint64) ** 2 >> 32) + c).astype(np.uint32),
    "sad.u32 %d, %b, %c, 3;": lambda a, b, c: np.abs(b.astype(np.int64) - c).astype(np.uint32) + 3,
    "min.NaN.f32 %d, %a, %c;": lambda a, b, c: np.minimum(f32(a), f32(c)).view(np.uint32),
}
"""Statements that write %d, and their result."""


def exact_sum_cut(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    total = f32(a).astype(np.float64) + f32(c).astype(np.float64)
    nearest = total.astype(np.float32)
    past = np.abs(nearest.astype(np.float64)) > np.abs(total)
    return np.where(past, np.nextafter(nearest, np.float32(0)), nearest).view(np.uint32)


def test_arithmetic_agrees_with_numpy(host_toolchain: HostToolchain) -> None:
    random = np.random.default_rng(7)
    words = np.zeros((THREADS, 3), np.uint32)
    for column in (0, 2):
        words[:, column] = random.normal(0, 8, THREADS).astype(np.float32).view(np.uint32)
    words[:, 0] &= ~np.uint32(0x4000)  # no infinity in any half
    words[:, 1] = random.integers(1, 2**31, THREADS) & ~np.uint32(0x40004000)
    body = "ld.global.u32 %a, [%in]; ld.global.u32 %b, [%in+4]; ld.global.u32 %c, [%in+8];\n"
    body += "\n".join(f"{text} st.global.u32 [%out+{i * 4}], %d;" for i, text in enumerate(ARITHMETIC))
    out, report = executed(host_toolchain, body, words, len(ARITHMETIC))
    assert not report.findings
    with np.errstate(all="ignore"):
        for i, text in enumerate(ARITHMETIC):
            a, b, c = (np.ascontiguousarray(words[:, j]) for j in range(3))
            expected = ARITHMETIC[text](a, b, c)
            same = out[:, i] == expected
            nan = np.isnan(low(out[:, i])) | np.isnan(high(out[:, i]))
            wrong = [(hex(x), hex(y)) for x, y in zip(out[:, i], expected, strict=True) if x != y]
            assert (same | nan).all(), (text, wrong[:4])
