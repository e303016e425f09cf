// The executor of one launch. It holds the resident CTAs, lets the adversary choose the next warp and the time of asynchronous
// work, and executes and checks warp instructions.
//
// Each thread of the kernel is a fiber, which runs until its next atom and waits there. Lanes of a warp that wait at the same
// source line for the same kind of operation form a warp instruction; a collective one needs all 32 lanes. The executor checks
// every address, checks each access for races, counts costs, and continues the lanes.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <executor/abi.h>
#include <executor/global_memory.hpp>
#include <executor/kernel.hpp>
#include <executor/report.hpp>
#include <executor/state.hpp>
#include <executor/tensor_core_arithmetic.hpp>

namespace hgemm::executor {

class Machine {
 public:
  // The request must be valid.
  Machine(hgemm_emulation const& request, Kernel const& kernel);
  ~Machine();

  void run();
  std::string report() const;

  // Suspends the current fiber until `operation` has been executed.
  void wait_for(Operation& operation, void const* program_counter);

  // Reports that the running thread accesses a register that a wgmma in flight writes.
  void report_register(Site site, char const* name);
  // Reports that the running thread fails an assert, or traps.
  void report_stop(Site site, char const* what);
  // Tells whether an address is in the stacks of the kernel's threads.
  bool is_local(uint64_t address) const;

 private:
  static constexpr uint32_t default_resident_ctas = 64;  // if the request does not set it
  static constexpr size_t max_cached_threads = 8192;     // memory of up to this many threads is kept for the next launch
  static constexpr size_t stack_bytes = 64 << 10;

  // ---- Start and end of CTAs and fibers: lifecycle.hpp ----
  void protect_stacks() const;
  void start_clusters();
  void start(Cluster& cluster, uint32_t number);
  void start(Cta& cta, uint32_t rank);
  void finish(Cluster& cluster);
  static void fiber_main();
  [[noreturn]] void finish_fiber();
  void run_next_fiber(Fiber& from);
  void resume(Warp& warp, uint32_t lanes);
  void exit_lane(Warp& warp, Lane& lane);
  void exit_cta(Cta const& cta);
  uint32_t next_cluster();

  // ---- The adversary's choices, deadlocks: scheduler.hpp ----
  bool step();
  bool step(Cta& cta, uint32_t index);
  uint32_t choose_lanes(Warp& warp) const;
  bool ready(Lane const& lane) const;
  void complete_some();
  bool complete_next();
  bool resume_polling();
  void report_deadlock();
  bool has_diverged(Warp const& warp) const;
  bool same_operation(Warp const& warp) const;
  static bool same_request(Operation const& first, Operation const& other);
  static bool same_request(Warp const& warp);
  std::string describe_warp(Warp const& warp) const;
  std::string describe_wait(Warp const& warp, Lane const& lane) const;
  uint32_t random(uint32_t below);

  // ---- Warp instructions: execute.hpp ----
  void execute(Warp& warp, uint32_t lanes);
  void execute_lane(Lane& lane, Operation& operation, SiteCost& cost);
  void execute_warp(Warp& warp, uint32_t lanes, Operation const& first, SiteCost& cost);
  static void count_memory_cost(Addresses const& shared, Addresses const& global, uint32_t bytes, SiteCost& cost);
  void execute_load(Lane& lane, Operation& operation, SiteCost& cost);
  void execute_store(Lane& lane, Operation& operation, SiteCost& cost);
  void atomic(Lane& lane, Operation& operation);
  void global_fence(Lane& lane);
  void await_previous_launches(Lane& lane);
  void check_previous_launches(Lane const& lane, Operation const& operation);
  void ldmatrix(Warp& warp, int matrices, SiteCost& cost);
  void wmma_load(Warp& warp, SiteCost& cost);
  void stmatrix(Warp& warp, SiteCost& cost);
  void mma(Warp& warp);

  // ---- Barriers of warps, CTAs and clusters; setmaxnreg: barriers.hpp ----
  static void warp_barrier(Warp& warp, uint32_t lanes);
  void elect_one(Warp& warp, uint32_t lanes);
  static void shuffle(Warp& warp, uint32_t lanes);
  static void vote(Warp& warp, uint32_t lanes);
  void check_members(Warp const& warp, uint32_t lanes);
  void arrive_at_barrier(Warp& warp, uint32_t lanes);
  void release_barrier(Cta& cta, Barrier& barrier);
  void cluster_arrive(Warp& warp);
  void cluster_wait(Warp& warp);
  void set_registers(Warp& warp, Operation const& operation);

  // ---- Mbarriers: barriers.hpp ----
  Mbarrier* find_mbarrier(Lane const& lane, Operation const& operation, Cta& cta, void const* barrier, bool remote);
  void mbarrier_init(Lane& lane, Operation const& operation);
  void mbarrier_init_fence(Lane& lane);
  void mbarrier_arrive(Lane& lane, Operation const& operation);
  void count_arrival(Lane const& lane, Cta& cta, Mbarrier& barrier, Site site, uint32_t arrivals = 1);
  void mbarrier_wait(Lane& lane, Operation const& operation);
  void mbarrier_test(Lane& lane, Operation const& operation);
  void end_phase_if_complete(Cta& cta, Mbarrier& barrier, Site site);
  Mbarrier const* awaited_mbarrier(Lane const& lane) const;

  // ---- st.async: async_copies.hpp ----
  void store_async(Lane& lane, Operation const& operation, SiteCost& cost);
  void complete_async_store(size_t store);

  // ---- cp.async: async_copies.hpp ----
  void cp_async(Lane& lane, Operation& operation, SiteCost& cost);
  bool check_copy_source(Lane const& lane, Operation const& operation, uint32_t copied);
  static void complete_copy(Copy& copy);
  void cp_async_wait(Lane& lane, uint32_t pending, bool uncommitted);
  void mbarrier_arrive_after_copies(Lane& lane, Operation const& operation);
  void complete_arrival(size_t arrival);

  // ---- TMA and proxy fences: async_copies.hpp ----
  bool check_box(Lane const& lane, Operation const& operation, hgemm_tensor_map const& map, void const* shared);
  void tma_load(Lane& lane, Operation const& operation, SiteCost& cost);
  void tma_load_to(Cta& cta, Lane& lane, Operation const& operation, bool readable);
  bool check_box_source(Lane const& lane, Operation const& operation, SiteCost& cost);
  void complete_load(size_t load);
  void tma_store(Lane& lane, Operation const& operation, SiteCost& cost);
  void complete_store(BoxStore& store, Lane& lane);
  void write_row(BoxStore const& store, Lane& lane, uintptr_t address, unsigned char* row, uint32_t bytes);
  void tma_store_wait(Lane& lane, uint32_t pending);
  void proxy_fence(Lane& lane);
  bool ordered_for_async_proxy(Lane const& issuer, Access const& earlier) const;

  // ---- wgmma: wgmma.hpp ----
  void wgmma(Warp& warp, SiteCost& cost);
  static void wgmma_fence(Warp& warp);
  void take_accumulators(Warp& warp, Wgmma& op, int quarter);
  static void return_accumulators(Wgmma const& op, int quarter, Accumulators const& accumulators);
  void check_fenced(Warp const& warp);
  void take_a(Warp& warp, Wgmma& op, int quarter);
  static void return_a(Wgmma const& op, int quarter);
  bool check_operand(Warp& warp, Wgmma const& op, bool is_b, SiteCost* cost);
  bool compute_wgmma(Warp& warp, Wgmma& op, int quarter, bool has_b = false);
  void compute_some_wgmma(Warpgroup& group, Cta& cta);
  void wgmma_wait(Warp& warp, uint32_t pending);

  // ---- Checks of accesses: access.hpp ----
  bool check_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes);
  bool check_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes, bool write);
  void record_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write);
  void record_shared(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                   Access const& me);
  Cta* cta_of_rank(Lane const& lane, Operation const& operation, uint32_t rank);
  bool record_async(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                    Access const& me);
  void record_global_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes);
  void record_global_write(Lane& lane, Operation const& operation, void* address, uint32_t bytes, void const* value,
                         Access const& me);
  void report_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory, bool write);
  Access access_of(Lane const& lane, Operation const& operation);
  std::string describe(Access const& access) const;
  std::string describe(Lane const& lane) const;

  hgemm_emulation request_;
  TensorCoreArithmetic const arithmetic_;
  Kernel kernel_;
  GlobalMemory memory_;
  Findings findings_;
  Costs costs_;
  Counters counters_;

  unsigned char* stacks_ = nullptr;
  uint32_t cluster_ctas_ = 1;
  std::vector<Cta> ctas_;           // slots, one for each resident CTA
  std::vector<Cluster> clusters_;
  std::vector<Cta*> resident_;              // CTAs that run, in the adversary's order
  std::vector<uint32_t> waiting_clusters_;  // clusters that have not started, the next one last
  std::vector<BoxLoad> box_loads_;          // in flight
  std::vector<AsyncStore> async_stores_;    // in flight
  std::vector<CopyArrival> copy_arrivals_;  // pending
  ClockUpdate phase_end_;                   // of the last mbarrier wait; shared by all threads that wait for it
  ClockUpdate previous_launches_;
  bool overlaps_launches_ = false;           // this launch lets the next one begin early
  std::map<uintptr_t, Ref<Clock>> atomics_;  // by address: what its atomics release
  size_t next_warp_ = 0;                     // for round robin
  uint64_t steps_ = 0, random_state_ = 1;
  uint64_t mma_counts_[2] = {};  // m16n8k16, m16n8k8
  uint64_t tf32_mma_count_ = 0;  // m16n8k8
  uint32_t listed_accumulators_ = 0;  // number of sets of accumulators of PTX so far
  bool stopped_ = false;

  Fiber scheduler_;
  Lane* queue_[32] = {};
  int queue_at_ = 0, queue_end_ = 0;
  bool uniform_ = false;  // all lanes that have run since `resume` wait at the same request, and none has ended
};

}  // namespace hgemm::executor
