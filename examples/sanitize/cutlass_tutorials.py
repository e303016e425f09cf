"""Check two kernels of CUTLASS's CuTe tutorial, compiled by NVRTC, on a machine without a GPU.

    git clone --depth 1 https://github.com/NVIDIA/cutlass
    python examples/sanitize/cutlass_tutorials.py cutlass

The device code comes from the checkout. This script leaves out the host code and names the layouts of one instance.
"""

from __future__ import annotations

import re
from pathlib import Path

from common import Fault, Known, checkouts, nvrtc, sanitize

URL = "https://github.com/NVIDIA/cutlass"
TUTORIAL = "examples/cute/tutorial"
HOST_HEADERS = (
    *("cassert", "cstdio", "cstdlib", "thrust/host_vector.h", "thrust/device_vector.h", "cutlass/cluster_launch.hpp"),
    *(f"cutlass/util/{name}.hpp" for name in ("print_error", "GPU_Clock", "helper_cuda")),
)

SGEMM = """
using namespace cute;
void instance() {
  auto shape = make_shape(int(), int(), int());
  auto stride = make_stride(Int<1>{}, int());  // m or n contiguous
  auto tile = make_shape(Int<128>{}, Int<128>{}, Int<8>{});
  auto smem = make_layout(make_shape(Int<128>{}, Int<8>{}));
  auto smem_c = make_layout(make_shape(Int<128>{}, Int<128>{}));
  auto threads = make_layout(make_shape(Int<32>{}, Int<8>{}));
  auto threads_c = make_layout(make_shape(Int<16>{}, Int<16>{}));
  auto kernel = &gemm_device<decltype(shape), decltype(tile), float, decltype(stride), decltype(smem), decltype(threads),
      float, decltype(stride), decltype(smem), decltype(threads), float, decltype(stride), decltype(smem_c),
      decltype(threads_c), float, float>;
}
"""
WGMMA = """
void instance() {
  auto shape = make_shape(int(), int(), int());
  auto stride = make_stride(int(), Int<1>{});    // k contiguous
  auto stride_c = make_stride(Int<1>{}, int());  // m contiguous
  auto tile = make_shape(Int<128>{}, Int<128>{}, Int<64>{});
  auto smem = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, make_shape(Int<128>{}, Int<64>{}, Int<3>{}));
  auto copy = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>{},
                              Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{});
  auto mma = make_tiled_mma(SM90_64x64x16_F16F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
  auto kernel = &gemm_device<decltype(shape), decltype(tile), half_t, decltype(stride), decltype(smem), decltype(copy),
      half_t, decltype(stride), decltype(smem), decltype(copy), half_t, decltype(stride_c), decltype(mma), float, float>;
}
"""


def compiled(folder: Path, file: str, instance: str, arch: str) -> str:
    """Return the PTX of a tutorial's kernel: its file up to the host code, and an instance."""
    text = (folder / TUTORIAL / file).read_text()
    device = re.split(r"// Setup params for an? NT GEMM", text)[0]
    return nvrtc(device + instance, arch, [folder / "include"], ["-std=c++17"], dict.fromkeys(HOST_HEADERS, ""))


def ints(*values: int) -> str:
    """Return a parameter of type tuple<int, ...>. Extents and strides that CuTe knows take no space in it."""
    fields = ", ".join(f'{{ at = {4 * at}, type = "s32", value = {value} }}' for at, value in enumerate(values))
    return f"{{ struct_bytes = {4 * len(values)}, fields = [{fields}] }}"


EMPTY = "{ struct_bytes = 1 }"  # a layout or a tile whose numbers are all in its type


def launch(grid: tuple[int, int], threads: int, smem_bytes: int, parameters: list[str], buffers: str) -> str:
    listed = ",\n    ".join(parameters)
    return f"""
grid = [{grid[0]}, {grid[1]}, 1]
block = [{threads}, 1, 1]
dynamic_smem_bytes = {smem_bytes}
parameters = [
    {listed},
]
{buffers}"""


def buffer(name: str, dtype: str, shape: tuple[int, int], role: str) -> str:
    return f'\n[buffers.{name}]\ndtype = "{dtype}"\nshape = {list(shape)}\nrole = "{role}"\ninit = "uniform"\n'


def check_sgemm(folder: Path) -> None:
    """C (m, n) = A (m, k) B (n, k)^T + 0.5 C, all column-major: a buffer of shape (k, m) holds A."""
    m, n, k = 256, 128, 40
    scalars = ['{ type = "f32", value = 1.0 }', '{ type = "f32", value = 0.5 }']
    parameters = [ints(m, n, k), EMPTY]
    for name, pitch in (("A", m), ("B", n), ("C", m)):
        parameters += [f'{{ buffer = "{name}" }}', ints(pitch), EMPTY, EMPTY]
    buffers = buffer("A", "f32", (k, m), "in") + buffer("B", "f32", (k, n), "in") + buffer("C", "f32", (n, m), "inout")
    reference = '\n[reference]\na = "A[k,m]"\nb = "B[k,n]"\nc = "C[n,m]"\nd = "C[n,m]"\nbeta = 0.5\n'
    faults = [
        Fault("the barrier after the copy dropped", r"^\s*bar\.sync\s+0;$"),
        Fault("the barrier before the next copy dropped", r"^(\s*bar\.sync\s+0;$[\s\S]*?)^\s*bar\.sync\s+0;$", r"\1"),
    ]
    text = launch((m // 128, n // 128), 256, 0, [*parameters, *scalars], buffers + reference)
    sanitize("cutlass_sgemm_1", compiled(folder, "sgemm_1.cu", SGEMM, "sm_80"), text, faults)


NO_BARRIER = Known(
    frozenset({"race", "proxy"}),
    (
        Fault(
            "a fence and a barrier added",
            r"^(\s*cp\.async\.wait_(?:all|group 0);)$",
            r"\1\nfence.proxy.async.shared::cta;\nbar.sync 0;",
            count=0,
        ),
    ),
)
"""In wgmma_sm90.cu, each thread waits for its own cp.async only, and no fence makes them visible to wgmma."""


def check_wgmma(folder: Path) -> None:
    """C (m, n) = A (m, k) B (n, k)^T. A and B are row-major, C is column-major. The sums are f16."""
    m, n, k = 128, 256, 320
    scalars = ['{ type = "f32", value = 1.0 }', '{ type = "f32", value = 0.0 }']
    parameters = [ints(m, n, k), EMPTY]
    for name, pitch in (("A", k), ("B", k)):
        parameters += [f'{{ buffer = "{name}" }}', ints(pitch), EMPTY, EMPTY]
    parameters += ['{ buffer = "C" }', ints(m), ints(1, 0)]  # the TiledMMA begins with ScaleOut::One
    buffers = buffer("A", "f16", (m, k), "in") + buffer("B", "f16", (n, k), "in") + buffer("C", "f16", (n, m), "inout")
    reference = '\n[reference]\na = "A[m,k]"\nb = "B[n,k]"\nd = "C[n,m]"\n\n[tolerance]\nrelative = 2e-3\n'
    faults = [
        Fault("the wait for cp.async dropped", r"^\s*cp\.async\.wait_(?:all|group 0);$", count=0),
        Fault("the wait for wgmma dropped", r"^\s*wgmma\.wait_group\.sync\.aligned\s.*$", count=0),
    ]
    text = launch((m // 128, n // 128), 128, 3 * 2 * 128 * 64 * 2, [*parameters, *scalars], buffers + reference)
    ptx = compiled(folder, "hopper/wgmma_sm90.cu", WGMMA, "sm_90a")
    sanitize("cutlass_wgmma_sm90", ptx, text, faults, known=NO_BARRIER)


if __name__ == "__main__":
    (found,) = checkouts({URL: f"{TUTORIAL}/sgemm_1.cu"})
    check_sgemm(found)
    check_wgmma(found)
