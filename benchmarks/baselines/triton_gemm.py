"""Compile a Triton GEMM of our default tile without a GPU, and print the times as one line of JSON.

A (m, k), B (n, k) and D (m, n) are row-major f16, the accumulator f32: layout tn. Tile 128x128x32, four warps, the
pipeline as deep as `stages`. Sizes must be multiples of the tile: no masks, which is in favour of this baseline.
"""

from __future__ import annotations

import time

BEGUN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

IMPORTED = time.perf_counter()

TILE = dict(BM=128, BN=128, BK=32)
WARPS = 4


@triton.jit
def gemm_kernel(a, b, d, m, n, k, lda, ldb, ldd, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    from_a = a + rows[:, None] * lda + inner[None, :]  # (BM, BK)
    from_b = b + columns[None, :] * ldb + inner[:, None]  # (BK, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        acc = tl.dot(tl.load(from_a), tl.load(from_b), acc)
        from_a += BK
        from_b += BK
    tl.store(d + rows[:, None] * ldd + columns[None, :], acc.to(tl.float16))


POINTERS, SIZES = ("a", "b", "d"), ("m", "n", "k", "lda", "ldb", "ldd")


def compile_kernel(capability: int, stages: int):
    signature = (
        {name: "*fp16" for name in POINTERS} | {name: "i32" for name in SIZES} | {name: "constexpr" for name in TILE}
    )
    # What the launcher would infer for such operands: 16-byte pointers and sizes that are multiples of 16.
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(POINTERS) + len(SIZES))}
    source = ASTSource(fn=gemm_kernel, signature=signature, constexprs=TILE, attrs=aligned)
    return triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options=dict(num_warps=WARPS, num_stages=stages)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--stages", default="3", help="comma-separated; one kernel each, in one process")
    args = parser.parse_args()
    seconds, code_bytes = [], []
    for stages in args.stages.split(","):
        start = time.perf_counter()
        compiled = compile_kernel(int(args.arch.removeprefix("sm_")), int(stages))
        seconds.append(time.perf_counter() - start)
        code_bytes.append(len(compiled.asm["cubin"]))
    print(
        json.dumps(
            dict(
                tool="Triton",
                version=triton.__version__,
                import_s=IMPORTED - BEGUN,
                compile_s=seconds,
                cubin_bytes=code_bytes,
            )
        )
    )


if __name__ == "__main__":
    main()
