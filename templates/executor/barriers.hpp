// Barriers of a warp, a CTA and a cluster, mbarriers in shared memory, and setmaxnreg.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

void Machine::warp_barrier(Warp& warp, uint32_t lanes) {
  ClockUnion joined;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) joined.add(warp.lanes[__builtin_ctz(rest)].knowledge);
  Ref<Clock> const clock = joined.clock();
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Lane& lane = warp.lanes[__builtin_ctz(rest)];
    lane.knowledge.learn(clock);
    ++lane.knowledge.epoch;
  }
}

// PTX leaves open which lane is elected. The adversary chooses one for the whole launch.
void Machine::elect_one(Warp& warp, uint32_t lanes) {
  uint32_t elected = request_.order == HGEMM_ANY_ORDER    ? uint32_t(request_.seed % 32)
                     : request_.order == HGEMM_AHEAD_HIGH ? 31
                                                          : 0;
  while (!(lanes >> elected & 1)) elected = (elected + 1) % 32;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t const i = uint32_t(__builtin_ctz(rest));
    Operation const& operation = *warp.lanes[i].operation;
    *static_cast<bool*>(operation.to) = i == elected;
    if (operation.second) *static_cast<uint32_t*>(const_cast<void*>(operation.second)) = elected;
  }
}

// The mask of members names lanes that must take part, and the lane itself.
void Machine::check_members(Warp const& warp, uint32_t lanes) {
  Lane const& lane = warp.lanes[__builtin_ctz(lanes)];
  uint32_t const members = lane.operation->number;
  if (!members || (lanes & ~members) == 0) return;
  findings_.add("divergence", lane.operation->site, [&] {
    return text("%s: the mask of members is %08x, and lanes %08x take part", describe(lane).c_str(), members, lanes);
  });
}

// Source: PTX ISA, shfl.sync. `clamp_and_mask`: bits 0 to 4 clamp the lane, bits 8 to 12 divide the warp into segments. The
// value of a lane that does not take part is poison.
void Machine::shuffle(Warp& warp, uint32_t lanes) {
  uint32_t values[32];
  auto arguments = [&](int lane) {
    return static_cast<ShuffleArguments*>(const_cast<void*>(warp.lanes[lane].operation->second));
  };
  for (int i = 0; i < 32; ++i) values[i] = lanes >> i & 1 ? arguments(i)->value : ~0u;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int const i = __builtin_ctz(rest);
    ShuffleArguments& its = *arguments(i);
    auto& result = *static_cast<uint32_t*>(warp.lanes[i].operation->to);
    if (its.reduce) {
      result = values[__builtin_ctz(lanes)];
      for (uint32_t more = lanes & (lanes - 1); more; more &= more - 1) {
        result = its.reduce(result, values[__builtin_ctz(more)]);
      }
      continue;
    }
    int const by = int(its.by & 31), mask = int(its.clamp_and_mask >> 8 & 31), clamp = int(its.clamp_and_mask & 31);
    int const most = (i & mask) | (clamp & ~mask), least = i & mask;
    int from = i;
    switch (its.mode) {
      case Shuffle::up: from = i - by, its.in_range = from >= most; break;
      case Shuffle::down: from = i + by, its.in_range = from <= most; break;
      case Shuffle::butterfly: from = i ^ by, its.in_range = from <= most; break;
      case Shuffle::index: from = least | (by & ~mask), its.in_range = from <= most; break;
    }
    result = values[its.in_range ? from : i];
  }
}

void Machine::vote(Warp& warp, uint32_t lanes) {
  uint32_t in_favour = 0;
  auto arguments = [&](int lane) {
    return static_cast<VoteArguments*>(const_cast<void*>(warp.lanes[lane].operation->second));
  };
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int const i = __builtin_ctz(rest);
    in_favour |= uint32_t(arguments(i)->predicate) << i;
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    arguments(__builtin_ctz(rest))->lanes = in_favour;
    arguments(__builtin_ctz(rest))->voters = lanes;
  }
}

// ---- Barriers of a CTA ---------------------------------------------------------------------------------------------

// Lanes arrive at a barrier. With barrier_sync they also wait until all threads have arrived.
void Machine::arrive_at_barrier(Warp& warp, uint32_t lanes) {
  Cta& cta = *warp.cta;
  Operation const first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Barrier& barrier = cta.barriers[first.number % 16];
  if (first.number >= 16) {
    findings_.add("bounds", first.site,
                  [&] { return text("CTA %u has no barrier %u: the barriers are 0 to 15", cta.number, first.number); });
  }
  uint32_t const expected = first.threads ? first.threads : request_.threads;
  if (barrier.arrived && barrier.expected != expected) {
    findings_.add("divergence", first.site, [&] {
      return text("CTA %u barrier %u: %u threads are expected here and %u elsewhere", cta.number, first.number, expected,
                  barrier.expected);
    });
  }
  if (expected % 32) {
    findings_.add("divergence", first.site, [&] {
      return text("CTA %u barrier %u: %u threads are expected, which are not whole warps", cta.number, first.number, expected);
    });
  }
  barrier.expected = expected;
  bool const waits = first.kind == Kind::barrier_sync;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Lane& lane = warp.lanes[__builtin_ctz(rest)];
    barrier.knowledge.add(lane.knowledge);
    ++lane.knowledge.epoch;
    ++barrier.arrived;
    if (waits) barrier.waiting.push_back(&lane);
  }
  warp.waiting &= ~lanes;
  if (waits) warp.at_barrier |= lanes;
  if (barrier.arrived >= expected) release_barrier(cta, barrier);
  if (!waits) resume(warp, lanes);
}

void Machine::release_barrier(Cta& cta, Barrier& barrier) {
  counters_.add(barrier.expected == request_.threads ? "cta_barrier" : "named_barrier");
  ClockUpdate learning(barrier.knowledge.clock());
  std::vector<uint32_t> lanes(cta.warps.size());
  for (Lane* lane : barrier.waiting) {
    learning.apply(lane->knowledge);
    lanes[size_t(lane->thread) / 32] |= 1u << (lane->thread % 32);
  }
  barrier = Barrier();
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i]) continue;
    cta.warps[i].at_barrier &= ~lanes[i];
    resume(cta.warps[i], lanes[i]);
  }
}

// ---- The cluster barrier -------------------------------------------------------------------------------------------

void Machine::cluster_arrive(Warp& warp) {
  Cluster& cluster = *warp.cta->cluster;
  for (int i = 0; i < 32; ++i) {
    Lane& lane = warp.lanes[i];
    if (lane.cluster_phase) {
      findings_.add("cluster", lane.operation->site,
                    [&] { return describe(lane) + " arrives at the cluster barrier twice"; });
    }
    if (lane.operation->flag) cluster.gathered.add(lane.knowledge);  // otherwise .relaxed
    if (lane.fenced_mbarriers) {  // even if .relaxed
      for (auto& [offset, barrier] : warp.cta->mbarriers) {
        bool const own = barrier.fenced && barrier.init.agent == lane.knowledge.thread;
        if (own && !barrier.published) barrier.published = cluster.phase + 1;
      }
      lane.fenced_mbarriers = false;
    }
    ++lane.knowledge.epoch;
    lane.cluster_phase = cluster.phase + 1;
  }
  cluster.arrived += 32;
  if (cluster.arrived < request_.threads * cluster_ctas_) return;
  counters_.add("cluster_barrier");
  cluster.arrived = 0;
  ++cluster.phase;
  cluster.done = cluster.gathered.clock();
  cluster.wake();
}

void Machine::cluster_wait(Warp& warp) {
  ClockUpdate learning(warp.cta->cluster->done);
  for (int i = 0; i < 32; ++i) {
    Lane& lane = warp.lanes[i];
    if (!lane.cluster_phase) {
      findings_.add("cluster", lane.operation->site,
                    [&] { return describe(lane) + " waits at the cluster barrier without arriving"; });
      continue;
    }
    learning.apply(lane.knowledge);
    lane.cluster_passed = lane.cluster_phase;
    lane.cluster_phase = 0;
  }
}

// ---- Registers -----------------------------------------------------------------------------------------------------

// Source: PTX ISA, setmaxnreg: 24 to 256 in steps of 8, from the registers that the CTA was launched with.
void Machine::set_registers(Warp& warp, Operation const& operation) {
  bool const grows = operation.flag;
  uint32_t const now = operation.number;
  if (now % 8 || now < 24 || now > 256 || (grows ? now < warp.registers : now > warp.registers)) {
    findings_.add("setmaxnreg", operation.site, [&] {
      return text("CTA %u warp %d: %s from %u to %u registers per thread: the new count must be 24 to 256 and a multiple of 8",
                  warp.cta->number, warp.index, grows ? "an increase" : "a decrease", warp.registers, now);
    });
    return;
  }
  warp.cta->free_registers += 32 * (int64_t(warp.registers) - int64_t(now));
  warp.registers = now;
  warp.cta->wake();
}

// ---- Mbarriers: threads arrive, the TMA counts bytes, and a phase ends when all of both are complete ---------------

// Returns the mbarrier of `cta` at the offset of `barrier`, or null with a finding. `remote`: used by another CTA or the TMA.
Mbarrier* Machine::find_mbarrier(Lane const& lane, Operation const& operation, Cta& cta, void const* barrier, bool remote) {
  if (!check_shared(lane, operation, barrier, 8)) return nullptr;
  size_t const offset = reinterpret_cast<uintptr_t>(barrier) % shared_window;
  auto const found = cta.mbarriers.find(offset);
  if (found == cta.mbarriers.end()) {
    findings_.add("mbarrier", operation.site, [&] {
      return text("%s: the mbarrier at byte %zu of CTA %u is not initialized", describe(lane).c_str(), offset, cta.number);
    });
    return nullptr;
  }
  Mbarrier& result = found->second;
  bool const published = result.published && lane.cluster_passed >= result.published;
  if (!published && !lane.knowledge.knows(result.init)) {
    findings_.add("race", operation.site, [&] {
      return text("%s uses the mbarrier at byte %zu without synchronization after its initialization by %s",
                  describe(lane).c_str(), offset, describe(result.init).c_str());
    });
  }
  if (remote && !result.fenced) {
    findings_.add("mbarrier", operation.site, [&] {
      return text("%s: no fence after the initialization of the mbarrier at byte %zu", describe(lane).c_str(), offset);
    });
  }
  return &result;
}

void Machine::mbarrier_init(Lane& lane, Operation const& operation) {
  if (!operation.flag) {  // mbarrier.inval
    if (!find_mbarrier(lane, operation, *lane.cta, operation.to, false)) return;
    lane.cta->mbarriers.erase(reinterpret_cast<uintptr_t>(operation.to) % shared_window);
    record_shared(lane, operation, operation.to, 8, true);
    return;
  }
  if (!check_shared(lane, operation, operation.to, 8)) return;
  record_shared(lane, operation, operation.to, 8, true);
  if (operation.number == 0) {
    findings_.add("mbarrier", operation.site, [&] { return describe(lane) + ": an mbarrier with an arrival count of 0"; });
  }
  Mbarrier barrier;
  barrier.init = access_of(lane, operation);
  barrier.count = barrier.pending = operation.number;
  barrier.agent = lane.cta->new_agent();
  lane.cta->mbarriers[reinterpret_cast<uintptr_t>(operation.to) % shared_window] = barrier;
}

void Machine::mbarrier_init_fence(Lane& lane) {
  for (auto& [offset, barrier] : lane.cta->mbarriers) barrier.fenced |= barrier.init.agent == lane.knowledge.thread;
  lane.fenced_mbarriers = true;
}

void Machine::mbarrier_arrive(Lane& lane, Operation const& operation) {
  Cta* const its = cta_of_rank(lane, operation, operation.threads ? operation.threads - 1 : lane.cluster_rank);
  if (!its) return;
  Cta& cta = *its;
  Mbarrier* const barrier = find_mbarrier(lane, operation, cta, operation.to, &cta != lane.cta);
  if (!barrier) return;
  if (&cta != lane.cta) cta.record_remote_access(access_of(lane, operation), operation.site);
  barrier->bytes += operation.bytes;
  if (!operation.flag) return;  // mbarrier.expect_tx
  if (operation.second) *static_cast<uint64_t*>(const_cast<void*>(operation.second)) = barrier->phase & 1;
  bool const remote = &cta != lane.cta;
  barrier->gathered.add(lane.knowledge, remote);  // between CTAs, the scope of a CTA only orders later writes
  if (remote && operation.in_cluster) barrier->gathered_in_cluster.add(lane.knowledge);
  ++lane.knowledge.epoch;
  count_arrival(lane, cta, *barrier, operation.site, operation.number ? operation.number : 1);
}

void Machine::count_arrival(Lane const& lane, Cta& cta, Mbarrier& barrier, Site site, uint32_t arrivals) {
  if (barrier.pending < arrivals) {
    findings_.add("mbarrier", site, [&] {
      return text("%s arrives, but the phase already has its %u arrivals", describe(lane).c_str(), barrier.count);
    });
    return;
  }
  barrier.pending -= arrivals;
  end_phase_if_complete(cta, barrier, site);
}

void Machine::end_phase_if_complete(Cta& cta, Mbarrier& barrier, Site site) {
  if (barrier.pending || barrier.bytes) return;
  for (AsyncStore const& store : async_stores_) {
    if (store.cta != &cta || &cta.mbarriers.at(store.barrier) != &barrier || store.phase != barrier.phase) continue;
    findings_.add("mbarrier", site, [&] {
      return text("CTA %u: a phase of the mbarrier at byte %zu ends while st.async are in flight: too few bytes are expected",
                  cta.number, store.barrier);
    });
  }
  for (BoxLoad const& load : box_loads_) {
    if (load.cta != &cta || &cta.mbarriers.at(load.barrier) != &barrier || load.phase != barrier.phase) continue;
    findings_.add("mbarrier", site, [&] {
      return text(
          "CTA %u: a phase of the mbarrier at byte %zu ends while TMA loads are in flight: too few bytes are expected",
          cta.number, load.barrier);
    });
  }
  ++barrier.phase;
  if (barrier.phase - barrier.awaited > 1) {  // a wait by parity cannot tell the two apart
    findings_.add("mbarrier", site, [&] {
      return text("CTA %u: two phases of an mbarrier end, and no thread waits for the first of them", cta.number);
    });
  }
  barrier.pending = barrier.count;
  barrier.gathered.add(barrier.done);
  barrier.gathered.set(cta.number, barrier.agent, barrier.phase);
  barrier.done = barrier.gathered.clock();
  if (barrier.stores_agent != no_agent) barrier.gathered_in_cluster.set(cta.number, barrier.stores_agent, barrier.phase);
  if (!barrier.gathered_in_cluster.empty()) {
    barrier.gathered_in_cluster.add(barrier.done_in_cluster);
    barrier.done_in_cluster = barrier.gathered_in_cluster.clock();
  }
  cta.cluster->wake();
}

// What a waiting lane waits at, if there is such a barrier.
Mbarrier const* Machine::awaited_mbarrier(Lane const& lane) const {
  auto const found = lane.cta->mbarriers.find(reinterpret_cast<uintptr_t>(lane.operation->to) % shared_window);
  return found == lane.cta->mbarriers.end() ? nullptr : &found->second;
}

void Machine::mbarrier_wait(Lane& lane, Operation const& operation) {
  Mbarrier* const barrier = find_mbarrier(lane, operation, *lane.cta, operation.to, false);
  if (!barrier) return;
  barrier->awaited = barrier->phase;
  if (!barrier->done) return;
  if (phase_end_.what() != barrier->done.get()) phase_end_ = ClockUpdate(barrier->done);
  phase_end_.apply(lane.knowledge);
  if (operation.in_cluster && barrier->done_in_cluster) ClockUpdate(barrier->done_in_cluster).apply(lane.knowledge);
}

// A thread that asks in a loop lets others run first.
void Machine::mbarrier_test(Lane& lane, Operation const& operation) {
  Mbarrier const* const barrier = find_mbarrier(lane, operation, *lane.cta, operation.to, false);
  bool const ended = barrier && (barrier->phase & 1) != operation.number;
  *static_cast<bool*>(const_cast<void*>(operation.second)) = ended || !barrier;
  if (ended) mbarrier_wait(lane, operation);
  uint32_t const warp = 1u << lane.thread / 32;
  lane.cta->polling = ended ? lane.cta->polling & ~warp : lane.cta->polling | warp;
}

}  // namespace hgemm::executor
