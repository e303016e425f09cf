"""Residency against NVIDIA's own calculator, compiled from `cuda_occupancy.h`, and against cases from the guide."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from generator.arch import ARCHS
from generator.build.inspect import occupancy

ORACLE = r"""
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, warps, threads, registers; size_t smem_sm, smem_cta, reserved, smem;
  while (std::scanf("%d %d %d %zu %zu %zu %d %d %zu", &major, &minor, &warps, &smem_sm, &smem_cta, &reserved, &threads,
                    &registers, &smem) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = warps * 32; device.warpSize = 32;
    device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.numSms = 1;
    device.sharedMemPerBlock = 49152; device.sharedMemPerBlockOptin = smem_cta;
    device.sharedMemPerMultiprocessor = smem_sm; device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.sharedSizeBytes = 0;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = smem_cta;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state; cudaOccResult result;
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, smem);
    std::printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
}
"""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory) -> Path:
    """Compile NVIDIA's calculator; its own CTA limit and units are in the header, the rest is given to it."""
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: the occupancy oracle was not asked")
    package = importlib.util.find_spec("nvidia")
    roots = package.submodule_search_locations if package else []
    header = next((path for root in roots for path in Path(root).glob("*/include/cuda_occupancy.h")), None)
    if header is None:
        pytest.skip("no cuda_occupancy.h: pip install nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "oracle.cpp").write_text(ORACLE)
    subprocess.run([compiler, "-w", f"-I{header.parent}", "-o", folder / "oracle", folder / "oracle.cpp"], check=True)
    return folder / "oracle"


def test_residency_equals_that_of_nvidias_calculator(oracle):
    random.seed(2)
    cases = [
        (name, 32 * random.randint(1, 32), random.randint(16, 255), random.choice((0, random.randrange(0, 236_000))))
        for name in ARCHS
        for _ in range(600)
    ]
    rows = []
    for name, threads, registers, smem_bytes in cases:
        arch, limits = ARCHS[name], ARCHS[name].limits
        sizes = (limits.smem_bytes_per_sm, limits.smem_bytes_per_cta, limits.smem_reserved_bytes_per_cta)
        rows.append((*arch.capability, limits.warps_per_sm, *sizes, threads, registers, smem_bytes))
    text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
    told = subprocess.run([oracle], input=text, capture_output=True, text=True, check=True).stdout.split()
    wrong = [
        (case, int(ctas), occupancy(ARCHS[case[0]].limits, *case[1:]))
        for case, ctas in zip(cases, told, strict=True)
        if occupancy(ARCHS[case[0]].limits, *case[1:]).ctas_per_sm != int(ctas)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem_bytes", "ctas", "limiter"),
    [
        ("sm_89", 128, 224, 49_152, 2, "registers"),
        ("sm_89", 128, 128, 49_152, 2, "smem"),  # (48 + 1) KiB twice in 100 KiB
        ("sm_89", 128, 128, 50_177, 1, "smem"),  # a byte more than half of 100 KiB less 1 KiB each
        ("sm_80", 256, 128, 98_304, 1, "smem"),
        ("sm_80", 256, 128, 81_920, 2, "registers"),
        ("sm_89", 512, 32, 0, 3, "warps"),
        ("sm_90", 32, 16, 0, 32, "ctas"),
        ("sm_89", 128, 64, 101_377, 0, "smem"),
        ("sm_90", 1024, 65, 0, 0, "registers"),
        ("sm_90", 128, 256, 0, 0, "registers"),
        ("sm_90", 1025, 32, 0, 0, "warps"),
    ],
)
def test_known_cases(arch, threads, registers, smem_bytes, ctas, limiter):
    found = occupancy(ARCHS[arch].limits, threads, registers, smem_bytes)
    assert (found.ctas_per_sm, found.limiter) == (ctas, limiter)
    assert found.warps_per_sm == ctas * -(-threads // 32)
    assert found.fraction == found.warps_per_sm / ARCHS[arch].limits.warps_per_sm
