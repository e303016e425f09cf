"""hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_645ca7e2

sm_89 tn, f16 in, f32 accumulate, f16 out; CTA tile 128x128x32, warp tile 64x64, 3 stages, 128 threads, 49152 B of shared memory.
D (m, n) = alpha * A (m, k) B (k, n) + beta * C (m, n), `batch` times; m, n and k may be ragged.
On a machine with a GPU, `python kernel.py --m 4096 --n 4096 --k 4096` runs it and checks it against NumPy. That needs
nvidia-cutlass-dsl and NumPy.
Emitted by the HGEMM generator from a spec; change the spec, not this text.
"""

import argparse
import sys
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float16, Float32, Int8, Int32, Int64, Uint32, const_expr, range_constexpr
from cutlass.cute.nvgpu import LoadCacheMode, cpasync, warp
from cutlass.memory import SmemAllocator

# ---- The kernel -----------------------------------------------------------------------------------------------------

SYMBOL = "hgemm_sm89_tn_f16_f32_f16_128x128x32_s3_645ca7e2"
Element, ElementOut, Accumulator = Float16, Float16, Float32
BLK_M, BLK_N, BLK_K, STAGES = 128, 128, 32, 3
WARPS, THREADS, CTAS_PER_SM = (2, 2, 1), 128, 2
MMA_SHAPE, MMA_TILE = (16, 8, 16), (32, 32, 16)  # of one atom; of all warps, in whole ldmatrix
A_K_MAJOR, B_K_MAJOR = True, True
ALIGN_A, ALIGN_B, ALIGN_D = 8, 8, 8  # of pointers and leading dimensions, in elements
VEC = 128 // ElementOut.width  # elements of D in a 16-byte vector
WIDTH = min(ALIGN_D, VEC)  # elements of C and D that one access moves
SMEM_BYTES, SMEM_BYTES_A = 49152, 24576  # stages of A and B; the epilogue reuses them for rows of D


def smem_layout_a():
    """Return the layout (BLK_M, BLK_K, PIPE) of A's stages, in elements."""
    stages = cute.make_layout((128, 32, 3), stride=(32, 1, 4096))
    return cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, stages)


def smem_layout_b():
    """Return the layout (BLK_N, BLK_K, PIPE) of B's stages, in elements."""
    stages = cute.make_layout((128, 32, 3), stride=(32, 1, 4096))
    return cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, stages)


EPI_M = 32  # rows of D in shared memory at once: one atom of every warp along m


def smem_layout_e():
    """Return the layout (EPI_M, BLK_N) of the rows of D in shared memory, in floats."""
    return cute.make_layout((32, (4, 2, 16)), stride=(136, (1, 68, 4)))


def gmem_copy_a():
    """Return the TiledCopy of A: threads, and the elements that each copies at once."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), Element, num_bits_per_copy=128)
    return cute.make_tiled_copy_tv(atom, cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((1, 8)))


def gmem_copy_b():
    """Return the TiledCopy of B: threads, and the elements that each copies at once."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), Element, num_bits_per_copy=128)
    return cute.make_tiled_copy_tv(atom, cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((1, 8)))


class Problem(NamedTuple):
    """One matrix product as the kernel takes it. Leading dimensions and batch strides count elements."""

    a: cute.Pointer  # (m, k), k contiguous
    b: cute.Pointer  # (k, n), k contiguous
    c: cute.Pointer  # (m, n), n contiguous, read only if beta is not zero
    d: cute.Pointer  # (m, n), n contiguous
    bias: cute.Pointer
    workspace: cute.Pointer
    lda: Int64
    ldb: Int64
    ldc: Int64
    ldd: Int64
    batch_stride_a: Int64
    batch_stride_b: Int64
    batch_stride_c: Int64
    batch_stride_d: Int64
    batch_stride_bias: Int64
    m: Int32
    n: Int32
    k: Int32
    batch: Int32
    alpha: Float32
    beta: Float32


# ---- Which CTA computes which tile ----------------------------------------------------------------------------------


@cute.jit
def place(problem: Problem, item: Uint32):
    """Return an item's row and column of CTA tiles, and its index in the batch."""
    tiles_m = Uint32(problem.m + (BLK_M - 1)) // BLK_M
    tiles_n = Uint32(problem.n + (BLK_N - 1)) // BLK_N
    batch, tile = item // (tiles_m * tiles_n), item % (tiles_m * tiles_n)
    group = cutlass.min(Uint32(8), tiles_m)  # rows of tiles, in order of columns
    first = tile // (group * tiles_n) * group
    rows = cutlass.min(tiles_m - first, group)
    within = tile - first * tiles_n
    tile_m, tile_n = first + within % rows, within // rows
    return Int32(tile_m), Int32(tile_n), Int64(batch)


# ---- Matrices -------------------------------------------------------------------------------------------------------


def make_matrix(pointer, batch_offset, shape, leading, align, row_major):
    """Return the tensor of one matrix of the batch. Its rows are contiguous, or its columns."""
    leading = cute.assume(leading, divby=align)
    layout = cute.make_layout(shape, stride=(leading, 1) if row_major else (1, leading))
    return cute.make_tensor(pointer + cute.assume(batch_offset, divby=align), layout)


def neighbours(mX, row, column, count):
    """Return the tensor (count) of neighbours in a row. `column` is a multiple of `count`."""
    return cute.local_tile(mX, (1, count), (row, column // count))[0, None]


# ---- Global to shared memory ----------------------------------------------------------------------------------------


@cute.jit
def valid_rows(tXcX: cute.Tensor, mn_left: Int32):
    """Return the predicates (1, CPY_MN, CPY_K) of chunks that begin inside the matrix. All of k is inside."""
    cpy_mn, cpy_k = cute.size(tXcX, mode=[1]), cute.size(tXcX, mode=[2])
    tXpX = cute.make_rmem_tensor(cute.make_layout((1, cpy_mn, cpy_k), stride=(cpy_mn, 1, 0)), Boolean)
    for i in range_constexpr(cpy_mn):
        tXpX[0, i, 0] = tXcX[0, i, 0][0] < mn_left
    return tXpX


@cute.jit
def copy_ragged(
    gmem_copy: cute.TiledCopy,
    tXgX: cute.Tensor,  # (CPY, CPY_MN, CPY_K)
    tXsX: cute.Tensor,  # (CPY, CPY_MN, CPY_K)
    tXcX: cute.Tensor,  # (CPY, CPY_MN, CPY_K) -> (mn, k) in the CTA tile
    mn_left: Int32,
    k_left: Int32,
    k_major: cutlass.Constexpr,
):
    """Copy the last k-tile. A chunk, and memory, may end anywhere in it; zeros follow the end."""
    for i in cutlass.range(cute.size(tXgX, mode=[1]), unroll=1):
        for j in cutlass.range(cute.size(tXgX, mode=[2]), unroll=1):
            source, target = tXgX[None, i, j], tXsX[None, i, j]  # (CPY)
            mn, k = tXcX[0, i, j]
            elements = k_left - k if const_expr(k_major) else mn_left - mn
            if mn >= mn_left or k >= k_left:
                elements = Int32(0)
            if elements >= cute.size(source):
                cute.copy(gmem_copy, source, target)
            else:
                for e in cutlass.range(cute.size(source), unroll=1):
                    target[e] = Element(0)
                    if e < elements:
                        target[e] = source[e]


# ---- Accumulators to D ----------------------------------------------------------------------------------------------


@cute.jit
def store_vec(problem: Problem, accumulators: cute.Tensor, gC: cute.Tensor, gD: cute.Tensor):
    """Compute and store neighbours of a row. All tensors have (WIDTH) elements, or one."""
    values = cute.make_rmem_tensor_like(accumulators)
    values.store(problem.alpha * accumulators.load())
    if problem.beta != 0.0:
        rC = cute.make_rmem_tensor_like(gC)
        cute.autovec_copy(gC, rC)
        values.store(values.load() + problem.beta * rC.load().to(Float32))
    rD = cute.make_rmem_tensor_like(gD)
    rD.store(values.load().to(ElementOut))
    cute.autovec_copy(rD, gD)


@cute.jit
def store_tile(
    problem: Problem,
    tile_m: Int32,
    tile_n: Int32,
    batch: Int64,
    thread: Int32,
    thread_mma: cute.ThrMma,
    tCrC: cute.Tensor,  # (MMA, MMA_M, MMA_N)
    sE: cute.Tensor,  # (EPI_M, BLK_N)
):
    """Store a CTA tile through shared memory, EPI_M rows at a time. All threads of the CTA call it."""
    shape = problem.m, problem.n
    mC = make_matrix(problem.c, batch * problem.batch_stride_c, shape, problem.ldc, ALIGN_D, True)  # (M, N)
    mD = make_matrix(problem.d, batch * problem.batch_stride_d, shape, problem.ldd, ALIGN_D, True)  # (M, N)
    tCsE = thread_mma.partition_C(sE)  # (MMA, 1, MMA_N)
    tCrE = cute.make_rmem_tensor_like(tCrC[None, 0, None], Float32)  # (MMA, MMA_N)
    vecs = BLK_N // VEC  # of a row
    slabs = cute.size(tCrC, mode=[1])

    for slab in cutlass.range(slabs, unroll=1):
        # ---- Registers to shared memory: this thread's accumulators of EPI_M rows, as pairs of floats ----
        for i in range_constexpr(slabs):
            if slab == i:  # registers have no addresses: a branch for each slab
                tCrE.store(tCrC[None, i, None].load().to(Float32))
        cute.autovec_copy(tCrE, tCsE[None, 0, None])
        cute.arch.sync_threads()

        # ---- Shared to global memory: one vector of a row per thread ----
        for index in cutlass.range(thread, EPI_M * vecs, THREADS, unroll=1):
            slab_row, along = index // vecs, index % vecs
            row, column = tile_m * BLK_M + slab * EPI_M + slab_row, tile_n * BLK_N + along * VEC
            left = problem.n - column if row < problem.m else Int32(0)
            sVec = cute.local_tile(sE[slab_row, None], (VEC,), (along,))  # (VEC)
            if left >= VEC:
                accumulators = cute.make_rmem_tensor((VEC,), Float32)  # (VEC)
                cute.autovec_copy(sVec, accumulators)
                for part in range_constexpr(VEC // WIDTH):
                    at = column + part * WIDTH
                    gC = neighbours(mC, row, at, WIDTH)  # (WIDTH)
                    gD = neighbours(mD, row, at, WIDTH)  # (WIDTH)
                    store_vec(problem, cute.local_tile(accumulators, (WIDTH,), (part,)), gC, gD)
            else:
                for e in cutlass.range(left, unroll=1):
                    accumulators = cute.make_rmem_tensor((1,), Float32)  # (1)
                    accumulators[0] = sVec[e]
                    gC = neighbours(mC, row, column + e, 1)  # (1)
                    gD = neighbours(mD, row, column + e, 1)  # (1)
                    store_vec(problem, accumulators, gC, gD)
        cute.arch.sync_threads()  # the next slab, or the next tile's copies, overwrite these rows


# ---- One CTA tile ---------------------------------------------------------------------------------------------------


@cute.jit
def compute_tile(problem: Problem, tile_m: Int32, tile_n: Int32, batch: Int64, storage: cute.Pointer):
    """Compute one CTA tile of D. All threads of the CTA call it."""
    thread, _, _ = cute.arch.thread_idx()

    # ---- The matrices, and this CTA's tiles of them ----
    shape_a, shape_b = (problem.m, problem.k), (problem.n, problem.k)
    mA = make_matrix(problem.a, batch * problem.batch_stride_a, shape_a, problem.lda, ALIGN_A, A_K_MAJOR)  # (M, K)
    mB = make_matrix(problem.b, batch * problem.batch_stride_b, shape_b, problem.ldb, ALIGN_B, B_K_MAJOR)  # (N, K)
    cta_tiler, cta_coord = (BLK_M, BLK_N, BLK_K), (tile_m, tile_n, None)
    gA = cute.local_tile(mA, cta_tiler, cta_coord, proj=(1, None, 1))  # (BLK_M, BLK_K, k)
    gB = cute.local_tile(mB, cta_tiler, cta_coord, proj=(None, 1, 1))  # (BLK_N, BLK_K, k)
    begin_a, begin_b = (cute.recast_ptr(begin, dtype=Element) for begin in (storage, storage + SMEM_BYTES_A))
    sA = cute.make_tensor(begin_a, smem_layout_a())  # (BLK_M, BLK_K, PIPE)
    sB = cute.make_tensor(begin_b, smem_layout_b())  # (BLK_N, BLK_K, PIPE)

    # ---- Partitions: global to shared memory ----
    copy_a, copy_b = gmem_copy_a(), gmem_copy_b()
    thread_a, thread_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
    tAgA, tAsA = thread_a.partition_S(gA), thread_a.partition_D(sA)  # (CPY, CPY_M, CPY_K, k), (CPY, CPY_M, CPY_K, PIPE)
    tBgB, tBsB = thread_b.partition_S(gB), thread_b.partition_D(sB)  # (CPY, CPY_N, CPY_K, k), (CPY, CPY_N, CPY_K, PIPE)
    tAcA = thread_a.partition_S(cute.make_identity_tensor((BLK_M, BLK_K)))  # (CPY, CPY_M, CPY_K) -> (m, k)
    tBcB = thread_b.partition_S(cute.make_identity_tensor((BLK_N, BLK_K)))  # (CPY, CPY_N, CPY_K) -> (n, k)
    m_left, n_left = problem.m - tile_m * BLK_M, problem.n - tile_n * BLK_N
    tApA, tBpB = valid_rows(tAcA, m_left), valid_rows(tBcB, n_left)

    # ---- Partitions: products ----
    mma_op = warp.MmaF16BF16Op(Element, Accumulator, MMA_SHAPE)
    tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(WARPS), permutation_mnk=MMA_TILE)
    thread_mma = tiled_mma.get_slice(thread)
    tCrA = tiled_mma.make_fragment_A(thread_mma.partition_A(sA[None, None, 0]))  # (MMA, MMA_M, MMA_K)
    tCrB = tiled_mma.make_fragment_B(thread_mma.partition_B(sB[None, None, 0]))  # (MMA, MMA_N, MMA_K)
    tCrC = cute.make_rmem_tensor(tiled_mma.partition_shape_C((BLK_M, BLK_N)), Accumulator)  # (MMA, MMA_M, MMA_N)
    tCrC.fill(0.0)

    # ---- Partitions: shared memory to fragments ----
    ldmatrix_a = warp.LdMatrix8x8x16bOp(transpose=not A_K_MAJOR, num_matrices=4)
    ldmatrix_b = warp.LdMatrix8x8x16bOp(transpose=not B_K_MAJOR, num_matrices=4)
    smem_copy_a = cute.make_tiled_copy_A(cute.make_copy_atom(ldmatrix_a, Element), tiled_mma)
    smem_copy_b = cute.make_tiled_copy_B(cute.make_copy_atom(ldmatrix_b, Element), tiled_mma)
    tXsA = smem_copy_a.get_slice(thread).partition_S(sA)  # (CPY, CPY_M, CPY_K, PIPE)
    tXrA = smem_copy_a.get_slice(thread).retile(tCrA)  # (CPY, CPY_M, CPY_K)
    tXsB = smem_copy_b.get_slice(thread).partition_S(sB)  # (CPY, CPY_N, CPY_K, PIPE)
    tXrB = smem_copy_b.get_slice(thread).retile(tCrB)  # (CPY, CPY_N, CPY_K)

    # ---- Prologue: the last k-tile, which may be ragged, then those that fill all other stages but one ----
    k_tiles = (problem.k + (BLK_K - 1)) // BLK_K
    last = k_tiles - 1
    if k_tiles > 0:
        k_left = problem.k - last * BLK_K
        copy_ragged(copy_a, tAgA[None, None, None, last], tAsA[None, None, None, 0], tAcA, m_left, k_left, A_K_MAJOR)
        copy_ragged(copy_b, tBgB[None, None, None, last], tBsB[None, None, None, 0], tBcB, n_left, k_left, B_K_MAJOR)
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range(1, STAGES - 1, unroll=1):
        if stage - 1 >= last:  # no k-tile is left to copy
            tApA.fill(False)
            tBpB.fill(False)
        cute.copy(copy_a, tAgA[None, None, None, stage - 1], tAsA[None, None, None, stage], pred=tApA)
        cute.copy(copy_b, tBgB[None, None, None, stage - 1], tBsB[None, None, None, stage], pred=tBpB)
        cute.arch.cp_async_commit_group()

    # ---- Mainloop: while a k-block is multiplied, the next one is read ----
    k_blocks = cute.size(tCrA, mode=[2])
    read_stage, write_stage = Int32(0), Int32(STAGES - 1)
    cute.arch.cp_async_wait_group(STAGES - 2)
    cute.arch.sync_threads()
    cute.copy(smem_copy_a, tXsA[None, None, 0, 0], tXrA[None, None, 0])
    cute.copy(smem_copy_b, tXsB[None, None, 0, 0], tXrB[None, None, 0])

    for k_tile in cutlass.range(k_tiles, unroll=1):
        for k_block in range_constexpr(k_blocks):
            if const_expr(k_block == k_blocks - 1):
                read_stage = cutlass.select_(read_stage == STAGES - 1, Int32(0), read_stage + 1)
                cute.arch.cp_async_wait_group(STAGES - 2)
                cute.arch.sync_threads()  # the next k-tile is in shared memory, and all warps have this one in registers
            following = (k_block + 1) % k_blocks
            cute.copy(smem_copy_a, tXsA[None, None, following, read_stage], tXrA[None, None, following])
            cute.copy(smem_copy_b, tXsB[None, None, following, read_stage], tXrB[None, None, following])
            if const_expr(k_block == 0):  # fill the free stage
                ahead = k_tile + (STAGES - 2)
                if ahead >= last:
                    tApA.fill(False)
                    tBpB.fill(False)
                cute.copy(copy_a, tAgA[None, None, None, ahead], tAsA[None, None, None, write_stage], pred=tApA)
                cute.copy(copy_b, tBgB[None, None, None, ahead], tBsB[None, None, None, write_stage], pred=tBpB)
                cute.arch.cp_async_commit_group()
                write_stage = cutlass.select_(write_stage == STAGES - 1, Int32(0), write_stage + 1)
            cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()  # the epilogue overwrites the stages

    # ---- Epilogue ----
    sE = cute.make_tensor(cute.recast_ptr(storage, dtype=Float32), smem_layout_e())  # (EPI_M, BLK_N)
    store_tile(problem, tile_m, tile_n, batch, thread, thread_mma, tCrC, sE)


# ---- The kernel, and its launch -------------------------------------------------------------------------------------


@cute.kernel
def gemm_kernel(problem: Problem):
    """Compute the tile of this CTA."""
    storage = SmemAllocator().allocate(SMEM_BYTES, byte_alignment=128)
    cta, _, _ = cute.arch.block_idx()
    tile_m, tile_n, batch = place(problem, Uint32(cta))
    compute_tile(problem, tile_m, tile_n, batch, storage)


@cute.jit
def gemm(problem: Problem, ctas: Int32):
    """Launch the kernel on `ctas` CTAs."""
    gemm_kernel(problem).launch(
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        max_number_threads=(THREADS, 1, 1),
        smem=SMEM_BYTES,
        min_blocks_per_mp=CTAS_PER_SM,
        preferred_smem_carveout=100,
    )


def make_problem(addresses=(0, 0, 0, 0, 0, 0), numbers=(0,) * 13, alpha=1.0, beta=0.0):
    """Return a problem from six device addresses, then nine strides and four extents, in the order of its fields."""
    types = (Element, Element, ElementOut, ElementOut, ElementOut, Int8)
    bytes_aligned = (ALIGN_A * 2, ALIGN_B * 2, *[ALIGN_D * ElementOut.width // 8] * 2, ElementOut.width // 8, 16)
    pointers = [
        cute.runtime.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=align)
        for kind, address, align in zip(types, addresses, bytes_aligned)
    ]
    return Problem(*pointers, *map(Int64, numbers[:9]), *map(Int32, numbers[9:]), Float32(alpha), Float32(beta))


# ---- Run and check --------------------------------------------------------------------------------------------------


def main():
    """Multiply random matrices on the GPU, check D against NumPy, and print the speed."""
    parser = argparse.ArgumentParser(description=SYMBOL)
    for extent in "mnk":
        parser.add_argument(f"--{extent}", type=int, default=4096)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--beta", type=float, default=0.0)
    options = parser.parse_args()
    import numpy as np
    from cuda.bindings import driver

    def checked(result):
        if int(result[0]):
            sys.exit(f"{SYMBOL}: the driver says {result[0].name}")
        return result[1] if len(result) > 1 else None

    try:
        checked(driver.cuInit(0))
    except RuntimeError:
        sys.exit(f"{SYMBOL}: no NVIDIA GPU here: the driver, libcuda.so.1, is not installed")
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))

    def stored(x, kind):  # as memory holds it: bfloat16 as its 16 bits
        if kind is BFloat16:
            return ((x.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        return x.astype(np.float16 if kind is Float16 else np.float32)

    def read(x, kind):
        return (x.astype(np.uint32) << 16).view(np.float32) if kind is BFloat16 else x.astype(np.float32)

    def upload(x):
        address = checked(driver.cuMemAlloc(max(16, x.nbytes)))
        checked(driver.cuMemcpyHtoD(address, x.ctypes.data, x.nbytes))
        return int(address)

    m, n, k = options.m, options.n, options.k
    random = np.random.default_rng(1)
    padded = lambda extent, align: -(-extent // align) * align  # noqa: E731
    lda, ldb, ldd = padded(k, ALIGN_A), padded(k, ALIGN_B), padded(n, ALIGN_D)
    a = stored(random.standard_normal((m, lda), np.float32), Element)  # (m, k), padded
    b = stored(random.standard_normal((n, ldb), np.float32), Element)  # (n, k), padded
    c = stored(random.standard_normal((m, ldd), np.float32), ElementOut)
    bias = stored(random.standard_normal(max(m, n), np.float32), ElementOut)
    d = np.zeros_like(c)
    addresses = [upload(x) for x in (a, b, c, d, bias)]

    numbers = lda, ldb, ldd, ldd, 0, 0, 0, 0, 0, m, n, k, 1
    problem = make_problem((*addresses, 0), numbers, options.alpha, options.beta)
    tiles = -(-m // BLK_M) * -(-n // BLK_N)
    ctas = tiles

    launch = cute.compile(gemm, problem, Int32(ctas))
    launch(problem, Int32(ctas))
    checked(driver.cuMemcpyDtoH(d.ctypes.data, addresses[3], d.nbytes))
    before, after = (checked(driver.cuEventCreate(0)) for _ in range(2))
    checked(driver.cuEventRecord(before, 0))
    for _ in range(20):
        launch(problem, Int32(ctas))
    checked(driver.cuEventRecord(after, 0))
    checked(driver.cuEventSynchronize(after))
    us = checked(driver.cuEventElapsedTime(before, after)) * 1000 / 20

    a = read(a, Element)[:, :k]  # (m, k)
    b = read(b, Element)[:, :k].T  # (k, n)
    expected = options.alpha * (a @ b)
    expected += options.beta * read(c, ElementOut)[:, :n]
    error = np.abs(read(d, ElementOut)[:, :n] - expected).max() if d.size else 0.0
    report = f"largest error {error:.3g}, {us:.1f} us launched by the DSL, {2e-6 * m * n * k / us:.1f} TFLOP/s"
    print(f"{m} x {n} x {k}: {report}")
    sys.exit(int(not error <= 0.02 * np.abs(expected).max(initial=0.0)))


if __name__ == "__main__":
    main()
