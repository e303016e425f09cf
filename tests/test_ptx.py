"""PTX on the CPU: it is parsed as written, each instruction has known semantics or is refused, and kernels run and are checked."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.ptx_faults import MISSED, faults_of, found_by, spread
from generator.build.compile import ptx_of
from generator.build.emit import emit
from generator.build.toolchain import headers, templates_folder
from generator.errors import ProofError
from generator.planner import plan_of
from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region
from generator.proof.jobs import check_here, request_of
from generator.proof.proving import Subject, require_launch
from generator.ptx.instructions import TABLE, row_of
from generator.ptx.parser import Address, Instruction, Label, Number, Pair, PtxError, Register, Symbol, Vector, parse
from generator.ptx.translate import accumulator_registers, origins, source_lines, translate
from generator.ptx.writer import shared_offsets
from generator.spec import Spec
from hgemm.launch_traits import LaunchTraits
from hgemm.record import PTX_NAME

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
REVERSE = (
    HEAD
    + """
.shared .align 4 .b8 words[256];
.visible .entry reverse(.param .u64 reverse_param_0, .param .u32 reverse_param_1)
.reqntid 64, 1, 1
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [reverse_param_0];
  ld.param.u32 %r1, [reverse_param_1];  // whether to wait for the other threads
  mov.u32 %r2, %tid.x;
  shl.b32 %r3, %r2, 2;
  mov.u32 %r4, words;
  add.s32 %r5, %r4, %r3;
  st.shared.u32 [%r5], %r2;
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra $L_read;
  bar.sync 0;
$L_read:
  sub.s32 %r6, 252, %r3;
  add.s32 %r7, %r4, %r6;
  ld.shared.u32 %r8, [%r7];
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r8;
  ret;
}
"""
)


def kernel_of(body: str):
    return parse(
        HEAD + f".visible .entry k(.param .align 8 .b8 k_param_0[160])\n.maxntid 128, 1, 1\n{{\n{body}\n}}\n"
    ).kernel()


def only(text: str) -> Instruction:
    declared = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;"
    (one,) = kernel_of(declared + text).body
    return one


# ---- Parsing --------------------------------------------------------------------------------------------------------


def test_module_has_kernels_parameters_and_limits():
    module = parse(REVERSE)
    kernel = module.kernel("reverse")
    assert (module.version, module.target) == ("9.0", "sm_90a")
    assert [(one.name, one.size_bytes) for one in kernel.parameters] == [("reverse_param_0", 8), ("reverse_param_1", 4)]
    assert kernel.required_threads == (64, 1, 1)
    assert kernel.cluster == (0, 0, 0)
    assert [one for one in kernel.body if isinstance(one, Label)] == [
        Label("$L_read", REVERSE.split("$L_read:")[0].count("\n") + 1)
    ]


def test_clusters_and_shared_memory_are_parsed():
    text = HEAD + (
        ".extern .shared .align 1024 .b8 dynamic[];\n"
        ".visible .entry k()\n.maxntid 384, 1, 1\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n"
        "{ .shared .align 16 .b8 fixed[40]; ret; }"
    )
    module = parse(text)
    kernel = module.kernel()
    assert (kernel.most_threads, kernel.cluster) == ((384, 1, 1), (2, 1, 1))
    assert shared_offsets((*module.variables, *kernel.variables)) == {"fixed": 0, "dynamic": 1024}


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("mov.b32 %r1, -1;", (Register("%r1", "b32"), Number(-1))),
        ("mov.f32 %f1, 0f3F800000;", (Register("%f1", "f32"), Number(0x3F800000, is_float=True))),
        ("prmt.b32 %r1, %r2, %r3, 0x3340U;", (*(Register(f"%r{i}", "b32") for i in (1, 2, 3)), Number(0x3340))),
        ("ld.param.u64 %rd1, [%rd2+-120];", (Register("%rd1", "b64"), Address(Register("%rd2", "b64"), -120))),
        ("ld.global.v2.u32 {%r1, %r2}, [k_param_0+8];",
         (Vector((Register("%r1", "b32"), Register("%r2", "b32"))), Address(Symbol("k_param_0"), 8))),
        ("shfl.sync.idx.b32\t%r1|%p1, %r2, 0, 31, -1;",
         (Pair(Register("%r1", "b32"), Register("%p1", "pred")), Register("%r2", "b32"), Number(0), Number(31), Number(-1))),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%rd1, {%r1, %r2, 0}], [%r3];",
         (Address(Register("%rd1", "b64"), 0, (Register("%r1", "b32"), Register("%r2", "b32"), Number(0))),
          Address(Register("%r3", "b32")))),
    ],
)  # fmt: skip
def test_operands_are_parsed(text, operands):
    assert only(text).operands == operands


def test_a_predicate_guards_an_instruction():
    assert only("@!%p1 bra $L;").negated
    assert only("@%p1 ret;").predicate == Register("%p1", "pred")


def test_nested_scopes_have_their_own_registers_and_labels():
    loop = "{ .reg .pred P1; WAIT: mbarrier.try_wait.parity.shared::cta.b64 P1, [%r1], %r2; @P1 bra DONE; bra WAIT; DONE: }"
    body = kernel_of(".reg .b32 %r<3>;" + loop + loop).body
    labels = [one.name for one in body if isinstance(one, Label)]
    targets = [one.operands[0].name for one in body if isinstance(one, Instruction) and one.opcode == "bra"]
    assert len(set(labels)) == 4
    assert targets == [labels[1], labels[0], labels[3], labels[2]]
    waits = [one.operands[0].name for one in body if isinstance(one, Instruction) and one.opcode.startswith("mbarrier")]
    assert len(set(waits)) == 2


def test_lines_come_from_the_text_and_sources_from_loc():
    text = (
        HEAD
        + '.file 1 "gemm.cuh"\n.visible .entry k()\n{\n// comment\n.loc 1 42 7\nbar.sync 0; /* a\nlong one */ ret;\n}'
    )
    first, second = parse(text).kernel().body
    assert (first.line, first.location.file, first.location.line) == (9, "gemm.cuh", 42)
    assert second.line == 10
    assert origins(text, {9}) == {9: " [bar.sync 0; /* a] (from gemm.cuh:42)"}


def test_source_lines_follow_inlined_calls_and_need_the_same_instructions():
    plain = HEAD + ".visible .entry k()\n{\nbar.sync 0;\nret;\n}"
    annotated = HEAD + (
        '.file 1 "kernel.cu"\n.file 2 "atoms.cuh"\n.visible .entry k()\n{\n.loc 1 50 3\n'
        ".loc 2 7 5, function_name $L__info_string0, inlined_at 1 50 3\nbar.sync 0;\nret;\n}"
    )
    lines = source_lines(plain, annotated)
    assert [(one.file, one.line) for one in lines[6].chain()] == [("atoms.cuh", 7), ("kernel.cu", 50)]
    assert source_lines(plain, annotated.replace("bar.sync 0;", "")) == {}


@pytest.mark.parametrize("text", ["not PTX", HEAD + ".visible .entry k() { mov.u32 %r1; ! }"])
def test_text_that_is_no_ptx_gives_a_one_line_error(text):
    with pytest.raises(PtxError) as error:
        parse(text)
    assert "\n" not in str(error.value)


BLOCK = ".visible .entry k()\n{\n.reg .b32 %r<3>;\n"


@pytest.mark.parametrize(
    "text, reason",
    [
        (".reg .b32 %q<999999999999>;", "more than 1,048,576 registers"),
        ("{" * 100, "nests more than 64 blocks"),
        (".shared junk;", "declares a variable in an unknown way"),
        (".shared .foo x[3];", "unknown type .foo"),
        (".shared .align 0 .b8 x[3];", "has alignment 0: use a power of two"),
        (".local .b8 x[99999999999];", "99999999999 B: the limit is 4294967296 B"),
        (f".shared .b8 x[{'9' * 6000}];", "malformed number"),
        (f"mov.u32 %r1, {'9' * 6000};", "malformed number"),
        ("mov.f32 %r1, 0fzz;", "malformed number"),
        ("mov.b64 %r1, {%r1,,%r2};", "unknown operand"),
        ("add.u32 %r1, " + "{" * 9000 + ";", "unknown operand"),
        ("mov.b32 %r1|%r2|%r1, %r2;", "unknown operand"),
        ("ld.global.u32 %r1, [%r1+%r2];", "malformed number"),
        ("setp.gt.s32 %r1;", "unknown operands"),
        ("mov.u32 %r1, %r2, %r1;", "unknown operands"),
        ("ld.param.u32 %r1;", "unknown operands"),
        ("wgmma.mma_async.sync;", "is not supported"),
    ],
)
def test_malformed_ptx_is_rejected(text, reason):
    with pytest.raises(PtxError, match=reason):
        translate(parse(HEAD + BLOCK + text + "\nret;\n}"))


def test_truncated_ptx_is_reported_with_its_last_line():
    """Wherever the text ends between the name of the kernel and the brace that closes it."""
    text = HEAD + BLOCK + "{ mov.u32 %r1, 1; }\nmov.b64 %rd1, {%r1, %r2};\nret; // end\n}"
    for end in range(text.index("k()") + 1, len(text)):
        line = text[:end].replace("// end", "").rstrip(" \n/").count("\n") + 1
        with pytest.raises(PtxError, match=f"ends at line {line}, inside kernel k: the file is truncated"):
            parse(text[:end])
    assert parse(text).kernels


@pytest.mark.parametrize(
    "text", ["/* " * 200_000, ".entry a(" * 50_000, ".entry k" + " " * 300_000 + "x", ".entry a " * 50_000]
)
def test_unclosed_ptx_is_rejected_quickly(text):
    began = time.process_time()
    try:
        parse(HEAD + text)
    except PtxError:
        pass
    assert time.process_time() - began < 2  # quadratic searches take minutes


def test_kernel_declarations_are_not_kernels():
    assert [one.name for one in parse(HEAD + ".entry j();\n" + BLOCK + "ret;\n}").kernels] == ["k"]


# ---- Instructions ---------------------------------------------------------------------------------------------------


def test_an_unknown_instruction_is_rejected_by_name_and_line():
    text = HEAD + ".visible .entry k()\n{\n.reg .b32 %r<2>;\ntex.1d.v4.f32 %r1, [%r0];\n}"
    with pytest.raises(PtxError, match=r"instruction tex\.1d\.v4\.f32 is not supported, at line 7 of the PTX"):
        translate(parse(text))


@pytest.mark.parametrize(
    "opcode",
    [
        "ld.mmio.relaxed.sys.global.u32",
        "cvt.rn.satfinite.e4m3x2.f32",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16",
        "call",
    ],
)
def test_unmodelled_instructions_are_rejected(opcode):
    with pytest.raises(PtxError):
        list(translate(parse(HEAD + f".visible .entry k() {{ .reg .b32 %r<3>; {opcode} %r1, %r2; }}")))


def test_instruction_table_names_sections_and_ordering():
    for row in TABLE:
        re.compile(row.pattern)
        assert row.isa
    assert "wait" in row_of("bar.sync")[0].ordering
    assert row_of("membar.cta")[0].ordering == "none between CTAs"
    assert row_of("st.global.v4.b32")[0].writes == 0


def test_copies_of_accumulators_are_accumulators():
    kernel = kernel_of(
        ".reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b64 %rd<2>; .reg .pred p;"
        "mov.b32 %f1, %r1; mov.b32 %r2, %r3;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %rd0, %rd1, p, 1, 1, 0, 0;"
        "mov.b32 %r4, %f4;"
    )
    assert set(accumulator_registers(kernel)) == {"%f1", "%f2", "%f3", "%f4", "%r1", "%r4"}


def test_launch_outside_the_limits_of_the_ptx_is_rejected(small_library):
    symbol = next(iter(small_library.records())).symbol
    record = small_library.load(symbol).record.data
    traits, subject = LaunchTraits.of(record), Subject(symbol, REVERSE.replace("reverse", symbol), record, 0)
    require_launch(subject, replace(traits, threads=64))
    with pytest.raises(ProofError, match="launches 128 threads, and the PTX allows exactly 64"):
        require_launch(subject, replace(traits, threads=128))


# ---- Execution ------------------------------------------------------------------------------------------------------


def test_ptx_kernel_runs_and_its_race_is_found(host_toolchain: HostToolchain):
    executable = Executable(host_toolchain.executable("reverse", REVERSE), REVERSE)
    for waits in (1, 0):
        out = np.zeros(64, np.uint32)
        region = Region("D", out.ctypes.data, 1, 256, 256, 1, 0, 4, abi.WRITABLE | abi.WRITE_ONCE)
        parameters = (struct.pack("<Q", out.ctypes.data), struct.pack("<I", waits))
        launch = Launch((1, 1, 1), (1, 1, 1), 64, 256, parameters, (region,), 1, 10000)
        report = executable.run(launch, Adversary("late", "ahead_low", 1))
        if waits:
            assert not report.findings
            assert (out == np.arange(64)[::-1]).all()
        else:
            race, *_ = [one for one in report.findings if one.kind == "race"]
            assert "shared.u32" in REVERSE.splitlines()[race.line - 1]
            assert race.message.endswith(f"[{REVERSE.splitlines()[race.line - 1].strip()}]")


ACCUMULATORS = (
    HEAD
    + """
.shared .align 128 .b8 operands[4096];
.visible .entry accumulate(.param .u64 accumulate_param_0, .param .u32 accumulate_param_1)
.maxntid 128, 1, 1
{
  .reg .pred %p<5>;
  .reg .b32 %r<9>;
  .reg .f32 %f<9>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [accumulate_param_0];
  ld.param.u32 %r1, [accumulate_param_1];
  mov.u32 %r2, %tid.x;
  shl.b32 %r3, %r2, 4;
  mov.u32 %r4, operands;
  add.s32 %r5, %r4, %r3;
  mov.b32 %r6, 0;
  st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};
  st.shared.v4.b32 [%r5+2048], {%r6, %r6, %r6, %r6};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  shr.u32 %r7, %r4, 4;
  cvt.u64.u32 %rd2, %r7;
  or.b64 %rd3, %rd2, 68720001024;  // core matrices 128 bytes apart along k, 256 along m and n
  add.s64 %rd4, %rd3, 128;
  mov.f32 %f1, 0f3F800000;
  mov.f32 %f2, %f1;
  mov.f32 %f3, %f1;
  mov.f32 %f4, %f1;
  setp.eq.u32 %p1, %r1, 1;
  @%p1 bra $L_unfenced;
  wgmma.fence.sync.aligned;
$L_unfenced:
  setp.ne.u32 %p2, %r1, 2;
  @%p2 bra $L_multiply;
  add.f32 %f2, %f2, %f3;
$L_multiply:
  setp.eq.u32 %p3, %r6, 0;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd3, %rd4, %p3, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  mov.f32 %f5, %f1;
  setp.ne.u32 %p4, %r1, 3;
  @%p4 bra $L_wait;
  add.f32 %f6, %f5, %f5;
$L_wait:
  wgmma.wait_group.sync.aligned 0;
  mul.wide.u32 %rd5, %r2, 4;
  add.s64 %rd6, %rd1, %rd5;
  st.global.f32 [%rd6], %f5;
  ret;
}
"""
)


def test_accumulators_of_wgmma_are_checked_register_by_register(host_toolchain: HostToolchain):
    executable = Executable(host_toolchain.executable("accumulate", ACCUMULATORS), ACCUMULATORS)
    expected = (
        "",
        "no wgmma fence",
        "accessed after the last wgmma fence",
        "accesses %f5, which a wgmma in flight writes",
    )
    for mode, message in enumerate(expected):
        out = np.zeros(128, np.float32)
        region = Region("D", out.ctypes.data, 1, 512, 512, 1, 0, 4, abi.WRITABLE | abi.WRITE_ONCE)
        parameters = (struct.pack("<Q", out.ctypes.data), struct.pack("<I", mode))
        launch = Launch((1, 1, 1), (1, 1, 1), 128, 4096, parameters, (region,), 1, 10000)
        report = executable.run(launch, Adversary("late", "ahead_low", 1))
        assert {one.kind for one in report.findings} == ({"wgmma"} if mode else set()), report.findings
        assert all(message in one.message for one in report.findings)
        assert (out == 1).all()  # the copy of an accumulator in flight has its value after the wait


@pytest.mark.parametrize(
    "between, accumulators, message",
    [
        ("", "%f1, %f2, %f3, %f4", ""),
        ("", "%f1, %f3, %f2, %f4", "of another shape or order"),
        ("mov.f32 %f2, %f3;", "%f1, %f2, %f3, %f4", "of another shape or order"),
        ("add.f32 %f2, %f2, %f3;", "%f1, %f2, %f3, %f4", "accesses %f2, which a wgmma in flight writes"),
    ],
)
def test_second_wgmma_continues_the_accumulators_of_the_first(host_toolchain, between, accumulators, message):
    (first,) = (line for line in ACCUMULATORS.splitlines() if "mma_async" in line)
    text = ACCUMULATORS.replace(first, f"{first}\n{between}\n{first.replace('%f1, %f2, %f3, %f4', accumulators)}")
    executable = Executable(host_toolchain.executable("accumulate", text), text)
    out = np.zeros(128, np.float32)
    region = Region("D", out.ctypes.data, 1, 512, 512, 1, 0, 4, abi.WRITABLE | abi.WRITE_ONCE)
    parameters = (struct.pack("<Q", out.ctypes.data), struct.pack("<I", 0))
    launch = Launch((1, 1, 1), (1, 1, 1), 128, 4096, parameters, (region,), 1, 10000)
    found = executable.run(launch, Adversary("late", "ahead_low", 1)).findings
    assert any(message in one.message for one in found) if message else not found, found


@pytest.mark.slow
def test_line_information_does_not_change_instructions(small_library):
    stored = small_library.load(next(iter(small_library.records())).symbol)
    kernel = emit(plan_of(Spec.from_dict(stored.record.data["spec"])), templates_folder())
    annotated = ptx_of(kernel, headers(kernel.entry_header, templates_folder()), lines=True).decode()
    plain = stored.artefacts[PTX_NAME].decode()
    lines = source_lines(plain, annotated)
    waits = [one for one in parse(plain).kernel().body if getattr(one, "opcode", "") == "bar.sync"]
    assert any(location.file.endswith("mainloop.cuh") for wait in waits for location in lines[wait.line].chain())


@pytest.mark.slow
def test_seeded_faults_of_ptx_are_found(small_library, host_toolchain):
    stored = small_library.load(next(iter(small_library.records())).symbol)
    faults = [one for one in faults_of(stored.artefacts[PTX_NAME].decode()) if one.way in ("weaken", "swap", "drop")]
    for fault in spread(faults, 6):
        outcome = check_here(request_of(host_toolchain, fault.ptx.encode(), stored.record.data))
        assert found_by(outcome) != MISSED, (fault.line, fault.instruction)
