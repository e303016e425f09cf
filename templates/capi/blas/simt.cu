// Matrix products without tensor cores, for libhgemm_blas.so: exact f32, and problems that no other kernel supports.
//
// D = alpha * A B + beta * C. Each CTA of 256 threads computes a tile of 64x64 of one matrix; a thread computes 4x4 elements.
// Products are added in order of k, each with one rounding (fmaf).
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef long long int64_t;

struct Problem {  // hgemm::Problem of common/problem.cuh
  void const *a, *b, *c;
  void* d;
  void const* bias;
  void* workspace;
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_stride_a, batch_stride_b, batch_stride_c, batch_stride_d, batch_stride_bias;
  int32_t m, n, k, batch;
  float alpha, beta;
  uint32_t splits, whole_tiles;
  int32_t raster_tiles;
  uint32_t pointers;  // bias_kind there. 1: a, b, c and d are arrays of addresses, one for each matrix of the batch
};

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
using f32 = float;

__device__ float widened(f32 x) { return x; }
__device__ float widened(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ float widened(f16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}

__device__ void store(f32* to, float x) { *to = x; }
__device__ void store(f16* to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x)); }
__device__ void store(bf16* to, float x) {
  uint32_t const bits = __float_as_uint(x);
  to->bits = x != x ? 0x7FFF : static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

constexpr int TILE = 64, TILE_K = 16, THREADS = 256, PER_THREAD = 4;

// Copies a tile of TILE rows and TILE_K of k to shared memory, as [k][row]. Outside of the matrix, it is zero.
template <bool K_CONTIGUOUS, class T>
__device__ void copy_tile(float (&to)[TILE_K][TILE + 4], T const* from, int64_t leading, int row, int rows, int k, int depth) {
  for (int i = threadIdx.x; i < TILE * TILE_K; i += THREADS) {
    int const r = K_CONTIGUOUS ? i / TILE_K : i % TILE;
    int const at = K_CONTIGUOUS ? i % TILE_K : i / TILE;
    bool const inside = row + r < rows && k + at < depth;
    int64_t const index = K_CONTIGUOUS ? (row + r) * leading + k + at : (k + at) * leading + row + r;
    to[at][r] = inside ? widened(from[index]) : 0.0f;
  }
}

// Returns the matrix of a batch.
template <class T>
__device__ T* matrix(T* first, int64_t stride, int64_t layer, uint32_t pointers) {
  return pointers ? reinterpret_cast<T* const*>(first)[layer] : first + layer * stride;
}

template <bool A_BY_K, bool B_BY_K, class In, class Out>
__device__ void multiply(Problem const& p) {
  __shared__ float a_tile[TILE_K][TILE + 4], b_tile[TILE_K][TILE + 4];
  int const tiles_m = (p.m - 1) / TILE + 1, tiles_n = (p.n - 1) / TILE + 1;
  int const tile = blockIdx.x % (static_cast<uint32_t>(tiles_m) * tiles_n);
  int64_t const layer = blockIdx.x / (static_cast<uint32_t>(tiles_m) * tiles_n);
  int const row = tile / tiles_n * TILE, column = tile % tiles_n * TILE;
  int const i0 = threadIdx.x / 16 * PER_THREAD, j0 = threadIdx.x % 16 * PER_THREAD;
  In const* const a = matrix(static_cast<In const*>(p.a), p.batch_stride_a, layer, p.pointers);
  In const* const b = matrix(static_cast<In const*>(p.b), p.batch_stride_b, layer, p.pointers);
  Out const* const c = matrix(static_cast<Out const*>(p.c), p.batch_stride_c, layer, p.pointers);
  Out* const d = matrix(static_cast<Out*>(p.d), p.batch_stride_d, layer, p.pointers);
  float sums[PER_THREAD][PER_THREAD] = {};

  for (int k = 0; k < p.k; k += TILE_K) {
    copy_tile<A_BY_K>(a_tile, a, p.lda, row, p.m, k, p.k);
    copy_tile<B_BY_K>(b_tile, b, p.ldb, column, p.n, k, p.k);
    __syncthreads();
    int const depth = min(TILE_K, p.k - k);
    for (int at = 0; at < depth; ++at) {
      float x[PER_THREAD], y[PER_THREAD];
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) x[i] = a_tile[at][i0 + i], y[i] = b_tile[at][j0 + i];
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
      int64_t const r = row + i0 + i, s = column + j0 + j;
      if (r >= p.m || s >= p.n) continue;
      float x = p.alpha * sums[i][j];
      if (p.beta != 0.0f) x = fmaf(p.beta, widened(c[r * p.ldc + s]), x);
      store(&d[r * p.ldd + s], x);
    }
  }
}

#define KERNEL(layout, a_by_k, b_by_k, in, out)                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) hgemm_simt_##layout##_##in##_f32_##out(Problem const p) {  \
    multiply<a_by_k, b_by_k, in, out>(p);                                                                          \
  }
#define LAYOUTS(in, out)               \
  KERNEL(tn, true, true, in, out)      \
  KERNEL(nn, false, true, in, out)     \
  KERNEL(nt, false, false, in, out)    \
  KERNEL(tt, true, false, in, out)

LAYOUTS(f32, f32)
LAYOUTS(f16, f16)
LAYOUTS(f16, f32)
LAYOUTS(bf16, bf16)
LAYOUTS(bf16, f32)
