// The judgement of one lane's access: is it inside its object, aligned, and in order with the other accesses of those bytes?
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

std::string Machine::whoami(Lane const& lane) const {
  return text("CTA (%u,%u,%u) thread %d", lane.cta->index[0], lane.cta->index[1], lane.cta->index[2], lane.thread);
}

// "thread 3 at operand.cuh:12", "a copy of thread 3 still in flight, started at ..."
std::string Machine::who(Access const& access) const {
  std::string result;
  if (access.agent < request_.threads) {
    result = text("thread %u", access.agent);
  } else {
    result = "an asynchronous copy";
    for (auto const& cta : ctas_) {
      if (cta->number != access.cta) continue;
      for (Lane const& lane : cta->lanes) {
        if (lane.knowledge.copies == access.agent) result += text(" of thread %d, not waited for", lane.thread);
      }
    }
  }
  SiteCost const& cost = costs_.sites[access.site];
  return result + text(" of CTA %u at %s:%d", access.cta, base_name(cost.site.file).c_str(), cost.site.line);
}

Access Machine::access_of(Lane const& lane, Operation const& operation) {
  return {lane.knowledge.epoch, lane.knowledge.cta, lane.knowledge.thread, costs_.index_of(operation)};
}

bool Machine::may_access_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address), base = reinterpret_cast<uintptr_t>(lane.cta->arena);
  if (at < base || at + bytes > base + request_.shared_bytes) {
    findings_.add("bounds", operation.site, [&] {
      if (at - base >= arena_bytes) return text("%s: %u bytes at an address outside shared memory", whoami(lane).c_str(), bytes);
      return text("%s: %u bytes at offset %zu of shared memory, which has %u", whoami(lane).c_str(), bytes, size_t(at - base),
                  request_.shared_bytes);
    });
    return false;
  }
  if (at % bytes) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at offset %zu of shared memory", whoami(lane).c_str(), bytes, size_t(at - base));
    });
    return false;
  }
  return true;
}

bool Machine::may_access_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes, bool write) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(address);
  std::string const why = memory_.trespass(at, bytes, write);
  if (!why.empty()) {
    findings_.add("bounds", operation.site, [&] { return whoami(lane) + ": " + why; });
    return false;
  }
  if (at % bytes) {
    findings_.add("alignment", operation.site, [&] {
      return text("%s: %u bytes at address %p, a multiple of %u only", whoami(lane).c_str(), bytes, address, uint32_t(at & -at));
    });
    return false;
  }
  return true;
}

void Machine::say_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory, bool write) {
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

// Notes an access of shared memory by `agent` in its `epoch`, on behalf of `lane`.
void Machine::note_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write, uint16_t agent,
                          uint32_t epoch) {
  size_t const offset = size_t(static_cast<unsigned char const*>(address) - lane.cta->arena);
  Access const me = {epoch, lane.cta->number, agent, costs_.index_of(operation)};
  Shadow& shadow = lane.cta->shadow;
  Conflict const conflict = write ? shadow.write(offset, bytes, lane.knowledge, me) : shadow.read(offset, bytes, lane.knowledge, me);
  if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, "shared memory", write);
}

void Machine::note_global_read(Lane& lane, Operation const& operation) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(operation.from);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + operation.bytes > region.end) continue;
    Conflict const conflict = region.shadow.read(region.offset(at), operation.bytes, lane.knowledge, access_of(lane, operation));
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.is.name, false);
  }
}

void Machine::note_global_write(Lane& lane, Operation const& operation, void const* value) {
  uintptr_t const at = reinterpret_cast<uintptr_t>(operation.to);
  for (auto& region : memory_.regions) {
    if (!region.has(HGEMM_WRITABLE) || !region.holds(at) || at + operation.bytes > region.end) continue;
    Conflict const conflict = region.shadow.write(region.offset(at), operation.bytes, lane.knowledge, access_of(lane, operation));
    if (conflict.clash != Clash::none) say_conflict(lane, operation, conflict, region.is.name, true);
    if (!region.has(HGEMM_WRITE_ONCE)) continue;
    std::string const again = memory_.note_element_writes(region, at, operation.bytes);
    if (!again.empty()) findings_.add("write_once", operation.site, [&] { return whoami(lane) + ": " + again; });
    std::string const poison = memory_.poisoned(region, at, static_cast<unsigned char const*>(value), operation.bytes);
    if (poison.empty()) continue;
    findings_.add("poison", operation.site, [&] {
      return poison + " depends on memory that was never written, in flight or padding, or on a register never set";
    });
  }
}

}  // namespace hgemm::executor
