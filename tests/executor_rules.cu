// One kernel for each rule that the executor judges by: sound, or with the fault that breaks the rule.
#include <common/atoms_sm90.cuh>
#include <mma_sync/wmma.cuh>

namespace {

using namespace hgemm;

struct Parameters {
  uint32_t rule, fault;
  uint32_t const* in;  // 256 words
  uint32_t* out;       // 1024 words, each to be written once
  uint32_t* scratch;   // a counter, then 1024 words
};

struct Shared {
  alignas(1024) unsigned char box[2][4096];  // 64 rows of 64 bytes
  alignas(1024) unsigned char more[16384];
  uint32_t words[1024];
  uint64_t full, empty;
};

// A wgmma of m64n64k16, both operands in 16-byte pieces without a swizzle.
struct Product {
  using In = f16;
  HGEMM_WGMMA(64x64x16_F32F16F16_SS);
  struct A { static constexpr bool k_major = true; };
  struct B { static constexpr bool k_major = true; };
};

// Reads the same address in the shared memory of CTA `rank` of the cluster.
HGEMM_DEVICE uint32_t ld_shared_cluster(uint32_t const* pointer, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(pointer), rank);
  uint32_t word;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
// Arrives at the mbarrier of CTA `rank` in the scope of the cluster.
HGEMM_DEVICE void mbarrier_release_cluster(uint64_t* barrier, uint32_t rank) {
  uint32_t const address = cute::set_block_rank(cute::cast_smem_ptr_to_uint(barrier), rank);
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

struct Thread {
  Parameters const& p;
  TensorMap const& map;
  Shared& shared;
  int index = atoms::thread_index();
  bool fault = p.fault;

  HGEMM_DEVICE void put(uint32_t value) const { atoms::st_global(p.out + atoms::cta_x() * 128 + index, value); }

  // ---- Threads among themselves -----------------------------------------------------------------------------------

  HGEMM_DEVICE void neighbours_of_a_cta() const {
    atoms::st_shared(&shared.words[index], uint32_t(index));
    if (!fault) atoms::cta_barrier();
    put(atoms::ld_shared(&shared.words[(index + 32) % 128]));
  }
  HGEMM_DEVICE void neighbours_of_a_warp() const {
    atoms::st_shared(&shared.words[index], uint32_t(index));
    if (!fault) atoms::warp_barrier();
    put(atoms::ld_shared(&shared.words[index ^ 1]));
  }
  HGEMM_DEVICE void overwritten_while_read() const {
    atoms::st_shared(&shared.words[index], uint32_t(index));
    atoms::cta_barrier();
    uint32_t const seen = atoms::ld_shared(&shared.words[127 - index]);
    if (!fault) atoms::cta_barrier();
    atoms::st_shared(&shared.words[index], 0u);
    put(seen);
  }
  HGEMM_DEVICE void halves_of_a_word() const {  // neighbours share words, and banks, but no bytes
    auto* const halves = reinterpret_cast<f16*>(shared.words);
    atoms::st_shared(halves + index, atoms::from_float<f16>(1.f));
    put(fault ? uint32_t(atoms::to_float(atoms::ld_shared(halves + (index ^ 1)))) : 1);
  }
  HGEMM_DEVICE void a_barrier_for_all() const {
    if (!fault || index < 96) atoms::cta_barrier();
    put(0);
  }
  HGEMM_DEVICE void a_collective_for_all() const {
    float d[4] = {};
    uint32_t const a[4] = {}, b[2] = {};
    if (!fault || index % 32 < 16) atoms::mma<f16, 16>(d, a, b);
    put(atoms::float_bits(d[0]));
  }
  HGEMM_DEVICE void fragment(f16 const* corner) const {  // 16 rows of 24
    atoms::st_shared(reinterpret_cast<Vec16B*>(shared.words) + index, Vec16B{7, 7, 7, 7});
    atoms::cta_barrier();
    uint32_t registers[8];
    atoms::wmma_load<f16, true, true>(corner, 24, registers);
    put(registers[0] + registers[3]);
  }
  HGEMM_DEVICE void fragments_of_a_warp() const { fragment(reinterpret_cast<f16 const*>(shared.words) + (fault ? index % 2 * 16 : 0)); }
  HGEMM_DEVICE void fragments_aligned() const { fragment(reinterpret_cast<f16 const*>(shared.words) + (fault ? 8 : 16)); }
  HGEMM_DEVICE void named_barriers() const {
    if (index < 64) {
      atoms::st_shared(&shared.words[index], 7u);
      asm volatile("barrier.cta.arrive 3, 128;" ::: "memory");
      put(7);
    } else {
      atoms::named_barrier(3, fault ? 96 : 128);
      put(atoms::ld_shared(&shared.words[index - 64]));
    }
  }
  HGEMM_DEVICE void whole_warps() const {
    atoms::named_barrier(3, fault ? 127 : 128);
    put(7);
  }
  HGEMM_DEVICE void fences_between_ctas() const {  // CTAs add up what each of them leaves in memory; the last one sees all of it
    atoms::st_global(p.scratch + 1 + atoms::cta_x() * 128 + index, 1u);
    if (!fault) atoms::global_fence();
    atoms::cta_barrier();
    if (index == 0) {
      atoms::st_shared(&shared.words[0], atoms::global_fetch_add(p.scratch, 1));
      atoms::global_fence();
    }
    atoms::cta_barrier();
    uint32_t sum = 0;
    if (atoms::ld_shared(&shared.words[0]) == atoms::grid_x() - 1) {
      for (uint32_t cta = 0; cta < atoms::grid_x(); ++cta) sum += atoms::ld_global(p.scratch + 1 + cta * 128 + index);
    }
    put(sum);
  }
  HGEMM_DEVICE void launches_awaited() const {
    atoms::launch_dependent_grids();
    if (!fault && index < 32) atoms::wait_on_dependent_grids();
    atoms::cta_barrier();
    put(0);
  }
  HGEMM_DEVICE void endless() const {
    uint32_t seen = 1;
    do {
      if (fault) asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(seen) : "l"(p.in));
    } while (seen != 1);
    put(0);
  }

  // ---- Memory -----------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void initialised() const {
    if (!fault || index != 5) atoms::st_shared(&shared.words[index], 1u);
    put(atoms::ld_shared(&shared.words[index]));
  }
  HGEMM_DEVICE void inside_shared() const {
    atoms::st_shared(fault ? reinterpret_cast<uint32_t*>(&shared + 1) + index : shared.words + index, 1u);
    put(0);
  }
  HGEMM_DEVICE void inside_global() const { put(atoms::ld_global(p.in + index + (fault ? 129 : 0))); }
  HGEMM_DEVICE void allowed() const {
    if (fault) atoms::st_global(const_cast<uint32_t*>(p.in) + index, 1u);
    put(0);
  }
  HGEMM_DEVICE void aligned() const {
    auto const* const from = reinterpret_cast<Vec8B const*>(p.in + index / 2 * 2 + (fault ? 1 : 0));
    Vec8B const both = atoms::ld_global(from);
    put(both.x + both.y);
  }
  HGEMM_DEVICE void once() const {
    put(0);
    if (fault && index == 3) put(0);
  }
  HGEMM_DEVICE void always() const {
    if (!fault || index != 3) put(0);
  }
  HGEMM_DEVICE void set() const {  // the stack of a thread begins as poison
    float volatile sums[4];
    if (!fault) sums[2] = 0.f;
    put(atoms::float_bits(sums[2] + 1.f));
  }

  // ---- Asynchronous copies ----------------------------------------------------------------------------------------

  HGEMM_DEVICE void copies_awaited() const {
    atoms::cp_async<4>(&shared.words[index], p.in + index, true);
    atoms::cp_async_commit();
    atoms::cp_async<4>(&shared.words[128 + index], p.in + index, true);
    atoms::cp_async_commit();
    if (fault) atoms::cp_async_wait<1>();
    if (!fault) atoms::cp_async_wait<0>();
    atoms::cta_barrier();
    put(atoms::ld_shared(&shared.words[255 - index]));
    if (fault) atoms::cp_async_wait<0>();
  }
  HGEMM_DEVICE void copies_finished() const {
    atoms::cp_async<16>(&shared.words[index * 4], p.in + index % 64 * 4, true);
    if (!fault) atoms::cp_async_wait<0>();
    put(0);
  }

  // ---- Barriers in shared memory, and boxes -----------------------------------------------------------------------

  HGEMM_DEVICE void begin(int arrivals, bool fenced = true, bool waits = true, int more_arrivals = 128) const {
    if (index == 0) {
      atoms::mbarrier_init(&shared.full, arrivals);
      atoms::mbarrier_init(&shared.empty, more_arrivals);
      if (fenced) atoms::mbarrier_init_fence();
    }
    if (waits) atoms::cta_barrier();
  }
  HGEMM_DEVICE void load(int stage, uint32_t bytes = 4096) const {
    if (index != 0) return;
    atoms::mbarrier_arrive_expect_tx(&shared.full, bytes);
    atoms::tma_load(shared.box[stage], map, &shared.full, 0, 0, 0);
  }
  HGEMM_DEVICE void copies_arrived() const {
    begin(128);
    atoms::cp_async<4>(&shared.words[index], p.in + index, true);
    if (fault) atoms::mbarrier_arrive(&shared.full);
    if (!fault) atoms::cp_async_mbarrier_arrive(&shared.full);
    atoms::mbarrier_wait(&shared.full, 0);
    put(atoms::ld_shared(&shared.words[(index + 64) % 128]));
    atoms::cp_async_wait<0>();
  }
  HGEMM_DEVICE void stores_of_copies_fenced() const {  // 1024 words to a box, by one thread's TMA store
    begin(128);
    auto* const words = reinterpret_cast<uint32_t*>(shared.box[0]);
    for (int i = index; i < 1024; i += 128) atoms::cp_async<4>(words + i, p.in + i % 64, true);
    atoms::cp_async_mbarrier_arrive(&shared.full);
    atoms::mbarrier_wait(&shared.full, 0);
    if (fault) atoms::cp_async_wait<0>();
    if (index == 0) {
      if (!fault) atoms::fence_proxy_async();
      atoms::tma_store(map, shared.box[0], 0, 0, 0);
      atoms::tma_store_commit();
      atoms::tma_store_wait_read<0>();
    }
    if (!fault) atoms::cp_async_wait<0>();
  }
  HGEMM_DEVICE void put_box(int stage) const { put(atoms::ld_shared(reinterpret_cast<uint32_t*>(shared.box[stage]) + index)); }

  HGEMM_DEVICE void boxes_awaited() const {
    begin(1);
    load(0);
    if (!fault) atoms::mbarrier_wait(&shared.full, 0);
    put_box(0);
  }
  HGEMM_DEVICE void bytes_expected(uint32_t bytes) const {
    begin(1);
    load(0, fault ? bytes : 4096);
    atoms::mbarrier_wait(&shared.full, 0);
    put_box(0);
  }
  HGEMM_DEVICE void too_many_expected() const { bytes_expected(4100); }
  HGEMM_DEVICE void too_few_expected() const { bytes_expected(4000); }
  HGEMM_DEVICE void barriers_fenced() const {
    begin(1, !fault);
    load(0);
    atoms::mbarrier_wait(&shared.full, 0);
    put_box(0);
  }
  HGEMM_DEVICE void barriers_begun() const {
    begin(1, true, !fault);
    if (index >= 96) atoms::mbarrier_wait(&shared.full, 1);
    if (fault) atoms::cta_barrier();
    put(0);
  }
  HGEMM_DEVICE void arrivals_counted() const {
    begin(1);
    if (index == 0) {
      atoms::mbarrier_arrive_expect_tx(&shared.full, 4096);
      if (fault) atoms::mbarrier_arrive(&shared.full);
      atoms::tma_load(shared.box[0], map, &shared.full, 0, 0, 0);
    }
    atoms::mbarrier_wait(&shared.full, 0);
    put_box(0);
  }
  HGEMM_DEVICE void missing_arrival() const {
    begin(fault ? 129 : 128);
    atoms::mbarrier_arrive(&shared.full);
    atoms::mbarrier_wait(&shared.full, 0);
    put(0);
  }
  HGEMM_DEVICE void phases_awaited() const {
    begin(1);
    for (uint32_t phase = 0; phase < 2; ++phase) {
      if (index == 0) atoms::mbarrier_arrive(&shared.full);
      if (!fault) atoms::mbarrier_wait(&shared.full, phase);
      atoms::cta_barrier();
    }
    put(0);
  }
  HGEMM_DEVICE void reuse_box(bool awaited, bool fenced) const {  // the second box goes where the first one was, once all have read that
    begin(1);
    load(0);
    atoms::mbarrier_wait(&shared.full, 0);
    uint32_t const seen = atoms::ld_shared(reinterpret_cast<uint32_t*>(shared.box[0]) + index);
    if (fenced) atoms::fence_proxy_async();
    if (awaited || index == 0) atoms::mbarrier_arrive(&shared.empty);
    if (index == 0 && awaited) atoms::mbarrier_wait(&shared.empty, 0);
    load(0);
    atoms::mbarrier_wait(&shared.full, 1);
    put(seen);
  }
  HGEMM_DEVICE void boxes_reused() const { reuse_box(!fault, true); }
  HGEMM_DEVICE void reads_fenced() const { reuse_box(true, !fault); }
  HGEMM_DEVICE void boxes_aligned() const {
    begin(1);
    if (index == 0) {
      atoms::mbarrier_arrive_expect_tx(&shared.full, 4096);
      atoms::tma_load(shared.box[0] + (fault ? 64 : 128), map, &shared.full, 0, 0, 0);
    }
    if (!fault) atoms::mbarrier_wait(&shared.full, 0);
    put(0);
  }

  HGEMM_DEVICE void stage(uint32_t value) const {
    auto* const words = reinterpret_cast<uint32_t*>(shared.box[0]);
    for (int i = index; i < 1024; i += 128) atoms::st_shared(words + i, value + uint32_t(i));
  }
  HGEMM_DEVICE void stores_fenced() const {  // 1024 words by one box
    stage(0);
    if (!fault) atoms::fence_proxy_async();
    atoms::cta_barrier();
    if (index == 0) {
      atoms::tma_store(map, shared.box[0], 0, 0, 0);
      atoms::tma_store_commit();
      atoms::tma_store_wait_read<0>();
    }
  }
  HGEMM_DEVICE void stores_awaited() const {
    stage(0);
    atoms::fence_proxy_async();
    atoms::cta_barrier();
    if (index == 0) {
      atoms::tma_store(map, shared.box[0], 0, 0, 0);
      atoms::tma_store_commit();
      if (!fault) atoms::tma_store_wait_read<0>();
    }
    atoms::cta_barrier();
    stage(7);
    if (index == 0) atoms::tma_store_wait_read<0>();
  }
  HGEMM_DEVICE void stores_within_rows() const {  // rows of 15 words, whose sixteenth a box would write, too
    stage(0);
    atoms::fence_proxy_async();
    atoms::cta_barrier();
    if (fault && index == 0) {
      atoms::tma_store(map, shared.box[0], 0, 0, 0);
      atoms::tma_store_commit();
      atoms::tma_store_wait_read<0>();
    }
    auto const* const words = reinterpret_cast<uint32_t const*>(shared.box[0]);
    for (int i = index; i < 1024 && !fault; i += 128) {
      if (i % 16 < 15) atoms::st_global(p.out + i, atoms::ld_shared(words + i));
    }
  }

  // ---- Products of a warpgroup ------------------------------------------------------------------------------------

  HGEMM_DEVICE uint64_t descriptor(void const* at) const {  // pieces of 8 rows follow each other along k, then along m or n
    return uint64_t(atoms::shared_address(at) >> 4) | uint64_t(128 / 16) << 16 | uint64_t(256 / 16) << 32;
  }
  HGEMM_DEVICE void operands() const {
    auto* const words = reinterpret_cast<uint32_t*>(shared.more);
    for (int i = index; i < 1024; i += 128) atoms::st_shared(words + i, 0x3c003c00u);  // ones
    atoms::fence_proxy_async();
    atoms::cta_barrier();
  }
  HGEMM_DEVICE void multiply(float (&sums)[32], bool fenced = true) const {
    if (fenced) atoms::wgmma_fence();
    atoms::wgmma<Product>(sums, descriptor(shared.more), descriptor(shared.more + 2048), false);
    atoms::wgmma_commit();
  }
  HGEMM_DEVICE void products_fenced() const {
    float sums[32];
    operands();
    multiply(sums, !fault);
    atoms::wgmma_wait<0>();
    put(uint32_t(sums[0]));
  }
  HGEMM_DEVICE void products_awaited() const {
    float sums[32];
    operands();
    multiply(sums);
    if (!fault) atoms::wgmma_wait<0>();
    put(atoms::float_bits(sums[0]));
    if (fault) atoms::wgmma_wait<0>();
  }
  HGEMM_DEVICE void operands_kept() const {
    float sums[32];
    operands();
    multiply(sums);
    if (!fault) atoms::wgmma_wait<0>();
    atoms::cta_barrier();
    if (index == 0) atoms::st_shared(reinterpret_cast<uint32_t*>(shared.more), 0u);
    if (fault) atoms::wgmma_wait<0>();
    put(uint32_t(sums[0]));
  }
  HGEMM_DEVICE void registers_handed_over() const {  // three warpgroups, which begin with 168 a thread
    if (index < 128) {
      if (!fault) atoms::setmaxnreg_dec<40>();
      if (fault) atoms::setmaxnreg_dec<120>();
    } else {
      atoms::setmaxnreg_inc<232>();
    }
    put(0);
  }

  // ---- Clusters ---------------------------------------------------------------------------------------------------

  HGEMM_DEVICE void cluster_waits() const {  // each CTA loads a box for both
    begin(1);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    if (index == 0) {
      atoms::mbarrier_arrive_expect_tx(&shared.full, 8192);
      atoms::tma_load_multicast(shared.box[atoms::cluster_rank()], map, &shared.full, 3, 0, 0, 0);
    }
    if (!fault || atoms::cluster_rank() == 0) atoms::mbarrier_wait(&shared.full, 0);
    put_box(atoms::cluster_rank() ^ (fault ? 0 : 1));
    if (!fault || index > 0) atoms::cluster_arrive();
    if (!fault || index > 0) atoms::cluster_wait();
  }
  HGEMM_DEVICE void cluster_reads() const {  // each CTA reads what the other one wrote, which stays until it has
    atoms::st_shared(&shared.words[index], uint32_t(index));
    atoms::cluster_arrive();
    atoms::cluster_wait();
    uint32_t const seen = ld_shared_cluster(&shared.words[index], 1 - atoms::cluster_rank());
    if (!fault) atoms::cluster_arrive();
    if (!fault) atoms::cluster_wait();
    atoms::st_shared(&shared.words[index], seen);
    put(seen);
  }
  // Each CTA reads what the other one wrote before it arrived. Both scopes must include both CTAs.
  HGEMM_DEVICE void in_cluster(bool arrives, bool waits) const {
    begin(1);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    uint32_t const other = 1 - atoms::cluster_rank();
    atoms::st_shared(&shared.words[index], uint32_t(index));
    atoms::cta_barrier();
    if (index == 0 && arrives) mbarrier_release_cluster(&shared.full, other);
    if (index == 0 && !arrives) atoms::mbarrier_arrive_cluster(&shared.full, other);
    if (waits) atoms::mbarrier_wait_cluster(&shared.full, 0);
    if (!waits) atoms::mbarrier_wait(&shared.full, 0);
    put(ld_shared_cluster(&shared.words[index], other));
    atoms::cluster_arrive();
    atoms::cluster_wait();
  }
  HGEMM_DEVICE void scope_of_arrivals() const { in_cluster(!fault, true); }
  HGEMM_DEVICE void scope_of_waits() const { in_cluster(true, !fault); }
  // Each CTA reads its words, then allows the other one to overwrite them. The scope of the CTA suffices for this.
  HGEMM_DEVICE void overwritten_in_cluster() const {
    begin(1, true, true, 1);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    uint32_t const other = 1 - atoms::cluster_rank();
    auto* const vecs = reinterpret_cast<Vec16B*>(shared.more);
    atoms::st_shared(vecs + index, Vec16B{1, 2, 3, 4});
    uint32_t const seen = atoms::ld_shared(vecs + index).y;
    if (!fault) atoms::cta_barrier();
    if (index == 0) atoms::mbarrier_arrive_cluster(&shared.full, other);
    atoms::mbarrier_wait(&shared.full, 0);
    stored_in_cluster(vecs, &shared.empty, 128 * 16);
    put(seen);
  }
  // Each thread stores 16 bytes to the other CTA, whose mbarrier counts them. Waits for those of this CTA.
  HGEMM_DEVICE void stored_in_cluster(Vec16B* vecs, uint64_t* barrier, uint32_t bytes, bool waits = true) const {
    if (index == 0) atoms::mbarrier_arrive_expect_tx(barrier, bytes);
    atoms::st_async(vecs + index, {uint32_t(index), 0, 0, 0}, barrier, 1 - atoms::cluster_rank());
    if (waits) atoms::mbarrier_wait_cluster(barrier, 0);
    if (!waits) atoms::mbarrier_wait(barrier, 0);
  }
  HGEMM_DEVICE void async_stores_awaited() const {
    begin(1);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    auto* const vecs = reinterpret_cast<Vec16B*>(shared.more);
    stored_in_cluster(vecs, &shared.full, 128 * 16, !fault);
    put(atoms::ld_shared(vecs + 127 - index).x);
  }
  HGEMM_DEVICE void async_stores_expected() const {
    begin(1);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    auto* const vecs = reinterpret_cast<Vec16B*>(shared.more);
    stored_in_cluster(vecs, &shared.full, fault ? 127 * 16 : 128 * 16);
    put(atoms::ld_shared(vecs + 127 - index).x);
  }
  HGEMM_DEVICE void cluster_outlives() const {
    begin(128);
    atoms::cluster_arrive();
    atoms::cluster_wait();
    put(0);
    if (atoms::cluster_rank() == 0) atoms::mbarrier_arrive_cluster(&shared.full, 1);
    if (!fault) {
      atoms::cluster_arrive();
      atoms::cluster_wait();
    }
  }
};

#define RULES(DO)                                                                                                         \
  DO(neighbours_of_a_cta) DO(neighbours_of_a_warp) DO(overwritten_while_read) DO(halves_of_a_word)                        \
  DO(a_barrier_for_all) DO(a_collective_for_all) DO(fragments_of_a_warp) DO(fragments_aligned) DO(named_barriers)         \
  DO(whole_warps) DO(fences_between_ctas) DO(endless) DO(initialised)                                                     \
  DO(inside_shared) DO(inside_global) DO(allowed) DO(aligned) DO(once) DO(always) DO(set) DO(copies_awaited)              \
  DO(copies_finished) DO(copies_arrived) DO(stores_of_copies_fenced)                                                      \
  DO(boxes_awaited) DO(too_many_expected) DO(too_few_expected) DO(barriers_fenced) DO(barriers_begun)                     \
  DO(arrivals_counted) DO(missing_arrival) DO(phases_awaited) DO(boxes_reused) DO(reads_fenced) DO(boxes_aligned)         \
  DO(stores_fenced) DO(stores_awaited) DO(stores_within_rows) DO(products_fenced) DO(products_awaited) DO(operands_kept)  \
  DO(registers_handed_over) DO(cluster_waits) DO(cluster_reads) DO(cluster_outlives) DO(launches_awaited)  \
  DO(scope_of_arrivals) DO(scope_of_waits) DO(overwritten_in_cluster) DO(async_stores_awaited) DO(async_stores_expected)

}  // namespace

HGEMM_CLUSTER_KERNEL(128, 1, 1) executor_rules(HGEMM_PARAMETER Parameters parameters, HGEMM_PARAMETER hgemm::TensorMap map) {
  HGEMM_SHARED(Shared, shared);
  Thread const thread = {parameters, map, shared};
  uint32_t rule = 0;
#define TRY(name) \
  if (parameters.rule == rule++) return thread.name();
  RULES(TRY)
}
