"""PTX instructions on the CPU against NumPy: arithmetic, conversions, and memory order."""

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
        f"{body}\nret;\n}}\n".replace(";", ";\n")  # findings and costs belong to lines
    )
    executable = Executable(made.executable("k", text), text)
    out = np.full((threads, results), 0x5EADBEEF, np.uint32)
    regions = (
        Region("in", words.ctypes.data, 1, words.nbytes, words.nbytes, 1, 0, 4, READ),
        Region("out", out.ctypes.data, 1, out.nbytes, out.nbytes, 1, 0, 4, WRITE),
    )
    parameters = tuple(struct.pack("<Q", one.ctypes.data) for one in (words, out))
    return out, executable.run(Launch((1, 1, 1), (1, 1, 1), threads, 4096, parameters, regions, 1, 100_000), adversary)


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


# ---- Lanes of a warp ------------------------------------------------------------------------------------------------

LANE = np.arange(32, dtype=np.uint32)
HALF_WARP = "setp.lt.u32 %p7, %tid, 16; @!%p7 bra $L{0}; {1} $L{0}:"
WARPS: dict[str, np.ndarray] = {
    "vote.sync.ballot.b32 %d, %p1, -1;": np.full(32, 0xAAAAAAAA),
    "redux.sync.add.u32 %d, %tid, -1;": np.full(32, 31 * 16),
    "sub.u32 %a, 7, %tid; redux.sync.max.s32 %d, %a, -1;": np.full(32, 7),
    HALF_WARP.format(1, "vote.sync.all.pred %p2, %p7, 0xffff; selp.b32 %d, 1, 0, %p2;"): np.where(LANE < 16, 1, 9),
    HALF_WARP.format(2, "shfl.sync.down.b32 %d, %tid, 1, 31, 0xffff;"): np.select(
        [LANE < 15, LANE < 16], [LANE + 1, np.uint32(0xFFFFFFFF)], np.uint32(9)
    ),
    HALF_WARP.format(3, "elect.sync %a|%p2, 0xffff; selp.b32 %d, %a, 77, %p2;"): np.where(
        LANE < 16, np.where(LANE == 0, 0, 77), 9
    ),
    HALF_WARP.format(4, "redux.sync.add.u32 %d, %tid, 0xffff;"): np.where(LANE < 16, 120, 9),
    "mad.lo.u32 %a, %tid, 0x20002, 0x10000; movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;":
        (LANE // 4 + LANE % 4 * 16) | ((LANE // 4 + LANE % 4 * 16 + 8) << 16),
    "mov.u32 %d, %lanemask_ge;": (0xFFFFFFFF << LANE.astype(np.uint64)) & 0xFFFFFFFF,
}  # fmt: skip
"""Statements that write %d, which is 9 before, and the result of each lane. %p1 is true for odd lanes."""


def test_warp_instructions_work_on_partial_masks(host_toolchain: HostToolchain) -> None:
    body = "and.b32 %a, %tid, 1; setp.eq.u32 %p1, %a, 1;"
    body += "\n".join(f"mov.u32 %d, 9; {text} st.global.u32 [%out+{i * 4}], %d;" for i, text in enumerate(WARPS))
    out, report = executed(host_toolchain, body, np.zeros((32, 1), np.uint32), len(WARPS), threads=32)
    assert not report.findings
    for i, (text, expected) in enumerate(WARPS.items()):
        assert (out[:, i] == expected.astype(np.uint32)).all(), (text, out[:, i], expected)


# ---- What orders memory ---------------------------------------------------------------------------------------------

SHARED = "mov.u32 %r8, shared_bytes; setp.lt.u32 %p1, %tid, 32; setp.eq.u32 %p2, %tid, 0; setp.eq.u32 %p3, %tid, 32;"
BEGIN = SHARED + "@%p2 st.shared.u32 [%r8], 0; @%p2 mbarrier.init.shared.b64 [%r8+8], 32; bar.sync 0;"
SPIN = "$Lspin: {0} @!%p4 bra $Lspin;"
HANDED_OVER: dict[str, tuple[str, str]] = {
    "flag in shared memory": (
        "bar.warp.sync -1; @%p2 st.release.cta.shared.u32 [%r8], 1;",
        SPIN.format("ld.acquire.cta.shared.u32 %r1, [%r8]; setp.eq.u32 %p4, %r1, 1;"),
    ),
    "exchange": (
        "bar.warp.sync -1; @%p2 atom.shared.release.cta.exch.b32 %r1, [%r8], 1;",
        SPIN.format("atom.acquire.cta.shared.cas.b32 %r1, [%r8], 1, 1; setp.eq.u32 %p4, %r1, 1;"),
    ),
    "phase that is asked for": (
        "mbarrier.arrive.shared.b64 _, [%r8+8];",
        SPIN.format("mbarrier.test_wait.parity.shared.b64 %p4, [%r8+8], 0;"),
    ),
    "phase with expected bytes": (
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r8+8], 0; mbarrier.arrive.shared.b64 %rd1, [%r8+8];",
        SPIN.format("mbarrier.test_wait.shared.b64 %p4, [%r8+8], 0;"),
    ),
    "many arrivals at once": (
        "bar.warp.sync -1; @%p2 mbarrier.arrive.shared.b64 %rd1, [%r8+8], 32;",
        SPIN.format("mbarrier.try_wait.parity.shared.b64 %p4, [%r8+8], 0;"),
    ),
}
"""Ways to pass 32 words from warp 0 to warp 1: warp 0's instruction after the writes, and warp 1's wait."""


@pytest.mark.parametrize("how", HANDED_OVER)
def test_acquired_release_orders_memory(how: str, host_toolchain: HostToolchain) -> None:
    release, acquire = HANDED_OVER[how]
    move = (
        "shl.b32 %r2, %tid, 2; add.u32 %r3, %r8, %r2; mov.u32 %d, 0;\n"
        f"@!%p1 bra $Lreader; st.shared.u32 [%r3+64], %tid; {{0}} bra $Ldone;\n"
        f"$Lreader: {acquire} ld.shared.u32 %d, [%r3+-64]; $Ldone: st.global.u32 [%out], %d;"
    )
    for adversary in (LATE, Adversary("late", "ahead_high", 1), Adversary("any_time", "any_order", 3)):
        body = BEGIN + move.format(release)
        out, report = executed(host_toolchain, body, np.zeros((64, 1), np.uint32), 1, adversary)
        assert not report.findings, report.findings
        assert (out[32:, 0] == np.arange(32)).all()
    weak = release.replace(".release.cta", ".relaxed.cta")
    if weak != release:
        _, report = executed(host_toolchain, BEGIN + move.format(weak), np.zeros((64, 1), np.uint32), 1)
        assert {one.kind for one in report.findings} == {"race"}


def test_atomic_operations_on_numbers_of_all_types(host_toolchain: HostToolchain) -> None:
    steps = {
        "red.shared.add.f32 [%r8], 0f3F800000;": np.float32(64).view(np.uint32),
        "red.shared.max.s32 [%r8], %tid;": 63,
        "atom.shared.inc.u32 %r1, [%r8], 7;": 0,
        "atom.shared.add.noftz.f16x2 %r1, [%r8], 0x3C003C00;": 0x54005400,
        "atom.shared.or.b32 %r1, [%r8], %tid;": 63,
    }
    body = SHARED
    for i, text in enumerate(steps):
        body += f"@%p2 st.shared.u32 [%r8], 0; bar.sync 0; {text} bar.sync 0; ld.shared.u32 %d, [%r8]; bar.sync 0;"
        body += f"st.global.u32 [%out+{i * 4}], %d;"
    out, report = executed(host_toolchain, body, np.zeros((64, 1), np.uint32), len(steps))
    assert not report.findings
    assert out[0].tolist() == [int(value) for value in steps.values()]


def test_local_memory_is_private_and_trap_is_a_finding(host_toolchain: HostToolchain) -> None:
    body = (
        ".local .align 8 .b8 stack[64]; mov.u64 %rd1, stack; cvta.local.u64 %rd2, %rd1; st.local.u32 [%rd1+8], %tid;"
        "ld.u32 %d, [%rd2+8]; st.global.u32 [%out], %d; setp.eq.u32 %p1, %tid, 5; @!%p1 bra $Lend;"
        "trap; $Lend:"
    )
    out, report = executed(host_toolchain, body, np.zeros((64, 1), np.uint32), 1)
    assert (out[:, 0] == np.arange(64)).all()
    assert sorted((one.kind, one.count) for one in report.findings) == [("assert", 1)]


# ---- wgmma with A in registers --------------------------------------------------------------------------------------

FROM_REGISTERS = (
    "setp.eq.u32 %p1, %tid, %tid; mov.u32 %r8, shared_bytes; shl.b32 %r1, %tid, 2; add.u32 %r2, %r8, %r1;"
    "ld.global.u32 %d, [%in+16]; mov.b32 %c, 0;"
    "st.shared.u32 [%r2], %d; bar.sync 0; fence.proxy.async.shared::cta; bar.sync 0;"
    "ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%in];"
    "shr.u32 %r7, %r8, 4; cvt.u64.u32 %rd1, %r7; or.b64 %rd2, %rd1, 68720001024;"
    "mov.b32 %a, 0; mov.b32 %b, 0; mov.b32 %r0, 0; wgmma.fence.sync.aligned; setp.ne.u32 %p2, %tid, %tid;"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%a, %b, %c, %r0}}, {{%r3, %r4, %r5, %r6}}, %rd2, %p2, 1, 1, 0;"
    "wgmma.commit_group.sync.aligned; {0} wgmma.wait_group.sync.aligned 0; {1}"
    "st.global.v4.u32 [%out], {{%a, %b, %c, %r0}};"
)


def test_wgmma_reads_registers_of_a_until_the_wait(host_toolchain: HostToolchain) -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 16), (8, 16)))
    words = np.zeros((128, 8), np.uint32)
    lane, warp = np.arange(128) % 32, np.arange(128) // 32
    for i in range(4):  # as in m16n8k16
        rows, columns = warp * 16 + lane // 4 + i % 2 * 8, lane % 4 * 2 + i // 2 * 8
        words[:, i] = a.view(np.uint16)[rows, columns] | a.view(np.uint16)[rows, columns + 1].astype(np.uint32) << 16
    core = b.reshape(8, 2, 8).swapaxes(0, 1)  # two core matrices of 8 rows of 16 bytes
    words[:64, 4] = np.ascontiguousarray(core).view(np.uint32).ravel()
    for there, after, kinds in (
        ("", "", set()),
        ("add.u32 %r5, %r5, 1;", "", {"wgmma"}),
        ("", "add.u32 %r5, %r5, 1;", set()),
    ):
        out, report = executed(host_toolchain, FROM_REGISTERS.format(there, after), words, 4, threads=128)
        assert {one.kind for one in report.findings} == kinds, report.findings
        if not kinds:
            d = a.astype(np.float32) @ b.astype(np.float32).T
            found = out.view(np.float32)
            for i in range(4):
                assert (found[:, i] == d[warp * 16 + lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2]).all()
