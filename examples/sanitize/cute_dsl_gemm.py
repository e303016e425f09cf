"""Check the dense GEMM for sm_90a among CuTe DSL's examples, on a machine without a GPU.

pip install nvidia-cutlass-dsl==4.8.1
git clone --depth 1 https://github.com/NVIDIA/cutlass
python examples/sanitize/cute_dsl_gemm.py cutlass
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Fault, Known, checkouts, missing, sanitize

URL = "https://github.com/NVIDIA/cutlass"
FILE = "examples/python/CuTeDSL/cute/hopper/kernel/dense_gemm/dense_gemm.py"
M, N, K = 200, 136, 552
TILE, BOX_K, EPILOGUE_M, EPILOGUE_N = 128, 64, 64, 32
SMEM_BYTES = 1024 + 7 * 2 * TILE * BOX_K * 2  # barriers, and 7 stages of A and B


def compiled(path: Path) -> str:
    """Return the PTX of the example. Compiling needs arrays for their layouts only."""
    try:
        import cuda.bindings.driver as driver
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.runtime import from_dlpack
    except ImportError:
        missing("nvidia-cutlass-dsl", "pip install nvidia-cutlass-dsl==4.8.1")
    spec = importlib.util.spec_from_file_location("dense_gemm", path)
    example = sys.modules["dense_gemm"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def tensor(rows: int, columns: int):
        array = np.zeros((rows, columns, 1), np.float16)
        return from_dlpack(array, assumed_align=16).mark_layout_dynamic(leading_dim=1)

    kernel = example.HopperWgmmaGemmKernel(cutlass.Float32, (TILE, TILE), (1, 1))
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch sm_90a --keep-ptx --dump-dir {folder}"
        operands = tensor(M, K), tensor(N, K), tensor(M, N)
        cute.compile(kernel, *operands, driver.CUstream(0), options=options)
        (ptx,) = Path(folder).glob("*.ptx")
        return ptx.read_text()


def buffer(name: str, rows: int, columns: int, role: str, box: tuple[int, int], swizzle: int) -> str:
    init = 'init = "uniform"\n' if role == "in" else ""
    return f"""
[buffers.{name}]
dtype = "f16"
shape = [1, {rows}, {columns}]  # the first one is the batch
role = "{role}"
{init}
[tensor_maps.map_{name}]
buffer = "{name}"
box = [{box[0]}, {box[1]}, 1]
swizzle = {swizzle}
"""


def sizes(rows: int, columns: int) -> str:
    """Return the parameter with a tensor's extents, which follows its tensor map."""
    values = ((0, rows), (4, columns), (8, 1))
    fields = ", ".join(f'{{ at = {at}, type = "s32", value = {value} }}' for at, value in values)
    return f"{{ struct_bytes = 12, fields = [{fields}] }}"


LAUNCH = f"""
grid = [{-(-M // TILE)}, {-(-N // TILE)}, 1]
dynamic_smem_bytes = {SMEM_BYTES}
parameters = [
    {{ tensor_map = "map_A" }},
    {sizes(M, K)},
    {{ tensor_map = "map_B" }},
    {sizes(N, K)},
    {{ tensor_map = "map_D" }},
    {sizes(M, N)},
    {{ struct_bytes = 1 }},
]
{buffer("A", M, K, "in", (BOX_K, TILE), 128)}
{buffer("B", N, K, "in", (BOX_K, TILE), 128)}
{buffer("D", M, N, "out", (EPILOGUE_N, EPILOGUE_M), 64)}
[reference]
a = "A[b,m,k]"
b = "B[b,n,k]"
d = "D[b,m,n]"
"""
ALL_LANES_STORE = Known(
    frozenset({"race", "write_once"}),
    (
        Fault(
            "one lane elected",
            r"^\s*(cp\.async\.bulk\.tensor\.3d\.global\S* .*;)$",
            r"{ .reg .pred %one; elect.sync _|%one, -1; @%one \1 }",
            count=0,
        ),
    ),
)
"""With version 4.8.1, all 32 lanes of a warp issue each TMA store of D, so that 32 stores write the same bytes."""
FAULTS = (
    Fault("the fence before the TMA store dropped", r"^\s*fence\.proxy\.async\.shared::cta;$", count=0),
    Fault("wgmma.wait_group dropped", r"^\s*wgmma\.wait_group\.sync\.aligned\s.*$", count=0),
    Fault("the fence after mbarrier.init dropped", r"^\s*fence\.mbarrier_init\.release\.cluster;$"),
    Fault("the barriers of the epilogue dropped", r"^\s*bar\.sync\s+1;$", count=0),
)

if __name__ == "__main__":
    (found,) = checkouts({URL: FILE})
    ptx = compiled(found / FILE)
    epilogue = ptx[ptx.rindex("wgmma.wait_group") :]
    all_store = "elect.sync" not in epilogue
    sanitize("cute_dsl_dense_gemm", ptx, LAUNCH, FAULTS, known=ALL_LANES_STORE if all_store else None)
