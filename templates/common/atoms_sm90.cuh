// The atoms of sm_90 and later: TMA, mbarriers, clusters, and wgmma.
#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every n that is a multiple of 8
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>

#include <common/atoms.cuh>

// Names the wgmma instruction of a Policy by the last part of the name of CuTe's atom, such as 64x256x16_F32F16F16_SS.
#define HGEMM_WGMMA(NAME)                                             \
  template <cute::SM90::GMMA::Major MAJOR_A, cute::SM90::GMMA::Major MAJOR_B> \
  using Wgmma = cute::SM90::GMMA::MMA_##NAME<MAJOR_A, MAJOR_B>
// The same for instructions whose operands are always K-major, such as 64x256x8_F32TF32TF32_SS_TN.
#define HGEMM_WGMMA_TN(NAME)                                  \
  template <cute::SM90::GMMA::Major, cute::SM90::GMMA::Major> \
  using Wgmma = cute::SM90::GMMA::MMA_##NAME<>

namespace hgemm {

using TensorMap = cute::TmaDescriptor;  // 128 bytes, encoded by the launcher

namespace atoms {

// ---- Warpgroups and clusters ----------------------------------------------------------------------------------------

// A copy of a word that stays in its branch: the compiler turns other copies into selects outside of it.
HGEMM_DEVICE uint32_t moved(uint32_t bits) {
  uint32_t result;
  asm volatile("mov.b32 %0, %1;" : "=r"(result) : "r"(bits));
  return result;
}
// A sum that stays in its branch.
HGEMM_DEVICE uint32_t sum_in_branch(uint32_t bits, float addend) {
  uint32_t result;
  asm volatile("{ .reg .f32 x; mov.b32 x, %1; add.rn.f32 x, x, %2; mov.b32 %0, x; }" : "=r"(result) : "r"(bits), "f"(addend));
  return result;
}
// The same of half the number and an addend.
HGEMM_DEVICE uint32_t half_sum_in_branch(uint32_t bits, float addend) {
  uint32_t result;
  asm volatile("{ .reg .f32 x; mov.b32 x, %1; fma.rn.f32 x, x, 0f3F000000, %2; mov.b32 %0, x; }"
               : "=r"(result)
               : "r"(bits), "f"(addend));
  return result;
}
// This thread's warp. The shuffle tells the compiler that the value is uniform in the warp.
HGEMM_DEVICE int warp_index() { return __shfl_sync(0xffffffff, thread_index() / 32, 0); }
// True in one thread of the warp, the same one at each call. The compiler knows that it is one thread.
HGEMM_DEVICE bool elect_one() { return cute::elect_one_sync(); }

HGEMM_DEVICE uint32_t cluster_rank() { return cute::block_rank_in_cluster(); }

// All threads of all CTAs of the cluster arrive, then wait. Writes before the arrival are visible after the wait.
HGEMM_DEVICE void cluster_arrive() { cute::cluster_arrive(); }
// As cluster_arrive(), but writes may become visible later: of what precedes it, only mbarriers initialized before
// mbarrier_init_fence() are visible after the wait. cluster_arrive() includes a fence of the whole GPU, 0.6 to 1.3 us long.
HGEMM_DEVICE void cluster_arrive_relaxed() { cute::cluster_arrive_relaxed(); }
HGEMM_DEVICE void cluster_wait() { cute::cluster_wait(); }

// ---- Programmatic dependent launch --------------------------------------------------------------------------------

// Lets the next kernel of the stream start as CTAs of this one end, if it was launched with programmatic overlap.
HGEMM_DEVICE void launch_dependent_grids() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits for the previous grid: it has ended and its writes are visible.
HGEMM_DEVICE void wait_on_dependent_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- Barriers -----------------------------------------------------------------------------------------------------

// Waits for `threads` threads at barrier `id`, 1 to 15.
HGEMM_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

HGEMM_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals) { cute::initialize_barrier(*barrier, arrivals); }
// Makes initialised mbarriers visible to the cluster and to the TMA.
HGEMM_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HGEMM_DEVICE void mbarrier_arrive(uint64_t* barrier) { cute::arrive_barrier(*barrier); }
// Arrives at the mbarrier at the same address in CTA `rank` of the cluster.
HGEMM_DEVICE void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(barrier), rank);
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
// Arrives, and makes the phase wait for `bytes` from the TMA.
HGEMM_DEVICE void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  cute::set_barrier_transaction_bytes(*barrier, bytes);
}
// Arrives when all cp.async that this thread has issued are complete. The arrival is one of those that init counted.
HGEMM_DEVICE void cp_async_mbarrier_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(barrier)) : "memory");
}
// Writes to the same address in the shared memory of CTA `rank` of the cluster. The mbarrier at the same address in that CTA
// counts its 16 bytes. Threads that wait for the phase see them.
HGEMM_DEVICE void st_async(Vec16B* pointer, Vec16B value, uint64_t* barrier, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(pointer), rank);
  uint32_t const its_barrier = cute::set_block_rank(cute::cast_smem_ptr_to_uint(barrier), rank);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(its_barrier)
               : "memory");
}
// Waits until the phase with this parity is complete.
HGEMM_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) { cute::wait_barrier(*barrier, int(parity)); }
// The same in the scope of the cluster: arrivals and st.async of other CTAs are ordered before what follows.
HGEMM_DEVICE void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(cute::cast_smem_ptr_to_uint(barrier)),
      "r"(parity)
      : "memory");
}

// ---- Tensor memory accelerator ------------------------------------------------------------------------------------

HGEMM_DEVICE void tma_prefetch(TensorMap const& map) { cute::prefetch_tma_descriptor(&map); }

// Copies the box at (x, y, z) of the map to shared memory, with zeros outside the matrix. `barrier` counts its bytes.
HGEMM_DEVICE void tma_load(void* shared, TensorMap const& map, uint64_t* barrier, int x, int y, int z) {
#if __CUDA_ARCH__ >= 1200  // CuTe copies to shared::cluster, for which ptxas emits a call on these
  asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               :
               : "r"(cute::cast_smem_ptr_to_uint(shared)), "l"(&map), "r"(cute::cast_smem_ptr_to_uint(barrier)), "r"(x),
                 "r"(y), "r"(z)
               : "memory");
#else
  cute::SM90_TMA_LOAD_3D::copy(&map, barrier, uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL), shared, x, y, z);
#endif
}
// The same to each CTA of the cluster whose bit is set in `ranks`, at the same address; each CTA's own barrier counts.
HGEMM_DEVICE void tma_load_multicast(void* shared, TensorMap const& map, uint64_t* barrier, uint16_t ranks, int x, int y,
                                     int z) {
  cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, barrier, ranks, uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL), shared, x,
                                         y, z);
}

// Fetches the box at (x, y, z) of the map into L2.
HGEMM_DEVICE void tma_prefetch_box(TensorMap const& map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map), "r"(x), "r"(y), "r"(z)
               : "memory");
}

// Copies a box from shared memory to (x, y, z) of the map. Elements outside the matrix are not written.
HGEMM_DEVICE void tma_store(TensorMap const& map, void const* shared, int x, int y, int z) {
  cute::SM90_TMA_STORE_3D::copy(&map, shared, x, y, z);
}
HGEMM_DEVICE void tma_store_commit() { cute::tma_store_arrive(); }
// Waits until the TMA has read the sources of all but PENDING of this thread's committed groups of stores.
template <int PENDING>
HGEMM_DEVICE void tma_store_wait_read() {
  cute::tma_store_wait<PENDING>();
}
// Orders this thread's accesses to shared memory before later ones by the TMA and by wgmma.
HGEMM_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- wgmma --------------------------------------------------------------------------------------------------------

HGEMM_DEVICE uint32_t shared_address(void const* pointer) { return cute::cast_smem_ptr_to_uint(pointer); }

HGEMM_DEVICE void wgmma_fence() { cute::warpgroup_arrive(); }
HGEMM_DEVICE void wgmma_commit() { cute::warpgroup_commit_batch(); }
// Waits until at most PENDING committed groups are in flight.
template <int PENDING>
HGEMM_DEVICE void wgmma_wait() {
  cute::warpgroup_wait<PENDING>();
}

template <int... I>
struct Indices {};
template <int COUNT, int... I>
struct MakeIndices : MakeIndices<COUNT - 4, COUNT - 4, COUNT - 3, COUNT - 2, COUNT - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> { using Type = Indices<I...>; };
template <int... I>
struct MakeIndices<2, I...> { using Type = Indices<0, 1, I...>; };

template <class Wgmma, class Register, int COUNT, int... I>
HGEMM_DEVICE void wgmma_expand(Register (&d)[COUNT], uint64_t a, uint64_t b, cute::SM90::GMMA::ScaleOut scale, Indices<I...>) {
  Wgmma::fma(a, b, d[I]..., scale);
}

// d (64, n) = a (64, k) b (k, n), or d += if `accumulate`, by one warpgroup. k is 32 bytes: 16 halves or 8 tf32. a and b are
// shared-memory descriptors.
template <class Policy, class Register, int COUNT>
HGEMM_DEVICE void wgmma(Register (&d)[COUNT], uint64_t a, uint64_t b, bool accumulate) {
  using namespace cute::SM90::GMMA;
  using Wgmma = typename Policy::template Wgmma<Policy::A::k_major ? Major::K : Major::MN,
                                                Policy::B::k_major ? Major::K : Major::MN>;
  wgmma_expand<Wgmma>(d, a, b, accumulate ? ScaleOut::One : ScaleOut::Zero, typename MakeIndices<COUNT>::Type{});
}

// Releases registers to the SM's pool, or takes them from it, until each thread of the warpgroup has COUNT.
template <int COUNT>
HGEMM_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
HGEMM_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- Matrices -----------------------------------------------------------------------------------------------------

// ldmatrix_x4 and ldmatrix_x2 at (row ^ flip) + bytes. With constant `flip` and `bytes`, few registers hold addresses.
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x4_at(void const* row, uint32_t flip, uint32_t bytes, uint32_t& r0, uint32_t& r1, uint32_t& r2,
                                 uint32_t& r3) {
  uint32_t const address = (cute::cast_smem_ptr_to_uint(row) ^ flip) + bytes;
  if constexpr (TRANSPOSE) {
    asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(address));
  }
}
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x2_at(void const* row, uint32_t flip, uint32_t bytes, uint32_t& r0, uint32_t& r1) {
  uint32_t const address = (cute::cast_smem_ptr_to_uint(row) ^ flip) + bytes;
  if constexpr (TRANSPOSE) {
    asm volatile("ldmatrix.sync.aligned.x2.trans.m8n8.shared.b16 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.x2.m8n8.shared.b16 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(address));
  }
}

// Stores four 8x8 matrices of 2-byte elements, held as wgmma holds accumulators. Lane l gives the address of row l % 8 of
// matrix l / 8 (16 bytes). TRANSPOSE writes the transposed matrices.
template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x4(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  auto& to = *static_cast<cute::uint128_t*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM90_U16x8_STSM_T::copy(r0, r1, r2, r3, to);
  } else {
    cute::SM90_U32x4_STSM_N::copy(r0, r1, r2, r3, to);
  }
}
// Stores two 8x8 matrices; lanes 0 to 15 give the addresses.
template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x2(void* row, uint32_t r0, uint32_t r1) {
  auto& to = *static_cast<cute::uint128_t*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM90_U16x4_STSM_T::copy(r0, r1, to);
  } else {
    cute::SM90_U32x2_STSM_N::copy(r0, r1, to);
  }
}

}  // namespace atoms
}  // namespace hgemm
