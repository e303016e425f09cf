// Warp instructions, one kind after another.
#pragma once

#include <executor/machine.hpp>
#include <executor/tensor_core.hpp>

namespace hgemm::executor {

void Machine::execute(Warp& warp, uint32_t lanes) {
  Operation const& first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Kind const kind = first.kind;
  if (kind == Kind::barrier_sync || kind == Kind::barrier_arrive) {
    arrive(warp, lanes);
    return;
  }
  SiteCost& cost = costs_.sites[costs_.index_of(first)];
  ++cost.requests;
  Addresses shared, global;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    int const index = __builtin_ctz(rest);
    Lane& lane = warp.lanes[index];
    Operation& operation = *lane.operation;
    switch (kind) {
      case Kind::load:
        (operation.space == Space::shared ? shared : global).add(index, operation.from);
        load(lane, operation, cost);
        break;
      case Kind::store:
        (operation.space == Space::shared ? shared : global).add(index, operation.to);
        store(lane, operation, cost);
        break;
      case Kind::fetch_add: fetch_add(lane, operation); break;
      case Kind::global_fence: fence(lane); break;
      case Kind::cp_async:
        shared.add(index, operation.to);
        if (operation.flag) global.add(index, operation.from);
        start_copy(lane, operation, cost);
        break;
      case Kind::cp_async_commit: ++lane.groups_committed; break;
      case Kind::cp_async_wait: wait_for_copies(lane, operation.number); break;
      case Kind::ldmatrix:
        if (index < int(operation.number) * 8) shared.add(index, operation.from);
        break;
      default: break;
    }
  }
  if (kind == Kind::warp_barrier) warp_barrier(warp);
  if (kind == Kind::ldmatrix) load_matrices(warp, cost);
  if (kind == Kind::mma) multiply(warp);
  if (kind == Kind::global_fence || kind == Kind::warp_barrier || kind == Kind::fetch_add) counters_.add(name_of(kind));
  if (shared.lanes) {
    cost.shared = true;
    count_wavefronts(shared, first.bytes, cost);
  }
  if (global.lanes) {
    cost.global = true;
    count_sectors(global, first.bytes, cost);
  }
  warp.parked &= ~lanes;
  resume(warp, lanes);
}

// ---- Loads and stores ---------------------------------------------------------------------------------------------

void Machine::load(Lane& lane, Operation& operation, SiteCost& cost) {
  memset(operation.to, HGEMM_POISON, operation.bytes);
  if (operation.space == Space::shared) {
    if (!may_access_shared(lane, operation, operation.from, operation.bytes)) return;
    note_shared(lane, operation, operation.from, operation.bytes, false, lane.knowledge.thread, lane.knowledge.epoch);
  } else {
    if (!may_access_global(lane, operation, operation.from, operation.bytes, false)) return;
    note_global_read(lane, operation);
  }
  memcpy(operation.to, operation.from, operation.bytes);
  cost.bytes += operation.bytes;
}

void Machine::store(Lane& lane, Operation& operation, SiteCost& cost) {
  if (operation.space == Space::shared) {
    if (!may_access_shared(lane, operation, operation.to, operation.bytes)) return;
    note_shared(lane, operation, operation.to, operation.bytes, true, lane.knowledge.thread, lane.knowledge.epoch);
  } else {
    if (!may_access_global(lane, operation, operation.to, operation.bytes, true)) return;
    note_global_write(lane, operation, operation.from);
  }
  memcpy(operation.to, operation.from, operation.bytes);
  cost.bytes += operation.bytes;
}

// ---- Atomic operations and fences ---------------------------------------------------------------------------------

// Before an atomic operation hands something over, a fence must have come: that of the thread itself covers what it knew then,
// those of other threads of the CTA what they had done, if this thread knows of them by a barrier.
void Machine::fetch_add(Lane& lane, Operation& operation) {
  uint32_t value;
  memcpy(&value, operation.from, 4);
  memset(const_cast<void*>(operation.from), HGEMM_POISON, 4);
  if (!may_access_global(lane, operation, operation.to, 4, true)) return;
  uintptr_t const at = reinterpret_cast<uintptr_t>(operation.to);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at)) continue;
    size_t const offset = region.offset(at);
    if (!region.has(HGEMM_INITIALISED)) {
      region.shadow.each_write(offset, 4, [&](Access const& write, size_t where) {
        if (!write.epoch) say_conflict(lane, operation, {Clash::uninitialised, {}, where}, region.is.name, false);
      });
    }
    Conflict const conflict = region.shadow.write(offset, 4, lane.knowledge, access_of(lane, operation), true);
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.is.name, true);
  }

  Held<Clock>& passed_on = atomics_[at];
  Joined joined;
  joined.add(passed_on);
  for (Lane const& other : lane.cta->lanes) {
    Knowledge const& fenced = other.fenced;
    if (fenced.epoch && lane.knowledge.known_of(fenced.cta, fenced.thread) >= fenced.epoch) joined.add(fenced);
  }
  passed_on = joined.clock();
  Joined seen;
  seen.add(lane.seen_atomic);
  seen.add(passed_on);
  lane.seen_atomic = seen.clock();

  uint32_t before;
  memcpy(&before, operation.to, 4);
  uint32_t const after = before + value;
  memcpy(operation.to, &after, 4);
  memcpy(const_cast<void*>(operation.from), &before, 4);
}

void Machine::fence(Lane& lane) {
  if (lane.seen_atomic) {
    Joined joined;
    joined.add(lane.knowledge);
    joined.add(lane.seen_atomic);
    lane.knowledge.learn(joined.clock());
    lane.seen_atomic = Held<Clock>();
  }
  lane.fenced = lane.knowledge;
  ++lane.knowledge.epoch;
}

// ---- Barriers -----------------------------------------------------------------------------------------------------

void Machine::warp_barrier(Warp& warp) {
  Joined joined;
  for (int i = 0; i < 32; ++i) joined.add(warp.lanes[i].knowledge);
  Held<Clock> const clock = joined.clock();
  for (int i = 0; i < 32; ++i) {
    warp.lanes[i].knowledge.learn(clock);
    ++warp.lanes[i].knowledge.epoch;
  }
}

// Lanes come to a barrier of their CTA, and stay there until all have come unless they only arrive.
void Machine::arrive(Warp& warp, uint32_t lanes) {
  Cta& cta = *warp.cta;
  Operation const first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Barrier& barrier = cta.barriers[first.number % 16];
  uint32_t const expected = first.threads ? first.threads : request_.threads;
  if (barrier.arrived && barrier.expected != expected) {
    findings_.add("divergence", first.site, [&] {
      return text("CTA %u barrier %u: %u threads are expected here and %u elsewhere", cta.number, first.number, expected, barrier.expected);
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
  Held<Clock> const clock = barrier.knowledge.clock();
  std::vector<uint32_t> lanes(cta.warps.size());
  for (Lane* lane : barrier.waiting) {
    lane->knowledge.learn(clock);
    lanes[size_t(lane->thread) / 32] |= 1u << (lane->thread % 32);
  }
  barrier = Barrier();
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i]) continue;
    cta.warps[i].at_barrier &= ~lanes[i];
    resume(cta.warps[i], lanes[i]);
  }
}

// ---- Fragments and tensor cores -----------------------------------------------------------------------------------

// Lane 8 i + r has the address of row r of matrix i; lane l receives words l % 4 of row l / 4, or what is there transposed.
void Machine::load_matrices(Warp& warp, SiteCost& cost) {
  int const matrices = int(warp.lanes[0].operation->number);
  uint16_t rows[32][8];
  for (int i = 0; i < matrices * 8; ++i) {
    Lane& lane = warp.lanes[i];
    Operation const& operation = *lane.operation;
    memset(rows[i], HGEMM_POISON, 16);
    if (!may_access_shared(lane, operation, operation.from, 16)) continue;
    note_shared(lane, operation, operation.from, 16, false, lane.knowledge.thread, lane.knowledge.epoch);
    memcpy(rows[i], operation.from, 16);
  }
  bool const transpose = warp.lanes[0].operation->flag;
  for (int l = 0; l < 32; ++l) {
    auto* const registers = static_cast<uint32_t*>(warp.lanes[l].operation->to);
    for (int i = 0; i < matrices; ++i) {
      int const row = i * 8 + l / 4, column = l % 4 * 2;
      uint32_t const low = transpose ? rows[i * 8 + column][l / 4] : rows[row][column];
      uint32_t const high = transpose ? rows[i * 8 + column + 1][l / 4] : rows[row][column + 1];
      registers[i] = low | high << 16;
    }
  }
  cost.bytes += uint64_t(matrices) * 128;
}

void Machine::multiply(Warp& warp) {
  Operation const& first = *warp.lanes[0].operation;
  uint32_t const* a[32];
  uint32_t const* b[32];
  void* d[32];
  for (int l = 0; l < 32; ++l) {
    Operation const& operation = *warp.lanes[l].operation;
    a[l] = static_cast<uint32_t const*>(operation.from);
    b[l] = static_cast<uint32_t const*>(operation.second);
    d[l] = operation.to;
  }
  multiply_16x8x16(a, b, d, first.in, first.sum, int(first.number));
  mma_counts_[first.number == 8]++;
}

}  // namespace hgemm::executor
