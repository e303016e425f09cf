// Kernels that issue one instruction over and over and read the SM's clock around it: benchmarks/cpi.py.
//
// A probe is a struct: its constructor loads operands, step(s) issues `per_step` instructions (cpi.py says how many),
// finish() waits for what is in flight, result() depends on all that was computed. Needs no header.

using u32 = unsigned;
using u64 = unsigned long long;

struct Args {
  u64* stamps;      // (CTAs, warps, 4): clock and nanoseconds at begin and end
  u32* sink;
  char* data;       // random halves, 64 KiB of them, over and over
  char* out;
  u64 window_mask;  // bytes that a walk stays within, less 1
  u64 warp_stride;  // bytes from one warp's walk to the next warp's
  u64 step_stride;  // bytes from a step to the next
  int steps;
  int sharers;      // CTAs that walk together, through the same addresses
  int zero;         // 0, which the compiler does not know
};

extern __shared__ __align__(1024) char smem[];

__device__ __forceinline__ u32 smem_address(void const* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
__device__ __forceinline__ u64 nanoseconds() { u64 ns; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)); return ns; }
__device__ __forceinline__ u64 clocks() { u64 c; asm volatile("mov.u64 %0, %clock64;" : "=l"(c) :: "memory"); return c; }
__device__ __forceinline__ u32 word(Args const& args, u32 index) { return ((u32 const*)args.data)[index & 16383]; }

__device__ __forceinline__ void fill_smem(Args const& args, u32 bytes) {
  for (u32 i = threadIdx.x; i < bytes / 4; i += blockDim.x) ((u32*)smem)[i] = word(args, i);
  asm volatile("fence.acq_rel.cta;" ::: "memory");
  __syncthreads();
}

template <class Probe> __device__ __forceinline__ void measure(Args const& args) {
  Probe probe(args);
  __syncthreads();
  u64 const begin_ns = nanoseconds(), begin = clocks();
  #pragma unroll 1
  for (int s = 0; s < args.steps; ++s) probe.step(s);
  probe.finish();
  u64 const end = clocks(), end_ns = nanoseconds();
  if (probe.result() == 0x9e3779b9) *args.sink = 1;
  if (threadIdx.x % 32 == 0) {
    u64* stamps = args.stamps + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 4;
    stamps[0] = begin, stamps[1] = end, stamps[2] = begin_ns, stamps[3] = end_ns;
  }
}

#define KERNEL(NAME, THREADS, ...) \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(Args const args) { measure<__VA_ARGS__>(args); }

// ---- mma.sync: 16 independent accumulators, or one that each product waits for ----------------------------------------

#define R2(x) "+r"((x)[0]), "+r"((x)[1])
#define R4(x) R2(x), "+r"((x)[2]), "+r"((x)[3])
#define MMA(NAME, D, A, B, PTX, REGISTERS, DS, ...) struct NAME { \
  static constexpr int d_registers = D, a_registers = A, b_registers = B; \
  static __device__ __forceinline__ void issue(u32* d, u32 const* a, u32 const* b) { \
    asm volatile("mma.sync.aligned." PTX " " REGISTERS ";" : DS(d) : __VA_ARGS__); } };
#define MMA_4_4_2(NAME, PTX) MMA(NAME, 4, 4, 2, PTX, "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}", R4, \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_2_4_2(NAME, PTX) MMA(NAME, 2, 4, 2, PTX, "{%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1}", R2, \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_4_2_1(NAME, PTX) MMA(NAME, 4, 2, 1, PTX, "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3}", R4, \
  "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define MMA_2_2_1(NAME, PTX) MMA(NAME, 2, 2, 1, PTX, "{%0,%1}, {%2,%3}, {%4}, {%0,%1}", R2, \
  "r"(a[0]), "r"(a[1]), "r"(b[0]))

template <class Mma, int ROWS, int COLUMNS> struct Tensor {
  u32 d[ROWS * COLUMNS][Mma::d_registers], a[ROWS][Mma::a_registers], b[COLUMNS][Mma::b_registers];

  __device__ __forceinline__ Tensor(Args const& args) {
    u32 next = threadIdx.x * 64;
    for (int i = 0; i < ROWS; ++i) for (u32& r : a[i]) r = word(args, next++);
    for (int j = 0; j < COLUMNS; ++j) for (u32& r : b[j]) r = word(args, next++);
    for (auto& registers : d) for (u32& r : registers) r = 0;
  }
  __device__ __forceinline__ void step(int) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      #pragma unroll
      for (int j = 0; j < COLUMNS; ++j) Mma::issue(d[i * COLUMNS + j], a[i], b[j]);
    }
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() {
    u32 all = 0;
    for (auto& registers : d) for (u32 r : registers) all ^= r;
    return all;
  }
};

#define MMA_KERNELS(NAME) \
  KERNEL(NAME, 512, Tensor<Mma_##NAME, 4, 4>) \
  KERNEL(NAME##_latency, 32, Tensor<Mma_##NAME, 1, 1>)

MMA_4_2_1(Mma_m16n8k8_f32, "m16n8k8.row.col.f32.f16.f16.f32")
MMA_2_2_1(Mma_m16n8k8_f16, "m16n8k8.row.col.f16.f16.f16.f16")
MMA_KERNELS(m16n8k8_f32)
MMA_KERNELS(m16n8k8_f16)
#if __CUDA_ARCH__ >= 800
MMA_4_4_2(Mma_m16n8k16_f32, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_2_4_2(Mma_m16n8k16_f16, "m16n8k16.row.col.f16.f16.f16.f16")
MMA_4_4_2(Mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_4_2_1(Mma_m16n8k4_tf32, "m16n8k4.row.col.f32.tf32.tf32.f32")
MMA_4_4_2(Mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_KERNELS(m16n8k16_f32)
MMA_KERNELS(m16n8k16_f16)
MMA_KERNELS(m16n8k16_bf16)
MMA_KERNELS(m16n8k4_tf32)
MMA_KERNELS(m16n8k8_tf32)
#endif

// ---- Loads: eight of them a step, each of a warp's lanes next to the one before ---------------------------------------

#define LOAD_1(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 1; \
  static __device__ __forceinline__ void load(u32* r, TYPE at) { \
    asm volatile(PTX " {%0}, [%1];" : "=r"(r[0]) : SPACE(at) : "memory"); } };
#define LOAD_2(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 2; \
  static __device__ __forceinline__ void load(u32* r, TYPE at) { \
    asm volatile(PTX " {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : SPACE(at) : "memory"); } };
#define LOAD_4(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 4; \
  static __device__ __forceinline__ void load(u32* r, TYPE at) { \
    asm volatile(PTX " {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : SPACE(at) : "memory"); } };

constexpr int PER_STEP = 8;

template <class Load, int LANE_BYTES> struct SharedLoads {
  u32 base, all = 0;

  __device__ __forceinline__ SharedLoads(Args const& args) {
    fill_smem(args, 32768);
    base = smem_address(smem) + threadIdx.x % 32 * LANE_BYTES;
  }
  __device__ __forceinline__ void step(int s) {
    u32 const from = base + (s & 3) * 32;  // not known before, and as free of bank conflicts
    u32 r[PER_STEP][Load::words];
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) Load::load(r[i], from + i * 1024);
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) for (u32 value : r[i]) all ^= value;
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() { return all; }
};

struct Walk {  // where a thread is in the window that the warps walk through
  char* base;
  u64 offset, stride, mask;
  u32 lane;

  __device__ __forceinline__ Walk(Args const& args, u32 lane_bytes)
    : base(args.data), stride(args.step_stride), mask(args.window_mask), lane(threadIdx.x % 32 * lane_bytes) {
    offset = (blockIdx.x / (u32)args.sharers * (blockDim.x / 32) + threadIdx.x / 32) * args.warp_stride;
  }
  __device__ __forceinline__ u64 next() {
    u64 const at = (offset & mask) + lane;
    offset += stride;
    return at;
  }
};

template <class Load> struct GlobalLoads {
  Walk walk;
  u32 all = 0;

  __device__ __forceinline__ GlobalLoads(Args const& args) : walk(args, Load::words * 4) {}
  __device__ __forceinline__ void step(int) {
    char const* from = walk.base + walk.next();
    u32 r[PER_STEP][Load::words];
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) Load::load(r[i], (u64)from + i * 32 * Load::words * 4);
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) for (u32 value : r[i]) all ^= value;
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() { return all; }
};

LOAD_1(Lds32, "ld.volatile.shared.u32", "r", u32)
LOAD_2(Lds64, "ld.volatile.shared.v2.u32", "r", u32)
LOAD_4(Lds128, "ld.volatile.shared.v4.u32", "r", u32)
LOAD_1(Ldsm1, "ldmatrix.sync.aligned.m8n8.x1.shared.b16", "r", u32)
LOAD_2(Ldsm2, "ldmatrix.sync.aligned.m8n8.x2.shared.b16", "r", u32)
LOAD_4(Ldsm4, "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "r", u32)
LOAD_1(Ldsm1t, "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", "r", u32)
LOAD_2(Ldsm2t, "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", "r", u32)
LOAD_4(Ldsm4t, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "r", u32)
KERNEL(lds32, 512, SharedLoads<Lds32, 4>)
KERNEL(lds64, 512, SharedLoads<Lds64, 8>)
KERNEL(lds128, 512, SharedLoads<Lds128, 16>)
KERNEL(ldsm_x1, 512, SharedLoads<Ldsm1, 16>)
KERNEL(ldsm_x2, 512, SharedLoads<Ldsm2, 16>)
KERNEL(ldsm_x4, 512, SharedLoads<Ldsm4, 16>)
KERNEL(ldsm_x1_trans, 512, SharedLoads<Ldsm1t, 16>)
KERNEL(ldsm_x2_trans, 512, SharedLoads<Ldsm2t, 16>)
KERNEL(ldsm_x4_trans, 512, SharedLoads<Ldsm4t, 16>)

LOAD_1(Ldg32ca, "ld.global.ca.u32", "l", u64)
LOAD_2(Ldg64ca, "ld.global.ca.v2.u32", "l", u64)
LOAD_4(Ldg128ca, "ld.global.ca.v4.u32", "l", u64)
LOAD_1(Ldg32cg, "ld.global.cg.u32", "l", u64)
LOAD_2(Ldg64cg, "ld.global.cg.v2.u32", "l", u64)
LOAD_4(Ldg128cg, "ld.global.cg.v4.u32", "l", u64)
KERNEL(ldg32_ca, 512, GlobalLoads<Ldg32ca>)
KERNEL(ldg64_ca, 512, GlobalLoads<Ldg64ca>)
KERNEL(ldg128_ca, 512, GlobalLoads<Ldg128ca>)
KERNEL(ldg32_cg, 1024, GlobalLoads<Ldg32cg>)
KERNEL(ldg64_cg, 1024, GlobalLoads<Ldg64cg>)
KERNEL(ldg128_cg, 1024, GlobalLoads<Ldg128cg>)

// ---- Stores -----------------------------------------------------------------------------------------------------------

#define STORE_1(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 1; \
  static __device__ __forceinline__ void store(TYPE at, u32 v) { \
    asm volatile(PTX " [%0], {%1};" :: SPACE(at), "r"(v) : "memory"); } };
#define STORE_2(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 2; \
  static __device__ __forceinline__ void store(TYPE at, u32 v) { \
    asm volatile(PTX " [%0], {%1,%1};" :: SPACE(at), "r"(v) : "memory"); } };
#define STORE_4(NAME, PTX, SPACE, TYPE) struct NAME { \
  static constexpr int words = 4; \
  static __device__ __forceinline__ void store(TYPE at, u32 v) { \
    asm volatile(PTX " [%0], {%1,%1,%1,%1};" :: SPACE(at), "r"(v) : "memory"); } };

template <class Store, int LANE_BYTES> struct SharedStores {
  u32 base, value;

  __device__ __forceinline__ SharedStores(Args const& args) {
    fill_smem(args, 32768);
    base = smem_address(smem) + threadIdx.x % 32 * LANE_BYTES;
    value = word(args, threadIdx.x);
  }
  __device__ __forceinline__ void step(int s) {
    u32 const to = base + (s & 3) * 32;
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) Store::store(to + i * 1024, value);
  }
  __device__ __forceinline__ void finish() { __syncthreads(); }
  __device__ __forceinline__ u32 result() { return ((u32 volatile*)smem)[threadIdx.x]; }
};

template <class Store> struct GlobalStores {
  Walk walk;
  u32 value;

  __device__ __forceinline__ GlobalStores(Args const& args) : walk(args, Store::words * 4), value(word(args, threadIdx.x)) {
    walk.base = args.out;
  }
  __device__ __forceinline__ void step(int) {
    char* to = walk.base + walk.next();
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) Store::store((u64)to + i * 32 * Store::words * 4, value);
  }
  __device__ __forceinline__ void finish() { __threadfence(); }
  __device__ __forceinline__ u32 result() { return value; }
};

struct Copies {  // 16 bytes a thread, from DRAM to DRAM
  Walk walk;
  char* out;

  __device__ __forceinline__ Copies(Args const& args) : walk(args, 16), out(args.out) {}
  __device__ __forceinline__ void step(int) {
    u64 const at = walk.next();
    uint4 r[PER_STEP];
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) r[i] = *(uint4 const*)(walk.base + at + i * 512);
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) *(uint4*)(out + at + i * 512) = r[i];
  }
  __device__ __forceinline__ void finish() { __threadfence(); }
  __device__ __forceinline__ u32 result() { return 0; }
};

STORE_1(Sts32, "st.volatile.shared.u32", "r", u32)
STORE_2(Sts64, "st.volatile.shared.v2.u32", "r", u32)
STORE_4(Sts128, "st.volatile.shared.v4.u32", "r", u32)
STORE_1(Stg32, "st.global.u32", "l", u64)
STORE_2(Stg64, "st.global.v2.u32", "l", u64)
STORE_4(Stg128, "st.global.v4.u32", "l", u64)
KERNEL(sts32, 512, SharedStores<Sts32, 4>)
KERNEL(sts64, 512, SharedStores<Sts64, 8>)
KERNEL(sts128, 512, SharedStores<Sts128, 16>)
KERNEL(stg32, 1024, GlobalStores<Stg32>)
KERNEL(stg64, 1024, GlobalStores<Stg64>)
KERNEL(stg128, 1024, GlobalStores<Stg128>)
KERNEL(copy128, 1024, Copies)
#if __CUDA_ARCH__ >= 900
STORE_4(Stsm4, "stmatrix.sync.aligned.m8n8.x4.shared.b16", "r", u32)
KERNEL(stsm_x4, 512, SharedStores<Stsm4, 16>)
#endif

// ---- Copies to shared memory ------------------------------------------------------------------------------------------

#if __CUDA_ARCH__ >= 800
template <int BYTES, bool L1, int COPIES, int STAGES> struct AsyncCopies {
  Walk walk;
  u32 to, slot_bytes;  // (STAGES, COPIES, threads, BYTES): no copy lands where another is under way, or the SM merges them

  __device__ __forceinline__ AsyncCopies(Args const& args) : walk(args, BYTES), slot_bytes(blockDim.x * BYTES) {
    to = smem_address(smem) + threadIdx.x * BYTES;
  }
  __device__ __forceinline__ void step(int s) {
    u64 const from = (u64)__cvta_generic_to_global(walk.base + walk.next());
    u32 const stage = to + s % STAGES * COPIES * slot_bytes;
    #pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      u32 const at = stage + i * slot_bytes;
      if constexpr (L1) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(at), "l"(from + i * 32 * BYTES), "n"(BYTES) : "memory");
      } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(at), "l"(from + i * 32 * BYTES), "n"(BYTES) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
  }
  __device__ __forceinline__ void finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }
  __device__ __forceinline__ u32 result() { return ((u32 volatile*)smem)[threadIdx.x]; }
};

KERNEL(cp_async4_ca, 512, AsyncCopies<4, true, 4, 4>)
KERNEL(cp_async8_ca, 512, AsyncCopies<8, true, 4, 4>)
KERNEL(cp_async16_ca, 512, AsyncCopies<16, true, 4, 4>)
KERNEL(cp_async16_cg, 512, AsyncCopies<16, false, 4, 4>)
KERNEL(cp_async16_latency, 32, AsyncCopies<16, false, 1, 1>)
#endif

#if __CUDA_ARCH__ >= 900
template <int STAGES, int BYTES> struct BulkCopies {  // one thread of the CTA has TMA copy, STAGES of them in flight
  Walk walk;
  u32 stages, barriers;
  int steps;

  __device__ __forceinline__ BulkCopies(Args const& args) : walk(args, 0), steps(args.steps) {
    stages = smem_address(smem) + 1024, barriers = smem_address(smem);
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; ++i) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(barriers + i * 8) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }
  __device__ __forceinline__ void wait(int s) {
    u32 done = 0;
    for (u32 tries = 0; !done; ++tries) {
      if (tries == 1 << 22) __trap();  // better than to hang
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(barriers + s % STAGES * 8), "r"(s / STAGES & 1) : "memory");
    }
  }
  __device__ __forceinline__ void step(int s) {
    if (threadIdx.x) return;
    if (s >= STAGES) wait(s - STAGES);
    u32 const barrier = barriers + s % STAGES * 8;
    u64 const from = (u64)__cvta_generic_to_global(walk.base + walk.next());
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "n"(BYTES) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(stages + s % STAGES * BYTES), "l"(from), "n"(BYTES), "r"(barrier) : "memory");
  }
  __device__ __forceinline__ void finish() {
    if (threadIdx.x) return;
    for (int s = steps < STAGES ? 0 : steps - STAGES; s < steps; ++s) wait(s);
  }
  __device__ __forceinline__ u32 result() { return ((u32 volatile*)smem)[256 + threadIdx.x]; }
};

KERNEL(bulk16k, 32, BulkCopies<12, 16384>)
KERNEL(bulk32k, 32, BulkCopies<6, 32768>)
KERNEL(bulk_latency, 32, BulkCopies<1, 1024>)
#endif

// ---- wgmma: both operands in shared memory, K-major, swizzled over 128 bytes --------------------------------------------

#if defined(WGMMA)
template <class Wgmma, int PER_GROUP, bool WAIT> struct Warpgroups {
  typename Wgmma::Sum d[Wgmma::registers];
  u64 a, b;

  static __device__ __forceinline__ u64 descriptor(u32 address) {  // rows of 128 B, eight of them every 1024 B
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
  }
  __device__ __forceinline__ Warpgroups(Args const& args) {
    fill_smem(args, 65536);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    u32 const tile = smem_address(smem);
    a = descriptor(tile + threadIdx.x / 128 * 8192);  // (64, 64) halves a warpgroup
    b = descriptor(tile + 32768);                     // (256, 64) halves
    for (auto& r : d) r = 0;
  }
  __device__ __forceinline__ void step(int) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int k = 0; k < PER_GROUP; ++k) Wgmma::issue(d, a + 2 * (k % 4), b + 2 * (k % 4));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if constexpr (WAIT) finish(); else asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  __device__ __forceinline__ void finish() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (auto& r : d) Wgmma::keep(r);  // or the compiler reads them before the wait, and serialises all
  }
  __device__ __forceinline__ u32 result() {
    u32 all = 0;
    for (auto r : d) all ^= bits(r);
    return all;
  }
  static __device__ __forceinline__ u32 bits(float r) { return __float_as_uint(r); }
  static __device__ __forceinline__ u32 bits(u32 r) { return r; }
};

#define WGMMA_KERNELS(NAME) KERNEL(NAME, 256, Warpgroups<Wgmma_##NAME, 8, false>)
#define WGMMA_LATENCY(NAME) KERNEL(NAME##_latency, 128, Warpgroups<Wgmma_##NAME, 1, true>)
WGMMA
#endif

// ---- Latencies ----------------------------------------------------------------------------------------------------------

template <bool L1> struct GlobalChase {  // `ring` wrote at each address that of the next
  u64 at;

  __device__ __forceinline__ GlobalChase(Args const& args) : at((u64)args.out) {}
  __device__ __forceinline__ void step(int) {
    if constexpr (L1) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at) :: "memory");
    else asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at) :: "memory");
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() { return (u32)at; }
};

template <class Load> struct SharedChase {  // every word of shared memory is the address of the first
  u32 at;

  __device__ __forceinline__ SharedChase(Args const& args) {
    at = smem_address(smem) + args.zero;
    for (u32 i = threadIdx.x; i < 1024; i += blockDim.x) ((u32*)smem)[i] = at;
  }
  __device__ __forceinline__ void step(int) {
    u32 r[Load::words];
    Load::load(r, at);
    at = r[0];
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() { return at; }
};

struct Barriers {
  __device__ __forceinline__ Barriers(Args const&) {}
  __device__ __forceinline__ void step(int) {
    #pragma unroll
    for (int i = 0; i < PER_STEP; ++i) __syncthreads();
  }
  __device__ __forceinline__ void finish() {}
  __device__ __forceinline__ u32 result() { return 0; }
};

KERNEL(ldg_ca_latency, 32, GlobalChase<true>)
KERNEL(ldg_cg_latency, 32, GlobalChase<false>)
KERNEL(lds32_latency, 32, SharedChase<Lds32>)
KERNEL(ldsm_x4_latency, 32, SharedChase<Ldsm4>)
KERNEL(barrier, 1024, Barriers)

extern "C" __global__ void ring(Args const args) {  // addresses `step_stride` apart, `steps` of them, the last leads to the first
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < args.steps; i += gridDim.x * blockDim.x) {
    *(u64*)(args.out + i * args.step_stride) = (u64)args.out + (i + 1) % args.steps * args.step_stride;
  }
}

extern "C" __global__ void repeat(Args const args) {  // the first 64 KiB of data, over all of it
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x + 16384; i <= args.window_mask / 4; i += gridDim.x * blockDim.x) {
    ((u32*)args.data)[i] = ((u32 const*)args.data)[i & 16383];
  }
}

extern "C" __global__ void empty(Args const) {}
