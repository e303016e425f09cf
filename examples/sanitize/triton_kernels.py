"""Check a matrix product and a softmax written in Triton, for sm_80 and sm_90, on a machine without a GPU.

pip install triton==3.6.0
python examples/sanitize/triton_kernels.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from common import Fault, Known, missing, sanitize

try:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ImportError:
    missing("triton", "pip install triton==3.6.0")

BLOCK_M, BLOCK_N, BLOCK_K, GROUP = 64, 64, 32, 2
M, N, K = 160, 144, 208
ROWS, COLUMNS, WIDTH, PROGRAMS = 13, 781, 1024, 4
NO_FENCE = Known(
    frozenset({"proxy"}),
    (Fault("a fence added", r"^(\s*)(cp\.async\.wait_group .*)$", r"\1\2\n\1fence.proxy.async.shared::cta;", count=0),),
)
"""Triton 3.6 writes the operands of wgmma by cp.async without a proxy fence. Triton 3.7 has the fence (pull request 10537)."""
NO_INIT_FENCE = Known(
    frozenset({"mbarrier"}),
    (
        Fault(
            "a fence added",
            r"^(.*mbarrier\.init\.shared::cta\.b64.*)$",
            r"\1\nfence.mbarrier_init.release.cluster;",
            count=0,
        ),
    ),
)
"""Triton 3.6 has no fence between the initialization of an mbarrier and its use by the TMA."""


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    m,
    n,
    k,
    pitch_a,
    pitch_b,
    pitch_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group: tl.constexpr,
):
    """C (m, n) = A (m, k) B (k, n), all row-major. Tiles run in groups of `group` rows."""
    tiles_m, tiles_n = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
    tile = tl.program_id(0)
    first = tile // (group * tiles_n) * group
    height = tl.minimum(tiles_m - first, group)
    within = tile % (group * tiles_n)
    row = (first + within % height) * block_m + tl.arange(0, block_m)
    column = within // height * block_n + tl.arange(0, block_n)
    depth = tl.arange(0, block_k)
    a_at = a_ptr + (row % m)[:, None] * pitch_a + depth[None, :]
    b_at = b_ptr + depth[:, None] * pitch_b + (column % n)[None, :]
    total = tl.zeros((block_m, block_n), tl.float32)
    for step in range(tl.cdiv(k, block_k)):
        left = k - step * block_k
        a = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(a, b, total)
        a_at += block_k
        b_at += block_k * pitch_b
    inside = (row < m)[:, None] & (column < n)[None, :]
    tl.store(c_ptr + row[:, None] * pitch_c + column[None, :], total.to(tl.float16), mask=inside)


@triton.jit
def softmax(out_ptr, in_ptr, pitch_out, pitch_in, rows, columns, width: tl.constexpr):
    """The softmax of each row. A program takes every n-th row, where n is the number of programs."""
    at = tl.arange(0, width)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        values = tl.load(in_ptr + row * pitch_in + at, mask=at < columns, other=float("-inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out_ptr + row * pitch_out + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def tma_matmul(a, b, c, k, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr):
    """C (m, n) = A (m, k) B (n, k)^T by TMA: a, b and c are tensor descriptors."""
    row, column = tl.program_id(0) * block_m, tl.program_id(1) * block_n
    total = tl.zeros((block_m, block_n), tl.float32)
    for first in range(0, k, block_k):
        total = tl.dot(a.load([row, first]), b.load([column, first]).T, total)
    c.store([row, column], total.to(tl.float16))


def compiled(function, arch: int, types: dict[str, str], constants: dict[str, int], aligned: set[str], stages: int):
    """Compile for a named target. Arguments in `aligned` are multiples of 16, which Triton uses for wide accesses."""
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(types) if name in aligned}
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": stages})


def check_matmul(arch: int) -> None:
    names = ("m", "n", "k", "pitch_a", "pitch_b", "pitch_c")
    types = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", **dict.fromkeys(names, "i32")}
    constants = {"block_m": BLOCK_M, "block_n": BLOCK_N, "block_k": BLOCK_K, "group": GROUP}
    kernel = compiled(matmul, arch, types, constants, set(types), stages=3)
    tiles = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    values = (M, N, K, K, N, N)
    scalars = "\n".join(f'    {{ type = "s32", value = {value} }},  # {name}' for name, value in zip(names, values))
    launch = f"""
grid = [{tiles}, 1, 1]
dynamic_smem_bytes = {kernel.metadata.shared}
parameters = [
    {{ buffer = "A" }},
    {{ buffer = "B" }},
    {{ buffer = "C" }},
{scalars}
    {{ null = true }},  # Triton's scratch memory, which this kernel does not use
    {{ null = true }},
]

[buffers.A]
dtype = "f16"
shape = [{M}, {K}]
role = "in"
init = "uniform"

[buffers.B]
dtype = "f16"
shape = [{K}, {N}]
role = "in"
init = "uniform"

[buffers.C]
dtype = "f16"
shape = [{M}, {N}]
role = "out"

[reference]
a = "A[m,k]"
b = "B[k,n]"
d = "C[m,n]"
"""
    faults = [
        Fault("the wait for cp.async dropped", r"^\s*cp\.async\.wait_group .*$", count=0),
        Fault("the barriers of the loop dropped", r"^\s*bar\.sync\s+0;$", count=0),
    ]
    ptx = kernel.asm["ptx"]
    missing_fence = "wgmma" in ptx and "fence.proxy.async" not in ptx
    sanitize(f"triton_matmul_sm{arch}", ptx, launch, faults, known=NO_FENCE if missing_fence else None)


def check_tma_matmul() -> None:
    tile = 64
    types = {**dict.fromkeys("abc", f"tensordesc<fp16[{tile},{tile}]>"), "k": "i32"}
    constants = dict.fromkeys(("block_m", "block_n", "block_k"), tile)
    kernel = compiled(tma_matmul, 90, types, constants, set(), stages=3)
    parameters, buffers = "", ""
    for name, rows, columns in (("A", M, K), ("B", N, K), ("C", M, N)):
        # a descriptor is a tensor map, its extents and its strides
        parameters += f'    {{ tensor_map = "map_{name}" }},\n'
        for kind, value in (("s32", rows), ("s32", columns), ("s64", columns), ("s64", 1)):
            parameters += f'    {{ type = "{kind}", value = {value} }},\n'
        role = 'role = "out"' if name == "C" else 'role = "in"\ninit = "uniform"'
        buffers += f"""
[buffers.{name}]
dtype = "f16"
shape = [{rows}, {columns}]
{role}

[tensor_maps.map_{name}]
buffer = "{name}"
box = [{tile}, {tile}]
swizzle = 128
"""
    launch = f"""
grid = [{-(-M // tile)}, {-(-N // tile)}, 1]
dynamic_smem_bytes = {kernel.metadata.shared}
parameters = [
{parameters}    {{ type = "s32", value = {K} }},
    {{ null = true }},  # Triton's scratch memory, which this kernel does not use
    {{ null = true }},
]
{buffers}
[reference]
a = "A[m,k]"
b = "B[n,k]"
d = "C[m,n]"
"""
    faults = [
        Fault("too few expected bytes", r"(expect_tx\.shared\.b64 _, \[%r\d+\], )16384", r"\g<1>8192", count=0),
        Fault(
            "the wait for the operands dropped",
            r"^\s*mbarrier\.try_wait\.parity\S* complete,.*$",
            "setp.eq.u32 complete, 0, 0;",
        ),
        Fault("the fence before the TMA store dropped", r"^\s*fence\.proxy\.async\.shared::cta;$", count=0),
    ]
    ptx = kernel.asm["ptx"]
    missing_fence = "fence.mbarrier_init" not in ptx and ptx.count("fence.proxy.async") < 2
    sanitize("triton_tma_matmul_sm90", ptx, launch, faults, known=NO_INIT_FENCE if missing_fence else None)


def check_softmax(arch: int) -> None:
    names = ("pitch_out", "pitch_in", "rows", "columns")
    types = {"out_ptr": "*fp32", "in_ptr": "*fp32", **dict.fromkeys(names, "i32")}
    kernel = compiled(softmax, arch, types, {"width": WIDTH}, {"out_ptr", "in_ptr", "pitch_out", "pitch_in"}, stages=2)
    pitch = -(-COLUMNS // 16) * 16
    scalars = "\n".join(f'    {{ type = "s32", value = {value} }},' for value in (pitch, pitch, ROWS, COLUMNS))
    buffer = f'dtype = "f32"\nshape = [{ROWS}, {COLUMNS}]\nstrides = [{pitch}, 1]\n'
    launch = f"""
grid = [{PROGRAMS}, 1, 1]
dynamic_smem_bytes = {kernel.metadata.shared}
parameters = [
    {{ buffer = "out" }},
    {{ buffer = "in" }},
{scalars}
    {{ null = true }},  # Triton's scratch memory, which this kernel does not use
    {{ null = true }},
]

[buffers.in]
{buffer}role = "in"
init = "uniform"

[buffers.out]
{buffer}role = "out"
"""
    faults = [
        Fault("the first barrier dropped", r"^\s*bar\.sync\s+0;$"),
        Fault("a mask of the store always true", r"^\s*@%p\d+ (st\.global\.b32)", r"\1", count=0),
    ]
    reference = f"{Path(__file__).with_name('softmax_reference.py')}:expected"
    sanitize(f"triton_softmax_sm{arch}", kernel.asm["ptx"], launch, faults, reference)


if __name__ == "__main__":
    print(f"triton {triton.__version__}, Python {sys.version.split()[0]}")
    for target in (80, 90):
        check_matmul(target)
        check_softmax(target)
    check_tma_matmul()
