// Execution of warp instructions: memory accesses, atomics and fences, and matrix instructions of one warp.
#pragma once

#include <executor/machine.hpp>
#include <executor/tensor_core.hpp>

namespace hgemm::executor {

void Machine::execute(Warp& warp, uint32_t lanes) {
  Operation const first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Kind const kind = first.kind;
  if (kind == Kind::barrier_sync || kind == Kind::barrier_arrive) {
    arrive_at_barrier(warp, lanes);
    return;
  }
  SiteCost& cost = costs_.sites[costs_.site_index(first)];
  ++cost.requests;
  if (is_collective(kind)) {
    execute_warp(warp, lanes, first, cost);
  } else {
    Addresses shared, global;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      int const index = __builtin_ctz(rest);
      Operation& operation = *warp.lanes[index].operation;
      if (kind == Kind::cp_async) {
        shared.add(index, operation.to);
        if (operation.flag) global.add(index, operation.from);
      } else if (kind == Kind::load || kind == Kind::store || kind == Kind::store_async) {
        (operation.space == Space::shared ? shared : global).add(index, kind == Kind::load ? operation.from : operation.to);
      }
      execute_lane(warp.lanes[index], operation, cost);
    }
    count_memory_cost(shared, global, first.bytes, cost);
  }
  warp.waiting &= ~lanes;
  resume(warp, lanes);
}

void Machine::execute_lane(Lane& lane, Operation& operation, SiteCost& cost) {
  switch (operation.kind) {
    case Kind::load: execute_load(lane, operation, cost); break;
    case Kind::store: execute_store(lane, operation, cost); break;
    case Kind::fetch_add: atomic(lane, operation); break;
    case Kind::global_fence: global_fence(lane); break;
    case Kind::cp_async: cp_async(lane, operation, cost); break;
    case Kind::cp_async_commit:
      ++lane.groups_committed;
      ++lane.copies_epoch;
      break;
    case Kind::cp_async_wait: cp_async_wait(lane, operation.number, operation.flag); break;
    case Kind::mbarrier_init: mbarrier_init(lane, operation); break;
    case Kind::mbarrier_init_fence: mbarrier_init_fence(lane); break;
    case Kind::mbarrier_arrive: mbarrier_arrive(lane, operation); break;
    case Kind::mbarrier_arrive_after_copies: mbarrier_arrive_after_copies(lane, operation); break;
    case Kind::mbarrier_wait: mbarrier_wait(lane, operation); break;
    case Kind::mbarrier_test: mbarrier_test(lane, operation); break;
    case Kind::store_async: store_async(lane, operation, cost); break;
    case Kind::tma_prefetch: check_box(lane, operation, map_of(operation), nullptr); break;
    case Kind::tma_load: tma_load(lane, operation, cost); break;
    case Kind::tma_store: tma_store(lane, operation, cost); break;
    case Kind::tma_store_commit: ++lane.stores_committed; break;
    case Kind::tma_store_wait_read: tma_store_wait(lane, operation.number); break;
    case Kind::async_proxy_fence: proxy_fence(lane); break;
    case Kind::next_launch_may_begin: overlaps_launches_ = true; break;
    case Kind::await_previous_launches: await_previous_launches(lane); break;
    default: break;
  }
}

void Machine::execute_warp(Warp& warp, uint32_t lanes, Operation const& first, SiteCost& cost) {
  switch (first.kind) {
    case Kind::warp_barrier:
    case Kind::elect_one:
    case Kind::shuffle:
    case Kind::vote: check_members(warp, lanes); break;
    default: break;
  }
  switch (first.kind) {
    case Kind::warp_barrier: warp_barrier(warp, lanes); break;
    case Kind::elect_one: elect_one(warp, lanes); break;
    case Kind::shuffle: shuffle(warp, lanes); break;
    case Kind::vote: vote(warp, lanes); break;
    case Kind::cluster_arrive: cluster_arrive(warp); break;
    case Kind::cluster_wait: cluster_wait(warp); break;
    case Kind::ldmatrix: ldmatrix(warp, int(first.number), cost); break;
    case Kind::stmatrix: stmatrix(warp, cost); break;
    case Kind::wmma_load: wmma_load(warp, cost); break;
    case Kind::mma: mma(warp); break;
    case Kind::wgmma_fence: wgmma_fence(warp); break;
    case Kind::wgmma: wgmma(warp, cost); break;
    case Kind::wgmma_commit:
      ++warp.wgmma_committed;
      warp.cta->wake();
      break;
    case Kind::wgmma_wait: wgmma_wait(warp, first.number); break;
    case Kind::setmaxnreg: set_registers(warp, first); break;
    default: break;
  }
}

void Machine::count_memory_cost(Addresses const& shared, Addresses const& global, uint32_t bytes, SiteCost& cost) {
  if (shared.lanes) {
    cost.shared = true;
    count_wavefronts(shared, bytes, cost);
  }
  if (global.lanes) {
    cost.global = true;
    count_sectors(global, bytes, cost);
  }
}

// ---- Loads and stores ----------------------------------------------------------------------------------------------

void Machine::execute_load(Lane& lane, Operation& operation, SiteCost& cost) {
  memset(operation.to, HGEMM_POISON, operation.bytes);
  void const* from = operation.from;
  if (operation.space == Space::shared) {
    Cta* const cta = operation.threads ? cta_of_rank(lane, operation, operation.threads - 1) : lane.cta;
    if (!cta || !check_shared(lane, operation, from, operation.bytes)) return;
    Access const me = access_of(lane, operation);
    record_shared(lane, operation, *cta, from, operation.bytes, false, me);
    if (cta != lane.cta) cta->record_remote_access(me, operation.site);
    from = cta->arena + reinterpret_cast<uintptr_t>(from) % shared_window;
  } else {
    if (!check_global(lane, operation, from, operation.bytes, false)) return;
    record_global_read(lane, operation, from, operation.bytes);
  }
  memcpy(operation.to, from, operation.bytes);
  cost.bytes += operation.bytes;
}

void Machine::execute_store(Lane& lane, Operation& operation, SiteCost& cost) {
  void* to = operation.to;
  if (operation.space == Space::shared) {
    Cta* const cta = operation.threads ? cta_of_rank(lane, operation, operation.threads - 1) : lane.cta;
    if (!cta || !check_shared(lane, operation, to, operation.bytes)) return;
    Access const me = access_of(lane, operation);
    record_shared(lane, operation, *cta, to, operation.bytes, true, me);
    if (cta != lane.cta) cta->record_remote_access(me, operation.site);
    to = cta->arena + reinterpret_cast<uintptr_t>(to) % shared_window;
    if (!atomics_.empty()) atomics_.erase(reinterpret_cast<uintptr_t>(to));  // a plain write releases nothing
  } else {
    if (!check_global(lane, operation, to, operation.bytes, true)) return;
    record_global_write(lane, operation, to, operation.bytes, operation.from, access_of(lane, operation));
  }
  memcpy(to, operation.from, operation.bytes);
  cost.bytes += operation.bytes;
}

// ---- Atomic operations and fences ----------------------------------------------------------------------------------

// An atomic releases only what was fenced before it: what this thread knew at its fence, and what other threads of the CTA knew
// at theirs if this thread knows of those fences by a barrier. A fence after it acquires what others released before.
void Machine::atomic(Lane& lane, Operation& operation) {
  auto& its = *static_cast<AtomicArguments*>(const_cast<void*>(operation.second));
  Access const me = access_of(lane, operation);
  void* at = operation.to;
  if (operation.space == Space::shared) {
    Cta* const cta = operation.threads ? cta_of_rank(lane, operation, operation.threads - 1) : lane.cta;
    if (!cta || !check_shared(lane, operation, at, operation.bytes)) return;
    size_t const offset = reinterpret_cast<uintptr_t>(at) % shared_window;
    Conflict const conflict = cta->shadow.write(offset, operation.bytes, lane.knowledge, me, true);
    if (conflict.clash != ConflictKind::none) report_conflict(lane, operation, conflict, "shared memory", its.writes);
    if (cta != lane.cta) cta->record_remote_access(me, operation.site);
    at = cta->arena + offset;
  } else {
    if (!check_global(lane, operation, at, operation.bytes, its.writes)) return;
    uintptr_t const address = reinterpret_cast<uintptr_t>(at);
    for (auto& region : memory_.regions) {
      if (!region.has(HGEMM_WRITABLE) || !region.holds(address)) continue;
      Conflict const conflict =
          region.shadow.write(region.offset(address), operation.bytes, lane.knowledge, me, true);
      if (conflict.clash != ConflictKind::none) report_conflict(lane, operation, conflict, region.name(), its.writes);
    }
  }

  Ref<Clock>& released = atomics_[reinterpret_cast<uintptr_t>(at)];
  if (its.writes) {
    ClockUnion joined;
    if (its.reads) joined.add(released);  // a store begins anew
    for (Lane const& other : lane.cta->lanes) {
      Knowledge const& fenced = other.fenced;
      if (fenced.epoch && lane.knowledge.known_of(fenced.cta, fenced.thread) >= fenced.epoch) joined.add(fenced);
    }
    released = joined.clock();
  }
  if (its.reads && released) {
    ClockUnion seen;
    seen.add(lane.seen_atomic);
    seen.add(released);
    lane.seen_atomic = seen.clock();
  }
  unsigned char before[8];
  memcpy(before, at, operation.bytes);
  its.apply(its, at);
  if (memcmp(before, at, operation.bytes) == 0) lane.cta->polling |= 1u << lane.thread / 32;
}

void Machine::global_fence(Lane& lane) {
  if (lane.seen_atomic) {
    ClockUnion joined;
    joined.add(lane.knowledge);
    joined.add(lane.seen_atomic);
    lane.knowledge.learn(joined.clock());
    lane.seen_atomic = Ref<Clock>();
  }
  lane.fenced = lane.knowledge;
  ++lane.knowledge.epoch;
}

// ---- Overlapping launches ------------------------------------------------------------------------------------------

void Machine::await_previous_launches(Lane& lane) {
  if (!previous_launches_.what()) {
    ClockUnion over;
    over.set(previous_launches, 0, 1);
    previous_launches_ = ClockUpdate(over.clock());
  }
  previous_launches_.apply(lane.knowledge);
}

// A launch that lets the next one begin early may itself have begun before the previous launches have ended.
void Machine::check_previous_launches(Lane const& lane, Operation const& operation) {
  if (!(overlaps_launches_ || request_.programmatic) || lane.knowledge.known_of(previous_launches, 0)) return;
  findings_.add("launch", operation.site, [&] {
    return describe(lane) + " accesses global memory before it has waited for the previous launches";
  });
}

// ---- Matrix instructions -------------------------------------------------------------------------------------------

// Lane 8 i + r has the address of row r of matrix i. Lane l receives word l % 4 of row l / 4, of the transposed matrix if
// asked.
void Machine::ldmatrix(Warp& warp, int matrices, SiteCost& cost) {
  uint16_t rows[32][8];
  Addresses addresses;
  for (int i = 0; i < matrices * 8; ++i) {
    Lane& lane = warp.lanes[i];
    Operation const& operation = *lane.operation;
    memset(rows[i], HGEMM_POISON, 16);
    if (!check_shared(lane, operation, operation.from, 16)) continue;
    addresses.add(i, operation.from);
    record_shared(lane, operation, operation.from, 16, false);
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
  count_memory_cost(addresses, {}, 16, cost);
}

// From sm_75 on, GPUs load a WMMA fragment as four matrices. The lanes' operations already have the addresses of their rows.
// Source: CUDA C++ Programming Guide, "Warp Matrix Functions": one 32-byte aligned address and one pitch, multiples of 16
// bytes.
void Machine::wmma_load(Warp& warp, SiteCost& cost) {
  Operation const& first = *warp.lanes[0].operation;
  for (int l = 1; l < 32; ++l) {
    Operation const& operation = *warp.lanes[l].operation;
    if (operation.second == first.second && operation.number == first.number) continue;
    findings_.add("wmma", operation.site, [&] {
      return describe(warp.lanes[l]) + " loads a fragment with another address or pitch than the first lane of its warp";
    });
    break;
  }
  if (reinterpret_cast<uintptr_t>(first.second) % 32 || first.number % 8) {
    findings_.add("wmma", first.site, [&] {
      return text("%s loads a fragment at byte %zu of shared memory with a pitch of %u elements: use multiples of 32 and 8",
                  describe(warp.lanes[0]).c_str(), size_t(reinterpret_cast<uintptr_t>(first.second) % shared_window),
                  first.number);
    });
  }
  ldmatrix(warp, 4, cost);
}

// The inverse of ldmatrix, with the same layout.
void Machine::stmatrix(Warp& warp, SiteCost& cost) {
  int const matrices = int(warp.lanes[0].operation->number);
  bool const transpose = warp.lanes[0].operation->flag;
  uint16_t rows[32][8];
  for (int l = 0; l < 32; ++l) {
    auto const* const registers = static_cast<uint32_t const*>(warp.lanes[l].operation->from);
    for (int i = 0; i < matrices; ++i) {
      for (int e = 0; e < 2; ++e) {
        int const along = l / 4, across = l % 4 * 2 + e;
        rows[i * 8 + (transpose ? across : along)][transpose ? along : across] = uint16_t(registers[i] >> 16 * e);
      }
    }
  }
  Addresses addresses;
  for (int i = 0; i < matrices * 8; ++i) {
    Lane& lane = warp.lanes[i];
    Operation const& operation = *lane.operation;
    if (!check_shared(lane, operation, operation.to, 16)) continue;
    addresses.add(i, operation.to);
    record_shared(lane, operation, operation.to, 16, true);
    memcpy(operation.to, rows[i], 16);
  }
  cost.bytes += uint64_t(matrices) * 128;
  count_memory_cost(addresses, {}, 16, cost);
}

void Machine::mma(Warp& warp) {
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
  if (first.in == Element::tf32) {
    multiply_16x8x8(a, b, d, arithmetic_);
    tf32_mma_count_++;
    return;
  }
  multiply_16x8x16(a, b, d, first.in, first.acc, int(first.number), arithmetic_);
  mma_counts_[first.number == 8] += first.number == 8 && first.flag ? 2 : 1;
}

}  // namespace hgemm::executor
