"""Check DeepGEMM's bf16 kernel for sm_90a, compiled by NVRTC as its JIT does, on a machine without a GPU.

git clone --depth 1 https://github.com/deepseek-ai/DeepGEMM
git clone --depth 1 https://github.com/NVIDIA/cutlass
python examples/sanitize/deepgemm_bf16.py DeepGEMM cutlass
"""

from __future__ import annotations

from common import Fault, Known, checkouts, nvrtc, sanitize

URL, CUTLASS_URL = "https://github.com/deepseek-ai/DeepGEMM", "https://github.com/NVIDIA/cutlass"
M, N, K = 144, 128, 576
BLOCK_M, BLOCK_N, BLOCK_K, STAGES = 64, 64, 64, 4
MATH_THREADS, TMA_THREADS, SMS = 128, 128, 2
SMEM_BYTES = BLOCK_M * BLOCK_N * 2 + STAGES * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 + STAGES * 16

# D (m, n) = A (m, k) B (n, k)^T. Template arguments are in the order of sm90_bf16_gemm_impl.
SOURCE = f"""
static __device__ void cudaGridDependencySynchronize() {{ asm volatile("griddepcontrol.wait;" ::: "memory"); }}
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
using namespace deep_gemm;
void instance() {{
  auto kernel = &sm90_bf16_gemm_impl<
      cute::UMMA::Major::K, cute::UMMA::Major::K,
      0, 0, 0,                            // shape: at run time
      1,                                  // groups
      {BLOCK_M}, {BLOCK_N}, {BLOCK_K},
      128, 128, 128,                      // swizzle of A, B and D
      {STAGES},
      {TMA_THREADS}, {MATH_THREADS},
      1, false,                           // multicast
      {SMS},
      GemmType::Normal, false,            // no accumulation
      cutlass::bfloat16_t>;
}}
"""
STAND_INS = {"utility": "#include <cuda/std/utility>\nnamespace std { using namespace cuda::std; }\n"}


def buffer(name: str, rows: int, columns: int, role: str, box_rows: int) -> str:
    init = 'init = "uniform"\n' if role == "in" else ""
    return f"""
[buffers.{name}]
dtype = "bf16"
shape = [{rows}, {columns}]
role = "{role}"
{init}
[tensor_maps.map_{name}]
buffer = "{name}"
box = [64, {box_rows}]
swizzle = 128
"""


LAUNCH = f"""
grid = [{SMS}, 1, 1]
block = [{TMA_THREADS + MATH_THREADS}, 1, 1]
dynamic_smem_bytes = {SMEM_BYTES}
programmatic = true
parameters = [
    {{ null = true }},  # the layout of groups
    {{ type = "u32", value = {M} }},
    {{ type = "u32", value = {N} }},
    {{ type = "u32", value = {K} }},
    {{ tensor_map = "map_A" }},
    {{ tensor_map = "map_B" }},
    {{ tensor_map = "map_D" }},
]
{buffer("A", M, K, "in", BLOCK_M)}
{buffer("B", N, K, "in", BLOCK_N)}
{buffer("D", M, N, "out", BLOCK_M)}
[reference]
a = "A[m,k]"
b = "B[n,k]"
d = "D[m,n]"
"""
NO_LAST_WAIT = Known(
    frozenset({"pending"}),
    (
        Fault(
            "a wait added", r"^(\s*cp\.async\.bulk\.commit_group;)$", r"\1\ncp.async.bulk.wait_group.read 0;", count=0
        ),
    ),
)
"""The last TMA store of a CTA is not waited for. CUTLASS waits before the CTA ends; the PTX ISA does not say that a GPU does."""
FAULTS = (
    Fault("the fence before the TMA store dropped", r"^\s*fence\.proxy\.async\.shared::cta;$", count=0),
    Fault(
        "the wait for the operands dropped",
        r"^\s*mbarrier\.try_wait\.parity\S* P1,.*$",
        "setp.eq.u32 P1, 0, 0;",
        count=0,
    ),
    Fault("too few expected bytes", r"(mbarrier\.arrive\.expect_tx\S* _, \[%r\d+\], )%r\d+", r"\g<1>8192", count=0),
    Fault("wgmma.wait_group dropped", r"^\s*wgmma\.wait_group\.sync\.aligned .*$", count=0),
)


def main() -> None:
    files = {URL: "deep_gemm/include/deep_gemm/impls/sm90_bf16_gemm.cuh", CUTLASS_URL: "include/cutlass/cutlass.h"}
    folder, cutlass = checkouts(files)
    folders = [folder / "deep_gemm/include", cutlass / "include"]
    ptx = nvrtc(SOURCE, "sm_90a", folders, ["-std=c++20", "--device-int128"], STAND_INS)
    sanitize("deepgemm_bf16", ptx, LAUNCH, FAULTS, known=NO_LAST_WAIT)


if __name__ == "__main__":
    main()
