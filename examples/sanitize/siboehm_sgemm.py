"""Check SGEMM kernels of github.com/siboehm/SGEMM_CUDA on a machine without a GPU.

git clone --depth 1 https://github.com/siboehm/SGEMM_CUDA
python examples/sanitize/siboehm_sgemm.py SGEMM_CUDA
"""

from __future__ import annotations

from dataclasses import dataclass

from common import Fault, checkouts, nvrtc, sanitize

M, N, K = 256, 256, 48
URL = "https://github.com/siboehm/SGEMM_CUDA"
HOST_HEADERS = {
    **dict.fromkeys(("cstdio", "cstdlib", "cublas_v2.h"), ""),
    "algorithm": "typedef unsigned int uint;",  # a type of the host's headers
    "cassert": "#include <cuda/std/cassert>",
}


@dataclass(frozen=True)
class Kernel:
    """A kernel of the project: its file, its instance, and its launch. Tiles are whole."""

    name: str
    file: str
    instance: str
    threads: int
    tile_m: int
    tile_n: int
    faults: tuple[Fault, ...]


FIRST_BARRIER = Fault("the barrier after the copy dropped", r"^\s*bar\.sync\s+0;$")
ALL_BARRIERS = Fault("all barriers dropped", r"^\s*bar\.sync\s+0;$", count=0)
KERNELS = (
    Kernel(
        "blocktiling",
        "5_kernel_2D_blocktiling.cuh",
        "sgemm2DBlocktiling<128, 128, 8, 8, 8>",
        256,
        128,
        128,
        (FIRST_BARRIER,),
    ),
    Kernel(
        "warptiling",
        "10_kernel_warptiling.cuh",
        "sgemmWarptiling<128, 128, 16, 64, 64, 4, 8, 4, 128>",
        128,
        128,
        128,
        (FIRST_BARRIER, ALL_BARRIERS),
    ),
    Kernel(
        "double_buffering",
        "11_kernel_double_buffering.cuh",
        "sgemmDoubleBuffering<128, 256, 16, 128, 32, 1, 8, 8, 256>",
        256,
        128,
        256,
        (FIRST_BARRIER, ALL_BARRIERS),
    ),
)


def launch(kernel: Kernel) -> str:
    """Return the launch file: C (m, n) = 1.5 A (m, k) B (k, n) + 0.5 C, all row-major."""
    return f"""
grid = [{N // kernel.tile_n}, {M // kernel.tile_m}, 1]
block = [{kernel.threads}, 1, 1]
parameters = [
    {{ type = "s32", value = {M} }},
    {{ type = "s32", value = {N} }},
    {{ type = "s32", value = {K} }},
    {{ type = "f32", value = 1.5 }},
    {{ buffer = "A" }},
    {{ buffer = "B" }},
    {{ type = "f32", value = 0.5 }},
    {{ buffer = "C" }},
]

[buffers.A]
dtype = "f32"
shape = [{M}, {K}]
role = "in"
init = "uniform"

[buffers.B]
dtype = "f32"
shape = [{K}, {N}]
role = "in"
init = "uniform"

[buffers.C]
dtype = "f32"
shape = [{M}, {N}]
role = "inout"
init = "uniform"
writes = "once"

[reference]
a = "A[m,k]"
b = "B[k,n]"
c = "C[m,n]"
d = "C[m,n]"
alpha = 1.5
beta = 0.5
"""


def main() -> None:
    (folder,) = checkouts({URL: "src/kernels/10_kernel_warptiling.cuh"})
    for kernel in KERNELS:
        # the first file defines what the others use, too
        files = f"#include <10_kernel_warptiling.cuh>\n#include <{kernel.file}>\n"
        source = f"{files}void instance() {{ auto kernel = &{kernel.instance}; }}\n"
        ptx = nvrtc(source, "sm_80", [folder / "src/kernels"], stand_ins=HOST_HEADERS)
        sanitize(f"siboehm_{kernel.name}", ptx, launch(kernel), kernel.faults)


if __name__ == "__main__":
    main()
