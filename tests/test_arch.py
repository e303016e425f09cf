"""Architectures: spellings, limits against ptxas, and occupancy against NVIDIA's calculator."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from probe_kernels import ARCHS_OF_NVRTC_13_0, compile_probe

import hgemm.device
from generator.arch import ARCHS, CARDS, parse_arch, parse_arch_list
from generator.build.inspect import occupancy
from generator.errors import RequestError
from hgemm.errors import DeviceError
from hgemm.model.cards import card, card_keys

KIB = 1024


@pytest.mark.parametrize("text", ["sm_90a", "90a", "9.0a", "compute_90a", "SM_90A", "sm90a", " sm_90a "])
def test_spellings_of_an_architecture_are_equal(text):
    assert parse_arch(text) == "sm_90a"


@pytest.mark.parametrize("name", ARCHS)
def test_canonical_names_round_trip(name):
    arch = ARCHS[name]
    major, minor = arch.capability
    for text in (name, name.removeprefix("sm_"), f"{major}.{minor}{arch.suffix}", arch.compute):
        assert parse_arch(text) == name


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("sm_85", "sm_86"),
        ("8.5", "sm_86"),
        ("100a", "sm_100"),
        ("90b", "sm_90a"),
        ("999", "sm_121"),
        ("sm_9", "sm_90"),
        ("12", "sm_120"),
        ("sn_89", "sm_89"),
        ("Hopper", "sm_90a"),
        ("turing", "sm_75"),
        ("ampere", "sm_80 (A100) or sm_86 (RTX 30, A10)"),
        ("ada", "sm_89"),
        ("Blackwell", "sm_100 (B200) or sm_120 (RTX 50)"),
    ],
)
def test_unknown_arch_suggests_the_nearest_and_lists_all(text, nearest):
    with pytest.raises(RequestError) as caught:
        parse_arch(text)
    assert f"did you mean {nearest}?" in str(caught.value)
    assert all(name in str(caught.value) for name in ARCHS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hopper", "sm_", "sm_²9", "8.9.0", "-89", "8 9"])
def test_malformed_arch_gives_a_one_line_error(text):
    with pytest.raises(RequestError, match="arch .* is unknown"):
        parse_arch(text)


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("t4", "sm_75"),
        ("a100", "sm_80"),
        ("RTX 3090", "sm_86"),
        ("l40s", "sm_89"),
        ("NVIDIA GeForce RTX-4090", "sm_89"),
        ("H100", "sm_90a"),
        ("h200", "sm_90a"),
        ("b200", "sm_100"),
        ("rtx5090", "sm_120"),
    ],
)
def test_the_name_of_a_card_is_its_architecture(card: str, name: str) -> None:
    assert parse_arch(card) == name


def test_cards_and_architectures_match() -> None:
    assert {key: ARCHS[parse_arch(key)].number for key in card_keys()} == {key: card(key).number for key in card_keys()}
    assert {*CARDS.values()} <= {*ARCHS}


def test_native_is_the_architecture_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        capability = (9, 0)

    monkeypatch.setattr(hgemm.device, "open_device", Gpu)
    assert parse_arch("native") == "sm_90a"
    Gpu.capability = (8, 9)
    assert parse_arch("native") == "sm_89"

    def none() -> None:
        raise DeviceError("no NVIDIA GPU here")

    monkeypatch.setattr(hgemm.device, "open_device", none)
    with pytest.raises(DeviceError, match="--arch native: no NVIDIA GPU here: name an architecture or a card"):
        parse_arch("native", "--arch")


@pytest.mark.parametrize("text", ["sm_70", "61", "7.2", "V100", "Tesla P100", "GTX 1080", "volta"])
def test_old_gpus_get_no_suggestion_of_newer_architectures(text: str) -> None:
    with pytest.raises(RequestError, match="the oldest supported architecture is sm_75") as caught:
        parse_arch(text)
    assert "did you mean" not in str(caught.value)


def test_rtx_may_be_left_out() -> None:
    assert [parse_arch(text) for text in ("4090", "GeForce 3090 Ti", "5090")] == ["sm_89", "sm_86", "sm_120"]


@pytest.mark.parametrize("text", ["h101", "a101", "rtx4999", "4999"])
def test_another_card_is_never_proposed(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_arch(text)
    assert "did you mean" not in str(caught.value) and "a card such as h100" in str(caught.value)


def test_a_list_keeps_its_order_and_drops_repetitions():
    assert parse_arch_list("89, sm_80,8.9,90a,") == ("sm_89", "sm_80", "sm_90a")
    with pytest.raises(RequestError, match="is empty"):
        parse_arch_list(" , ")


def test_smem_limits_match_the_cuda_guide():
    kib = {name: arch.limits.smem_bytes_per_cta // KIB for name, arch in ARCHS.items()}
    assert {name for name in kib if kib[name] == 64} == {"sm_75"}
    assert {name for name in kib if kib[name] == 99} == {"sm_86", "sm_88", "sm_89", "sm_120", "sm_121"}
    assert {name for name in kib if kib[name] == 163} == {"sm_80", "sm_87"}
    assert {name for name in kib if kib[name] == 227} == {"sm_90", "sm_90a", "sm_100", "sm_103", "sm_110"}
    assert ARCHS["sm_89"].limits.smem_bytes_per_cta == 101_376
    assert ARCHS["sm_80"].limits.smem_bytes_per_cta == 166_912
    assert ARCHS["sm_90"].limits.smem_bytes_per_cta == 232_448


def test_architectures_have_families_and_features():
    assert [name for name, arch in ARCHS.items() if arch.has_wgmma] == ["sm_90a"]
    assert [name for name, arch in ARCHS.items() if not arch.has_cp_async] == ["sm_75"]
    assert {name for name, arch in ARCHS.items() if arch.has_tma} == {
        name for name in ARCHS if ARCHS[name].number >= 90
    }


def test_table_lists_the_targets_of_nvrtc_13_0():
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install cuda-python")
    assert tuple(ARCHS) == ARCHS_OF_NVRTC_13_0
    try:
        _, numbers = nvrtc.nvrtcGetSupportedArchs()
        _, *version = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed ({error}): pip install nvidia-cuda-nvrtc")
    if version != [13, 0]:
        pytest.skip(f"NVRTC is {version}, the table is that of 13.0")
    assert {arch.number for arch in ARCHS.values()} == set(numbers)


def bounds_are_kept(name: str, threads: int, ctas: int) -> bool:
    """Ask ptxas whether an SM can hold so many CTAs of so many threads."""
    source = f'extern "C" __global__ void __launch_bounds__({threads}, {ctas}) probe(float* p) {{ p[0] = 1; }}'
    cubin, log = compile_probe(source, name)
    assert cubin
    return "will be ignored" not in log


@pytest.mark.parametrize("name", ARCHS)
def test_ptxas_allows_as_many_threads_and_ctas_an_sm_and_not_one_more(name):
    limits = ARCHS[name].limits
    threads = limits.warps_per_sm * limits.warp_threads
    assert bounds_are_kept(name, threads=512, ctas=threads // 512)
    assert not bounds_are_kept(name, threads=512, ctas=threads // 512 + 1)
    assert bounds_are_kept(name, threads=32, ctas=limits.ctas_per_sm)
    assert not bounds_are_kept(name, threads=32, ctas=limits.ctas_per_sm + 1)


def static_smem_fits(target: str, smem_bytes: int) -> bool:
    source = f"""extern "C" __global__ void probe(char* p) {{
        __shared__ char s[{smem_bytes}]; s[threadIdx.x] = p[1]; __syncthreads(); p[0] = s[threadIdx.x ^ 1]; }}"""
    return bool(compile_probe(source, target)[0])


@pytest.mark.parametrize("name", [name for name, arch in ARCHS.items() if not arch.suffix])
def test_ptxas_allows_as_much_static_shared_memory_and_no_more(name):
    smem_bytes = ARCHS[name].limits.smem_static_bytes_per_cta
    assert static_smem_fits(name, smem_bytes)
    assert not static_smem_fits(name, smem_bytes + 4)


@pytest.mark.parametrize("number", sorted({arch.number for arch in ARCHS.values() if arch.number >= 90}))
def test_ptxas_allows_architecture_specific_targets_all_shared_memory_of_a_cta(number):
    smem_bytes = ARCHS[f"sm_{number}"].limits.smem_bytes_per_cta
    assert static_smem_fits(f"sm_{number}a", smem_bytes)
    assert not static_smem_fits(f"sm_{number}a", smem_bytes + 4)


# ==== Occupancy =======================================================================================================

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


def test_residency_matches_the_occupancy_calculator(oracle):
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
    printed = subprocess.run([oracle], input=text, capture_output=True, text=True, check=True).stdout.split()
    wrong = [
        (case, int(ctas), occupancy(ARCHS[case[0]].limits, *case[1:]))
        for case, ctas in zip(cases, printed, strict=True)
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
def test_residency_of_known_cases(arch, threads, registers, smem_bytes, ctas, limiter):
    found = occupancy(ARCHS[arch].limits, threads, registers, smem_bytes)
    assert (found.ctas_per_sm, found.limiter) == (ctas, limiter)
    assert found.warps_per_sm == ctas * -(-threads // 32)
    assert found.fraction == found.warps_per_sm / ARCHS[arch].limits.warps_per_sm
