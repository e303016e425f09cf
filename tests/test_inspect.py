"""Inspection of machine code: the ELF reader, ptxas's report, the disassembler, and the verdict against the plan."""

from __future__ import annotations

import io
import re
import struct
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_kernels import (
    ARCHS_OF_NVRTC_13_0,
    BRANCHING,
    DYNAMIC_SMEM,
    LOCAL_ARRAY,
    SPILLING,
    STATIC_SMEM,
    TENSOR,
    VARIABLES,
    compile_probe,
)

from generator.arch import ARCHS
from generator.build import inspect as sass
from generator.build.inspect import (
    Binary,
    CubinInfo,
    Expectation,
    Instruction,
    Listing,
    MachineCode,
    PtxasReport,
    disassemble,
    find_nvdisasm,
    inspect,
    inspect_all,
    parse_ptxas_log,
    ptxas_warnings,
    read_cubin,
)
from generator.errors import HgemmError

TENSOR_ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_110", "sm_120")
PLAN = Expectation(
    arch="sm_89",
    threads=32,
    static_smem_bytes=0,
    smem_bytes=1024,
    param_bytes=28,
    max_registers=255,
    mma_opcode="HMMA.16816.F32",
    mma_per_k_tile=2,
    mma_theory="warp 16x16, k 16",
    required=("HMMA", "LDSM", "LDGSTS"),
    forbidden=("LDL", "STL", "STS"),
)


@pytest.fixture(scope="module", autouse=True)
def nvdisasm():
    """Skip with a reason if there is no disassembler."""
    try:
        return find_nvdisasm()
    except HgemmError as error:
        pytest.skip(str(error))


def binary(source: str = TENSOR, **plan) -> Binary:
    expectation = replace(PLAN, **plan)
    cubin, log = compile_probe(source, expectation.arch)
    return Binary(cubin, "probe", expectation, log)


def scalar(source: str, **plan) -> Binary:
    """Plan for a kernel without tensor instructions."""
    return binary(source, **{"mma_per_k_tile": 0, "required": (), "forbidden": (), "smem_bytes": 0, **plan})


def test_planned_kernels_have_no_violations():
    for arch, found in zip(TENSOR_ARCHS, inspect_all([binary(arch=arch) for arch in TENSOR_ARCHS]), strict=True):
        assert (arch, found.violations) == (arch, ())
        assert found.sass["HMMA"] == found.sass["LDSM"] == found.sass["LDGSTS"] == 2
        assert found.code_bytes == 16 * sum(found.sass.values())


def test_resources_come_from_the_binary_and_the_launch():
    found = inspect(scalar(STATIC_SMEM, threads=128, static_smem_bytes=1024, smem_bytes=30_000, param_bytes=16))
    assert found.violations == ()
    assert (found.resources.smem_bytes, found.resources.spill_bytes, found.resources.stack_bytes) == (31_024, 0, 0)
    assert (found.resources.ctas_per_sm, found.resources.warps_per_sm) == (3, 12)  # 3 x (30.3 + 1) KiB of 100 KiB
    assert found.resources.occupancy == 12 / 48


DIFFERENCES = (
    ({"threads": 64}, "threads a CTA 32, the plan says 64"),
    ({"static_smem_bytes": 512}, "static smem bytes 0, the plan says 512"),
    ({"param_bytes": 32}, "parameter bytes 28, the plan says 32"),
    ({"smem_bytes": 101_377}, "smem 101377 B > 101376 B of sm_89"),
    (
        {"mma_per_k_tile": 4},
        "HMMA 2, the plan expects 4 per k-tile (warp 16x16, k 16): atoms are missing or repeated",
    ),
    ({"mma_per_k_tile": 1}, "HMMA 2, the plan expects 1 per k-tile (warp 16x16, k 16): the k loop was unrolled"),
    (
        {"mma_per_k_tile": 3, "max_k_tiles_in_code": 2, "mma_theory": "k 16"},
        "HMMA 2, the plan expects 3 per k-tile (k 16), at most 2 of them in the code: atoms are missing or repeated",
    ),
    ({"mma_opcode": "HMMA.16816.F16"}, "HMMA.16816.F32 found, the plan says HMMA.16816.F16 only"),
    ({"required": ("HMMA", "STSM")}, "STSM is missing: the plan requires it"),
    ({"forbidden": ("LDSM",)}, "LDSM 2, the plan allows 0"),
)


def test_differences_from_the_plan_show_both_values():
    found = inspect_all([binary(**plan) for plan, _ in DIFFERENCES])
    for inspection, (_, line) in zip(found, DIFFERENCES, strict=True):
        assert line in inspection.violations
        assert all("\n" not in violation for violation in inspection.violations)


def test_peeled_k_loop_matches_a_plan_that_allows_it():
    assert inspect(binary(mma_per_k_tile=1, max_k_tiles_in_code=2)).violations == ()


def test_registers_over_the_plan_are_a_violation():
    registers = inspect(binary()).resources.registers
    found = inspect(binary(max_registers=registers - 1))
    assert found.violations == (f"registers {registers}, the plan allows {registers - 1}",)


def test_launch_that_fits_no_sm_is_a_violation():
    found = inspect(scalar(DYNAMIC_SMEM, threads=64, smem_bytes=200_000, param_bytes=16))
    assert found.resources.ctas_per_sm == 0
    assert any(line.startswith("no CTA fits on an SM of sm_89: 64 threads of") for line in found.violations)


def test_cubin_for_another_architecture_is_a_violation():
    cubin, log = compile_probe(TENSOR, "sm_86")
    found = inspect(Binary(cubin, "probe", PLAN, log))
    assert found.violations == ("arch number 86, the plan says 89",)


SPILLED = {"threads": 1024, "static_smem_bytes": 1024, "param_bytes": 20}


SPILL_ARCHS = ("sm_75", "sm_89", "sm_90a", "sm_120")


def test_spills_are_reported_in_bytes_and_allowed_on_request():
    spilling = [scalar(SPILLING, arch=arch, **SPILLED) for arch in SPILL_ARCHS]
    allowed = [scalar(SPILLING, arch=arch, allow_spills=True, **SPILLED) for arch in SPILL_ARCHS]
    inspected = inspect_all([*spilling, *allowed])
    for planned, found in zip(spilling, inspected):
        report = parse_ptxas_log(planned.ptxas_log)["probe"]
        assert found.resources.spill_bytes == report.spill_bytes > 0
        assert found.violations == (
            f"LDL {found.sass['LDL']}, STL {found.sass['STL']}, {report.spill_bytes} B spilled,"
            f" {report.stack_bytes} B of stack, the plan allows 0 of each: registers spill",
        )
    assert [found.violations for found in inspected[len(spilling) :]] == [()] * len(SPILL_ARCHS)


def test_spilled_bytes_are_counted_without_a_ptxas_report():
    spilling = [scalar(SPILLING, arch=arch, **SPILLED) for arch in SPILL_ARCHS]
    found = inspect_all([*spilling, *(replace(planned, ptxas_log="") for planned in spilling)])
    assert found[: len(spilling)] == found[len(spilling) :]


def test_local_arrays_are_no_spills():
    found = inspect(scalar(LOCAL_ARRAY, threads=32, param_bytes=24))
    assert found.resources.spill_bytes == 0
    assert any("0 B spilled, 256 B of stack" in line and "indexed at run time" in line for line in found.violations)


def test_unplanned_device_variables_are_a_violation():
    variables = {"threads": 32, "param_bytes": 12}
    assert inspect(scalar(VARIABLES, **variables)).violations == ("device variables 20 B, the plan allows 0 B",)
    assert inspect(scalar(VARIABLES, global_bytes=20, **variables)).violations == ()


def test_log_of_another_build_is_a_violation():
    _, foreign = compile_probe(SPILLING, "sm_89")
    found = inspect(replace(binary(), ptxas_log=foreign))
    registers, report = found.resources.registers, parse_ptxas_log(foreign)["probe"]
    assert f"ptxas reports 64 registers, the cubin {registers}: they are of different builds" in found.violations
    loads = f"ptxas reports {report.spill_load_bytes} B of spilling LDL, the code has 0 B: they are of different builds"
    assert loads in found.violations


def test_ptxas_warnings_are_violations():
    planned = binary()
    line = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    found = inspect(replace(planned, ptxas_log=f"{planned.ptxas_log}\n{line}\n"))
    assert found.violations == (f"ptxas warns: {line}",)


def test_unreadable_cubin_is_an_error():
    with pytest.raises(HgemmError, match="build it again"):
        inspect(replace(binary(), cubin=b""))


# ==== Reading ELF =====================================================================================================

E_SHOFF = 40
E_FLAGS = 48
EI_ABIVERSION = 8


KINDS = {"static": STATIC_SMEM, "dynamic": DYNAMIC_SMEM, "array": LOCAL_ARRAY}
CASES = [(source, arch) for source in KINDS.values() for arch in ARCHS_OF_NVRTC_13_0]
CASES += [(SPILLING, arch) for arch in ("sm_75", "sm_89", "sm_90a", "sm_120")]


@pytest.mark.parametrize(("source", "arch"), CASES)
def test_cubin_facts_match_the_ptxas_report(source, arch):
    cubin, log = compile_probe(source, arch)
    traits, report = read_cubin(cubin, "probe"), parse_ptxas_log(log)["probe"]
    assert traits.arch_number == ARCHS[arch].number
    assert report.arch.removesuffix("a") == arch.removesuffix("a")
    assert traits.registers == report.registers
    assert traits.stack_bytes == report.stack_bytes
    assert traits.static_smem_bytes == report.static_smem_bytes
    assert traits.symbols == ("probe",)
    assert traits.code_bytes % 16 == 0 < traits.code_bytes


@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_parameters_threads_variables_and_constants(arch):
    traits = read_cubin(compile_probe(STATIC_SMEM, arch)[0], "probe")
    assert (traits.param_bytes, traits.max_threads, traits.global_bytes) == (16, 128, 0)
    traits = read_cubin(compile_probe(LOCAL_ARRAY, arch)[0], "probe")
    assert (traits.param_bytes, traits.max_threads) == (24, 32)
    traits = read_cubin(compile_probe(BRANCHING, arch)[0], "probe")
    assert (traits.param_bytes, traits.max_threads) == (12, 0)
    traits = read_cubin(compile_probe(VARIABLES, arch)[0], "probe")
    assert traits.param_bytes == 12
    assert traits.global_bytes == 4 + 16
    assert traits.constant_bytes >= 32


def test_sm_number_is_read_from_its_older_place():
    cubin = bytearray(compile_probe(STATIC_SMEM, "sm_89")[0])
    cubin[EI_ABIVERSION] = 7
    struct.pack_into("<I", cubin, E_FLAGS, 0x00590559)
    assert read_cubin(bytes(cubin), "probe").arch_number == 89


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_code_and_symbols_match_pyelftools(arch):
    elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed: pip install pyelftools")
    cubin = compile_probe(BRANCHING, arch)[0]
    elf = elffile.ELFFile(io.BytesIO(cubin))
    traits = read_cubin(cubin, "probe")
    assert traits.text == elf.get_section_by_name(".text.probe").data()
    names = [section.name for section in elf.iter_sections()]
    assert [f".text.{symbol}" for symbol in traits.symbols] == sorted(n for n in names if n.startswith(".text."))


def test_missing_kernel_error_lists_the_kernels():
    with pytest.raises(HgemmError, match="no kernel nobody: it defines probe"):
        read_cubin(compile_probe(STATIC_SMEM, "sm_89")[0], "nobody")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not an elf file" * 20, bytes(64), bytes(100_000)])
def test_malformed_cubin_gives_a_one_line_error(content):
    with pytest.raises(HgemmError) as caught:
        read_cubin(content, "probe")
    assert "\n" not in str(caught.value)


def test_truncated_cubins_give_errors_or_lose_nothing():
    cubin = compile_probe(STATIC_SMEM, "sm_120")[0]
    whole = read_cubin(cubin, "probe")
    for length in range(0, len(cubin), 7):
        try:
            assert read_cubin(cubin[:length], "probe") == whole
        except HgemmError as error:
            assert "\n" not in str(error)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), arch=st.sampled_from(["sm_89", "sm_90", "sm_120"]))
def test_altered_cubins_give_facts_or_a_one_line_error(data, arch):
    cubin = bytearray(compile_probe(STATIC_SMEM, arch)[0])
    (section_table,) = struct.unpack_from("<Q", cubin, E_SHOFF)
    anywhere = st.integers(0, len(cubin) - 4)
    places = st.one_of(anywhere, st.integers(0, 60), st.integers(section_table, len(cubin) - 4))
    words = st.one_of(st.binary(min_size=4, max_size=4), st.just(b"\xff" * 4), st.just(bytes(4)))
    for place, word in data.draw(st.lists(st.tuples(places, words), min_size=1, max_size=6)):
        cubin[place : place + 4] = word
    try:
        assert isinstance(read_cubin(bytes(cubin), "probe"), CubinInfo)
    except HgemmError as error:
        assert "\n" not in str(error)


def test_tensor_probe_has_the_expected_instructions():
    assert read_cubin(compile_probe(TENSOR, "sm_89")[0], "probe").param_bytes == 28


# ==== Reading ptxas's report ==========================================================================================

LOG = """ptxas info    : 16 bytes gmem, 32 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_89'
ptxas info    : Function properties for first
ptxas         .     776 bytes stack frame, 1256 bytes spill stores, 1292 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 776 bytes cumulative stack size, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 29.512 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""


def test_figures_of_a_kernel_include_the_functions_it_calls():
    assert parse_ptxas_log(LOG) == {
        "first": PtxasReport("first", "sm_89", 64, 776, 1256, 1292, 1024),
        "second": PtxasReport("second", "sm_90a", 255, 8, 4, 12, 0),
    }
    assert parse_ptxas_log(LOG)["first"].spill_bytes == 2548


def test_a_log_without_a_report_has_no_kernels():
    assert parse_ptxas_log("") == {}
    assert parse_ptxas_log("probe.cu(3): warning #177-D: variable was declared but never referenced") == {}


def test_truncated_report_has_zeros():
    assert parse_ptxas_log(LOG[: LOG.index("ptxas         .")])["first"] == PtxasReport("first", "sm_89", 0, 0, 0, 0, 0)


def test_each_warning_is_kept_once_on_one_line():
    warning = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert ptxas_warnings(f"{LOG}{warning}\n\0{warning}\n") == (" ".join(warning.split()),)
    assert ptxas_warnings(LOG) == ()


def test_front_end_warnings_are_not_ptxas_warnings():
    assert ptxas_warnings('probe.cu(3): warning #177-D: variable "x" was declared but never referenced\n') == ()
    message = "ptxas warning : Value of threads per SM for entry probe is out of range. .minnctapersm will be ignored"
    assert ptxas_warnings(message) == (message,)


# ==== Disassembly =====================================================================================================


def code_of(source: str, arch: str) -> MachineCode:
    return MachineCode(arch, read_cubin(compile_probe(source, arch)[0], "probe").text)


def opcodes_of_cubin(nvdisasm, folder, cubin: bytes) -> Counter:
    """Count what nvdisasm lists of the ELF file itself, by a reading of its own."""
    (folder / "probe.cubin").write_bytes(cubin)
    out = subprocess.run([nvdisasm, "-c", "-ndf", folder / "probe.cubin"], capture_output=True, text=True, check=True)
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", out.stdout)
    return Counter(re.sub(r"^@\S+\s+", "", instruction).split()[0] for instruction in instructions)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"])
def test_the_raw_image_lists_the_same_instructions_as_the_cubin(arch, nvdisasm, tmp_path):
    source = BRANCHING if arch == "sm_75" else TENSOR
    listing = disassemble([code_of(source, arch)])[0]
    assert listing.opcode_counts() == opcodes_of_cubin(nvdisasm, tmp_path, compile_probe(source, arch)[0])
    assert [i.address_bytes for i in listing.instructions] == [16 * n for n in range(len(listing.instructions))]


def test_batch_inspection_equals_single_inspection():
    codes = [code_of(BRANCHING, "sm_89"), code_of(SPILLING, "sm_120"), code_of(TENSOR, "sm_89")]
    assert disassemble(codes) == [disassemble([code])[0] for code in codes]


def test_jumps_stay_inside_their_kernel():
    codes = [code_of(BRANCHING, arch) for arch in ("sm_75", "sm_86", "sm_90a", "sm_100", "sm_120")]
    listings = disassemble(codes * 2)
    assert listings[: len(codes)] == listings[len(codes) :]
    assert all({"BRA", "CALL", "RET"} <= set(listing.counts()) for listing in listings)


def test_instructions_split_into_predicate_opcode_and_operands(monkeypatch):
    out = """\t.headerflags\t@"EF_CUDA_SM89"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA 0x30 ;
        /*0020*/             @UP1 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0 ;
        /*0040*/                   EXIT;
"""
    monkeypatch.setattr(sass, "_run", lambda images, nvdisasm: {"sm_90a": (out, "")})
    (listing,) = disassemble([MachineCode("sm_90a", bytes(80))])
    assert listing.instructions == (
        Instruction(0x00, "IMAD.MOV.U32", "", "R1, RZ, RZ, c[0x0][0x28]"),
        Instruction(0x10, "BRA", "!P0", "0x30"),
        Instruction(0x20, "UIADD3", "UP1", "UR4, UR4, 0x1, URZ"),
        Instruction(0x30, "HGMMA.64x128x16.F32", "", "R24, gdesc[UR4], R24, gsb0"),
        Instruction(0x40, "EXIT", "", ""),
    )
    assert listing.counts() == {"BRA": 1, "EXIT": 1, "HGMMA": 1, "IMAD": 1, "UIADD3": 1}
    assert "/*0010*/  @!P0 BRA 0x30 ;\n" in listing.text()


def test_the_width_of_a_load_is_in_its_opcode():
    opcodes = ("LDL", "LDL.LU", "LDL.LU.64", "LDL.128", "LDL.U8", "LDL.S16", "STL.64", "LDS.128")
    listing = Listing(tuple(Instruction(16 * n, opcode, "", "") for n, opcode in enumerate(opcodes)))
    assert listing.bytes_moved("LDL") == 4 + 4 + 8 + 16 + 1 + 2
    assert (listing.bytes_moved("STL"), listing.bytes_moved("STS")) == (8, 0)


def test_no_code_starts_no_disassembler(monkeypatch):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: pytest.fail("nvdisasm was asked for"))
    assert disassemble([]) == []
    assert disassemble([MachineCode("sm_89", b"")]) == [Listing(())]


def test_invalid_instruction_is_named_by_kernel_and_address():
    good = code_of(STATIC_SMEM, "sm_89")
    bad = MachineCode("sm_89", good.text[:32] + b"\xff" * 16 + good.text[48:])
    with pytest.raises(HgemmError, match=r"^code 1 of sm_89 has no instruction at 0x20: is it built for sm_89\?$"):
        disassemble([good, bad, good])


def test_partial_instructions_are_rejected():
    with pytest.raises(HgemmError, match="code 0 of sm_89 has 24 B, which is no multiple"):
        disassemble([MachineCode("sm_89", bytes(24))])


def test_unknown_architecture_gives_a_one_line_error():
    with pytest.raises(HgemmError) as caught:
        disassemble([MachineCode("sm_42", code_of(STATIC_SMEM, "sm_89").text)])
    assert "\n" not in str(caught.value)


def test_missing_disassembler_error_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(sass.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HgemmError, match="^nvdisasm is not installed: pip install nvidia-cuda-nvdisasm$"):
        find_nvdisasm([tmp_path])
    (tmp_path / "nvdisasm").touch()
    assert find_nvdisasm([tmp_path / "absent", tmp_path]) == tmp_path / "nvdisasm"


def test_broken_disassembler_gives_a_one_line_error(tmp_path):
    with pytest.raises(HgemmError, match="nvdisasm cannot be run"):
        disassemble([code_of(STATIC_SMEM, "sm_89")], nvdisasm=tmp_path / "absent")
