"""Measures mma.sync alone: cycles an instruction, and the rate that the card's power limit leaves in steady state.

    python benchmarks/micro/mma_rate.py          # needs a GPU, PyTorch and cuda-bindings

Operands are normal(0, 1) halves in registers. `rate` counts the SM's own clock, so that power does not matter:
`flop_per_clock_per_sm` is the ceiling of any mma.sync kernel. `steady` runs for some seconds with the clock and power read
meanwhile; with `ldmatrix` each block of products also reads its fragments from shared memory, as a GEMM of 64x64 warp tiles
does, and nothing else: the ceiling under the power limit.
"""

import ctypes
import json
import statistics
import subprocess
import time

from cuda.bindings import driver, nvrtc

SOURCE = r"""
#include <cuda_fp16.h>
template <bool F32> __device__ __forceinline__ void mma(unsigned (&d)[4], unsigned const* a, unsigned const* b);
template <> __device__ __forceinline__ void mma<true>(unsigned (&d)[4], unsigned const* a, unsigned const* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> __device__ __forceinline__ void mma<false>(unsigned (&d)[4], unsigned const* a, unsigned const* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
    : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void ldmatrix(unsigned address, unsigned* r) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
template <bool F32, bool LDMATRIX> __device__ void loop(long long* cycles, unsigned* sink, int steps, unsigned const* data) {
  __shared__ __align__(128) unsigned tile[8192];  // 32 KiB of normal halves
  for (int i = threadIdx.x; i < 8192; i += blockDim.x) tile[i] = data[i];
  __syncthreads();
  unsigned const base = (unsigned)__cvta_generic_to_shared(tile);
  unsigned const lane = base + threadIdx.x % 32 * 16 + threadIdx.x / 32 % 2 * 512;
  unsigned a[2][4][4], b[2][4][4], d[4][8][4];
  for (int p = 0; p < 2; ++p) for (int i = 0; i < 4; ++i) {
    ldmatrix(lane + (p * 8 + i) * 512, a[p][i]);
    ldmatrix(lane + (p * 8 + i + 4) * 512, b[p][i]);
  }
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 8; ++j) for (int r = 0; r < 4; ++r) d[i][j][r] = 0;
  __syncthreads();
  long long begin = clock64();
  #pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    #pragma unroll
    for (int p = 0; p < 2; ++p) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int step = 0; step < 8; ++step) {
          int const j = i % 2 ? 7 - step : step;
          mma<F32>(d[i][j], a[p][i], &b[p][j / 2][j % 2 * 2]);
          if (LDMATRIX && i < 2 && step % 2 == 0) {
            int const piece = i * 4 + step / 2;
            unsigned const from = lane + ((s * 8 + p * 8 + piece) * 512 & 16383);
            ldmatrix(from, piece < 4 ? a[1 - p][piece] : b[1 - p][piece - 4]);
          }
        }
      }
    }
  }
  long long end = clock64();
  unsigned all = 0;
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 8; ++j) for (int r = 0; r < 4; ++r) all ^= d[i][j][r];
  if (all == 0x12345) *sink = all;
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}
#define KERNEL(name, F32, LD) extern "C" __global__ void __launch_bounds__(256, 1) \
  name(long long* c, unsigned* s, int n, unsigned const* data) { loop<F32, LD>(c, s, n, data); }
KERNEL(f32, true, false) KERNEL(f16, false, false) KERNEL(f32_ldmatrix, true, true) KERNEL(f16_ldmatrix, false, true)
"""


def check(result):
    if int(result[0]):
        raise SystemExit(f"CUDA: {result[0]}")
    return result[1] if len(result) > 1 else None


def smi() -> tuple[float, float]:
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits"]
    clock, power = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(",")
    return float(clock), float(power)


def build(name_of_arch: str):
    program = check(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"rate.cu", 0, [], []))
    options = [f"--gpu-architecture={name_of_arch}".encode(), b"-I/usr/local/cuda/include"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if int(status):
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    image = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, image))
    return check(driver.cuModuleLoadData(image))


def main() -> None:
    import torch

    data = torch.randn(16384, device="cuda").half()
    major, minor = torch.cuda.get_device_capability()
    module = build(f"sm_{major}{minor}")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    cycles = torch.zeros(sms, dtype=torch.int64, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

    def launch(name: str, warps: int, steps: int) -> None:
        function = check(driver.cuModuleGetFunction(module, name.encode()))
        arguments = ((cycles.data_ptr(), sink.data_ptr(), steps, data.data_ptr()), types)
        check(driver.cuLaunchKernel(function, sms, 1, 1, warps * 32, 1, 1, 0, 0, arguments, 0))

    for name in ("f32", "f16", "f32_ldmatrix", "f16_ldmatrix"):
        for warps in (4, 8):
            launch(name, warps, 2000)
            launch(name, warps, 2000)
            torch.cuda.synchronize()
            per_mma = cycles.double().median().item() / (2000 * 32) / (warps / 4)
            row = dict(kind="rate", name=name, warps=warps, cycles_per_mma=round(per_mma, 3))
            print(json.dumps({**row, "flop_per_clock_per_sm": round(4 * 4096 / per_mma, 1)}))
    steps = 20000
    for name in ("f32", "f32_ldmatrix", "f16", "f16_ldmatrix"):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        seen, times, until = [], [], time.time() + 4
        while time.time() < until:
            begin.record()
            for _ in range(20):
                launch(name, 8, steps)
            end.record()
            seen.append(smi())
            end.synchronize()
            times.append(begin.elapsed_time(end) / 20)
        settled = seen[len(seen) // 2 :]
        flop = sms * 8 * steps * 32 * 4096
        row = dict(kind="steady", name=name, tflops=round(flop / statistics.median(times[len(times) // 2 :]) / 1e9, 1))
        row |= dict(sm_mhz=statistics.median(c for c, _ in settled), power_w=statistics.median(p for _, p in settled))
        print(json.dumps(row))


if __name__ == "__main__":
    main()
