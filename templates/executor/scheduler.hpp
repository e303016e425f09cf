// The adversary: it chooses the next warp and the time of asynchronous work. Also the report of a deadlock.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

uint32_t Machine::random(uint32_t below) {  // xorshift64*
  random_state_ ^= random_state_ >> 12;
  random_state_ ^= random_state_ << 25;
  random_state_ ^= random_state_ >> 27;
  return uint32_t((random_state_ * 0x2545f4914f6cdd1dull) >> 33) % below;
}

void Machine::run() {
  uint64_t const limit = request_.step_limit ? request_.step_limit : 1000000000;
  start_clusters();
  while (!resident_.empty() && !stopped_) {
    if (request_.timing == HGEMM_ANY_TIME) complete_some();
    if (!step() && !complete_next() && !resume_polling()) {
      report_deadlock();
    } else if (++steps_ >= limit) {
      findings_.add("endless", {nullptr, 0},
                    [&] { return text("stopped after %llu steps", static_cast<unsigned long long>(steps_)); });
      return;
    }
  }
  if (stopped_) return;
  for (auto const& region : memory_.regions) {
    if (!region.has(HGEMM_WRITE_ONCE)) continue;
    uint64_t count = 0;
    std::string const first = memory_.unwritten_element(region, count);
    if (!count) continue;
    findings_.add("write_once", {nullptr, 0}, [&] {
      return text("%s and %llu more elements are never written", first.c_str(), static_cast<unsigned long long>(count - 1));
    });
  }
}

// Executes one warp instruction. Returns false if none is ready.
bool Machine::step() {
  uint32_t const per_cta = request_.threads / 32;
  size_t const ctas = resident_.size();
  if (request_.order == HGEMM_AHEAD_HIGH) {
    for (size_t i = ctas; i-- > 0;) {
      for (uint32_t rest = resident_[i]->runnable(); rest; rest &= ~(1u << (31 - __builtin_clz(rest)))) {
        if (step(*resident_[i], 31 - uint32_t(__builtin_clz(rest)))) return true;
      }
    }
    return false;
  }
  size_t start = 0;
  if (request_.order == HGEMM_ROUND_ROBIN) start = next_warp_ % (ctas * per_cta);
  if (request_.order == HGEMM_ANY_ORDER) start = random(uint32_t(ctas * per_cta));
  uint32_t const before = (1u << start % per_cta) - 1;  // warps of the first CTA, whose turn is last
  for (size_t i = 0; i <= ctas; ++i) {
    size_t const at = start / per_cta + i < ctas ? start / per_cta + i : start / per_cta + i - ctas;
    uint32_t const turn = i == 0 ? ~before : i == ctas ? before : ~0u;
    for (uint32_t rest = resident_[at]->runnable() & turn; rest; rest &= rest - 1) {
      uint32_t const warp = uint32_t(__builtin_ctz(rest));
      if (!step(*resident_[at], warp)) continue;
      next_warp_ = at * per_cta + warp + 1;
      return true;
    }
  }
  return false;
}

// Executes the next instruction of one warp. Returns false if it must wait.
bool Machine::step(Cta& cta, uint32_t index) {
  Warp& warp = cta.warps[index];
  uint32_t const lanes = choose_lanes(warp);
  if (!lanes) {
    cta.may_run &= ~(1u << index);
    return false;
  }
  execute(warp, lanes);
  if (cta.lanes_left == 0 && !cta.cluster->has_running_threads()) {
    finish(*cta.cluster);
    start_clusters();
  }
  return true;
}

// Lets warps that poll go on. Returns false if there are none.
bool Machine::resume_polling() {
  bool any = false;
  for (Cta* cta : resident_) {
    any |= cta->polling != 0;
    cta->polling = 0;
  }
  return any;
}

// Returns the lanes of the warp's next instruction. If lanes have diverged, those at the lowest code address run first, so that
// they reconverge as on a GPU.
uint32_t Machine::choose_lanes(Warp& warp) const {
  if (warp.waiting == ~0u && (warp.uniform || same_request(warp))) return ready(warp.lanes[0]) ? ~0u : 0;
  uint32_t best = 0;
  void const* best_at = nullptr;
  for (uint32_t rest = warp.waiting; rest;) {
    Lane const& first = warp.lanes[__builtin_ctz(rest)];
    Operation const& operation = *first.operation;
    uint32_t group = 0, ready_lanes = 0;
    for (uint32_t left = rest; left; left &= left - 1) {
      Lane const& lane = warp.lanes[__builtin_ctz(left)];
      Operation const& other = *lane.operation;
      if (other.kind != operation.kind || other.site.line != operation.site.line || other.site.file != operation.site.file) {
        continue;
      }
      if (has_members(operation.kind) && other.number != operation.number) continue;
      group |= left & -left;
      if (ready(lane)) ready_lanes |= left & -left;
    }
    rest &= ~group;
    bool const at_barrier = operation.kind == Kind::barrier_sync || operation.kind == Kind::barrier_arrive;
    uint32_t needed = at_barrier ? ~warp.exited : ~0u;
    if (has_members(operation.kind) && operation.number) needed = operation.number & ~warp.exited;
    if (is_collective(operation.kind) && (ready_lanes & needed) != needed) continue;
    if (ready_lanes && (!best || first.program_counter < best_at)) {
      best = ready_lanes;
      best_at = first.program_counter;
    }
  }
  return best;
}

bool Machine::ready(Lane const& lane) const {
  Operation const& operation = *lane.operation;
  Warp const& warp = lane.cta->warps[size_t(lane.thread) / 32];
  switch (operation.kind) {
    case Kind::mbarrier_wait: {
      Mbarrier const* const barrier = awaited_mbarrier(lane);
      return !barrier || (barrier->phase & 1) != operation.number;
    }
    case Kind::cluster_wait: return lane.cta->cluster->phase >= lane.cluster_phase;
    case Kind::setmaxnreg:
      return !operation.flag || operation.number <= warp.registers ||
             32 * int64_t(operation.number - warp.registers) <= lane.cta->free_registers;
    case Kind::wgmma_wait: {  // until all four warps have issued these groups
      size_t const first = size_t(lane.thread) / 128 * 4;
      bool all = true;
      for (size_t i = first; i < first + 4; ++i) {
        all &= i < lane.cta->warps.size() && lane.cta->warps[i].wgmma_committed + operation.number >= warp.wgmma_committed;
      }
      return all;
    }
    default: return true;
  }
}

// Completes some random asynchronous work.
void Machine::complete_some() {
  if (random(4)) return;
  Cta& cta = *resident_[random(uint32_t(resident_.size()))];
  Warp& warp = cta.warps[random(uint32_t(cta.warps.size()))];
  for (uint32_t rest = warp.copying; rest; rest &= rest - 1) {
    Lane& lane = warp.lanes[__builtin_ctz(rest)];
    for (Copy& copy : lane.copies) {
      if (random(2)) complete_copy(copy);
    }
    for (BoxStore& store : lane.stores) {
      if (random(2)) complete_store(store, lane);
    }
    if (lane.copies.empty() && lane.stores.empty()) warp.copying &= ~(rest & -rest);
  }
  while (!async_stores_.empty() && random(8)) complete_async_store(random(uint32_t(async_stores_.size())));
  if (!box_loads_.empty() && random(2)) complete_load(random(uint32_t(box_loads_.size())));
  while (!copy_arrivals_.empty() && random(4)) complete_arrival(random(uint32_t(copy_arrivals_.size())));
  compute_some_wgmma(cta.warpgroups[size_t(warp.index) / 4], cta);
}

// Completes one TMA load, st.async or arrival of copies. This is the last possible moment: nothing else can run.
bool Machine::complete_next() {
  if (box_loads_.empty() && !async_stores_.empty()) {
    complete_async_store(request_.order == HGEMM_ANY_ORDER ? random(uint32_t(async_stores_.size())) : 0);
    return true;
  }
  uint32_t const count = uint32_t(box_loads_.empty() ? copy_arrivals_.size() : box_loads_.size());
  if (!count) return false;
  size_t const next = request_.order == HGEMM_ANY_ORDER ? random(count) : request_.order == HGEMM_AHEAD_HIGH ? count - 1 : 0;
  if (box_loads_.empty()) {
    complete_arrival(next);
  } else {
    complete_load(next);
  }
  return true;
}

// ---- Deadlock ------------------------------------------------------------------------------------------------------

// Reports where each warp waits, and stops the run.
void Machine::report_deadlock() {
  stopped_ = true;
  std::string where;
  bool divergence = false;
  Site site = {nullptr, 0};
  for (Cta const* cta : resident_) {
    std::string previous;
    int from = 0;
    size_t const warps = cta->warps.size();
    for (size_t i = 0; i <= warps; ++i) {
      std::string const now = i < warps ? describe_warp(cta->warps[i]) : "";
      if (i > 0 && now != previous) {
        bool const one = size_t(from) + 1 == i;
        where += text("%sCTA %u %s %d", where.empty() ? "" : "; ", cta->number, one ? "warp" : "warps", from);
        where += (one ? "" : text(" to %zu", i - 1)) + ": " + previous;
        from = int(i);
      }
      previous = now;
    }
    for (Warp const& warp : cta->warps) {
      for (uint32_t rest = warp.waiting | warp.at_barrier; rest; rest &= rest - 1) {
        Operation const& operation = *warp.lanes[__builtin_ctz(rest)].operation;
        bool const parted = has_diverged(warp) && is_collective(operation.kind);
        if (!site.file || (parted && !divergence)) site = operation.site;
        divergence |= parted;
      }
    }
  }
  findings_.add(divergence ? "divergence" : "deadlock", site, [&] { return "nothing can run: " + where; });
}

std::string Machine::describe_wait(Warp const& warp, Lane const& lane) const {
  Operation const& operation = *lane.operation;
  if (warp.at_barrier >> (lane.thread % 32) & 1) {
    Barrier const& barrier = warp.cta->barriers[operation.number % 16];
    return text(" (barrier %u, %u of %u threads arrived)", operation.number, barrier.arrived, barrier.expected);
  }
  Mbarrier const* const barrier = operation.kind == Kind::mbarrier_wait ? awaited_mbarrier(lane) : nullptr;
  if (barrier) {
    return text(" (mbarrier at byte %zu, parity %u, phase %u: %u of %u arrivals and %lld bytes missing)",
                size_t(reinterpret_cast<uintptr_t>(operation.to) % shared_window), operation.number, barrier->phase,
                barrier->pending, barrier->count, static_cast<long long>(barrier->bytes));
  }
  if (operation.kind == Kind::setmaxnreg) {
    return text(" (%u registers per thread, has %u, the CTA has %lld free)", operation.number, warp.registers,
                static_cast<long long>(warp.cta->free_registers));
  }
  if (operation.kind == Kind::cluster_wait) {
    Cluster const& cluster = *warp.cta->cluster;
    return text(" (%u of %u threads arrived)", cluster.arrived, request_.threads * cluster_ctas_);
  }
  return "";
}

// Tells whether lanes of the warp wait for each other at different collectives, or for lanes that have ended.
bool Machine::has_diverged(Warp const& warp) const {
  if (warp.waiting == 0 || (warp.waiting == ~0u && same_operation(warp))) return false;
  for (uint32_t rest = warp.waiting; rest; rest &= rest - 1) {
    if (!is_collective(warp.lanes[__builtin_ctz(rest)].operation->kind)) return false;  // can still reach the collective
  }
  return true;
}

// Tells whether two lanes wait at the same operation, and are ready at the same time.
bool Machine::same_request(Operation const& first, Operation const& other) {
  if (other.site.line != first.site.line || other.kind != first.kind || other.site.file != first.site.file) return false;
  if (first.kind == Kind::cluster_wait || has_members(first.kind)) return false;
  return first.kind != Kind::mbarrier_wait || (other.to == first.to && other.number == first.number);
}

bool Machine::same_request(Warp const& warp) {
  for (int i = 1; i < 32; ++i) {
    if (!same_request(*warp.lanes[0].operation, *warp.lanes[i].operation)) return false;
  }
  return true;
}

// Tells whether all lanes of a warp wait at the same operation.
bool Machine::same_operation(Warp const& warp) const {
  Operation const& first = *warp.lanes[0].operation;
  for (int i = 1; i < 32; ++i) {
    Operation const& other = *warp.lanes[i].operation;
    if (other.kind != first.kind || other.site.line != first.site.line) return false;
  }
  return true;
}

// Returns, for example, "barrier_sync at gemm.cuh:12 (barrier 0, 96 of 128 threads arrived) / 4 lanes ended".
std::string Machine::describe_warp(Warp const& warp) const {
  std::vector<std::pair<std::string, int>> groups;
  for (int i = 0; i < 32; ++i) {
    Lane const& lane = warp.lanes[i];
    std::string here = "ended";
    if (!lane.exited) {
      Operation const& operation = *lane.operation;
      here =
          std::string(name_of(operation.kind)) + " at " + base_name(operation.site.file) + text(":%d", operation.site.line);
      here += describe_wait(warp, lane);
    }
    bool found = false;
    for (auto& group : groups) {
      if (group.first != here) continue;
      ++group.second;
      found = true;
    }
    if (!found) groups.push_back({here, 1});
  }
  std::string result;
  for (auto const& [here, lanes] : groups) {
    result += result.empty() ? "" : " / ";
    result += lanes == 32 ? here : text("%d lanes ", lanes) + here;
  }
  return result;
}

}  // namespace hgemm::executor
