// cp.async: copies that land when their group is waited for, or at any moment before.
#pragma once

#include <executor/machine.hpp>

namespace hgemm::executor {

void Machine::start_copy(Lane& lane, Operation& operation, SiteCost& cost) {
  auto* const to = static_cast<unsigned char*>(operation.to);
  bool const readable = !operation.flag || may_access_global(lane, operation, operation.from, operation.bytes, false);
  if (!may_access_shared(lane, operation, operation.to, operation.bytes)) return;
  if (lane.knowledge.copies == no_agent) lane.knowledge.copies = lane.cta->new_agent();
  Access const me = {lane.groups_committed + 1, lane.cta->number, lane.knowledge.copies, costs_.index_of(operation)};
  note_shared(lane, operation, *lane.cta, to, operation.bytes, true, me);
  Copy copy = {to, nullptr, operation.bytes, lane.groups_committed, 0, false, operation.site};
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
  if (pending == 0) ++lane.groups_committed;  // cp.async.wait_all: also what was not committed
  if (lane.groups_committed <= pending) return;
  uint32_t const landed = lane.groups_committed - pending;  // groups
  size_t count = 0;
  while (count < lane.copies.size() && lane.copies[count].group < landed) land(lane.copies[count++]);
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + std::ptrdiff_t(count));
  lane.knowledge.copies_landed = std::max(lane.knowledge.copies_landed, landed);
}

}  // namespace hgemm::executor
