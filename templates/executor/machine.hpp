// The executor: it holds the CTAs that live, lets an adversary choose which warp goes on and when asynchronous work takes
// effect, carries out warp instructions, and judges them.
//
// A thread of the kernel is a fiber. It runs to its next atom and waits there. Lanes of a warp that wait at the same line for
// the same kind of operation form one warp instruction; a collective one needs all 32. Carrying it out checks every address,
// asks the shadow of the memory whether each access is ordered with those before it, counts costs, and lets the lanes run on.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <executor/abi.h>
#include <executor/costs.hpp>
#include <executor/cta.hpp>
#include <executor/findings.hpp>
#include <executor/global_memory.hpp>
#include <executor/kernel.hpp>

namespace hgemm::executor {

class Machine {
 public:
  // The request has been found to be sound.
  Machine(hgemm_emulation const& request, Kernel const& kernel);
  ~Machine();

  void run();
  std::string report() const;

  // Called on a fiber: waits until `operation` was carried out.
  void wait_for(Operation& operation, void const* program_counter);

 private:
  static constexpr uint32_t most_resident = 64;  // CTAs, where a request leaves it open
  static constexpr size_t most_threads_kept = 8192;   // whose memory is left to the next launch
  static constexpr size_t stack_bytes = 64 << 10;
  static constexpr size_t poisoned_stack_bytes = 6 << 10;

  // ---- Living and dying: lives.hpp ----
  void guard_stacks() const;
  void admit();
  void begin(Cluster& cluster, uint32_t number);
  void begin(Cta& cta, uint32_t rank);
  void end(Cluster& cluster);
  static void enter();
  [[noreturn]] void leave();
  void next_fiber(Fiber& from);
  void resume(Warp& warp, uint32_t lanes);
  void exit_lane(Warp& warp, Lane& lane);
  void exit_cta(Cta const& cta);
  uint32_t next_number();

  // ---- Choosing what happens next: schedule.hpp ----
  bool step();
  uint32_t choose(Warp& warp) const;
  bool ready(Lane const& lane) const;
  void land_some();
  bool land_next();
  void deadlock();
  bool has_parted(Warp const& warp) const;
  bool together(Warp const& warp) const;
  std::string standing(Warp const& warp) const;
  std::string waits_for(Warp const& warp, Lane const& lane) const;
  uint32_t random(uint32_t below);

  // ---- Carrying out: execute.hpp ----
  void execute(Warp& warp, uint32_t lanes);
  void execute_lane(Lane& lane, Operation& operation, SiteCost& cost);
  void execute_warp(Warp& warp, Operation const& first, SiteCost& cost);
  static void count(Addresses const& shared, Addresses const& global, uint32_t bytes, SiteCost& cost);
  void load(Lane& lane, Operation& operation, SiteCost& cost);
  void store(Lane& lane, Operation& operation, SiteCost& cost);
  void fetch_add(Lane& lane, Operation& operation);
  void fence(Lane& lane);
  void await_previous_launches(Lane& lane);
  void note_touch(Lane const& lane, Operation const& operation);
  void load_matrices(Warp& warp, int matrices, SiteCost& cost);
  void load_fragment(Warp& warp, SiteCost& cost);
  void store_matrices(Warp& warp, SiteCost& cost);
  void multiply(Warp& warp);

  // ---- Barriers of threads: barriers.hpp ----
  void warp_barrier(Warp& warp);
  void elect_one(Warp& warp);
  void arrive(Warp& warp, uint32_t lanes);
  void release(Cta& cta, Barrier& barrier);
  void cluster_arrive(Warp& warp);
  void cluster_wait(Warp& warp);
  void set_registers(Warp& warp, Operation const& operation);

  // ---- Barriers in shared memory: mbarriers.hpp ----
  Mbarrier* find(Lane const& lane, Operation const& operation, Cta& cta, void const* barrier, bool remote);
  void init(Lane& lane, Operation const& operation);
  void init_fence(Lane& lane);
  void arrive(Lane& lane, Operation const& operation);
  void take_arrival(Lane const& lane, Cta& cta, Mbarrier& barrier, Site site);
  void end_wait(Lane& lane, Operation const& operation);
  void end_phase_if_complete(Cta& cta, Mbarrier& barrier, Site site);
  Mbarrier const* awaited(Lane const& lane) const;

  // ---- Asynchronous copies: copies.hpp ----
  void start_copy(Lane& lane, Operation& operation, SiteCost& cost);
  static void land(Copy& copy);
  void wait_for_copies(Lane& lane, uint32_t pending);
  void arrive_after_copies(Lane& lane, Operation const& operation);
  void complete(size_t arrival);

  // ---- Boxes: tma.hpp ----
  bool sound(Lane const& lane, Operation const& operation, hgemm_tensor_map const& map, void const* shared);
  void start_load(Lane& lane, Operation const& operation, SiteCost& cost);
  void start_load(Lane& lane, Operation const& operation, Cta& cta, bool readable);
  bool may_read_box(Lane const& lane, Operation const& operation, SiteCost& cost);
  void land(size_t load);
  void start_store(Lane& lane, Operation const& operation, SiteCost& cost);
  void land(BoxStore& store, Lane& lane);
  void write_row(BoxStore const& store, Lane& lane, uintptr_t address, unsigned char* row, uint32_t bytes);
  void wait_for_stores(Lane& lane, uint32_t pending);
  void proxy_fence(Lane& lane);
  bool passed_proxy(Lane const& reader, Access const& write) const;

  // ---- Products of warpgroups: wgmma.hpp ----
  void issue(Warp& warp, SiteCost& cost);
  void take_sums(Warp& warp, Product& product, int quarter);
  bool judge_operand(Warp& warp, Product const& product, bool is_b, SiteCost* cost);
  void compute(Warp& warp, Product& product, int quarter);
  void compute_some(Warpgroup& group, Cta& cta);
  void end_wait(Warp& warp, uint32_t pending);

  // ---- Judging accesses: access.hpp ----
  bool may_access_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes);
  bool may_access_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes, bool write);
  void note_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write);
  void note_shared(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                   Access const& me);
  Cta* neighbour(Lane const& lane, Operation const& operation, uint32_t rank);
  void note_async_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, Access const& me);
  void note_global_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes);
  void note_global_write(Lane& lane, Operation const& operation, void* address, uint32_t bytes, void const* value,
                         Access const& me);
  void say_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory, bool write);
  Access access_of(Lane const& lane, Operation const& operation);
  std::string who(Access const& access) const;
  std::string whoami(Lane const& lane) const;

  hgemm_emulation request_;
  Kernel kernel_;
  GlobalMemory memory_;
  Findings findings_;
  Costs costs_;
  Counters counters_;

  unsigned char* stacks_ = nullptr;
  uint32_t cluster_ctas_ = 1;
  std::vector<Cta> ctas_;           // as many as may live at once
  std::vector<Cluster> clusters_;
  std::vector<Cta*> living_;        // in the order in which the adversary sees them
  std::vector<uint32_t> numbers_;   // clusters that have not begun, the next one last
  std::vector<BoxLoad> box_loads_;  // in flight
  std::vector<CopyArrival> copy_arrivals_;  // to come
  Learning phase_end_;              // of the mbarrier that was last waited for: all waiters learn the same
  Learning previous_launches_;
  bool overlaps_ = false;           // with other launches
  std::map<uintptr_t, Held<Clock>> atomics_;  // what an address's atomic operations pass on
  size_t next_warp_ = 0;            // where round robin goes on
  uint64_t steps_ = 0, random_state_ = 1;
  uint64_t mma_counts_[2] = {};     // of depth 16, of depth 8
  uint64_t tf32_mma_count_ = 0;     // of depth 8
  bool stopped_ = false;

  Fiber scheduler_;
  Lane* queue_[32] = {};
  int queue_at_ = 0, queue_end_ = 0;
};

}  // namespace hgemm::executor
