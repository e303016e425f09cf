// One tensor-core instruction on each tile of operands: benchmarks/tensor_core_bits.py.
//
// Shapes: a (tiles, M, K), b (tiles, 8, K), c and d (tiles, M, 8); M is 16, or 64 for wgmma. A CTA computes one tile.
// All are read as 32-bit words: a row of a or b has `words` of them for each instruction. Needs no header.

using u32 = unsigned;
using u64 = unsigned long long;

#define R2(x) "+r"((x)[0]), "+r"((x)[1])
#define R4(x) R2(x), "+r"((x)[2]), "+r"((x)[3])
#define IN1(x) "r"((x)[0])
#define IN2(x) IN1(x), "r"((x)[1])
#define IN4(x) IN2(x), "r"((x)[2]), "r"((x)[3])

// Lane l holds rows l / 4 and l / 4 + 8 of a, row l / 4 of b, and words l % 4 and l % 4 + 4 of each.
template <int A, int B, int D> struct Fragments {
  u32 a[A], b[B], d[D];
  static constexpr int words = B * 4;
  u32 group = threadIdx.x / 4, lane = threadIdx.x % 4;

  __device__ u32 at(int i) const { return blockIdx.x * 16 * 4 * (D / 2) + (group + i / (D / 2) * 8) * 4 * (D / 2) + lane * (D / 2) + i % (D / 2); }
  __device__ Fragments(u32 const* from_a, u32 const* from_b, u32 const* from_c) {
    for (int i = 0; i < A; ++i) a[i] = from_a[(blockIdx.x * 16 + group + i % 2 * 8) * words + lane + i / 2 * 4];
    for (int i = 0; i < B; ++i) b[i] = from_b[(blockIdx.x * 8 + group) * words + lane + i * 4];
    for (int i = 0; i < D; ++i) d[i] = from_c[at(i)];
  }
  __device__ void store(u32* to) const { for (int i = 0; i < D; ++i) to[at(i)] = d[i]; }
};

#define MMA(NAME, A, B, D, PTX, REGISTERS) \
  extern "C" __global__ void __launch_bounds__(32) NAME(u32 const* a, u32 const* b, u32 const* c, u32* d) { \
    Fragments<A, B, D> f(a, b, c); \
    asm volatile("mma.sync.aligned." PTX " " REGISTERS ";" : R##D(f.d) : IN##A(f.a), IN##B(f.b)); \
    f.store(d); \
  }
#define MMA_4_2_4(NAME, PTX) MMA(NAME, 4, 2, 4, PTX, "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}")
#define MMA_4_2_2(NAME, PTX) MMA(NAME, 4, 2, 2, PTX, "{%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1}")
#define MMA_2_1_4(NAME, PTX) MMA(NAME, 2, 1, 4, PTX, "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3}")
#define MMA_2_1_2(NAME, PTX) MMA(NAME, 2, 1, 2, PTX, "{%0,%1}, {%2,%3}, {%4}, {%0,%1}")

MMA_2_1_4(mma_k8_f16_f32, "m16n8k8.row.col.f32.f16.f16.f32")
MMA_2_1_2(mma_k8_f16_f16, "m16n8k8.row.col.f16.f16.f16.f16")
#if ARCH >= 80
MMA_4_2_4(mma_k16_f16_f32, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_4_2_4(mma_k16_bf16_f32, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_4_2_2(mma_k16_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16")
MMA_2_1_4(mma_k8_bf16_f32, "m16n8k8.row.col.f32.bf16.bf16.f32")
MMA_4_2_4(mma_k8_tf32_f32, "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_2_1_4(mma_k4_tf32_f32, "m16n8k4.row.col.f32.tf32.tf32.f32")
#endif

#if ARCH == 90
// Operands in shared memory, K-major, not swizzled: 16-byte vectors of 8 rows lie together (128 B), two along k (256 B).
// BLOCKS instructions follow one another along k, without a wait between them.
#define WGMMA(NAME, D, BLOCKS, PTX, REGISTERS, TAIL) \
  extern "C" __global__ void __launch_bounds__(128) NAME(u32 const* a, u32 const* b, u32 const* c, u32* d) { \
    __shared__ __align__(1024) u32 smem_a[BLOCKS * 512], smem_b[BLOCKS * 64]; \
    constexpr u32 words = BLOCKS * 8, pairs = D / 2; \
    for (u32 i = threadIdx.x; i < 64 * words; i += 128) { \
      u32 const row = i / words, word = i % words; \
      smem_a[word / 8 * 512 + row / 8 * 64 + word % 8 / 4 * 32 + row % 8 * 4 + word % 4] = a[blockIdx.x * 64 * words + i]; \
    } \
    for (u32 i = threadIdx.x; i < 8 * words; i += 128) { \
      u32 const row = i / words, word = i % words; \
      smem_b[word / 8 * 64 + word % 8 / 4 * 32 + row * 4 + word % 4] = b[blockIdx.x * 8 * words + i]; \
    } \
    u32 r[D]; \
    u32 const group = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, lane = threadIdx.x % 4; \
    u32 at[D]; \
    for (int i = 0; i < D; ++i) at[i] = ((blockIdx.x * 64 + group + i / pairs * 8) * 4 + lane) * pairs + i % pairs; \
    for (int i = 0; i < D; ++i) r[i] = c[at[i]]; \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); \
    __syncthreads(); \
    u64 const offsets = u64(128 / 16) << 16 | u64(256 / 16) << 32; \
    u64 const first_a = offsets | u64((u32)__cvta_generic_to_shared(smem_a) / 16); \
    u64 const first_b = offsets | u64((u32)__cvta_generic_to_shared(smem_b) / 16); \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); \
    _Pragma("unroll") for (int k = 0; k < BLOCKS; ++k) { \
      asm volatile("wgmma.mma_async.sync.aligned." PTX " " REGISTERS ", 1, 1, 1" TAIL ";" \
                   : R##D(r) : "l"(first_a + k * 128), "l"(first_b + k * 16)); \
    } \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); \
    asm volatile("wgmma.wait_group.sync.aligned 0;" : R##D(r) :: "memory"); \
    for (int i = 0; i < D; ++i) d[at[i]] = r[i]; \
  }
#define WGMMA_4(NAME, BLOCKS, PTX, TAIL) WGMMA(NAME, 4, BLOCKS, PTX, "{%0,%1,%2,%3}, %4, %5", TAIL)
#define WGMMA_2(NAME, BLOCKS, PTX, TAIL) WGMMA(NAME, 2, BLOCKS, PTX, "{%0,%1}, %2, %3", TAIL)

WGMMA_4(wgmma_k16_f16_f32, 1, "m64n8k16.f32.f16.f16", ", 0, 0")
WGMMA_4(wgmma_k16_bf16_f32, 1, "m64n8k16.f32.bf16.bf16", ", 0, 0")
WGMMA_2(wgmma_k16_f16_f16, 1, "m64n8k16.f16.f16.f16", ", 0, 0")
WGMMA_4(wgmma_k8_tf32_f32, 1, "m64n8k8.f32.tf32.tf32", "")
WGMMA_4(wgmma_k64_f16_f32, 4, "m64n8k16.f32.f16.f16", ", 0, 0")
WGMMA_2(wgmma_k64_f16_f16, 4, "m64n8k16.f16.f16.f16", ", 0, 0")
#endif
