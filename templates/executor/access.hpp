// Checks of memory accesses: bounds, alignment, races, proxy fences, and writes of D.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

std::string Machine::describe(Lane const& lane) const {
  return text("CTA (%u,%u,%u) thread %d", lane.cta->index[0], lane.cta->index[1], lane.cta->index[2], lane.thread);
}

// "thread 3 of CTA (0,0,0) at operand.cuh:12"
std::string Machine::describe(Access const& access) const {
  std::string agent = access.agent < request_.threads ? text("thread %u", access.agent) : "an asynchronous operation";
  for (Cta const& cta : ctas_) {
    if (cta.number != access.cta || access.agent < request_.threads) continue;
    for (Lane const& lane : cta.lanes) {
      if (lane.knowledge.copies == access.agent) {
        agent = text("a pending cp.async of thread %d", lane.thread);
      }
      if (lane.stores_agent == access.agent) agent = text("a pending TMA store of thread %d", lane.thread);
    }
    for (auto const& [offset, barrier] : cta.mbarriers) {
      if (barrier.stores_agent == access.agent) agent = text("a st.async that the mbarrier at byte %zu counts", offset);
      if (barrier.agent == access.agent) agent = text("a pending TMA load of the mbarrier at byte %zu", offset);
    }
    for (Warpgroup const& group : cta.warpgroups) {
      if (group.agent == access.agent) {
        agent = text("a pending wgmma of warpgroup %d", int(&group - cta.warpgroups.data()));
      }
    }
  }
  SiteCost const& cost = costs_.sites[access.site];
  uint32_t const x = access.cta % grid[0], y = access.cta / grid[0] % grid[1], z = access.cta / grid[0] / grid[1];
  return agent + text(" of CTA (%u,%u,%u) at %s:%d", x, y, z, base_name(cost.site.file).c_str(), cost.site.line);
}

Access Machine::access_of(Lane const& lane, Operation const& operation) {
  return {lane.knowledge.epoch, lane.knowledge.cta, lane.knowledge.thread, costs_.site_index(operation)};
}

bool Machine::check_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(lane.cta->arena);
  uint32_t const align = bytes & -bytes;
  if (at < base || at + bytes > base + request_.shared_bytes) {
    findings_.add("bounds", operation.site, [&] {
      if (at - base >= shared_window) {
        return text("%s: %u bytes at an address outside shared memory", describe(lane).c_str(), bytes);
      }
      return text("%s: %u bytes at offset %zu of shared memory, which has %u", describe(lane).c_str(), bytes, size_t(at - base),
                  request_.shared_bytes);
    });
    return false;
  }
  if (at % align) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at offset %zu of shared memory", describe(lane).c_str(), bytes, size_t(at - base));
    });
    return false;
  }
  return true;
}

bool Machine::check_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes,
                                bool write) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  check_previous_launches(lane, operation);
  std::string const why = memory_.access_error(at, bytes, write);
  if (!why.empty()) {
    findings_.add("bounds", operation.site, [&] { return describe(lane) + ": " + why; });
    return false;
  }
  if (at % bytes) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at address %p, which is a multiple of only %u", describe(lane).c_str(), bytes, address,
                  uint32_t(at & -at));
    });
    return false;
  }
  return true;
}

void Machine::report_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory,
                           bool write) {
  char const* const verb = write ? "writes" : "reads";
  if (conflict.clash == ConflictKind::uninitialised) {
    findings_.add("uninitialised", operation.site, [&] {
      return text("%s reads %s at byte %zu, which was never written", describe(lane).c_str(), memory, conflict.offset);
    });
    return;
  }
  findings_.add("race", operation.site, [&] {
    return text("%s %s %s at byte %zu without synchronization after the %s by %s", describe(lane).c_str(), verb, memory,
                conflict.offset,                 conflict.clash == ConflictKind::write ? "write" : "read", describe(conflict.with).c_str());
  });
}

void Machine::record_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write) {
  record_shared(lane, operation, *lane.cta, address, bytes, write, access_of(lane, operation));
}

// Records that `me` accesses the shared memory of `cta` at the offset of `address`. `lane` has issued the access.
void Machine::record_shared(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                          Access const& me) {
  size_t const offset = reinterpret_cast<uintptr_t>(address) % shared_window;
  Conflict const conflict = write ? cta.shadow.write(offset, bytes, lane.knowledge, me)
                                  : cta.shadow.read(offset, bytes, lane.knowledge, me);
  if (conflict.clash != ConflictKind::none) report_conflict(lane, operation, conflict, "shared memory", write);
}

// Returns the CTA of a rank in the lane's cluster, or null if there is none.
Cta* Machine::cta_of_rank(Lane const& lane, Operation const& operation, uint32_t rank) {
  auto const& ctas = lane.cta->cluster->ctas;
  if (rank >= ctas.size()) {
    findings_.add("cluster", operation.site,
                  [&] { return text("%s: the cluster has no CTA %u", describe(lane).c_str(), rank); });
    return nullptr;
  }
  if (ctas[rank] != lane.cta && !ctas[rank]->lanes_left) {
    findings_.add("cluster", operation.site, [&] {
      return text("%s accesses shared memory of CTA %u, which has ended", describe(lane).c_str(), ctas[rank]->number);
    });
  }
  return ctas[rank];
}

// Records that the async proxy accesses the shared memory of `cta` at the offset of `address`. Its reads and writes are ordered
// after writes of threads and of cp.async only by a proxy fence, and so are its writes after reads of threads. Returns whether
// the access is ordered.
bool Machine::record_async(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                           Access const& me) {
  size_t const offset = reinterpret_cast<uintptr_t>(address) % shared_window;
  Access unfenced;
  size_t unfenced_at = 0;
  auto const visit = [&](Access const& earlier, size_t at) {
    if (earlier.epoch == 0 || unfenced.epoch || ordered_for_async_proxy(lane, earlier)) return;
    unfenced = earlier;
    unfenced_at = at;
  };
  Conflict const conflict = write ? cta.shadow.write(offset, bytes, lane.knowledge, me, false, visit)
                                  : cta.shadow.read(offset, bytes, lane.knowledge, me, visit);
  if (conflict.clash != ConflictKind::none) {
    report_conflict(lane, operation, conflict, "shared memory", write);
  } else if (unfenced.epoch) {
    findings_.add("proxy", operation.site, [&] {
      return text("%s lets the async proxy %s shared memory at byte %zu without a proxy fence after the access by %s",
                  describe(lane).c_str(), write ? "write" : "read", unfenced_at, describe(unfenced).c_str());
    });
  }
  return conflict.clash == ConflictKind::none && !unfenced.epoch;
}

void Machine::record_global_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + bytes > region.end || !region.in_a_row(at)) continue;
    Conflict const conflict = region.shadow.read(region.offset(at), bytes, lane.knowledge, access_of(lane, operation));
    if (conflict.clash != ConflictKind::none) report_conflict(lane, operation, conflict, region.name(), false);
  }
}

void Machine::record_global_write(Lane& lane, Operation const& operation, void* address, uint32_t bytes, void const* value,
                                Access const& me) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  atomics_.erase(at);  // a plain write releases nothing
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + bytes > region.end) continue;
    Conflict const conflict = region.shadow.write(region.offset(at), bytes, lane.knowledge, me);
    if (conflict.clash != ConflictKind::none) report_conflict(lane, operation, conflict, region.name(), true);
    if (!region.has(HGEMM_WRITE_ONCE)) continue;
    std::string const again = memory_.count_element_writes(region, at, bytes);
    if (!again.empty()) findings_.add("write_once", operation.site, [&] { return describe(lane) + ": " + again; });
    std::string const poison = memory_.poisoned_element(region, at, static_cast<unsigned char const*>(value), bytes);
    if (poison.empty()) continue;
    findings_.add("poison", operation.site, [&] {
      return poison + " depends on poison: unwritten memory, data in flight, padding, or an unset register";
    });
  }
}

}  // namespace hgemm::executor
