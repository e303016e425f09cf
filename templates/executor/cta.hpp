// The threads that live: lanes in warps in CTAs in clusters, and what they wait at.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include <executor/abi.h>
#include <executor/clock.hpp>
#include <executor/fiber.hpp>
#include <executor/operation.hpp>
#include <executor/shadow.hpp>

namespace hgemm::executor {

struct Cta;
struct Cluster;
struct Lane;

// An asynchronous copy to shared memory that was started and not yet waited for.
struct Copy {
  unsigned char* to;
  void const* from;  // null: zeros, or poison where the source was no good
  uint32_t bytes;
  uint32_t group, epoch;
  unsigned char fill;  // where from is null
  bool landed;
  Site site;
};

// An arrival at an mbarrier that comes once the copies up to an epoch have landed.
struct CopyArrival {
  Lane* lane;
  size_t barrier;  // offset in shared memory
  uint32_t epoch;
  Site site;
};

// A box on its way from shared memory to a map.
struct BoxStore {
  hgemm_tensor_map map;
  int at[3];
  unsigned char const* from;
  uint32_t group;
  bool landed;
  Operation operation;  // as it was issued
  Access access;        // its writes
};

// One thread of the kernel. Between two operations it has run up to the next one already: nobody else sees what it computes.
struct alignas(64) Lane : Place {
  Operation* operation = nullptr;  // that it waits for
  void const* program_counter = nullptr;
  Cta* cta = nullptr;
  bool exited = false;
  Fiber fiber;
  Knowledge knowledge;

  // ---- Asynchronous copies ----
  std::vector<Copy> copies;  // in flight, in the order of their start
  uint32_t groups_committed = 0;
  uint32_t copies_epoch = 1;  // of the next copy; one more after each that others may tell from those before

  // ---- Global memory ----
  Knowledge fenced;         // when it last fenced; epoch 0 before it ever did
  Held<Clock> seen_atomic;  // what it may rely on after its next fence

  // ---- TMA stores ----
  std::vector<BoxStore> stores;  // not yet waited for
  uint32_t stores_committed = 0;
  uint16_t stores_agent = no_agent;
  Knowledge proxy_fenced;  // when it last fenced; epoch 0 before it ever did
  uint32_t proxy_fenced_before = 0;  // its epoch at the fence before that

  uint32_t cluster_phase = 0;  // that it arrived in, plus 1; 0 while it has not
};

struct Warp {
  Cta* cta = nullptr;
  Lane* lanes = nullptr;
  int index = 0;        // in the CTA
  uint32_t parked = 0;  // lanes whose operation is to be carried out
  uint32_t exited = 0;
  uint32_t at_barrier = 0;
  bool may_run = true;  // false: found blocked, and nothing has happened since

  uint32_t registers = 0;  // of each thread
  // ---- Products of its warpgroup ----
  uint32_t wgmma_issued = 0, wgmma_retired = 0;  // in all
  uint32_t wgmma_committed = 0;  // groups
  bool wgmma_fenced = false;
  Site wgmma_site = {nullptr, 0};  // of the last one
};

// Threads counted at one of a CTA's 16 barriers.
struct Barrier {
  std::vector<Lane*> waiting;
  uint32_t arrived = 0;  // also by those that do not wait
  uint32_t expected = 0;
  Joined knowledge;
};

// A barrier in shared memory, on which threads arrive and bytes of the TMA are counted.
struct Mbarrier {
  Access init;
  bool fenced = false;  // its initialisation, for the cluster and the TMA
  uint32_t count = 0, pending = 0;
  int64_t bytes = 0;  // still expected
  uint32_t phase = 0;
  uint16_t agent = no_agent;  // of the TMA's writes that it counts; their epoch is the phase after which they are there
  Joined gathered;
  Held<Clock> done;  // what those know who have seen a phase end
};

// A box on its way into a CTA's shared memory.
struct BoxLoad {
  hgemm_tensor_map map;
  int at[3];
  unsigned char* to;
  Cta* cta;
  size_t barrier;  // offset in shared memory
  uint32_t phase;  // of the barrier, when it was started
  Site site;
  bool readable;  // the box lies in what the map may read
};

// One wgmma of four warps.
struct Product {
  WgmmaArguments arguments;
  Element in, sum;
  void* d[4][32] = {};  // of each warp's lanes
  bool issued[4] = {}, done[4] = {}, sound[4] = {};
  uint32_t group[4] = {};
  Held<Clock> reader;  // what the first warp knew, for which B has been judged
};

// The sums of a wgmma in flight: the caller's registers hold poison meanwhile.
struct Sums {
  std::vector<uint32_t> registers;
  uint32_t users = 0;  // products that were issued and not yet waited for
};

struct Warpgroup {
  std::vector<Product> products;  // that not all warps have waited for
  uint32_t first = 0;             // number of the first of them
  std::map<void*, Sums> sums[4];  // of each warp, by the address of the caller's registers
  uint16_t agent = no_agent;      // of its reads; epochs count groups from 1
};

// The last thing that somebody else, the TMA or a thread of another CTA, did to a CTA's shared memory: it must be over when
// the CTA ends.
struct Visit {
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
  std::map<std::pair<uint32_t, uint16_t>, Visit> visits;
  Barrier barriers[16];
  uint32_t agents = 0;  // numbers given away so far: threads first
  std::vector<Lane*> copiers;  // by agent, the thread whose copies it stands for
  uint32_t lanes_left = 0;
  int64_t free_registers = 0;  // that setmaxnreg may hand out

  void note_visit(Access const& access, Site site) { visits[{access.cta, access.agent}] = {access, site}; }
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
  void wake() {
    for (Warp& warp : warps) warp.may_run = true;
  }
};

// CTAs that begin together and see one another's shared memory.
struct Cluster {
  std::vector<Cta*> ctas;  // by rank
  bool living = false;
  // ---- Their barrier ----
  uint32_t arrived = 0, phase = 0;
  Joined gathered;
  Held<Clock> done;

  // The CTA of a number, which is one of the cluster's.
  Cta const& cta(uint32_t number) const {
    size_t rank = 0;
    while (ctas[rank]->number != number) ++rank;
    return *ctas[rank];
  }
  void wake() {
    for (Cta* cta : ctas) cta->wake();
  }
  bool left() const {
    for (Cta const* cta : ctas) {
      if (cta->lanes_left) return true;
    }
    return false;
  }
};

}  // namespace hgemm::executor
