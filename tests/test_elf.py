"""Facts of a cubin against ptxas's report and pyelftools; damage is an error of one line."""

from __future__ import annotations

import io
import struct

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
from generator.build.inspect import CubinFacts, parse_ptxas_log, read_cubin
from generator.errors import HgemmError

E_SHOFF = 40
E_FLAGS = 48
EI_ABIVERSION = 8


KINDS = {"static": STATIC_SMEM, "dynamic": DYNAMIC_SMEM, "array": LOCAL_ARRAY}
CASES = [(source, arch) for source in KINDS.values() for arch in ARCHS_OF_NVRTC_13_0]
CASES += [(SPILLING, arch) for arch in ("sm_75", "sm_89", "sm_90a", "sm_120")]


@pytest.mark.parametrize(("source", "arch"), CASES)
def test_facts_are_those_that_ptxas_reports(source, arch):
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


def test_the_older_place_of_the_sm_number_is_read_too():
    cubin = bytearray(compile_probe(STATIC_SMEM, "sm_89")[0])
    cubin[EI_ABIVERSION] = 7
    struct.pack_into("<I", cubin, E_FLAGS, 0x00590559)
    assert read_cubin(bytes(cubin), "probe").arch_number == 89


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_code_and_symbols_are_those_that_pyelftools_finds(arch):
    elffile = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed: pip install pyelftools")
    cubin = compile_probe(BRANCHING, arch)[0]
    elf = elffile.ELFFile(io.BytesIO(cubin))
    traits = read_cubin(cubin, "probe")
    assert traits.text == elf.get_section_by_name(".text.probe").data()
    names = [section.name for section in elf.iter_sections()]
    assert [f".text.{symbol}" for symbol in traits.symbols] == sorted(n for n in names if n.startswith(".text."))


def test_a_missing_kernel_is_named_with_those_that_are_there():
    with pytest.raises(HgemmError, match="no kernel nobody: it defines probe"):
        read_cubin(compile_probe(STATIC_SMEM, "sm_89")[0], "nobody")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not an elf file" * 20, bytes(64), bytes(100_000)])
def test_what_is_no_cubin_is_an_error_of_one_line(content):
    with pytest.raises(HgemmError) as caught:
        read_cubin(content, "probe")
    assert "\n" not in str(caught.value)


def test_every_truncation_is_an_error_of_one_line_or_loses_nothing():
    cubin = compile_probe(STATIC_SMEM, "sm_120")[0]
    whole = read_cubin(cubin, "probe")
    for length in range(0, len(cubin), 7):
        try:
            assert read_cubin(cubin[:length], "probe") == whole
        except HgemmError as error:
            assert "\n" not in str(error)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), arch=st.sampled_from(["sm_89", "sm_90", "sm_120"]))
def test_altered_cubins_give_facts_or_an_error_of_one_line(data, arch):
    cubin = bytearray(compile_probe(STATIC_SMEM, arch)[0])
    (section_table,) = struct.unpack_from("<Q", cubin, E_SHOFF)
    anywhere = st.integers(0, len(cubin) - 4)
    places = st.one_of(anywhere, st.integers(0, 60), st.integers(section_table, len(cubin) - 4))
    words = st.one_of(st.binary(min_size=4, max_size=4), st.just(b"\xff" * 4), st.just(bytes(4)))
    for place, word in data.draw(st.lists(st.tuples(places, words), min_size=1, max_size=6)):
        cubin[place : place + 4] = word
    try:
        assert isinstance(read_cubin(bytes(cubin), "probe"), CubinFacts)
    except HgemmError as error:
        assert "\n" not in str(error)


def test_tensor_probe_is_what_the_other_tests_take_it_for():
    assert read_cubin(compile_probe(TENSOR, "sm_89")[0], "probe").param_bytes == 28
