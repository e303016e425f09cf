// cp.async: copies that land when their group is waited for, when an mbarrier is told of them, or at any moment before.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

void Machine::start_copy(Lane& lane, Operation& operation, SiteCost& cost) {
  auto* const to = static_cast<unsigned char*>(operation.to);
  bool const readable = !operation.flag || may_access_global(lane, operation, operation.from, operation.bytes, false);
  if (!may_access_shared(lane, operation, operation.to, operation.bytes)) return;
  Access const me = {lane.copies_epoch, lane.cta->number, lane.cta->agent_of_copies(lane), costs_.index_of(operation)};
  note_shared(lane, operation, *lane.cta, to, operation.bytes, true, me);
  Copy copy = {to, nullptr, operation.bytes, lane.groups_committed, me.epoch, 0, false, operation.site};
  if (operation.flag) {
    copy.fill = HGEMM_POISON;
    if (readable) {
      copy.from = operation.from;
      note_global_read(lane, operation, operation.from, operation.bytes);
    }
    cost.bytes += operation.bytes;
  }
  memset(to, HGEMM_POISON, operation.bytes);  // nobody knows what is there until it lands
  if (request_.timing == HGEMM_EARLY) land(copy);
  lane.copies.push_back(copy);
}

void Machine::land(Copy& copy) {
  if (copy.landed) return;
  copy.landed = true;
  if (copy.from) {
    memcpy(copy.to, copy.from, copy.bytes);
  } else {
    memset(copy.to, copy.fill, copy.bytes);
  }
}

void Machine::wait_for_copies(Lane& lane, uint32_t pending) {
  if (pending == 0) {  // cp.async.wait_all: also what was not committed
    ++lane.groups_committed;
    lane.knowledge.copies_landed = lane.copies_epoch++;
  }
  if (lane.groups_committed <= pending) return;
  uint32_t const landed = lane.groups_committed - pending;  // groups
  size_t count = 0;
  while (count < lane.copies.size() && lane.copies[count].group < landed) land(lane.copies[count++]);
  if (count) lane.knowledge.copies_landed = std::max(lane.knowledge.copies_landed, lane.copies[count - 1].epoch);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + std::ptrdiff_t(count));
}

// ---- Arrivals of copies at an mbarrier ----------------------------------------------------------------------------

void Machine::arrive_after_copies(Lane& lane, Operation const& operation) {
  if (!find(lane, operation, *lane.cta, operation.to, false)) return;
  lane.cta->agent_of_copies(lane);
  copy_arrivals_.push_back(
      {&lane, reinterpret_cast<uintptr_t>(operation.to) % shared_window, lane.copies_epoch++, operation.site});
  if (request_.timing == HGEMM_EARLY) complete(copy_arrivals_.size() - 1);
}

// The copies have landed, and whoever waits at the barrier learns that, and nothing else of their thread.
void Machine::complete(size_t index) {
  CopyArrival const arrival = copy_arrivals_[index];
  copy_arrivals_.erase(copy_arrivals_.begin() + std::ptrdiff_t(index));
  Lane& lane = *arrival.lane;
  size_t count = 0;
  while (count < lane.copies.size() && lane.copies[count].epoch <= arrival.epoch) land(lane.copies[count++]);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + std::ptrdiff_t(count));
  Mbarrier& barrier = lane.cta->mbarriers.at(arrival.barrier);
  barrier.gathered.set(lane.cta->number, lane.knowledge.copies, arrival.epoch);
  take_arrival(lane, *lane.cta, barrier, arrival.site);
}

}  // namespace hgemm::executor
