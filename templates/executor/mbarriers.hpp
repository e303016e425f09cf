// Barriers in shared memory (mbarrier): threads arrive, the TMA counts bytes, and a phase ends when all of both have come.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

// The barrier at the place of `barrier` in `cta`; nothing where none is, which is then told. `remote`: of another CTA, or as
// the TMA sees it.
Mbarrier* Machine::find(Lane const& lane, Operation const& operation, Cta& cta, void const* barrier, bool remote) {
  if (!may_access_shared(lane, operation, barrier, 8)) return nullptr;
  size_t const offset = reinterpret_cast<uintptr_t>(barrier) % shared_window;
  auto const found = cta.mbarriers.find(offset);
  if (found == cta.mbarriers.end()) {
    findings_.add("mbarrier", operation.site, [&] {
      return text("%s: nobody has initialised an mbarrier at byte %zu of CTA %u", whoami(lane).c_str(), offset, cta.number);
    });
    return nullptr;
  }
  Mbarrier& result = found->second;
  if (!lane.knowledge.knows(result.init)) {
    findings_.add("race", operation.site, [&] {
      return text("%s uses the mbarrier at byte %zu in no order with its initialisation by %s", whoami(lane).c_str(), offset,
                  who(result.init).c_str());
    });
  }
  if (remote && !result.fenced) {
    findings_.add("mbarrier", operation.site, [&] {
      return text("%s: the initialisation of the mbarrier at byte %zu was not fenced", whoami(lane).c_str(), offset);
    });
  }
  return &result;
}

void Machine::init(Lane& lane, Operation const& operation) {
  if (!may_access_shared(lane, operation, operation.to, 8)) return;
  note_shared(lane, operation, operation.to, 8, true);
  if (operation.number == 0) {
    findings_.add("mbarrier", operation.site, [&] { return whoami(lane) + ": a count of 0 arrivals"; });
  }
  Mbarrier barrier;
  barrier.init = access_of(lane, operation);
  barrier.count = barrier.pending = operation.number;
  barrier.agent = lane.cta->new_agent();
  lane.cta->mbarriers[reinterpret_cast<uintptr_t>(operation.to) % shared_window] = barrier;
}

void Machine::init_fence(Lane& lane) {
  for (auto& [offset, barrier] : lane.cta->mbarriers) barrier.fenced |= barrier.init.agent == lane.knowledge.thread;
}

void Machine::arrive(Lane& lane, Operation const& operation) {
  Cta* const its = neighbour(lane, operation, operation.threads ? operation.threads - 1 : lane.cluster_rank);
  if (!its) return;
  Cta& cta = *its;
  Mbarrier* const barrier = find(lane, operation, cta, operation.to, &cta != lane.cta);
  if (!barrier) return;
  if (&cta != lane.cta) cta.note_visit(access_of(lane, operation), operation.site);
  barrier->gathered.add(lane.knowledge);
  ++lane.knowledge.epoch;
  barrier->bytes += operation.bytes;
  take_arrival(lane, cta, *barrier, operation.site);
}

void Machine::take_arrival(Lane const& lane, Cta& cta, Mbarrier& barrier, Site site) {
  if (barrier.pending == 0) {
    findings_.add("mbarrier", site, [&] {
      return text("%s is one more than the %u that may arrive in a phase", whoami(lane).c_str(), barrier.count);
    });
    return;
  }
  --barrier.pending;
  end_phase_if_complete(cta, barrier, site);
}

void Machine::end_phase_if_complete(Cta& cta, Mbarrier& barrier, Site site) {
  if (barrier.pending || barrier.bytes) return;
  for (BoxLoad const& load : box_loads_) {
    if (load.cta != &cta || &cta.mbarriers.at(load.barrier) != &barrier || load.phase != barrier.phase) continue;
    findings_.add("mbarrier", site, [&] {
      return text(
          "CTA %u: a phase of the mbarrier at byte %zu ends while the TMA still writes: fewer bytes are expected than come",
          cta.number, load.barrier);
    });
  }
  ++barrier.phase;
  barrier.pending = barrier.count;
  barrier.gathered.add(barrier.done);
  barrier.gathered.set(cta.number, barrier.agent, barrier.phase);
  barrier.done = barrier.gathered.clock();
  cta.cluster->wake();
}

// What a parked lane waits at, if there is such a barrier.
Mbarrier const* Machine::awaited(Lane const& lane) const {
  auto const found = lane.cta->mbarriers.find(reinterpret_cast<uintptr_t>(lane.operation->to) % shared_window);
  return found == lane.cta->mbarriers.end() ? nullptr : &found->second;
}

void Machine::end_wait(Lane& lane, Operation const& operation) {
  Mbarrier const* const barrier = find(lane, operation, *lane.cta, operation.to, false);
  if (!barrier || !barrier->done) return;
  if (phase_end_.what() != barrier->done.get()) phase_end_ = Learning(barrier->done);
  phase_end_.teach(lane.knowledge);
}

}  // namespace hgemm::executor
