// Asynchronous copies: st.async, cp.async, TMA loads and stores, and the proxy fences that the TMA needs.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

// ---- st.async: completes at any moment before its mbarrier ends the phase ------------------------------------------

void Machine::store_async(Lane& lane, Operation const& operation, SiteCost& cost) {
  auto const& arguments = *static_cast<StoreAsyncArguments const*>(operation.second);
  Cta* const cta = cta_of_rank(lane, operation, operation.threads ? operation.threads - 1 : lane.cluster_rank);
  if (!cta || !check_shared(lane, operation, operation.to, operation.bytes)) return;
  if (arguments.rank != operation.threads) {
    findings_.add("mbarrier", operation.site,
                  [&] { return describe(lane) + ": st.async must write to the CTA that has its mbarrier"; });
    return;
  }
  Mbarrier* const barrier = find_mbarrier(lane, operation, *cta, arguments.barrier, cta != lane.cta);
  if (!barrier) return;
  if (barrier->stores_agent == no_agent) barrier->stores_agent = cta->new_agent();
  size_t const offset = reinterpret_cast<uintptr_t>(operation.to) % shared_window;
  Access const me = {barrier->phase + 1, cta->number, barrier->stores_agent, costs_.site_index(operation)};
  record_shared(lane, operation, *cta, operation.to, operation.bytes, true, me);
  cta->record_remote_access(me, operation.site);
  AsyncStore store = {cta->arena + offset, {}, operation.bytes, cta, reinterpret_cast<uintptr_t>(arguments.barrier) % shared_window,
                      barrier->phase, operation.site};
  memcpy(store.value, operation.from, operation.bytes);
  memset(store.to, HGEMM_POISON, operation.bytes);
  cost.bytes += operation.bytes;
  async_stores_.push_back(store);
  if (request_.timing == HGEMM_EARLY) complete_async_store(async_stores_.size() - 1);
}

void Machine::complete_async_store(size_t index) {
  AsyncStore const store = async_stores_[index];
  async_stores_[index] = async_stores_.back();
  async_stores_.pop_back();
  memcpy(store.to, store.value, store.bytes);
  Mbarrier& barrier = store.cta->mbarriers.at(store.barrier);
  barrier.bytes -= store.bytes;
  end_phase_if_complete(*store.cta, barrier, store.site);
}

// ---- cp.async: completes when it is waited for, when an mbarrier counts it, or at any moment before ----------------

void Machine::cp_async(Lane& lane, Operation& operation, SiteCost& cost) {
  auto* const to = static_cast<unsigned char*>(operation.to);
  uint32_t const copied = operation.bytes - operation.number;
  bool const readable = !operation.flag || check_copy_source(lane, operation, copied);
  if (!check_shared(lane, operation, operation.to, operation.bytes)) return;
  Access const me = {lane.copies_epoch, lane.cta->number, lane.cta->agent_of_copies(lane), costs_.site_index(operation)};
  record_shared(lane, operation, *lane.cta, to, operation.bytes, true, me);
  Copy copy = {to, nullptr, operation.bytes, operation.number, lane.groups_committed, me.epoch, 0, false, operation.site};
  if (operation.flag) {
    copy.fill = HGEMM_POISON;
    if (readable) {
      copy.from = operation.from;
      record_global_read(lane, operation, operation.from, copied);
    }
    cost.bytes += copied;
  }
  memset(to, HGEMM_POISON, operation.bytes);  // until the copy completes
  if (request_.timing == HGEMM_EARLY) complete_copy(copy);
  lane.copies.push_back(copy);
  lane.warp().copying |= 1u << lane.thread % 32;
}

// The source of a copy that fills the rest with zeros is aligned like a whole one, but only its first bytes are read.
bool Machine::check_copy_source(Lane const& lane, Operation const& operation, uint32_t copied) {
  if (copied == operation.bytes) return check_global(lane, operation, operation.from, copied, false);
  if (reinterpret_cast<uintptr_t>(operation.from) % operation.bytes) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: cp.async of %u bytes from address %p", describe(lane).c_str(), operation.bytes, operation.from);
    });
    return false;
  }
  auto const* const from = static_cast<unsigned char const*>(operation.from);
  for (uint32_t at = 0; at < copied; ++at) {
    if (!check_global(lane, operation, from + at, 1, false)) return false;
  }
  return true;
}

void Machine::complete_copy(Copy& copy) {
  if (copy.completed) return;
  copy.completed = true;
  if (copy.from) {
    memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
    memset(copy.to + (copy.bytes - copy.zeros), 0, copy.zeros);
  } else {
    memset(copy.to, copy.fill, copy.bytes);
  }
}

// With `uncommitted` (cp.async.wait_all), also waits for copies that were not committed.
void Machine::cp_async_wait(Lane& lane, uint32_t pending, bool uncommitted) {
  if (pending == 0 && uncommitted) {
    ++lane.groups_committed;
    lane.knowledge.copies_completed = lane.copies_epoch++;
  }
  if (lane.groups_committed <= pending) return;
  uint32_t const completed = lane.groups_committed - pending;  // groups
  size_t count = 0;
  while (count < lane.copies.size() && lane.copies[count].group < completed) complete_copy(lane.copies[count++]);
  if (count) lane.knowledge.copies_completed = std::max(lane.knowledge.copies_completed, lane.copies[count - 1].epoch);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + std::ptrdiff_t(count));
}

// ---- cp.async.mbarrier.arrive --------------------------------------------------------------------------------------

void Machine::mbarrier_arrive_after_copies(Lane& lane, Operation const& operation) {
  if (!find_mbarrier(lane, operation, *lane.cta, operation.to, false)) return;
  lane.cta->agent_of_copies(lane);
  copy_arrivals_.push_back(
      {&lane, reinterpret_cast<uintptr_t>(operation.to) % shared_window, lane.copies_epoch++, operation.site});
  if (request_.timing == HGEMM_EARLY) complete_arrival(copy_arrivals_.size() - 1);
}

// Threads that wait at the mbarrier learn that the copies are complete, and nothing else about the copying thread.
void Machine::complete_arrival(size_t index) {
  CopyArrival const arrival = copy_arrivals_[index];
  copy_arrivals_.erase(copy_arrivals_.begin() + std::ptrdiff_t(index));
  Lane& lane = *arrival.lane;
  size_t count = 0;
  while (count < lane.copies.size() && lane.copies[count].epoch <= arrival.epoch) complete_copy(lane.copies[count++]);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + std::ptrdiff_t(count));
  Mbarrier& barrier = lane.cta->mbarriers.at(arrival.barrier);
  barrier.gathered.set(lane.cta->number, lane.knowledge.copies, arrival.epoch);
  count_arrival(lane, *lane.cta, barrier, arrival.site);
}

// ---- Tensor maps ---------------------------------------------------------------------------------------------------

// Swizzles an address: xors `bits` bits from bit 7 on into the bits from bit 4 on. This permutes the 16-byte vectors of a row.
inline uintptr_t swizzle_address(uintptr_t address, uint32_t bits) {
  return address ^ (address >> 3 & (((uintptr_t(1) << bits) - 1) << 4));
}

inline uint32_t row_bytes(hgemm_tensor_map const& map) { return map.box[0] * map.element_bytes; }
// Bytes from one row of a box to the next in shared memory. A row that is shorter than the swizzle leaves the rest untouched.
// Source: an H200.
inline uint32_t row_pitch(hgemm_tensor_map const& map) { return map.swizzle ? 16u << map.swizzle : row_bytes(map); }
inline uint32_t box_rows(hgemm_tensor_map const& map) {
  uint32_t rows = 1;
  for (uint32_t i = 1; i < map.rank; ++i) rows *= map.box[i];
  return rows;
}

// Calls visit(offset, bytes) for each run of shared memory that a box at `offset` fills.
template <class Visit>
void each_run(hgemm_tensor_map const& map, size_t offset, Visit const& visit) {
  uint32_t const rows = box_rows(map), bytes = row_bytes(map), pitch = row_pitch(map);
  if (bytes == pitch) return visit(offset, bytes * rows);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t at = 0; at < bytes; at += 16) visit(swizzle_address(offset + row * pitch + at, map.swizzle), 16);
  }
}

// The part of a box row that is inside the tensor: `bytes` at `address`, after `skipped` bytes of the row.
struct RowPart {
  uintptr_t address = 0;
  uint32_t skipped = 0, bytes = 0;
};
inline RowPart row_part(hgemm_tensor_map const& map, int const (&at)[5], uint32_t row) {
  uint64_t offset = 0;
  for (uint32_t i = 1; i < map.rank; ++i) {
    int64_t const index = int64_t(at[i]) + row % map.box[i];
    if (index < 0 || index >= int64_t(map.extent[i])) return {};
    offset += uint64_t(index) * map.stride_bytes[i - 1];
    row /= map.box[i];
  }
  int64_t const first = std::max<int64_t>(at[0], 0);
  int64_t const last = std::min<int64_t>(int64_t(at[0]) + map.box[0], int64_t(map.extent[0]));
  if (first >= last) return {};
  offset += uint64_t(first) * map.element_bytes;
  return {map.base + offset, uint32_t(first - at[0]) * map.element_bytes, uint32_t(last - first) * map.element_bytes};
}

// The part of a box row that a store writes. The H200 writes whole 16-byte vectors, also at the end of a row of the tensor.
inline RowPart stored_part(hgemm_tensor_map const& map, int const (&at)[5], uint32_t row) {
  RowPart part = row_part(map, at, row);
  uint32_t const past = uint32_t(map.extent[0] * map.element_bytes % 16);
  bool const ends = int64_t(at[0]) + map.box[0] > int64_t(map.extent[0]);  // the box extends past the row of the tensor
  if (part.bytes && past && ends) part.bytes = std::min(part.bytes + 16 - past, row_bytes(map) - part.skipped);
  return part;
}

inline TmaArguments const& tma_arguments(Operation const& operation) {
  return *static_cast<TmaArguments const*>(operation.second);
}
inline hgemm_tensor_map const& map_of(Operation const& operation) {
  return *static_cast<hgemm_tensor_map const*>(tma_arguments(operation).map);
}

// Checks a tensor map and, if `shared` is not null, the position of a box in global and shared memory.
// Source: CUDA driver API, cuTensorMapEncodeTiled; CUDA C++ Programming Guide, "Tensor Memory Accelerator": 128 bytes.
bool Machine::check_box(Lane const& lane, Operation const& operation, hgemm_tensor_map const& map, void const* shared) {
  auto wrong = [&](std::string const& what) {
    findings_.add("tma", operation.site, [&] { return describe(lane) + ": " + what; });
    return false;
  };
  if (map.magic != HGEMM_TENSOR_MAP) return wrong("the tensor map was not initialized");
  if (map.rank < 1 || map.rank > 5 || map.swizzle > HGEMM_SWIZZLE_128) {
    return wrong("the rank or swizzle of the tensor map is not supported: ranks 1 to 5 and swizzles up to 128 bytes");
  }
  uint32_t const dimensions = tma_arguments(operation).dimensions;
  if (dimensions && dimensions != map.rank) {
    return wrong(text("the instruction has %u dimensions, and the tensor map %u", dimensions, map.rank));
  }
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (map.box[i] < 1 || map.box[i] > 256) {
      return wrong(text("the box extent %u of dimension %d must be 1 to 256", map.box[i], i));
    }
  }
  bool aligned = map.base % 16 == 0;
  for (uint32_t i = 1; i < map.rank; ++i) aligned &= map.stride_bytes[i - 1] % 16 == 0;
  if (!aligned) {
    return wrong("the base and strides of a tensor map must be multiples of 16 bytes");
  }
  uint32_t const bytes = row_bytes(map), pitch = row_pitch(map);
  if (bytes % 16 || bytes > pitch) {
    return wrong(text("box rows of %u bytes must be multiples of 16 bytes, and no longer than the swizzle, %u bytes", bytes, pitch));
  }
  if (!shared) return true;
  int64_t const first_byte = int64_t(tma_arguments(operation).at[0]) * map.element_bytes;
  if (first_byte % 16) {
    return wrong(text("a box begins %lld bytes into a row: it must be a multiple of 16 (an H200 reports an illegal instruction)",
                      static_cast<long long>(first_byte)));
  }
  if (reinterpret_cast<uintptr_t>(shared) % 128) {
    findings_.add("alignment", operation.site,
                  [&] { return describe(lane) + ": a box must begin at a multiple of 128 bytes of shared memory"; });
    return false;
  }
  uint32_t const total = pitch * box_rows(map);
  uintptr_t const base = reinterpret_cast<uintptr_t>(lane.cta->arena), at = reinterpret_cast<uintptr_t>(shared);
  if (at >= base && at + total <= base + request_.shared_bytes) return true;
  findings_.add("bounds", operation.site, [&] {
    return text("%s: a box of %u bytes at byte %td exceeds shared memory", describe(lane).c_str(), total,
                std::ptrdiff_t(at - base));
  });
  return false;
}

// ---- TMA loads -----------------------------------------------------------------------------------------------------

void Machine::tma_load(Lane& lane, Operation const& operation, SiteCost& cost) {
  TmaArguments const& arguments = tma_arguments(operation);
  if (!check_box(lane, operation, map_of(operation), operation.to)) return;
  check_previous_launches(lane, operation);
  bool const readable = check_box_source(lane, operation, cost);
  if (!arguments.ranks) {
    tma_load_to(*lane.cta, lane, operation, readable);
    return;
  }
  for (uint32_t rank = 0; rank < 16; ++rank) {
    if (!(arguments.ranks >> rank & 1)) continue;
    if (Cta* const cta = cta_of_rank(lane, operation, rank)) tma_load_to(*cta, lane, operation, readable);
  }
}

// Starts the load to one CTA. The mbarrier at the same offset of that CTA counts the bytes.
void Machine::tma_load_to(Cta& cta, Lane& lane, Operation const& operation, bool readable) {
  TmaArguments const& arguments = tma_arguments(operation);
  hgemm_tensor_map const& map = map_of(operation);
  Mbarrier* const barrier = find_mbarrier(lane, operation, cta, arguments.barrier, true);
  if (!barrier) return;
  size_t const offset = reinterpret_cast<uintptr_t>(operation.to) % shared_window;
  Access const me = {barrier->phase + 1, cta.number, barrier->agent, costs_.site_index(operation)};
  each_run(map, offset, [&](size_t at, uint32_t bytes) {
    record_async(lane, operation, cta, cta.arena + at, bytes, true, me);
    memset(cta.arena + at, HGEMM_POISON, bytes);
  });
  cta.record_remote_access(me, operation.site);
  box_loads_.push_back({map,
                        {arguments.at[0], arguments.at[1], arguments.at[2], arguments.at[3], arguments.at[4]},
                        cta.arena + offset,
                        &cta,
                        reinterpret_cast<uintptr_t>(arguments.barrier) % shared_window,
                        barrier->phase,
                        operation.site,
                        readable});
  if (request_.timing == HGEMM_EARLY) complete_load(box_loads_.size() - 1);
}

bool Machine::check_box_source(Lane const& lane, Operation const& operation, SiteCost& cost) {
  hgemm_tensor_map const& map = map_of(operation);
  uint32_t const ranks = tma_arguments(operation).ranks;
  uint64_t const receivers = ranks ? uint64_t(__builtin_popcount(ranks)) : 1;
  cost.global = true;
  for (uint32_t row = 0; row < box_rows(map); ++row) {
    RowPart const part = row_part(map, tma_arguments(operation).at, row);
    if (!part.bytes) continue;
    std::string const why = memory_.access_error(part.address, part.bytes, false);
    if (!why.empty()) {
      findings_.add("bounds", operation.site, [&] { return describe(lane) + ": " + why; });
      return false;
    }
    cost.bytes += part.bytes * receivers;
    cost.sectors += (part.address + part.bytes + 31) / 32 - part.address / 32;
    cost.ideal_sectors += (part.bytes + 31) / 32;
  }
  return true;
}

void Machine::complete_load(size_t index) {
  BoxLoad const load = box_loads_[index];
  box_loads_.erase(box_loads_.begin() + std::ptrdiff_t(index));
  uint32_t const bytes = row_bytes(load.map);
  for (uint32_t row = 0; row < box_rows(load.map); ++row) {
    unsigned char buffer[1024];
    RowPart const part = row_part(load.map, load.at, row);
    if (part.bytes < bytes) memset(buffer, 0, bytes);
    if (part.bytes) {
      memcpy(buffer + part.skipped, reinterpret_cast<void const*>(part.address), load.readable ? part.bytes : 0);
    }
    if (!load.readable) memset(buffer, HGEMM_POISON, bytes);
    for (uint32_t at = 0; at < bytes; at += 16) {
      uintptr_t const to = reinterpret_cast<uintptr_t>(load.to) + row * row_pitch(load.map) + at;
      memcpy(reinterpret_cast<void*>(swizzle_address(to, load.map.swizzle)), buffer + at, 16);
    }
  }
  Mbarrier& barrier = load.cta->mbarriers.at(load.barrier);
  barrier.bytes -= int64_t(bytes) * box_rows(load.map);
  end_phase_if_complete(*load.cta, barrier, load.site);
}

// ---- TMA stores ----------------------------------------------------------------------------------------------------

void Machine::tma_store(Lane& lane, Operation const& operation, SiteCost& cost) {
  hgemm_tensor_map const& map = map_of(operation);
  if (!check_box(lane, operation, map, operation.from)) return;
  if (row_bytes(map) != row_pitch(map)) {
    findings_.add("tma", operation.site, [&] {
      return text("%s: box rows of %u bytes must be as long as the swizzle, %u bytes, for a store", describe(lane).c_str(),
                  row_bytes(map), row_pitch(map));
    });
    return;
  }
  check_previous_launches(lane, operation);
  if (lane.stores_agent == no_agent) lane.stores_agent = lane.cta->new_agent();
  Access const me = {lane.stores_committed + 1, lane.cta->number, lane.stores_agent, costs_.site_index(operation)};
  record_async(lane, operation, *lane.cta, operation.from, row_bytes(map) * box_rows(map), false, me);
  int const(&at)[5] = tma_arguments(operation).at;
  cost.global = true;
  for (uint32_t row = 0; row < box_rows(map); ++row) {
    RowPart const part = stored_part(map, at, row);
    if (!part.bytes) continue;
    cost.bytes += part.bytes;
    cost.sectors += (part.address + part.bytes + 31) / 32 - part.address / 32;
    cost.ideal_sectors += (part.bytes + 31) / 32;
  }
  lane.warp().copying |= 1u << lane.thread % 32;
  lane.stores.push_back({map,
                         {at[0], at[1], at[2], at[3], at[4]},
                         static_cast<unsigned char const*>(operation.from),
                         lane.stores_committed,
                         false,
                         operation,
                         me});
  if (request_.timing == HGEMM_EARLY) complete_store(lane.stores.back(), lane);
}

void Machine::complete_store(BoxStore& store, Lane& lane) {
  if (store.completed) return;
  store.completed = true;
  uint32_t const bytes = row_bytes(store.map);
  for (uint32_t row = 0; row < box_rows(store.map); ++row) {
    unsigned char buffer[1024];
    for (uint32_t at = 0; at < bytes; at += 16) {
      uintptr_t const from = reinterpret_cast<uintptr_t>(store.from) + row * bytes + at;
      memcpy(buffer + at, reinterpret_cast<void const*>(swizzle_address(from, store.map.swizzle)), 16);
    }
    RowPart const part = stored_part(store.map, store.at, row);
    if (part.bytes) write_row(store, lane, part.address, buffer + part.skipped, part.bytes);
  }
}

void Machine::write_row(BoxStore const& store, Lane& lane, uintptr_t address, unsigned char* row, uint32_t bytes) {
  std::string const why = memory_.access_error(address, bytes, true);
  if (!why.empty()) {
    findings_.add("bounds", store.operation.site, [&] { return describe(lane) + ": " + why; });
    return;
  }
  record_global_write(lane, store.operation, reinterpret_cast<void*>(address), bytes, row, store.access);
  memcpy(reinterpret_cast<void*>(address), row, bytes);
}

void Machine::tma_store_wait(Lane& lane, uint32_t pending) {
  if (lane.stores_committed <= pending) return;
  uint32_t const read = lane.stores_committed - pending;  // groups
  size_t count = 0;
  while (count < lane.stores.size() && lane.stores[count].group < read) complete_store(lane.stores[count++], lane);
  lane.stores.erase(lane.stores.begin(), lane.stores.begin() + std::ptrdiff_t(count));
  if (lane.stores_agent == no_agent) return;
  ClockUnion joined;
  joined.add(lane.knowledge.clock);
  joined.set(lane.cta->number, lane.stores_agent, read);
  lane.knowledge.learn(joined.clock());
}

// ---- Proxy fences --------------------------------------------------------------------------------------------------

void Machine::proxy_fence(Lane& lane) {
  lane.proxy_fenced = lane.knowledge;
  lane.proxy_fences.push_back(lane.knowledge.epoch);
  ++lane.knowledge.epoch;
}

// Tells whether the async proxy, on behalf of `issuer`, is ordered after an access that the issuer knows of. Accesses of the
// async proxy itself are ordered. One of a thread is ordered if that thread fenced after it and the issuer knows of that fence, or
// if the issuer fenced after it knew of the access. A fence of a thread covers those of its cp.async that it has waited for.
bool Machine::ordered_for_async_proxy(Lane const& issuer, Access const& earlier) const {
  if (issuer.proxy_fenced.epoch && issuer.proxy_fenced.known_for_writes(earlier.cta, earlier.agent) >= earlier.epoch) return true;
  Cta const& cta = issuer.cta->cluster->cta(earlier.cta);
  Lane const* const copier = cta.copier(earlier.agent);
  if (earlier.agent >= request_.threads && !copier) return true;
  Lane const& thread = copier ? *copier : cta.lanes[earlier.agent];
  uint32_t const known = issuer.knowledge.known_for_writes(earlier.cta, thread.knowledge.thread);
  if (copier) {
    Knowledge const& fenced = thread.proxy_fenced;
    return fenced.epoch && fenced.epoch < known && fenced.copies_completed >= earlier.epoch;
  }
  auto const first = std::lower_bound(thread.proxy_fences.begin(), thread.proxy_fences.end(), earlier.epoch);
  return first != thread.proxy_fences.end() && *first < known;
}

}  // namespace hgemm::executor
