// Warp instructions, one kind after another.
#pragma once

#include <executor/machine.hpp>
#include <executor/tensor_core.hpp>

namespace hgemm::executor {

void Machine::execute(Warp& warp, uint32_t lanes) {
  Operation const first = *warp.lanes[__builtin_ctz(lanes)].operation;
  Kind const kind = first.kind;
  if (kind == Kind::barrier_sync || kind == Kind::barrier_arrive) {
    arrive(warp, lanes);
    return;
  }
  SiteCost& cost = costs_.sites[costs_.index_of(first)];
  ++cost.requests;
  if (is_collective(kind)) {
    execute_warp(warp, first, cost);
  } else {
    Addresses shared, global;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      int const index = __builtin_ctz(rest);
      Operation& operation = *warp.lanes[index].operation;
      if (kind == Kind::cp_async) {
        shared.add(index, operation.to);
        if (operation.flag) global.add(index, operation.from);
      } else if (kind == Kind::load || kind == Kind::store) {
        (operation.space == Space::shared ? shared : global).add(index, kind == Kind::load ? operation.from : operation.to);
      }
      execute_lane(warp.lanes[index], operation, cost);
    }
    count(shared, global, first.bytes, cost);
  }
  warp.parked &= ~lanes;
  resume(warp, lanes);
}

void Machine::execute_lane(Lane& lane, Operation& operation, SiteCost& cost) {
  switch (operation.kind) {
    case Kind::load: load(lane, operation, cost); break;
    case Kind::store: store(lane, operation, cost); break;
    case Kind::fetch_add: fetch_add(lane, operation); break;
    case Kind::global_fence: fence(lane); break;
    case Kind::cp_async: start_copy(lane, operation, cost); break;
    case Kind::cp_async_commit:
      ++lane.groups_committed;
      ++lane.copies_epoch;
      break;
    case Kind::cp_async_wait: wait_for_copies(lane, operation.number); break;
    case Kind::mbarrier_init: init(lane, operation); break;
    case Kind::mbarrier_init_fence: init_fence(lane); break;
    case Kind::mbarrier_arrive: arrive(lane, operation); break;
    case Kind::mbarrier_arrive_after_copies: arrive_after_copies(lane, operation); break;
    case Kind::mbarrier_wait: end_wait(lane, operation); break;
    case Kind::tma_prefetch: sound(lane, operation, map_of(operation), nullptr); break;
    case Kind::tma_load: start_load(lane, operation, cost); break;
    case Kind::tma_store: start_store(lane, operation, cost); break;
    case Kind::tma_store_commit: ++lane.stores_committed; break;
    case Kind::tma_store_wait_read: wait_for_stores(lane, operation.number); break;
    case Kind::async_proxy_fence: proxy_fence(lane); break;
    case Kind::next_launch_may_begin: overlaps_ = true; break;
    case Kind::await_previous_launches: await_previous_launches(lane); break;
    default: break;
  }
}

void Machine::execute_warp(Warp& warp, Operation const& first, SiteCost& cost) {
  switch (first.kind) {
    case Kind::warp_barrier: warp_barrier(warp); break;
    case Kind::elect_one: elect_one(warp); break;
    case Kind::cluster_arrive: cluster_arrive(warp); break;
    case Kind::cluster_wait: cluster_wait(warp); break;
    case Kind::ldmatrix: load_matrices(warp, int(first.number), cost); break;
    case Kind::stmatrix: store_matrices(warp, cost); break;
    case Kind::wmma_load: load_fragment(warp, cost); break;
    case Kind::mma: multiply(warp); break;
    case Kind::wgmma_fence: warp.wgmma_fenced = true; break;
    case Kind::wgmma: issue(warp, cost); break;
    case Kind::wgmma_commit:
      ++warp.wgmma_committed;
      warp.cta->wake();
      break;
    case Kind::wgmma_wait: end_wait(warp, first.number); break;
    case Kind::setmaxnreg: set_registers(warp, first); break;
    default: break;
  }
}

void Machine::count(Addresses const& shared, Addresses const& global, uint32_t bytes, SiteCost& cost) {
  if (shared.lanes) {
    cost.shared = true;
    count_wavefronts(shared, bytes, cost);
  }
  if (global.lanes) {
    cost.global = true;
    count_sectors(global, bytes, cost);
  }
}

// ---- Loads and stores ---------------------------------------------------------------------------------------------

void Machine::load(Lane& lane, Operation& operation, SiteCost& cost) {
  memset(operation.to, HGEMM_POISON, operation.bytes);
  void const* from = operation.from;
  if (operation.space == Space::shared) {
    Cta* const cta = operation.threads ? neighbour(lane, operation, operation.threads - 1) : lane.cta;
    if (!cta || !may_access_shared(lane, operation, from, operation.bytes)) return;
    Access const me = access_of(lane, operation);
    note_shared(lane, operation, *cta, from, operation.bytes, false, me);
    if (cta != lane.cta) cta->note_visit(me, operation.site);
    from = cta->arena + reinterpret_cast<uintptr_t>(from) % shared_window;
  } else {
    if (!may_access_global(lane, operation, from, operation.bytes, false)) return;
    note_global_read(lane, operation, from, operation.bytes);
  }
  memcpy(operation.to, from, operation.bytes);
  cost.bytes += operation.bytes;
}

void Machine::store(Lane& lane, Operation& operation, SiteCost& cost) {
  if (operation.space == Space::shared) {
    if (!may_access_shared(lane, operation, operation.to, operation.bytes)) return;
    note_shared(lane, operation, operation.to, operation.bytes, true);
  } else {
    if (!may_access_global(lane, operation, operation.to, operation.bytes, true)) return;
    note_global_write(lane, operation, operation.to, operation.bytes, operation.from, access_of(lane, operation));
  }
  memcpy(operation.to, operation.from, operation.bytes);
  cost.bytes += operation.bytes;
}

// ---- Atomic operations and fences ---------------------------------------------------------------------------------

// Before an atomic operation hands something over, a fence must have come: that of the thread itself covers what it knew
// then, those of other threads of the CTA what they had done, if this thread knows of them by a barrier.
void Machine::fetch_add(Lane& lane, Operation& operation) {
  uint32_t value;
  memcpy(&value, operation.from, 4);
  memset(const_cast<void*>(operation.from), HGEMM_POISON, 4);
  if (!may_access_global(lane, operation, operation.to, 4, true)) return;
  uintptr_t const at = reinterpret_cast<uintptr_t>(operation.to);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at)) continue;
    size_t const offset = region.offset(at);
    Conflict const conflict = region.shadow.write(offset, 4, lane.knowledge, access_of(lane, operation), true);
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.name(), true);
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

// ---- Launches that overlap ----------------------------------------------------------------------------------------

void Machine::await_previous_launches(Lane& lane) {
  if (!previous_launches_.what()) {
    Joined over;
    over.set(previous_launches, 0, 1);
    previous_launches_ = Learning(over.clock());
  }
  previous_launches_.teach(lane.knowledge);
}

// A launch that lets the next one begin before it ends may itself have begun before those before it ended.
void Machine::note_touch(Lane const& lane, Operation const& operation) {
  if (!overlaps_ || lane.knowledge.known_of(previous_launches, 0)) return;
  findings_.add("launch", operation.site, [&] {
    return whoami(lane) + " touches global memory without knowing that previous launches have ended";
  });
}

// ---- Fragments and tensor cores -----------------------------------------------------------------------------------

// Lane 8 i + r has the address of row r of matrix i; lane l receives words l % 4 of row l / 4, or what is there transposed.
void Machine::load_matrices(Warp& warp, int matrices, SiteCost& cost) {
  uint16_t rows[32][8];
  Addresses addresses;
  for (int i = 0; i < matrices * 8; ++i) {
    Lane& lane = warp.lanes[i];
    Operation const& operation = *lane.operation;
    memset(rows[i], HGEMM_POISON, 16);
    if (!may_access_shared(lane, operation, operation.from, 16)) continue;
    addresses.add(i, operation.from);
    note_shared(lane, operation, operation.from, 16, false);
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
  count(addresses, {}, 16, cost);
}

// GPUs from sm_75 on load a fragment of WMMA as four matrices, whose rows the lanes' operations already name.
// Source: CUDA C++ Programming Guide, "Warp Matrix Functions": one 32-byte aligned address and one pitch, multiples of 16 bytes.
void Machine::load_fragment(Warp& warp, SiteCost& cost) {
  Operation const& first = *warp.lanes[0].operation;
  for (int l = 1; l < 32; ++l) {
    Operation const& operation = *warp.lanes[l].operation;
    if (operation.second == first.second && operation.number == first.number) continue;
    findings_.add("wmma", operation.site, [&] {
      return whoami(warp.lanes[l]) + " loads a fragment from another address or of another pitch than its warp's first lane";
    });
    break;
  }
  if (reinterpret_cast<uintptr_t>(first.second) % 32 || first.number % 8) {
    findings_.add("wmma", first.site, [&] {
      return text("%s loads a fragment at byte %zu of shared memory with a pitch of %u elements: multiples of 32 and 8 are loaded",
                  whoami(warp.lanes[0]).c_str(), size_t(reinterpret_cast<uintptr_t>(first.second) % shared_window),
                  first.number);
    });
  }
  load_matrices(warp, 4, cost);
}

// The way back: the same places in registers and memory.
void Machine::store_matrices(Warp& warp, SiteCost& cost) {
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
    if (!may_access_shared(lane, operation, operation.to, 16)) continue;
    addresses.add(i, operation.to);
    note_shared(lane, operation, operation.to, 16, true);
    memcpy(operation.to, rows[i], 16);
  }
  cost.bytes += uint64_t(matrices) * 128;
  count(addresses, {}, 16, cost);
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
  if (first.in == Element::tf32) {
    multiply_16x8x8(a, b, d);
    tf32_mma_count_++;
    return;
  }
  multiply_16x8x16(a, b, d, first.in, first.sum, int(first.number));
  mma_counts_[first.number == 8] += first.number == 8 && first.flag ? 2 : 1;
}

}  // namespace hgemm::executor
