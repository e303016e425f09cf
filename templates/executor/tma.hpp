// The tensor memory accelerator: boxes of a tensor map to shared memory and back.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

// Swizzles exchange the 16-byte pieces of a row, by the address itself: BITS of it from bit 7 on are added to those from bit
// 4 on.
inline uintptr_t swizzled(uintptr_t address, uint32_t bits) {
  return address ^ (address >> 3 & (((uintptr_t(1) << bits) - 1) << 4));
}

inline uint32_t row_bytes(hgemm_tensor_map const& map) { return map.box[0] * map.element_bytes; }
inline uint32_t box_rows(hgemm_tensor_map const& map) { return map.box[1] * map.box[2]; }

// The part of a box's row that lies in the tensor: `bytes` at `address`, after `skipped` bytes of the row.
struct RowPart {
  uintptr_t address = 0;
  uint32_t skipped = 0, bytes = 0;
};
inline RowPart row_part(hgemm_tensor_map const& map, int const (&at)[3], uint32_t row) {
  int64_t const y = int64_t(at[1]) + row % map.box[1], z = int64_t(at[2]) + row / map.box[1];
  int64_t const first = std::max<int64_t>(at[0], 0);
  int64_t const last = std::min<int64_t>(int64_t(at[0]) + map.box[0], int64_t(map.extent[0]));
  if (y < 0 || y >= int64_t(map.extent[1]) || z < 0 || z >= int64_t(map.extent[2]) || first >= last) return {};
  uint64_t const offset =
      uint64_t(y) * map.stride_bytes[0] + uint64_t(z) * map.stride_bytes[1] + uint64_t(first) * map.element_bytes;
  return {map.base + offset, uint32_t(first - at[0]) * map.element_bytes, uint32_t(last - first) * map.element_bytes};
}

// The part of it that a store writes: on the H200 a row of the tensor that ends within 16 bytes is written to their end.
inline RowPart stored_part(hgemm_tensor_map const& map, int const (&at)[3], uint32_t row) {
  RowPart part = row_part(map, at, row);
  uint32_t const past = uint32_t(map.extent[0] * map.element_bytes % 16);
  bool const ends = int64_t(at[0]) + map.box[0] > int64_t(map.extent[0]);  // the tensor's row, not the box's
  if (part.bytes && past && ends) part.bytes = std::min(part.bytes + 16 - past, row_bytes(map) - part.skipped);
  return part;
}

inline TmaArguments const& tma_arguments(Operation const& operation) {
  return *static_cast<TmaArguments const*>(operation.second);
}
inline hgemm_tensor_map const& map_of(Operation const& operation) {
  return *static_cast<hgemm_tensor_map const*>(tma_arguments(operation).map);
}

// Whether a map is one, and a box of it may lie at `shared`.
// Source: CUDA driver API, cuTensorMapEncodeTiled; CUDA C++ Programming Guide, "Tensor Memory Accelerator": 128 bytes.
bool Machine::sound(Lane const& lane, Operation const& operation, hgemm_tensor_map const& map, void const* shared) {
  auto wrong = [&](std::string const& what) {
    findings_.add("tma", operation.site, [&] { return whoami(lane) + ": " + what; });
    return false;
  };
  if (map.magic != HGEMM_TENSOR_MAP) return wrong("this is no tensor map");
  if (map.rank != 3 || map.swizzle > HGEMM_SWIZZLE_128) {
    return wrong("a map of this rank or swizzle is not one of a kernel's");
  }
  for (int i = 0; i < 3; ++i) {
    if (map.box[i] < 1 || map.box[i] > 256) {
      return wrong(text("a box of %u along dimension %d is not one of 1 to 256", map.box[i], i));
    }
  }
  if (map.base % 16 || map.stride_bytes[0] % 16 || map.stride_bytes[1] % 16) {
    return wrong("base and strides must be multiples of 16 bytes");
  }
  uint32_t const bytes = row_bytes(map), span = 16u << map.swizzle;
  if (bytes % 16 || (map.swizzle && bytes != span)) {
    return wrong(text("rows of %u bytes of a box do not fill what a swizzle of %u bytes exchanges", bytes, span));
  }
  if (!shared) return true;
  int64_t const first_byte = int64_t(tma_arguments(operation).at[0]) * map.element_bytes;
  if (first_byte % 16) {
    return wrong(text("a box begins %lld bytes into a row: not at a multiple of 16, an H200 ends with an illegal instruction",
                      static_cast<long long>(first_byte)));
  }
  if (reinterpret_cast<uintptr_t>(shared) % 128) {
    findings_.add("alignment", operation.site,
                  [&] { return whoami(lane) + ": boxes lie at multiples of 128 bytes of shared memory"; });
    return false;
  }
  uint32_t const total = bytes * box_rows(map);
  uintptr_t const base = reinterpret_cast<uintptr_t>(lane.cta->arena), at = reinterpret_cast<uintptr_t>(shared);
  if (at >= base && at + total <= base + request_.shared_bytes) return true;
  findings_.add("bounds", operation.site, [&] {
    return text("%s: a box of %u bytes at byte %td leaves shared memory", whoami(lane).c_str(), total,
                std::ptrdiff_t(at - base));
  });
  return false;
}

// ---- Loads --------------------------------------------------------------------------------------------------------

void Machine::start_load(Lane& lane, Operation const& operation, SiteCost& cost) {
  TmaArguments const& arguments = tma_arguments(operation);
  if (!sound(lane, operation, map_of(operation), operation.to)) return;
  note_touch(lane, operation);
  bool const readable = may_read_box(lane, operation, cost);
  if (!arguments.ranks) {
    start_load(lane, operation, *lane.cta, readable);
    return;
  }
  for (uint32_t rank = 0; rank < 16; ++rank) {
    if (!(arguments.ranks >> rank & 1)) continue;
    if (Cta* const cta = neighbour(lane, operation, rank)) start_load(lane, operation, *cta, readable);
  }
}

// The box to one CTA, whose mbarrier at the same place counts it.
void Machine::start_load(Lane& lane, Operation const& operation, Cta& cta, bool readable) {
  TmaArguments const& arguments = tma_arguments(operation);
  hgemm_tensor_map const& map = map_of(operation);
  Mbarrier* const barrier = find(lane, operation, cta, arguments.barrier, true);
  if (!barrier) return;
  uint32_t const bytes = row_bytes(map) * box_rows(map);
  size_t const offset = reinterpret_cast<uintptr_t>(operation.to) % shared_window;
  Access const me = {barrier->phase + 1, cta.number, barrier->agent, costs_.index_of(operation)};
  note_shared(lane, operation, cta, operation.to, bytes, true, me);
  cta.note_visit(me, operation.site);
  memset(cta.arena + offset, HGEMM_POISON, bytes);
  box_loads_.push_back({map,
                        {arguments.at[0], arguments.at[1], arguments.at[2]},
                        cta.arena + offset,
                        &cta,
                        reinterpret_cast<uintptr_t>(arguments.barrier) % shared_window,
                        barrier->phase,
                        operation.site,
                        readable});
  if (request_.timing == HGEMM_EARLY) land(box_loads_.size() - 1);
}

bool Machine::may_read_box(Lane const& lane, Operation const& operation, SiteCost& cost) {
  hgemm_tensor_map const& map = map_of(operation);
  uint32_t const ranks = tma_arguments(operation).ranks;
  uint64_t const receivers = ranks ? uint64_t(__builtin_popcount(ranks)) : 1;
  cost.global = true;
  for (uint32_t row = 0; row < box_rows(map); ++row) {
    RowPart const part = row_part(map, tma_arguments(operation).at, row);
    if (!part.bytes) continue;
    std::string const why = memory_.trespass(part.address, part.bytes, false);
    if (!why.empty()) {
      findings_.add("bounds", operation.site, [&] { return whoami(lane) + ": " + why; });
      return false;
    }
    cost.bytes += part.bytes * receivers;
    cost.sectors += (part.address + part.bytes + 31) / 32 - part.address / 32;
    cost.ideal_sectors += (part.bytes + 31) / 32;
  }
  return true;
}

void Machine::land(size_t index) {
  BoxLoad const load = box_loads_[index];
  box_loads_.erase(box_loads_.begin() + std::ptrdiff_t(index));
  uint32_t const bytes = row_bytes(load.map);
  for (uint32_t row = 0; row < box_rows(load.map); ++row) {
    unsigned char buffer[1024] = {};
    RowPart const part = row_part(load.map, load.at, row);
    if (part.bytes) {
      memcpy(buffer + part.skipped, reinterpret_cast<void const*>(part.address), load.readable ? part.bytes : 0);
    }
    if (!load.readable) memset(buffer, HGEMM_POISON, bytes);
    for (uint32_t piece = 0; piece < bytes; piece += 16) {
      uintptr_t const to = reinterpret_cast<uintptr_t>(load.to) + row * bytes + piece;
      memcpy(reinterpret_cast<void*>(swizzled(to, load.map.swizzle)), buffer + piece, 16);
    }
  }
  Mbarrier& barrier = load.cta->mbarriers.at(load.barrier);
  barrier.bytes -= int64_t(bytes) * box_rows(load.map);
  end_phase_if_complete(*load.cta, barrier, load.site);
}

// ---- Stores -------------------------------------------------------------------------------------------------------

void Machine::start_store(Lane& lane, Operation const& operation, SiteCost& cost) {
  hgemm_tensor_map const& map = map_of(operation);
  if (!sound(lane, operation, map, operation.from)) return;
  note_touch(lane, operation);
  if (lane.stores_agent == no_agent) lane.stores_agent = lane.cta->new_agent();
  Access const me = {lane.stores_committed + 1, lane.cta->number, lane.stores_agent, costs_.index_of(operation)};
  note_async_read(lane, operation, operation.from, row_bytes(map) * box_rows(map), me);
  int const(&at)[3] = tma_arguments(operation).at;
  cost.global = true;
  for (uint32_t row = 0; row < box_rows(map); ++row) {
    RowPart const part = stored_part(map, at, row);
    if (!part.bytes) continue;
    cost.bytes += part.bytes;
    cost.sectors += (part.address + part.bytes + 31) / 32 - part.address / 32;
    cost.ideal_sectors += (part.bytes + 31) / 32;
  }
  lane.stores.push_back({map,
                         {at[0], at[1], at[2]},
                         static_cast<unsigned char const*>(operation.from),
                         lane.stores_committed,
                         false,
                         operation,
                         me});
  if (request_.timing == HGEMM_EARLY) land(lane.stores.back(), lane);
}

void Machine::land(BoxStore& store, Lane& lane) {
  if (store.landed) return;
  store.landed = true;
  uint32_t const bytes = row_bytes(store.map);
  for (uint32_t row = 0; row < box_rows(store.map); ++row) {
    unsigned char buffer[1024];
    for (uint32_t piece = 0; piece < bytes; piece += 16) {
      uintptr_t const from = reinterpret_cast<uintptr_t>(store.from) + row * bytes + piece;
      memcpy(buffer + piece, reinterpret_cast<void const*>(swizzled(from, store.map.swizzle)), 16);
    }
    RowPart const part = stored_part(store.map, store.at, row);
    if (part.bytes) write_row(store, lane, part.address, buffer + part.skipped, part.bytes);
  }
}

void Machine::write_row(BoxStore const& store, Lane& lane, uintptr_t address, unsigned char* row, uint32_t bytes) {
  std::string const why = memory_.trespass(address, bytes, true);
  if (!why.empty()) {
    findings_.add("bounds", store.operation.site, [&] { return whoami(lane) + ": " + why; });
    return;
  }
  note_global_write(lane, store.operation, reinterpret_cast<void*>(address), bytes, row, store.access);
  memcpy(reinterpret_cast<void*>(address), row, bytes);
}

void Machine::wait_for_stores(Lane& lane, uint32_t pending) {
  if (lane.stores_committed <= pending) return;
  uint32_t const read = lane.stores_committed - pending;  // groups
  size_t count = 0;
  while (count < lane.stores.size() && lane.stores[count].group < read) land(lane.stores[count++], lane);
  lane.stores.erase(lane.stores.begin(), lane.stores.begin() + std::ptrdiff_t(count));
  if (lane.stores_agent == no_agent) return;
  Joined joined;
  joined.add(lane.knowledge.clock);
  joined.set(lane.cta->number, lane.stores_agent, read);
  lane.knowledge.learn(joined.clock());
}

// ---- Proxies ------------------------------------------------------------------------------------------------------

void Machine::proxy_fence(Lane& lane) {
  lane.proxy_fenced_before = lane.proxy_fenced.epoch;
  lane.proxy_fenced = lane.knowledge;
  ++lane.knowledge.epoch;
}

// Whether a write may be read by the async proxy for `reader`. Those of the proxy itself may; of a thread's, the writer has
// fenced after it, and the reader knows of that; or the reader has fenced since it knew of the write. A thread's copies are over
// when it fences if it has waited for them.
bool Machine::passed_proxy(Lane const& reader, Access const& write) const {
  if (reader.proxy_fenced.epoch && reader.proxy_fenced.known_of(write.cta, write.agent) >= write.epoch) return true;
  Cta const& cta = reader.cta->cluster->cta(write.cta);
  Lane const* const copier = cta.copier(write.agent);
  if (write.agent >= request_.threads && !copier) return true;
  Lane const& writer = copier ? *copier : cta.lanes[write.agent];
  uint32_t const known = reader.knowledge.known_of(write.cta, writer.knowledge.thread);
  if (copier) {
    Knowledge const& fenced = writer.proxy_fenced;
    return fenced.epoch && fenced.epoch < known && fenced.copies_landed >= write.epoch;
  }
  for (uint32_t const fence : {writer.proxy_fenced.epoch, writer.proxy_fenced_before}) {
    if (fence >= write.epoch && fence < known) return true;
  }
  return false;
}

}  // namespace hgemm::executor
