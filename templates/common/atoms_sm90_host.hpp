// The atoms of sm_90 on the CPU; atoms_host.hpp says how they work.
#pragma once

#include <executor/abi.h>

#include <common/atoms_host.hpp>

// The last part of the name of the instruction that a Policy uses, such as 64x256x16_F32F16F16_SS.
#define HGEMM_WGMMA(NAME) static constexpr char wgmma_name[] = #NAME
#define HGEMM_WGMMA_TN(NAME) HGEMM_WGMMA(NAME)

namespace hgemm {

// 128 bytes; the launcher fills them as executor/abi.h says.
struct alignas(64) TensorMap { hgemm_tensor_map is; };
static_assert(sizeof(TensorMap) == 128, "as on the device");

namespace atoms {

// ---- Warpgroups and clusters --------------------------------------------------------------------------------------

HGEMM_DEVICE int warp_index() { return thread_index() / 32; }
HGEMM_DEVICE bool elect_one(Site site = here()) {
  bool elected = false;
  Operation election = operation(Kind::elect_one, site);
  election.to = &elected;
  perform(election);
  return elected;
}

HGEMM_DEVICE uint32_t cluster_rank() { return executor::place->cluster_rank; }

HGEMM_DEVICE void cluster_arrive(Site site = here()) {
  Operation arrive = operation(Kind::cluster_arrive, site);
  perform(arrive);
}
HGEMM_DEVICE void cluster_arrive_relaxed(Site site = here()) {
  Operation arrive = operation(Kind::cluster_arrive, site);
  arrive.flag = false;
  perform(arrive);
}
HGEMM_DEVICE void cluster_wait(Site site = here()) {
  Operation wait = operation(Kind::cluster_wait, site);
  perform(wait);
}

HGEMM_DEVICE Vec16B ld_shared_cluster(Vec16B const* pointer, uint32_t rank, Site site = here()) {
  Vec16B word;
  Operation read = operation(Kind::load, site);
  read.space = Space::shared;
  read.to = &word;
  read.from = pointer;
  read.bytes = sizeof(Vec16B);
  read.threads = 1 + rank;
  perform(read);
  return word;
}

// ---- Programmatic dependent launch --------------------------------------------------------------------------------

HGEMM_DEVICE void launch_dependent_grids(Site site = here()) {
  Operation permit = operation(Kind::next_launch_may_begin, site);
  perform(permit);
}
HGEMM_DEVICE void wait_on_dependent_grids(Site site = here()) {
  Operation wait = operation(Kind::await_previous_launches, site);
  perform(wait);
}

// ---- Barriers -----------------------------------------------------------------------------------------------------

HGEMM_DEVICE void named_barrier(int id, int threads, Site site = here()) {
  Operation sync = operation(Kind::barrier_sync, site);
  sync.number = uint32_t(id);
  sync.threads = uint32_t(threads);
  perform(sync);
}
HGEMM_DEVICE void named_barrier_arrive(int id, int threads, Site site = here()) {
  Operation arrive = operation(Kind::barrier_arrive, site);
  arrive.number = uint32_t(id);
  arrive.threads = uint32_t(threads);
  perform(arrive);
}

HGEMM_DEVICE void mbarrier_init(uint64_t* barrier, int arrivals, Site site = here()) {
  Operation init = operation(Kind::mbarrier_init, site);
  init.to = barrier;
  init.number = uint32_t(arrivals);
  perform(init);
}
HGEMM_DEVICE void mbarrier_init_fence(Site site = here()) {
  Operation fence = operation(Kind::mbarrier_init_fence, site);
  perform(fence);
}
HGEMM_DEVICE void mbarrier_arrive(uint64_t* barrier, Site site = here()) {
  Operation arrive = operation(Kind::mbarrier_arrive, site);
  arrive.to = barrier;
  perform(arrive);
}
HGEMM_DEVICE void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank, Site site = here()) {
  Operation arrive = operation(Kind::mbarrier_arrive, site);
  arrive.to = barrier;
  arrive.threads = 1 + rank;
  perform(arrive);
}
HGEMM_DEVICE void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes, Site site = here()) {
  Operation arrive = operation(Kind::mbarrier_arrive, site);
  arrive.to = barrier;
  arrive.bytes = bytes;
  perform(arrive);
}
HGEMM_DEVICE void cp_async_mbarrier_arrive(uint64_t* barrier, Site site = here()) {
  Operation arrive = operation(Kind::mbarrier_arrive_after_copies, site);
  arrive.to = barrier;
  perform(arrive);
}
HGEMM_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity, Site site = here()) {
  Operation wait = operation(Kind::mbarrier_wait, site);
  wait.to = barrier;
  wait.number = parity;
  perform(wait);
}

// ---- Tensor memory accelerator ------------------------------------------------------------------------------------

HGEMM_DEVICE void tma(Kind kind, void* to, void const* from, executor::TmaArguments const& arguments, Site site) {
  Operation copy = operation(kind, site);
  copy.to = to;
  copy.from = from;
  copy.second = &arguments;
  perform(copy);
}

HGEMM_DEVICE void tma_prefetch(TensorMap const& map, Site site = here()) {
  tma(Kind::tma_prefetch, nullptr, nullptr, {&map.is, {}, nullptr, 0}, site);
}
HGEMM_DEVICE void tma_load(void* shared, TensorMap const& map, uint64_t* barrier, int x, int y, int z, Site site = here()) {
  tma(Kind::tma_load, shared, nullptr, {&map.is, {x, y, z}, barrier, 0}, site);
}
HGEMM_DEVICE void tma_load_multicast(void* shared, TensorMap const& map, uint64_t* barrier, uint16_t ranks, int x, int y, int z,
                                     Site site = here()) {
  tma(Kind::tma_load, shared, nullptr, {&map.is, {x, y, z}, barrier, ranks}, site);
}
HGEMM_DEVICE void tma_store(TensorMap const& map, void const* shared, int x, int y, int z, Site site = here()) {
  tma(Kind::tma_store, nullptr, shared, {&map.is, {x, y, z}, nullptr, 0}, site);
}
HGEMM_DEVICE void tma_store_commit(Site site = here()) {
  Operation commit = operation(Kind::tma_store_commit, site);
  perform(commit);
}
template <int PENDING>
HGEMM_DEVICE void tma_store_wait_read(Site site = here()) {
  Operation wait = operation(Kind::tma_store_wait_read, site);
  wait.number = PENDING;
  perform(wait);
}
HGEMM_DEVICE void fence_proxy_async(Site site = here()) {
  Operation fence = operation(Kind::async_proxy_fence, site);
  perform(fence);
}

// ---- wgmma --------------------------------------------------------------------------------------------------------

HGEMM_DEVICE uint32_t shared_address(void const* pointer) {
  return uint32_t(reinterpret_cast<uintptr_t>(pointer) % executor::shared_window);
}

HGEMM_DEVICE void wgmma_fence(Site site = here()) {
  Operation fence = operation(Kind::wgmma_fence, site);
  perform(fence);
}
HGEMM_DEVICE void wgmma_commit(Site site = here()) {
  Operation commit = operation(Kind::wgmma_commit, site);
  perform(commit);
}
template <int PENDING>
HGEMM_DEVICE void wgmma_wait(Site site = here()) {
  Operation wait = operation(Kind::wgmma_wait, site);
  wait.number = PENDING;
  perform(wait);
}

// The n in an instruction's name: 256 in 64x256x16_F32F16F16_SS.
constexpr uint32_t wgmma_n(char const* name) {
  uint32_t n = 0;
  for (char const* digit = name + 3; *digit >= '0' && *digit <= '9'; ++digit) n = n * 10 + uint32_t(*digit - '0');
  return n;
}

template <class Policy, class Register, int COUNT>
HGEMM_DEVICE void wgmma(Register (&d)[COUNT], uint64_t a, uint64_t b, bool accumulate, Site site = here()) {
  constexpr bool in_floats = ElementOf<Register>::value == Element::f32;
  constexpr uint32_t n = COUNT * (in_floats ? 2 : 4);
  static_assert(n == wgmma_n(Policy::wgmma_name), "the instruction has another number of registers for d");
  static_assert(sizeof(typename Policy::In) == 2 || (Policy::A::k_major && Policy::B::k_major), "tf32 is K-major");
  executor::WgmmaArguments const arguments = {a, b, n, Policy::A::k_major, Policy::B::k_major, accumulate};
  Operation product = operation(Kind::wgmma, site);
  product.in = ElementOf<typename Policy::In>::value;
  product.acc = ElementOf<Register>::value;
  product.to = d;
  product.second = &arguments;
  perform(product);
}

template <int COUNT>
HGEMM_DEVICE void setmaxnreg_dec(Site site = here()) {
  Operation change = operation(Kind::setmaxnreg, site);
  change.number = COUNT;
  change.flag = false;
  perform(change);
}
template <int COUNT>
HGEMM_DEVICE void setmaxnreg_inc(Site site = here()) {
  Operation change = operation(Kind::setmaxnreg, site);
  change.number = COUNT;
  perform(change);
}

// ---- Matrices -----------------------------------------------------------------------------------------------------

HGEMM_DEVICE void stmatrix(void* row, uint32_t const* registers, uint32_t matrices, bool transpose, Site site) {
  Operation write = operation(Kind::stmatrix, site);
  write.space = Space::shared;
  write.to = row;
  write.from = registers;
  write.bytes = 16;
  write.number = matrices;
  write.flag = transpose;
  perform(write);
}
HGEMM_DEVICE void const* flipped(void const* row, uint32_t flip, uint32_t bytes) {
  return reinterpret_cast<unsigned char const*>(reinterpret_cast<uintptr_t>(row) ^ flip) + bytes;
}
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x4_at(void const* row, uint32_t flip, uint32_t bytes, uint32_t& r0, uint32_t& r1, uint32_t& r2,
                                 uint32_t& r3, Site site = here()) {
  ldmatrix_x4<TRANSPOSE>(flipped(row, flip, bytes), r0, r1, r2, r3, site);
}
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x2_at(void const* row, uint32_t flip, uint32_t bytes, uint32_t& r0, uint32_t& r1,
                                 Site site = here()) {
  ldmatrix_x2<TRANSPOSE>(flipped(row, flip, bytes), r0, r1, site);
}

template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x4(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3, Site site = here()) {
  uint32_t const registers[4] = {r0, r1, r2, r3};
  stmatrix(row, registers, 4, TRANSPOSE, site);
}
template <bool TRANSPOSE>
HGEMM_DEVICE void stmatrix_x2(void* row, uint32_t r0, uint32_t r1, Site site = here()) {
  uint32_t const registers[2] = {r0, r1};
  stmatrix(row, registers, 2, TRANSPOSE, site);
}

}  // namespace atoms
}  // namespace hgemm
