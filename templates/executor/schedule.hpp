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
    if (!step()) {
      deadlock();
    } else if (++steps_ >= limit) {
      findings_.add("endless", {nullptr, 0}, [&] { return text("given up after %llu steps", static_cast<unsigned long long>(steps_)); });
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
    if (cta.lanes_left == 0) {
      end(cta);
      admit();
    }
    return true;
  }
  return false;
}

// The lanes of the warp's next instruction. Where lanes went different ways, those at the lowest address of the code go first:
// that lets the others meet them again, as a GPU does.
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
      if (other.kind != operation.kind || other.site.line != operation.site.line || other.site.file != operation.site.file) continue;
      group |= left & -left;
      if (ready(lane)) able |= left & -left;
    }
    rest &= ~group;
    if (is_collective(operation.kind) && able != ~0u) continue;
    if (able && (!best || first.program_counter < best_at)) {
      best = able;
      best_at = first.program_counter;
    }
  }
  return best;
}

bool Machine::ready(Lane const&) const { return true; }

// Lets some asynchronous work take effect, any of it in any order.
void Machine::land_some() {
  if (random(4)) return;
  Cta& cta = *living_[random(uint32_t(living_.size()))];
  Warp& warp = cta.warps[random(uint32_t(cta.warps.size()))];
  for (int lane = 0; lane < 32; ++lane) {
    for (Copy& copy : warp.lanes[lane].copies) {
      if (random(2)) land(copy);
    }
  }
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
      for (uint32_t rest = warp.parked; rest; rest &= rest - 1) {
        Operation const& operation = *warp.lanes[__builtin_ctz(rest)].operation;
        if (!site.file || is_collective(operation.kind)) site = operation.site;
        divergence |= is_collective(operation.kind);
      }
      for (uint32_t rest = warp.at_barrier; rest && !site.file; rest &= rest - 1) site = warp.lanes[__builtin_ctz(rest)].operation->site;
    }
  }
  findings_.add(divergence ? "divergence" : "deadlock", site, [&] { return "nothing can run: " + where; });
}

// "barrier_sync at gemm.cuh:12 (barrier 0, 96 of 128 threads there) / 4 lanes ended"
std::string Machine::standing(Warp const& warp) const {
  std::vector<std::pair<std::string, int>> groups;
  for (int i = 0; i < 32; ++i) {
    Lane const& lane = warp.lanes[i];
    std::string here = "ended";
    if (!lane.exited) {
      Operation const& operation = *lane.operation;
      here = std::string(name_of(operation.kind)) + " at " + base_name(operation.site.file) + text(":%d", operation.site.line);
      if (warp.at_barrier >> i & 1) {
        Barrier const& barrier = warp.cta->barriers[operation.number];
        here += text(" (barrier %u, %u of %u threads there)", operation.number, barrier.arrived, barrier.expected);
      }
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
