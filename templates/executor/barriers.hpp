// Barriers that threads meet at, of a warp, a CTA and a cluster; and the registers that warps hand one another.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

void Machine::warp_barrier(Warp& warp) {
  Joined joined;
  for (int i = 0; i < 32; ++i) joined.add(warp.lanes[i].knowledge);
  Held<Clock> const clock = joined.clock();
  for (int i = 0; i < 32; ++i) {
    warp.lanes[i].knowledge.learn(clock);
    ++warp.lanes[i].knowledge.epoch;
  }
}

// Which lane it is, is not for a kernel to know: the adversary chooses, once for the launch.
void Machine::elect_one(Warp& warp) {
  uint64_t const elected = request_.order == HGEMM_ANY_ORDER    ? request_.seed % 32
                           : request_.order == HGEMM_AHEAD_HIGH ? 31
                                                                : 0;
  for (uint64_t i = 0; i < 32; ++i) *static_cast<bool*>(warp.lanes[i].operation->to) = i == elected;
}

// ---- Barriers of a CTA --------------------------------------------------------------------------------------------

// Lanes come to a barrier, and stay there until all have come unless they only arrive.
void Machine::arrive(Warp& warp, uint32_t lanes) {
  Cta& cta = *warp.cta;
  Operation const first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Barrier& barrier = cta.barriers[first.number % 16];
  if (first.number >= 16) {
    findings_.add("bounds", first.site,
                  [&] { return text("CTA %u has no barrier %u: there are 16", cta.number, first.number); });
  }
  uint32_t const expected = first.threads ? first.threads : request_.threads;
  if (barrier.arrived && barrier.expected != expected) {
    findings_.add("divergence", first.site, [&] {
      return text("CTA %u barrier %u: %u threads are expected here and %u elsewhere", cta.number, first.number, expected,
                  barrier.expected);
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
  warp.parked &= ~lanes;
  if (waits) warp.at_barrier |= lanes;
  if (barrier.arrived >= expected) release(cta, barrier);
  if (!waits) resume(warp, lanes);
}

void Machine::release(Cta& cta, Barrier& barrier) {
  counters_.add(barrier.expected == request_.threads ? "cta_barrier" : "named_barrier");
  Learning learning(barrier.knowledge.clock());
  std::vector<uint32_t> lanes(cta.warps.size());
  for (Lane* lane : barrier.waiting) {
    learning.teach(lane->knowledge);
    lanes[size_t(lane->thread) / 32] |= 1u << (lane->thread % 32);
  }
  barrier = Barrier();
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i]) continue;
    cta.warps[i].at_barrier &= ~lanes[i];
    resume(cta.warps[i], lanes[i]);
  }
}

// ---- The barrier of a cluster -------------------------------------------------------------------------------------

void Machine::cluster_arrive(Warp& warp) {
  Cluster& cluster = *warp.cta->cluster;
  for (int i = 0; i < 32; ++i) {
    Lane& lane = warp.lanes[i];
    if (lane.cluster_phase) {
      findings_.add("cluster", lane.operation->site,
                    [&] { return whoami(lane) + " arrives at the cluster's barrier twice"; });
    }
    cluster.gathered.add(lane.knowledge);
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
  Learning learning(warp.cta->cluster->done);
  for (int i = 0; i < 32; ++i) {
    Lane& lane = warp.lanes[i];
    if (!lane.cluster_phase) {
      findings_.add("cluster", lane.operation->site,
                    [&] { return whoami(lane) + " waits at the cluster's barrier without arriving"; });
      continue;
    }
    learning.teach(lane.knowledge);
    lane.cluster_phase = 0;
  }
}

// ---- Registers ----------------------------------------------------------------------------------------------------

// Source: PTX ISA, setmaxnreg: 24 to 256 in steps of 8, out of the registers that the CTA was launched with.
void Machine::set_registers(Warp& warp, Operation const& operation) {
  bool const grows = operation.flag;
  uint32_t const now = operation.number;
  if (now % 8 || now < 24 || now > 256 || (grows ? now < warp.registers : now > warp.registers)) {
    findings_.add("setmaxnreg", operation.site, [&] {
      return text("CTA %u warp %d: %s from %u to %u registers a thread, which must be 24 to 256 and a multiple of 8",
                  warp.cta->number, warp.index, grows ? "an increase" : "a decrease", warp.registers, now);
    });
    return;
  }
  warp.cta->free_registers += 32 * (int64_t(warp.registers) - int64_t(now));
  warp.registers = now;
  warp.cta->wake();
}

}  // namespace hgemm::executor
