"""The table of architectures: spellings, and its numbers against what ptxas itself enforces."""

from __future__ import annotations

import pytest
from probe_kernels import ARCHS_OF_NVRTC_13_0, compile_probe

from generator.arch import ARCHS, MMA_SYNC, parse_arch, parse_arch_list
from generator.errors import RequestError

KIB = 1024


@pytest.mark.parametrize("text", ["sm_90a", "90a", "9.0a", "compute_90a", "SM_90A", "sm90a", " sm_90a "])
def test_every_usual_spelling_means_the_same(text):
    assert parse_arch(text) == "sm_90a"


@pytest.mark.parametrize("name", ARCHS)
def test_canonical_names_number_and_dotted_capability_parse_to_themselves(name):
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
        ("sn_89", "sm_89"),
        ("Hopper", "sm_90a"),
        ("turing", "sm_75"),
        ("ampere", "sm_80"),
        ("ada", "sm_89"),
        ("Blackwell", "sm_100 (B200) or sm_120 (RTX 50)"),
    ],
)
def test_an_unknown_arch_names_the_nearest_and_all_known(text, nearest):
    with pytest.raises(RequestError) as caught:
        parse_arch(text)
    assert f"did you mean {nearest}?" in str(caught.value)
    assert all(name in str(caught.value) for name in ARCHS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hopper", "sm_", "sm_²9", "8.9.0", "-89", "8 9"])
def test_what_is_no_arch_is_an_error_of_one_line(text):
    with pytest.raises(RequestError, match="arch .* is unknown"):
        parse_arch(text)


def test_a_list_keeps_its_order_and_drops_repetitions():
    assert parse_arch_list("89, sm_80,8.9,90a,") == ("sm_89", "sm_80", "sm_90a")
    with pytest.raises(RequestError, match="names nothing"):
        parse_arch_list(" , ")


def test_smem_a_cta_is_what_the_guide_says():
    kib = {name: arch.limits.smem_bytes_per_cta // KIB for name, arch in ARCHS.items()}
    assert {name for name in kib if kib[name] == 64} == {"sm_75"}
    assert {name for name in kib if kib[name] == 99} == {"sm_86", "sm_88", "sm_89", "sm_120", "sm_121"}
    assert {name for name in kib if kib[name] == 163} == {"sm_80", "sm_87"}
    assert {name for name in kib if kib[name] == 227} == {"sm_90", "sm_90a", "sm_100", "sm_103", "sm_110"}
    assert ARCHS["sm_89"].limits.smem_bytes_per_cta == 101_376
    assert ARCHS["sm_80"].limits.smem_bytes_per_cta == 166_912
    assert ARCHS["sm_90"].limits.smem_bytes_per_cta == 232_448


def test_families_and_features():
    assert [name for name, arch in ARCHS.items() if arch.has_wgmma] == ["sm_90a"]
    assert [name for name, arch in ARCHS.items() if not arch.has_cp_async] == ["sm_75"]
    assert all(MMA_SYNC in arch.families for arch in ARCHS.values())


def test_the_table_lists_what_nvrtc_13_0_targets():
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
