// Device implementation of the atoms of sm_90a: thin wrappers of CuTe's instruction atoms.
#pragma once

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every n that is a multiple of 8
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <hgemm/atoms_device.cuh>

#define HGEMM_KERNEL_SM90(threads, ctas_per_sm, cluster_size) \
  extern "C" __global__ void __launch_bounds__(threads, ctas_per_sm) __cluster_dims__(cluster_size, 1, 1)

// Names the wgmma instruction of a Policy: the end of the name of CuTe's atom, such as 64x256x16_F32F16F16_SS.
#define HGEMM_WGMMA(NAME)                                             \
  template <cute::SM90::GMMA::Major MAJOR_A, cute::SM90::GMMA::Major MAJOR_B> \
  using Wgmma = cute::SM90::GMMA::MMA_##NAME<MAJOR_A, MAJOR_B>
// The same where operands are K-major and have no choice, such as 64x256x8_F32TF32TF32_SS_TN.
#define HGEMM_WGMMA_TN(NAME)                                  \
  template <cute::SM90::GMMA::Major, cute::SM90::GMMA::Major> \
  using Wgmma = cute::SM90::GMMA::MMA_##NAME<>

namespace hgemm {

using TensorMap = cute::TmaDescriptor;  // 128 bytes, encoded by the launcher

namespace atoms {

// ---- Warpgroups and clusters ----------------------------------------------------------------------------------------

// The warp of this thread, in a form that the compiler knows to be the same for a warp.
HGEMM_DEVICE int warp_index() { return __shfl_sync(0xffffffff, thread_index() / 32, 0); }
// True in one thread of the warp, the same at each call, in a form that the compiler knows to be one.
HGEMM_DEVICE bool elect_one() { return cute::elect_one_sync(); }

HGEMM_DEVICE uint32_t cluster_rank() { return cute::block_rank_in_cluster(); }

// Both by all threads of all CTAs of the cluster; what was written before the arrival is seen after the wait.
HGEMM_DEVICE void cluster_arrive() { cute::cluster_arrive(); }
HGEMM_DEVICE void cluster_wait() { cute::cluster_wait(); }

// Reads what lies at the same place in the shared memory of CTA `rank` of the cluster.
HGEMM_DEVICE Word4 ld_shared_at(Word4 const* pointer, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(pointer), rank);
  Word4 word;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(address)
               : "memory");
  return word;
}

// ---- Launches that follow one another -----------------------------------------------------------------------------

// Lets the next launch of the stream begin, if it was launched to overlap with this one, as CTAs of this one end.
HGEMM_DEVICE void next_launch_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until the launches before this one have ended and their writes are visible.
HGEMM_DEVICE void await_previous_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- Barriers -----------------------------------------------------------------------------------------------------

// Waits for `threads` threads at barrier `id`, 1 to 15.
HGEMM_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

HGEMM_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals) { cute::initialize_barrier(*barrier, arrivals); }
// Makes initialised barriers visible to the cluster and to the TMA.
HGEMM_DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HGEMM_DEVICE void mbarrier_arrive(uint64_t* barrier) { cute::arrive_barrier(*barrier); }
// Arrives at the barrier that lies at the same place in CTA `rank` of the cluster.
HGEMM_DEVICE void mbarrier_arrive_at(uint64_t* barrier, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(barrier), rank);
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
// Arrives, and makes the phase wait for `bytes` more from the TMA.
HGEMM_DEVICE void mbarrier_arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  cute::set_barrier_transaction_bytes(*barrier, bytes);
}
// Arrives as soon as all copies are there that this thread has started: one of the arrivals that the barrier was told of.
HGEMM_DEVICE void mbarrier_arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(barrier)) : "memory");
}
// Waits until the phase of this parity has ended.
HGEMM_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) { cute::wait_barrier(*barrier, int(parity)); }

// ---- Tensor memory accelerator ------------------------------------------------------------------------------------

HGEMM_DEVICE void tma_prefetch(TensorMap const& map) { cute::prefetch_tma_descriptor(&map); }

// Copies the box at (x, y, z) of the map to shared memory, zeros where it lies outside; its bytes count at `barrier`.
HGEMM_DEVICE void tma_load(void* shared, TensorMap const& map, uint64_t* barrier, int x, int y, int z) {
#if __CUDA_ARCH__ >= 1200  // whose shared::cluster, in which CuTe copies, is an address to be judged, by a call
  asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               :
               : "r"(cute::cast_smem_ptr_to_uint(shared)), "l"(&map), "r"(cute::cast_smem_ptr_to_uint(barrier)), "r"(x),
                 "r"(y), "r"(z)
               : "memory");
#else
  cute::SM90_TMA_LOAD_3D::copy(&map, barrier, uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL), shared, x, y, z);
#endif
}
// The same to the same place in each CTA of the cluster whose bit in `ranks` is set, counting at the barrier of each.
HGEMM_DEVICE void tma_load_multicast(void* shared, TensorMap const& map, uint64_t* barrier, uint16_t ranks, int x, int y,
                                     int z) {
  cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, barrier, ranks, uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL), shared, x,
                                         y, z);
}

// Copies a box from shared memory to (x, y, z) of the map, leaving out what lies outside.
HGEMM_DEVICE void tma_store(TensorMap const& map, void const* shared, int x, int y, int z) {
  cute::SM90_TMA_STORE_3D::copy(&map, shared, x, y, z);
}
HGEMM_DEVICE void tma_store_commit() { cute::tma_store_arrive(); }
// Blocks until the sources of all but PENDING of this thread's committed groups of stores have been read.
template <int PENDING>
HGEMM_DEVICE void tma_store_wait_read() {
  cute::tma_store_wait<PENDING>();
}
// Makes this thread's writes to shared memory visible to the TMA and to wgmma.
HGEMM_DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Products of a warpgroup --------------------------------------------------------------------------------------

HGEMM_DEVICE uint32_t shared_address(void const* pointer) { return cute::cast_smem_ptr_to_uint(pointer); }

HGEMM_DEVICE void wgmma_fence() { cute::warpgroup_arrive(); }
HGEMM_DEVICE void wgmma_commit() { cute::warpgroup_commit_batch(); }
// Blocks until at most PENDING committed groups of products are still in flight.
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

// d (64, n) = a (64, k) b (k, n), added to d where `accumulate`, by four warps; k is 32 bytes, 16 halves or 8 tf32. a and b are
// descriptors of shared memory.
template <class Policy, class Register, int COUNT>
HGEMM_DEVICE void wgmma(Register (&d)[COUNT], uint64_t a, uint64_t b, bool accumulate) {
  using namespace cute::SM90::GMMA;
  using Wgmma = typename Policy::template Wgmma<Policy::A::k_major ? Major::K : Major::MN,
                                                Policy::B::k_major ? Major::K : Major::MN>;
  wgmma_expand<Wgmma>(d, a, b, accumulate ? ScaleOut::One : ScaleOut::Zero, typename MakeIndices<COUNT>::Type{});
}

// Gives registers back to the SM's pool, or takes them from it, until each thread of the warpgroup has COUNT.
template <int COUNT>
HGEMM_DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
HGEMM_DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- Numbers and matrices -----------------------------------------------------------------------------------------

// Reads as ldmatrix_x4 and ldmatrix_x2 do, at (row ^ flip) + bytes: with few registers of addresses where `row` changes and
// the others are constants.
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

// Four 8x8 matrices of half elements, held as the sums of wgmma are; lane l gives the address of row l % 8 of matrix l / 8
// (16 bytes). TRANSPOSE writes the transposed matrices.
template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x4(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  auto& to = *static_cast<cute::uint128_t*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM90_U16x8_STSM_T::copy(r0, r1, r2, r3, to);
  } else {
    cute::SM90_U32x4_STSM_N::copy(r0, r1, r2, r3, to);
  }
}
// Two 8x8 matrices; lanes 0 to 15 give the addresses.
template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x2(void* row, uint32_t r0, uint32_t r1) {
  auto& to = *static_cast<cute::uint128_t*>(row);
  if constexpr (TRANSPOSE) {
    cute::SM90_U16x4_STSM_T::copy(r0, r1, to);
  } else {
    cute::SM90_U32x2_STSM_N::copy(r0, r1, to);
  }
}

// Two numbers as the halves of a register, the lower one first.
template <class Out>
HGEMM_DEVICE uint32_t pack(float low, float high);
template <>
HGEMM_DEVICE uint32_t pack<f16>(float low, float high) {
  __half2 const pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t const*>(&pair);
}
template <>
HGEMM_DEVICE uint32_t pack<bf16>(float low, float high) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t const*>(&pair);
}

// A number from its bits.
template <class Out>
HGEMM_DEVICE Out from_bits(uint16_t bits);
template <>
HGEMM_DEVICE f16 from_bits<f16>(uint16_t bits) { return __ushort_as_half(bits); }
template <>
HGEMM_DEVICE bf16 from_bits<bf16>(uint16_t bits) { return __ushort_as_bfloat16(bits); }
template <class Out>
HGEMM_DEVICE float from_bits(uint32_t bits) { return bits_float(bits); }

}  // namespace atoms
}  // namespace hgemm
