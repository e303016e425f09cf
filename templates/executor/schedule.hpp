// The adversary: which warp goes on, when asynchronous work takes effect, and what is said when nothing can go on.
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
  admit();
  while (!living_.empty() && !stopped_) {
    if (request_.timing == HGEMM_ANY_TIME) land_some();
    if (!step() && !land_next()) {
      deadlock();
    } else if (++steps_ >= limit) {
      findings_.add("endless", {nullptr, 0},
                    [&] { return text("given up after %llu steps", static_cast<unsigned long long>(steps_)); });
      return;
    }
  }
  if (stopped_) return;
  for (auto const& region : memory_.regions) {
    if (!region.has(HGEMM_WRITE_ONCE)) continue;
    uint64_t count = 0;
    std::string const first = memory_.missing(region, count);
    if (!count) continue;
    findings_.add("write_once", {nullptr, 0}, [&] {
      return text("%s and %llu more elements are never written", first.c_str(), static_cast<unsigned long long>(count - 1));
    });
  }
}

// Carries out one warp instruction, the adversary's choice; false if none can be.
bool Machine::step() {
  size_t const per_cta = request_.threads / 32;
  size_t const warps = living_.size() * per_cta;
  size_t start = 0;
  if (request_.order == HGEMM_ROUND_ROBIN) start = next_warp_ % warps;
  if (request_.order == HGEMM_ANY_ORDER) start = random(uint32_t(warps));
  for (size_t i = 0; i < warps; ++i) {
    size_t at = start + i < warps ? start + i : start + i - warps;
    if (request_.order == HGEMM_AHEAD_HIGH) at = warps - 1 - i;
    Cta& cta = *living_[at / per_cta];
    Warp& warp = cta.warps[at % per_cta];
    if (!warp.may_run) continue;
    uint32_t const lanes = choose(warp);
    if (!lanes) {
      warp.may_run = false;
      continue;
    }
    next_warp_ = at + 1;
    execute(warp, lanes);
    if (cta.lanes_left == 0 && !cta.cluster->left()) {
      end(*cta.cluster);
      admit();
    }
    return true;
  }
  return false;
}

// The lanes of the warp's next instruction. Where lanes went different ways, those at the lowest address of the code go
// first: that lets the others meet them again, as a GPU does.
uint32_t Machine::choose(Warp& warp) const {
  uint32_t best = 0;
  void const* best_at = nullptr;
  for (uint32_t rest = warp.parked; rest;) {
    Lane const& first = warp.lanes[__builtin_ctz(rest)];
    Operation const& operation = *first.operation;
    uint32_t group = 0, able = 0;
    for (uint32_t left = rest; left; left &= left - 1) {
      Lane const& lane = warp.lanes[__builtin_ctz(left)];
      Operation const& other = *lane.operation;
      if (other.kind != operation.kind || other.site.line != operation.site.line || other.site.file != operation.site.file) {
        continue;
      }
      group |= left & -left;
      if (ready(lane)) able |= left & -left;
    }
    rest &= ~group;
    bool const at_barrier = operation.kind == Kind::barrier_sync || operation.kind == Kind::barrier_arrive;
    if (is_collective(operation.kind) && able != (at_barrier ? ~warp.exited : ~0u)) continue;
    if (able && (!best || first.program_counter < best_at)) {
      best = able;
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
      Mbarrier const* const barrier = awaited(lane);
      return !barrier || (barrier->phase & 1) != operation.number;
    }
    case Kind::cluster_wait: return lane.cta->cluster->phase >= lane.cluster_phase;
    case Kind::setmaxnreg:
      return !operation.flag || operation.number <= warp.registers ||
             32 * int64_t(operation.number - warp.registers) <= lane.cta->free_registers;
    case Kind::wgmma_wait: {  // until all four warps have issued what is waited for
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

// Lets some asynchronous work take effect, any of it in any order.
void Machine::land_some() {
  if (random(4)) return;
  Cta& cta = *living_[random(uint32_t(living_.size()))];
  Warp& warp = cta.warps[random(uint32_t(cta.warps.size()))];
  for (int i = 0; i < 32; ++i) {
    Lane& lane = warp.lanes[i];
    for (Copy& copy : lane.copies) {
      if (random(2)) land(copy);
    }
    for (BoxStore& store : lane.stores) {
      if (random(2)) land(store, lane);
    }
  }
  if (!box_loads_.empty() && random(2)) land(random(uint32_t(box_loads_.size())));
  while (!copy_arrivals_.empty() && random(4)) complete(random(uint32_t(copy_arrivals_.size())));
  compute_some(cta.warpgroups[size_t(warp.index) / 4], cta);
}

// The last moment for boxes to land, and for arrivals of copies, is when nothing else can happen.
bool Machine::land_next() {
  uint32_t const count = uint32_t(box_loads_.empty() ? copy_arrivals_.size() : box_loads_.size());
  if (!count) return false;
  size_t const next = request_.order == HGEMM_ANY_ORDER ? random(count) : request_.order == HGEMM_AHEAD_HIGH ? count - 1 : 0;
  if (box_loads_.empty()) {
    complete(next);
  } else {
    land(next);
  }
  return true;
}

// ---- Deadlock -----------------------------------------------------------------------------------------------------

// Reports where each warp stands, and ends the run.
void Machine::deadlock() {
  stopped_ = true;
  std::string where;
  bool divergence = false;
  Site site = {nullptr, 0};
  for (Cta const* cta : living_) {
    std::string previous;
    int from = 0;
    size_t const warps = cta->warps.size();
    for (size_t i = 0; i <= warps; ++i) {
      std::string const now = i < warps ? standing(cta->warps[i]) : "";
      if (i > 0 && now != previous) {
        bool const one = size_t(from) + 1 == i;
        where += text("%sCTA %u %s %d", where.empty() ? "" : "; ", cta->number, one ? "warp" : "warps", from);
        where += (one ? "" : text(" to %zu", i - 1)) + ": " + previous;
        from = int(i);
      }
      previous = now;
    }
    for (Warp const& warp : cta->warps) {
      for (uint32_t rest = warp.parked | warp.at_barrier; rest; rest &= rest - 1) {
        Operation const& operation = *warp.lanes[__builtin_ctz(rest)].operation;
        bool const parted = has_parted(warp) && is_collective(operation.kind);
        if (!site.file || (parted && !divergence)) site = operation.site;
        divergence |= parted;
      }
    }
  }
  findings_.add(divergence ? "divergence" : "deadlock", site, [&] { return "nothing can run: " + where; });
}

std::string Machine::waits_for(Warp const& warp, Lane const& lane) const {
  Operation const& operation = *lane.operation;
  if (warp.at_barrier >> (lane.thread % 32) & 1) {
    Barrier const& barrier = warp.cta->barriers[operation.number % 16];
    return text(" (barrier %u, %u of %u threads there)", operation.number, barrier.arrived, barrier.expected);
  }
  Mbarrier const* const barrier = operation.kind == Kind::mbarrier_wait ? awaited(lane) : nullptr;
  if (barrier) {
    return text(" (mbarrier at byte %zu, parity %u, phase %u: %u of %u arrivals and %lld bytes missing)",
                size_t(reinterpret_cast<uintptr_t>(operation.to) % shared_window), operation.number, barrier->phase,
                barrier->pending, barrier->count, static_cast<long long>(barrier->bytes));
  }
  if (operation.kind == Kind::setmaxnreg) {
    return text(" (%u registers a thread, has %u, the CTA has %lld to give)", operation.number, warp.registers,
                static_cast<long long>(warp.cta->free_registers));
  }
  if (operation.kind == Kind::cluster_wait) {
    Cluster const& cluster = *warp.cta->cluster;
    return text(" (%u of %u threads there)", cluster.arrived, request_.threads * cluster_ctas_);
  }
  return "";
}

// Whether lanes wait for others of their warp which have ended or wait for them in turn.
bool Machine::has_parted(Warp const& warp) const {
  if (warp.parked == 0 || (warp.parked == ~0u && together(warp))) return false;
  for (uint32_t rest = warp.parked; rest; rest &= rest - 1) {
    if (!is_collective(warp.lanes[__builtin_ctz(rest)].operation->kind)) return false;  // it may yet come
  }
  return true;
}

// Whether all lanes of a warp wait for the same.
bool Machine::together(Warp const& warp) const {
  Operation const& first = *warp.lanes[0].operation;
  for (int i = 1; i < 32; ++i) {
    Operation const& other = *warp.lanes[i].operation;
    if (other.kind != first.kind || other.site.line != first.site.line) return false;
  }
  return true;
}

// "barrier_sync at gemm.cuh:12 (barrier 0, 96 of 128 threads there) / 4 lanes ended"
std::string Machine::standing(Warp const& warp) const {
  std::vector<std::pair<std::string, int>> groups;
  for (int i = 0; i < 32; ++i) {
    Lane const& lane = warp.lanes[i];
    std::string here = "ended";
    if (!lane.exited) {
      Operation const& operation = *lane.operation;
      here =
          std::string(name_of(operation.kind)) + " at " + base_name(operation.site.file) + text(":%d", operation.site.line);
      here += waits_for(warp, lane);
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
