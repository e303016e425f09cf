"""Small kernels for tests of the inspection. NVRTC compiles them once per session."""

from __future__ import annotations

import functools

import pytest

NUMBERS_OF_NVRTC_13_0 = (75, 80, 86, 87, 88, 89, 90, "90a", 100, 103, 110, 120, 121)
ARCHS_OF_NVRTC_13_0 = tuple(f"sm_{number}" for number in NUMBERS_OF_NVRTC_13_0)

STATIC_SMEM = """
extern "C" __global__ void __launch_bounds__(128) probe(const float* in, float* out) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""

DYNAMIC_SMEM = """
extern "C" __global__ void __launch_bounds__(64) probe(const float* in, float* out) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) probe(const float* in, float* out, int rounds) {
  __shared__ float tile[256];
  float a[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = in[i * 128 + threadIdx.x];
  tile[threadIdx.x % 256] = a[0];
  __syncthreads();
  for (int j = 0; j < rounds; ++j) {
    #pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = a[i] * a[i * 7 % 96] + tile[(threadIdx.x + i) % 128];
  }
  #pragma unroll
  for (int i = 0; i < 96; ++i) out[i * 128 + threadIdx.x] = a[i];
}
"""

LOCAL_ARRAY = """
extern "C" __global__ void __launch_bounds__(32) probe(float* p, int n, const int* index) {
  float a[64];
  for (int j = 0; j < 64; ++j) a[j] = p[j];
  for (int j = 0; j < n; ++j) a[index[j]] += p[j] * a[index[j + 1]];
  p[0] = a[n];
}
"""

BRANCHING = """
__device__ __noinline__ float slow(float x, int n) { for (int i = 0; i < n; ++i) x = x * x + sinf(x); return x; }
extern "C" __global__ void probe(float* p, int n) {
  float x = p[threadIdx.x] / p[1];
  switch (n) {
    case 0: x = slow(x, 3); break;
    case 1: x = sqrtf(x); break;
    case 2: x += slow(p[2], n); break;
    case 3: x = p[7]; break;
    case 4: x = __shfl_xor_sync(-1, x, 1); break;
  }
  if (threadIdx.x % 3 == 0) x = fmodf(x, p[5]);
  p[threadIdx.x] = x;
}
"""

VARIABLES = """
__device__ int weight = 3;
__device__ float sums[4];
__constant__ float table[8];
extern "C" __global__ void __launch_bounds__(32) probe(int* p, int n) {
  p[threadIdx.x] = atomicAdd(&weight, 1) + static_cast<int>(table[n]);
  sums[n] = table[n];
}
"""

# 2 atoms a k-tile: a warp tile of 16x16 over k 16. Parameters: 3 pointers and an int, 28 B.
TENSOR = """
extern "C" __global__ void __launch_bounds__(32) probe(const uint4* a, const uint4* b, float* d, int k_tiles) {
  extern __shared__ uint4 tile[];
  float acc[2][4] = {};
  unsigned base = (unsigned)__cvta_generic_to_shared(tile) + threadIdx.x * 16;
  #pragma unroll 1
  for (int k = 0; k < k_tiles; ++k) {
    unsigned x[4], y[4];
    const uint4 *x_in = a + k * 32 + threadIdx.x, *y_in = b + k * 32 + threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base), "l"(x_in) : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base + 512), "l"(y_in) : "memory");
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(base) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(base + 512) : "memory");
    #pragma unroll
    for (int n = 0; n < 2; ++n)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                   "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * n]), "r"(y[2 * n + 1]));
    __syncthreads();
  }
  #pragma unroll
  for (int i = 0; i < 8; ++i) d[i * 32 + threadIdx.x] = acc[i / 4][i % 4];
}
"""


@functools.cache
def compile_probe(source: str, arch: str) -> tuple[bytes, str]:
    """Compile to a cubin and return it with ptxas's report. Skips the test with a reason if NVRTC is not installed."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install cuda-python")
    try:
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"probe.cu", 0, [], [])
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed ({error}): pip install nvidia-cuda-nvrtc")
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--ptxas-options=-v"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = _take(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().strip("\0 \n")
    cubin = b"" if status else _take(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin, log


def _take(size_of, take, program) -> bytes:
    _, size_bytes = size_of(program)
    text = b" " * size_bytes
    take(program, text)
    return text
