// The state of running threads: lanes, warps, CTAs and clusters, and the barriers and asynchronous work that they wait for.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <executor/abi.h>
#include <executor/fiber.hpp>
#include <executor/operation.hpp>
#include <executor/race_detection.hpp>

namespace hgemm::executor {

struct Cta;
struct Cluster;
struct Lane;
struct Warp;

// A cp.async that its thread has not waited for.
struct Copy {
  unsigned char* to;
  void const* from;  // null: fill with zeros, or with poison if the source was invalid
  uint32_t bytes, zeros;  // the last `zeros` of `bytes` are filled with zeros
  uint32_t group, epoch;
  unsigned char fill;  // if from is null
  bool completed;
  Site site;
};

// cp.async.mbarrier.arrive: arrives at an mbarrier when the thread's copies up to an epoch are complete.
struct CopyArrival {
  Lane* lane;
  size_t barrier;  // offset in shared memory
  uint32_t epoch;
  Site site;
};

// A TMA store that its thread has not waited for.
struct BoxStore {
  hgemm_tensor_map map;
  int at[5];
  unsigned char const* from;
  uint32_t group;
  bool completed;
  Operation operation;  // as it was issued
  Access access;        // of its writes
};

// One thread of the kernel. It has already run up to its next operation. What a switch of fibers needs is in one cache line.
struct alignas(64) Lane : Place {
  Operation* operation = nullptr;  // its next operation
  void const* program_counter = nullptr;
  Fiber fiber;
  Cta* cta = nullptr;
  bool exited = false;
  Knowledge knowledge;

  // ---- Asynchronous copies ----
  std::vector<Copy> copies;  // in flight, in the order of issue
  uint32_t groups_committed = 0;
  uint32_t copies_epoch = 1;  // of the next copy; increases at each commit and arrival

  // ---- Global memory ----
  Knowledge fenced;        // at its last global fence; epoch 0 if there was none
  Ref<Clock> seen_atomic;  // learned from atomics; takes effect at the next fence

  // ---- TMA stores ----
  std::vector<BoxStore> stores;  // not waited for
  uint32_t stores_committed = 0;
  uint16_t stores_agent = no_agent;
  Knowledge proxy_fenced;              // at its last proxy fence; epoch 0 if there was none
  std::vector<uint32_t> proxy_fences;  // its epochs at its proxy fences, rising

  uint32_t cluster_phase = 0;    // 1 + the phase of the cluster barrier that it arrived in; 0 if it did not arrive
  uint32_t cluster_passed = 0;   // 1 + the last phase that it waited for
  bool fenced_mbarriers = false;  // since its last arrival at the cluster barrier

  Warp& warp() const;
};

struct Warp {
  Cta* cta = nullptr;
  Lane* lanes = nullptr;
  int index = 0;         // in the CTA
  uint32_t waiting = 0;  // mask of lanes with an operation to execute
  uint32_t exited = 0;
  uint32_t at_barrier = 0;
  uint32_t copying = 0;  // mask of lanes that may have asynchronous copies or TMA stores in flight
  bool uniform = false;  // all lanes wait at the same request, and have come there together

  uint32_t registers = 0;  // per thread
  // ---- wgmma ----
  uint32_t wgmma_issued = 0, wgmma_retired = 0;
  uint32_t wgmma_committed = 0;  // groups
  bool wgmma_fenced = false;
  Site wgmma_site = {nullptr, 0};  // of the last wgmma
};

// One of a CTA's 16 barriers.
struct Barrier {
  std::vector<Lane*> waiting;
  uint32_t arrived = 0;  // threads, including those that do not wait
  uint32_t expected = 0;
  ClockUnion knowledge;
};

// An mbarrier in shared memory. A phase ends after all expected arrivals and all expected bytes of TMA loads.
struct Mbarrier {
  Access init;
  bool fenced = false;     // its initialization is visible to the cluster and the TMA
  uint32_t published = 0;  // 1 + the phase of the cluster barrier whose end publishes the initialization; 0: none
  uint32_t count = 0, pending = 0;
  int64_t bytes = 0;  // still to come
  uint32_t phase = 0, awaited = 0;  // phases that have ended, and those of them whose end a thread has seen
  uint16_t agent = no_agent;  // of the TMA writes that it counts; their epoch is 1 + the phase in which they complete
  uint16_t stores_agent = no_agent;  // the same of its st.async, if there are any
  // What threads learn when they see the end of a phase, and what those learn in addition that wait in the scope of the cluster.
  ClockUnion gathered, gathered_in_cluster;
  Ref<Clock> done, done_in_cluster;
};

// A st.async in flight.
struct AsyncStore {
  unsigned char* to;
  unsigned char value[16];
  uint32_t bytes;
  Cta* cta;
  size_t barrier;  // offset in shared memory
  uint32_t phase;  // of the mbarrier at the issue
  Site site;
};

// A TMA load in flight.
struct BoxLoad {
  hgemm_tensor_map map;
  int at[5];
  unsigned char* to;
  Cta* cta;
  size_t barrier;  // offset in shared memory
  uint32_t phase;  // of the mbarrier at the issue
  Site site;
  bool readable;  // false: the source was invalid
};

// One wgmma instruction of four warps.
struct Wgmma {
  WgmmaArguments arguments;
  Element in, acc;
  void* d[4][32] = {};  // accumulators, or the WgmmaRegisters with them, by warp and lane
  void* key[4] = {};    // of the accumulators of a warp
  uint64_t a_number[4] = {};          // of the registers of a, by warp; 0 if a is in shared memory
  std::vector<uint32_t> a_values[4];  // four for each lane
  bool issued[4] = {}, done[4] = {}, valid[4] = {};
  uint32_t group[4] = {};
  Ref<Clock> reader;  // what the first warp knew when its read of B was checked
};

// The accumulators of wgmmas in flight. The caller's registers hold poison meanwhile.
struct Accumulators {
  std::vector<float> d;   // (16, n)
  uint32_t count = 0;     // registers of a lane
  uint32_t users = 0;    // wgmmas in flight
  uint32_t version = 0;  // number of wgmmas so far that found the registers changed
  std::vector<uint16_t> list;  // their registers at the last wgmma
  uint32_t changes[32] = {};   // WgmmaRegisters::changes of each lane at that time
};

struct Warpgroup {
  std::deque<Wgmma> in_flight;                    // that some warp has not waited for
  uint32_t first = 0;                             // number of the first of them
  std::map<void*, Accumulators> accumulators[4];  // by warp and key: the address of the caller's registers, or a number
  uint16_t agent = no_agent;                      // of its reads; epochs count groups from 1
};

// The last access of the TMA, or of a thread of another CTA, to a CTA's shared memory. It must be complete when the CTA ends.
struct RemoteAccess {
  Access access;
  Site site;
};

struct Cta {
  uint32_t number = 0;  // in the grid
  uint32_t index[3] = {};
  Cluster* cluster = nullptr;
  unsigned char* arena = nullptr;  // shared memory
  Shadow shadow;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::map<size_t, Mbarrier> mbarriers;  // by offset in shared memory
  std::map<std::pair<uint32_t, uint16_t>, RemoteAccess> remote_accesses;
  Barrier barriers[16];
  uint32_t agents = 0;         // number of agents; the threads are the first ones
  std::vector<Lane*> copiers;  // by agent, the thread whose cp.async it is
  uint32_t lanes_left = 0;
  int64_t free_registers = 0;  // available to setmaxnreg
  // ---- Masks of warps ----
  uint32_t may_run = 0;  // the others are blocked, and nothing has changed since
  uint32_t polling = 0;  // found nothing new in memory or at an mbarrier: other warps and copies come first

  void record_remote_access(Access const& access, Site site) { remote_accesses[{access.cta, access.agent}] = {access, site}; }
  uint16_t new_agent() { return uint16_t(agents++); }
  uint16_t agent_of_copies(Lane& lane) {
    if (lane.knowledge.copies == no_agent) {
      lane.knowledge.copies = new_agent();
      copiers.resize(agents);
      copiers[lane.knowledge.copies] = &lane;
    }
    return lane.knowledge.copies;
  }
  Lane const* copier(uint16_t agent) const { return agent < copiers.size() ? copiers[agent] : nullptr; }
  void wake() { may_run = ~0u >> (32 - warps.size()); }
  uint32_t runnable() const { return may_run & ~polling; }
};

inline Warp& Lane::warp() const { return cta->warps[size_t(thread) / 32]; }

// CTAs that start together and can access each other's shared memory.
struct Cluster {
  std::vector<Cta*> ctas;  // by rank
  bool resident = false;
  // ---- The cluster barrier ----
  uint32_t arrived = 0, phase = 0;
  ClockUnion gathered;
  Ref<Clock> done;

  // Returns the CTA with this number, which must be in the cluster.
  Cta const& cta(uint32_t number) const {
    size_t rank = 0;
    while (ctas[rank]->number != number) ++rank;
    return *ctas[rank];
  }
  void wake() {
    for (Cta* cta : ctas) cta->wake();
  }
  bool has_running_threads() const {
    for (Cta const* cta : ctas) {
      if (cta->lanes_left) return true;
    }
    return false;
  }
};

}  // namespace hgemm::executor
