"""Compile a CuTe DSL GEMM of our default tile without a GPU, and print the times as one line of JSON.

A (m, k), B (n, k) and D (m, n) are row-major f16, the accumulator f32: layout tn. CTA tile 128x128x32, four warps of
64x64, a ring of `stages` filled by 16-byte cp.async, ldmatrix from swizzled shared memory with double-buffered
fragments, result through shared memory in 16-byte stores. Sizes must be multiples of the tile: no edge code, which which
favours this baseline.
"""

from __future__ import annotations

import time

BEGUN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
from importlib.metadata import version  # noqa: E402

import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
import cutlass.memory  # noqa: E402
from cutlass.cute.nvgpu import cpasync, warp  # noqa: E402

IMPORTED = time.perf_counter()

HALF, FLOAT = cutlass.Float16, cutlass.Float32
BM, BN, BK = 128, 128, 32
THREADS = 128
VECTOR = 8  # elements of 16 bytes


@cute.kernel
def gemm_kernel(
    mA: cute.Tensor,
    mB: cute.Tensor,
    mD: cute.Tensor,
    layoutA: cute.ComposedLayout,
    layoutB: cute.ComposedLayout,
    layoutD: cute.ComposedLayout,
    load: cute.TiledCopy,
    store: cute.TiledCopy,
    mma: cute.TiledMma,
    stages: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    tiler, place = (BM, BN, BK), (tile_m, tile_n, None)
    gA = cute.local_tile(mA, tiler, place, proj=(1, None, 1))  # (BM, BK, k tiles)
    gB = cute.local_tile(mB, tiler, place, proj=(None, 1, 1))  # (BN, BK, k tiles)
    gD = cute.local_tile(mD, tiler, place, proj=(1, 1, None))  # (BM, BN)

    shared = cutlass.memory.SmemAllocator()
    sA = shared.allocate_tensor(HALF, layoutA, 128)  # (BM, BK, stages)
    sB = shared.allocate_tensor(HALF, layoutB, 128)  # (BN, BK, stages)
    sD = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=HALF), layoutD)  # (BM, BN), over the operands

    loader = load.get_slice(thread)
    fromA, toA = loader.partition_S(gA), loader.partition_D(sA)
    fromB, toB = loader.partition_S(gB), loader.partition_D(sB)

    part = mma.get_slice(thread)
    rA = mma.make_fragment_A(part.partition_A(sA[None, None, 0]))
    rB = mma.make_fragment_B(part.partition_B(sB[None, None, 0]))
    acc = mma.make_fragment_C(part.partition_C(gD))
    acc.fill(0.0)

    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), HALF)
    readA, readB = cute.make_tiled_copy_A(matrices, mma), cute.make_tiled_copy_B(matrices, mma)
    sharedA, intoA = readA.get_slice(thread).partition_S(sA), readA.get_slice(thread).retile(rA)
    sharedB, intoB = readB.get_slice(thread).partition_S(sB), readB.get_slice(thread).retile(rB)

    k_tiles = cute.size(gA, mode=[2])
    for stage in cutlass.range_constexpr(stages - 1):
        if stage < k_tiles:
            cute.copy(load, fromA[None, None, None, stage], toA[None, None, None, stage])
            cute.copy(load, fromB[None, None, None, stage], toB[None, None, None, stage])
        cute.arch.cp_async_commit_group()

    steps = cute.size(rA, mode=[2])
    read_stage, write_stage = cutlass.Int32(0), cutlass.Int32(stages - 1)
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    cute.copy(readA, sharedA[None, None, 0, 0], intoA[None, None, 0])
    cute.copy(readB, sharedB[None, None, 0, 0], intoB[None, None, 0])

    for k_tile in cutlass.range(k_tiles):
        for step in cutlass.range_constexpr(steps):
            if cutlass.const_expr(step == steps - 1):
                cute.arch.cp_async_wait_group(stages - 2)
                cute.arch.sync_threads()
                read_stage = cutlass.select_(read_stage == stages - 1, 0, read_stage + 1)
            following = (step + 1) % steps
            cute.copy(readA, sharedA[None, None, following, read_stage], intoA[None, None, following])
            cute.copy(readB, sharedB[None, None, following, read_stage], intoB[None, None, following])
            if cutlass.const_expr(step == 0):
                ahead = k_tile + stages - 1
                if ahead < k_tiles:
                    cute.copy(load, fromA[None, None, None, ahead], toA[None, None, None, write_stage])
                    cute.copy(load, fromB[None, None, None, ahead], toB[None, None, None, write_stage])
                cute.arch.cp_async_commit_group()
                write_stage = cutlass.select_(write_stage == stages - 1, 0, write_stage + 1)
            cute.gemm(mma, acc, rA[None, None, step], rB[None, None, step], acc)

    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    result = cute.make_fragment_like(acc, HALF)
    result.store(acc.load().to(HALF))
    cute.autovec_copy(result, part.partition_C(sD))
    cute.arch.sync_threads()
    storer = store.get_slice(thread)
    ready, out = storer.partition_S(sD), storer.partition_D(gD)
    vectors = cute.make_fragment_like(out)
    cute.autovec_copy(ready, vectors)
    cute.copy(store, vectors, out)


@cute.jit
def gemm(mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, stages: cutlass.Constexpr):
    operand = cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, cute.make_layout((8, BK), stride=(BK, 1)))
    layoutA = cute.tile_to_shape(operand, (BM, BK, stages), (0, 1, 2))
    layoutB = cute.tile_to_shape(operand, (BN, BK, stages), (0, 1, 2))
    rows = cute.make_composed_layout(cute.make_swizzle(3, 3, 4), 0, cute.make_layout((8, BN), stride=(BN, 1)))
    layoutD = cute.tile_to_shape(rows, (BM, BN), (0, 1))

    asynchronous = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL), HALF, num_bits_per_copy=128
    )
    columns = BK // VECTOR
    load = cute.make_tiled_copy_tv(
        asynchronous,
        cute.make_layout((THREADS // columns, columns), stride=(columns, 1)),
        cute.make_layout((1, VECTOR)),
    )
    plain = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), HALF, num_bits_per_copy=128)
    columns = BN // VECTOR
    store = cute.make_tiled_copy_tv(
        plain, cute.make_layout((THREADS // columns, columns), stride=(columns, 1)), cute.make_layout((1, VECTOR))
    )
    mma = cute.make_tiled_mma(
        warp.MmaF16BF16Op(HALF, FLOAT, (16, 8, 16)), cute.make_layout((2, 2, 1)), permutation_mnk=(32, 32, 16)
    )

    grid = (cute.size(mD, mode=[0]) // BM, cute.size(mD, mode=[1]) // BN, 1)
    gemm_kernel(mA, mB, mD, layoutA, layoutB, layoutD, load, store, mma, stages).launch(
        grid=grid, block=(THREADS, 1, 1)
    )


def compile_kernel(arch: str, stages: int):
    m, n, k = (cute.sym_int(divisibility=size) for size in (BM, BN, BK))

    def tensor(rows, columns):
        return cute.runtime.make_fake_compact_tensor(HALF, (rows, columns), stride_order=(1, 0), assumed_align=16)

    return cute.compile(
        gemm, tensor(m, k), tensor(n, k), tensor(m, n), stages, options=f"--gpu-arch {arch} --keep-cubin"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--stages", default="3", help="comma-separated; one kernel each, in one process")
    args = parser.parse_args()
    seconds, code_bytes = [], []
    for stages in args.stages.split(","):
        start = time.perf_counter()
        compiled = compile_kernel(args.arch, int(stages))
        seconds.append(time.perf_counter() - start)
        code_bytes.append(len(compiled.__cubin__ or b""))
    print(
        json.dumps(
            dict(
                tool="CuTe DSL",
                version=version("nvidia-cutlass-dsl"),
                import_s=IMPORTED - BEGUN,
                compile_s=seconds,
                cubin_bytes=code_bytes,
            )
        )
    )


if __name__ == "__main__":
    main()
