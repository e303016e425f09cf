// The judgement of one lane's access: is it inside its object, aligned, and in order with the other accesses of those bytes?
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

std::string Machine::whoami(Lane const& lane) const {
  return text("CTA (%u,%u,%u) thread %d", lane.cta->index[0], lane.cta->index[1], lane.cta->index[2], lane.thread);
}

// "thread 3 of CTA 0 at operand.cuh:12"
std::string Machine::who(Access const& access) const {
  std::string agent = access.agent < request_.threads ? text("thread %u", access.agent) : "an asynchronous operation";
  for (Cta const& cta : ctas_) {
    if (cta.number != access.cta || access.agent < request_.threads) continue;
    for (Lane const& lane : cta.lanes) {
      if (lane.knowledge.copies == access.agent) {
        agent = text("an asynchronous copy of thread %d, not waited for,", lane.thread);
      }
      if (lane.stores_agent == access.agent) agent = text("a TMA store of thread %d, not waited for,", lane.thread);
    }
    for (auto const& [offset, barrier] : cta.mbarriers) {
      if (barrier.agent == access.agent) agent = text("the TMA, not waited for at the mbarrier at byte %zu,", offset);
    }
    for (Warpgroup const& group : cta.warpgroups) {
      if (group.agent == access.agent) {
        agent = text("a wgmma of warpgroup %d, not waited for,", int(&group - cta.warpgroups.data()));
      }
    }
  }
  SiteCost const& cost = costs_.sites[access.site];
  return agent + text(" of CTA %u at %s:%d", access.cta, base_name(cost.site.file).c_str(), cost.site.line);
}

Access Machine::access_of(Lane const& lane, Operation const& operation) {
  return {lane.knowledge.epoch, lane.knowledge.cta, lane.knowledge.thread, costs_.index_of(operation)};
}

bool Machine::may_access_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(lane.cta->arena);
  uint32_t const align = bytes & -bytes;
  if (at < base || at + bytes > base + request_.shared_bytes) {
    findings_.add("bounds", operation.site, [&] {
      if (at - base >= shared_window) {
        return text("%s: %u bytes at an address outside shared memory", whoami(lane).c_str(), bytes);
      }
      return text("%s: %u bytes at offset %zu of shared memory, which has %u", whoami(lane).c_str(), bytes, size_t(at - base),
                  request_.shared_bytes);
    });
    return false;
  }
  if (at % align) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at offset %zu of shared memory", whoami(lane).c_str(), bytes, size_t(at - base));
    });
    return false;
  }
  return true;
}

bool Machine::may_access_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes,
                                bool write) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  note_touch(lane, operation);
  std::string const why = memory_.trespass(at, bytes, write);
  if (!why.empty()) {
    findings_.add("bounds", operation.site, [&] { return whoami(lane) + ": " + why; });
    return false;
  }
  if (at % bytes) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at address %p, a multiple of %u only", whoami(lane).c_str(), bytes, address,
                  uint32_t(at & -at));
    });
    return false;
  }
  return true;
}

void Machine::say_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory,
                           bool write) {
  char const* const verb = write ? "writes" : "reads";
  if (conflict.clash == Clash::uninitialised) {
    findings_.add("uninitialised", operation.site, [&] {
      return text("%s reads %s at byte %zu, which nothing has written", whoami(lane).c_str(), memory, conflict.offset);
    });
    return;
  }
  findings_.add("race", operation.site, [&] {
    return text("%s %s %s at byte %zu in no order with the %s by %s", whoami(lane).c_str(), verb, memory, conflict.offset,
                conflict.clash == Clash::write ? "write" : "read", who(conflict.with).c_str());
  });
}

void Machine::note_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write) {
  note_shared(lane, operation, *lane.cta, address, bytes, write, access_of(lane, operation));
}

// Notes that `me` accesses what lies at the place of `address` in the shared memory of `cta`, on behalf of `lane`.
void Machine::note_shared(Lane& lane, Operation const& operation, Cta& cta, void const* address, uint32_t bytes, bool write,
                          Access const& me) {
  size_t const offset = reinterpret_cast<uintptr_t>(address) % shared_window;
  Conflict const conflict = write ? cta.shadow.write(offset, bytes, lane.knowledge, me)
                                  : cta.shadow.read(offset, bytes, lane.knowledge, me);
  if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, "shared memory", write);
}

// The CTA of a rank in the lane's cluster, to reach into its shared memory; nothing where there is none.
Cta* Machine::neighbour(Lane const& lane, Operation const& operation, uint32_t rank) {
  auto const& ctas = lane.cta->cluster->ctas;
  if (rank >= ctas.size()) {
    findings_.add("cluster", operation.site, [&] { return text("%s: the cluster has no CTA %u", whoami(lane).c_str(), rank); });
    return nullptr;
  }
  if (ctas[rank] != lane.cta && !ctas[rank]->lanes_left) {
    findings_.add("cluster", operation.site, [&] {
      return text("%s reaches into shared memory of CTA %u, which has ended", whoami(lane).c_str(), ctas[rank]->number);
    });
  }
  return ctas[rank];
}

// The same for a read by the async proxy, which sees what threads and their copies wrote only after a proxy fence.
void Machine::note_async_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, Access const& me) {
  size_t const offset = reinterpret_cast<uintptr_t>(address) % shared_window;
  Shadow& shadow = lane.cta->shadow;
  Access unfenced;
  size_t unfenced_at = 0;
  Conflict const conflict = shadow.read(offset, bytes, lane.knowledge, me, [&](Access const& write, size_t at) {
    if (write.epoch == 0 || unfenced.epoch || passed_proxy(lane, write)) return;
    unfenced = write;
    unfenced_at = at;
  });
  if (conflict.clash != Clash::none) {
    say_conflict(lane, operation, conflict, "shared memory", false);
  } else if (unfenced.epoch) {
    findings_.add("proxy", operation.site, [&] {
      return text("%s lets the async proxy read shared memory at byte %zu without a proxy fence after the write by %s",
                  whoami(lane).c_str(), unfenced_at, who(unfenced).c_str());
    });
  }
}

void Machine::note_global_read(Lane& lane, Operation const& operation, void const* address, uint32_t bytes) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + bytes > region.end) continue;
    Conflict const conflict = region.shadow.read(region.offset(at), bytes, lane.knowledge, access_of(lane, operation));
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.name(), false);
  }
}

void Machine::note_global_write(Lane& lane, Operation const& operation, void* address, uint32_t bytes, void const* value,
                                Access const& me) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  atomics_.erase(at);  // a plain write hands nothing on
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + bytes > region.end) continue;
    Conflict const conflict = region.shadow.write(region.offset(at), bytes, lane.knowledge, me);
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.name(), true);
    if (!region.has(HGEMM_WRITE_ONCE)) continue;
    std::string const again = memory_.note_element_writes(region, at, bytes);
    if (!again.empty()) findings_.add("write_once", operation.site, [&] { return whoami(lane) + ": " + again; });
    std::string const poison = memory_.poisoned(region, at, static_cast<unsigned char const*>(value), bytes);
    if (poison.empty()) continue;
    findings_.add("poison", operation.site, [&] {
      return poison + " depends on memory that was never written, in flight or padding, or on a register never set";
    });
  }
}

}  // namespace hgemm::executor
