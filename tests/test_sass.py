"""Disassembly in one raw image against that of each cubin by itself, and its errors."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest
from probe_kernels import BRANCHING, SPILLING, STATIC_SMEM, TENSOR, compile_probe

from generator.build import inspect as sass
from generator.build.inspect import Code, Instruction, Listing, disassemble, find_nvdisasm, read_cubin
from generator.errors import HgemmError


@pytest.fixture(scope="module", autouse=True)
def nvdisasm():
    """Skip, aloud, where there is no disassembler to test."""
    try:
        return find_nvdisasm()
    except HgemmError as error:
        pytest.skip(str(error))


def code_of(source: str, arch: str) -> Code:
    return Code(arch, read_cubin(compile_probe(source, arch)[0], "probe").text)


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


def test_a_batch_gives_what_each_kernel_gives_alone():
    codes = [code_of(BRANCHING, "sm_89"), code_of(SPILLING, "sm_120"), code_of(TENSOR, "sm_89")]
    assert disassemble(codes) == [disassemble([code])[0] for code in codes]


def test_jumps_stay_inside_their_kernel_wherever_it_stands_in_the_image():
    codes = [code_of(BRANCHING, arch) for arch in ("sm_75", "sm_86", "sm_90a", "sm_100", "sm_120")]
    listings = disassemble(codes * 2)
    assert listings[: len(codes)] == listings[len(codes) :]
    assert all({"BRA", "CALL", "RET"} <= set(listing.counts()) for listing in listings)


def test_predicates_opcodes_and_operands_are_told_apart(monkeypatch):
    out = """\t.headerflags\t@"EF_CUDA_SM89"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA 0x30 ;
        /*0020*/             @UP1 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0 ;
        /*0040*/                   EXIT;
"""
    monkeypatch.setattr(sass, "_run", lambda images, nvdisasm: {"sm_90a": (out, "")})
    (listing,) = disassemble([Code("sm_90a", bytes(80))])
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


def test_nothing_to_disassemble_starts_nothing(monkeypatch):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: pytest.fail("nvdisasm was asked for"))
    assert disassemble([]) == []
    assert disassemble([Code("sm_89", b"")]) == [Listing(())]


def test_what_is_no_instruction_is_named_by_kernel_and_address():
    good = code_of(STATIC_SMEM, "sm_89")
    bad = Code("sm_89", good.text[:32] + b"\xff" * 16 + good.text[48:])
    with pytest.raises(HgemmError, match=r"^code 1 of sm_89 has no instruction at 0x20: is it built for sm_89\?$"):
        disassemble([good, bad, good])


def test_code_that_is_not_whole_instructions_is_refused():
    with pytest.raises(HgemmError, match="code 0 of sm_89 has 24 B: not whole instructions of 16 B"):
        disassemble([Code("sm_89", bytes(24))])


def test_an_unknown_architecture_is_an_error_of_one_line():
    with pytest.raises(HgemmError) as caught:
        disassemble([Code("sm_42", code_of(STATIC_SMEM, "sm_89").text)])
    assert "\n" not in str(caught.value)


def test_a_missing_disassembler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sass.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HgemmError, match="^nvdisasm is not installed: pip install nvidia-cuda-nvdisasm$"):
        find_nvdisasm([tmp_path])
    (tmp_path / "nvdisasm").touch()
    assert find_nvdisasm([tmp_path / "absent", tmp_path]) == tmp_path / "nvdisasm"


def test_a_disassembler_that_does_not_start_is_an_error_of_one_line(tmp_path):
    with pytest.raises(HgemmError, match="nvdisasm cannot be run"):
        disassemble([code_of(STATIC_SMEM, "sm_89")], nvdisasm=tmp_path / "absent")
