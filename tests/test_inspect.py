"""Inspection: a kernel as planned passes; each thing that is not as planned is told in one line with both figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from probe_kernels import DYNAMIC_SMEM, LOCAL_ARRAY, SPILLING, STATIC_SMEM, TENSOR, VARIABLES, compile_probe

from generator.build.inspect import Binary, Expectation, find_nvdisasm, inspect, inspect_all, parse_ptxas_log
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
    """Skip, aloud, where there is no disassembler."""
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


def test_a_kernel_as_planned_has_no_violations_on_any_architecture():
    for arch, found in zip(TENSOR_ARCHS, inspect_all([binary(arch=arch) for arch in TENSOR_ARCHS]), strict=True):
        assert (arch, found.violations) == (arch, ())
        assert found.sass["HMMA"] == found.sass["LDSM"] == found.sass["LDGSTS"] == 2
        assert found.code_bytes == 16 * sum(found.sass.values())


def test_resources_are_the_binarys_with_the_launchs_shared_memory():
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
        "HMMA 2, theory says 4 a k-tile (warp 16x16, k 16): atoms are missing or repeated",
    ),
    ({"mma_per_k_tile": 1}, "HMMA 2, theory says 1 a k-tile (warp 16x16, k 16): the k loop was unrolled"),
    (
        {"mma_per_k_tile": 3, "max_k_tiles_in_code": 2, "mma_theory": "k 16"},
        "HMMA 2, theory says 3 a k-tile (k 16), at most 2 of them in the code: atoms are missing or repeated",
    ),
    ({"mma_opcode": "HMMA.16816.F16"}, "HMMA.16816.F32 found, the plan says HMMA.16816.F16 only"),
    ({"required": ("HMMA", "STSM")}, "STSM missing: the plan needs it"),
    ({"forbidden": ("LDSM",)}, "LDSM 2, the plan allows 0"),
)


def test_each_difference_from_the_plan_is_told_with_both_figures():
    found = inspect_all([binary(**plan) for plan, _ in DIFFERENCES])
    for inspection, (_, line) in zip(found, DIFFERENCES, strict=True):
        assert line in inspection.violations
        assert all("\n" not in violation for violation in inspection.violations)


def test_a_peeled_k_loop_is_as_planned_where_the_plan_allows_it():
    assert inspect(binary(mma_per_k_tile=1, max_k_tiles_in_code=2)).violations == ()


def test_registers_over_the_plan_are_told():
    registers = inspect(binary()).resources.registers
    found = inspect(binary(max_registers=registers - 1))
    assert found.violations == (f"registers {registers}, the plan allows {registers - 1}",)


def test_a_launch_that_fits_no_sm_is_told():
    found = inspect(scalar(DYNAMIC_SMEM, threads=64, smem_bytes=200_000, param_bytes=16))
    assert found.resources.ctas_per_sm == 0
    assert any(line.startswith("no CTA fits on an SM of sm_89: 64 threads of") for line in found.violations)


def test_a_cubin_for_another_architecture_is_told():
    cubin, log = compile_probe(TENSOR, "sm_86")
    found = inspect(Binary(cubin, "probe", PLAN, log))
    assert found.violations == ("arch number 86, the plan says 89",)


SPILLED = {"threads": 1024, "static_smem_bytes": 1024, "param_bytes": 20}


SPILL_ARCHS = ("sm_75", "sm_89", "sm_90a", "sm_120")


def test_spills_are_told_with_their_bytes_and_allowed_when_asked():
    spilling = [scalar(SPILLING, arch=arch, **SPILLED) for arch in SPILL_ARCHS]
    for planned, found in zip(spilling, inspect_all(spilling), strict=True):
        report = parse_ptxas_log(planned.ptxas_log)["probe"]
        assert found.resources.spill_bytes == report.spill_bytes > 0
        assert found.violations == (
            f"LDL {found.sass['LDL']}, STL {found.sass['STL']}, {report.spill_bytes} B spilled,"
            f" {report.stack_bytes} B of stack, the plan allows 0 of each: registers spill",
        )
    allowed = [scalar(SPILLING, arch=arch, allow_spills=True, **SPILLED) for arch in SPILL_ARCHS]
    assert [found.violations for found in inspect_all(allowed)] == [()] * len(SPILL_ARCHS)


def test_without_ptxass_report_the_code_tells_the_same_spilled_bytes():
    spilling = [scalar(SPILLING, arch=arch, **SPILLED) for arch in SPILL_ARCHS]
    assert inspect_all(spilling) == inspect_all([replace(planned, ptxas_log="") for planned in spilling])


def test_an_array_in_local_memory_is_told_from_a_spill():
    found = inspect(scalar(LOCAL_ARRAY, threads=32, param_bytes=24))
    assert found.resources.spill_bytes == 0
    assert any("0 B spilled, 256 B of stack" in line and "indexed at run time" in line for line in found.violations)


def test_device_variables_are_told_unless_planned():
    variables = {"threads": 32, "param_bytes": 12}
    assert inspect(scalar(VARIABLES, **variables)).violations == ("device variables 20 B, the plan allows 0 B",)
    assert inspect(scalar(VARIABLES, global_bytes=20, **variables)).violations == ()


def test_a_log_of_another_build_is_told():
    _, foreign = compile_probe(SPILLING, "sm_89")
    found = inspect(replace(binary(), ptxas_log=foreign))
    registers, report = found.resources.registers, parse_ptxas_log(foreign)["probe"]
    assert f"ptxas reports 64 registers, the cubin {registers}: not one build" in found.violations
    loads = f"ptxas reports {report.spill_load_bytes} B of spilling LDL, the code has 0 B: not one build"
    assert loads in found.violations


def test_what_ptxas_warns_of_is_a_violation():
    planned = binary()
    line = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    found = inspect(replace(planned, ptxas_log=f"{planned.ptxas_log}\n{line}\n"))
    assert found.violations == (f"ptxas warns: {line}",)


def test_a_cubin_that_cannot_be_read_is_an_error():
    with pytest.raises(HgemmError, match="build it again"):
        inspect(replace(binary(), cubin=b""))
