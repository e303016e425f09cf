// CTAs begin, their fibers take turns, and they end.
#pragma once

#include <sys/mman.h>

#include <executor/machine.hpp>

namespace hgemm::executor {

inline Machine* machine = nullptr;
Place const* place = nullptr;
uint32_t grid[3], cluster[3];

Machine::Machine(hgemm_emulation const& request, Kernel const& kernel)
    : request_(request), kernel_(kernel), memory_(request), random_state_(request.seed * 2 + 1) {
  uint32_t const ctas = request.grid[0] * request.grid[1] * request.grid[2];
  uint32_t const cluster_ctas = request.cluster[0] * request.cluster[1] * request.cluster[2];
  slots_ = request.resident_ctas ? std::min(request.resident_ctas, ctas) : ctas;
  slots_ = std::max<size_t>(slots_ / cluster_ctas, 1) * cluster_ctas;
  auto map = [](size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
  };
  arenas_ = map((slots_ + 1) * arena_bytes);
  stacks_ = map(slots_ * request.threads * stack_bytes);
  for (uint32_t number = ctas; number-- > 0;) numbers_.push_back(number);
  memcpy(grid, request.grid, sizeof grid);
  memcpy(cluster, request.cluster, sizeof cluster);
  machine = this;
}

Machine::~Machine() {
  if (arenas_) munmap(arenas_, (slots_ + 1) * arena_bytes);
  if (stacks_) munmap(stacks_, slots_ * request_.threads * stack_bytes);
  machine = nullptr;
  place = nullptr;
}

uint32_t Machine::next_number() {
  size_t at = numbers_.size() - 1;
  if (request_.order == HGEMM_AHEAD_HIGH) at = 0;
  if (request_.order == HGEMM_ANY_ORDER) at = random(uint32_t(numbers_.size()));
  uint32_t const number = numbers_[at];
  numbers_.erase(numbers_.begin() + std::ptrdiff_t(at));
  return number;
}

// Fills free slots with CTAs that have not begun.
void Machine::admit() {
  while (!numbers_.empty() && living_.size() < slots_) {
    Cta* free = nullptr;
    for (auto& cta : ctas_) {
      if (cta->lanes_left == 0) free = cta.get();
    }
    if (!free) {
      ctas_.push_back(std::make_unique<Cta>());
      free = ctas_.back().get();
      uintptr_t const first = (reinterpret_cast<uintptr_t>(arenas_) + arena_bytes - 1) / arena_bytes * arena_bytes;
      free->arena = reinterpret_cast<unsigned char*>(first + (ctas_.size() - 1) * arena_bytes);
    }
    living_.push_back(free);
    begin(*free, next_number());
  }
}

void Machine::begin(Cta& cta, uint32_t number) {
  uint32_t const threads = request_.threads;
  size_t slot = 0;
  while (ctas_[slot].get() != &cta) ++slot;
  cta.number = number;
  cta.index[0] = number % grid[0];
  cta.index[1] = number / grid[0] % grid[1];
  cta.index[2] = number / grid[0] / grid[1];
  cta.agents = threads;
  cta.lanes_left = threads;
  memset(cta.arena, HGEMM_POISON, request_.shared_bytes);
  cta.shadow.reset(request_.shared_bytes, false);
  for (Barrier& barrier : cta.barriers) barrier = Barrier();
  if (cta.lanes.empty()) cta.lanes = std::vector<Lane>(threads);
  cta.warps.assign(threads / 32, Warp());
  for (uint32_t thread = 0; thread < threads; ++thread) {
    Lane& lane = cta.lanes[thread];
    lane = Lane();
    lane.thread = int(thread);
    lane.shared = cta.arena;
    memcpy(lane.cta_index, cta.index, sizeof cta.index);
    lane.cta = &cta;
    lane.knowledge.cta = number;
    lane.knowledge.thread = uint16_t(thread);
    lane.fenced.epoch = 0;
    // Stacks begin at different places of a page: at the same place they would all compete for the same lines of the cache.
    unsigned char* const stack = stacks_ + (slot * threads + thread) * stack_bytes;
    size_t const bytes = stack_bytes - thread * 1088 % 16384 / 64 * 64;
    memset(stack + bytes - poisoned_stack_bytes, HGEMM_POISON, poisoned_stack_bytes);
    prepare(lane.fiber, stack, bytes, &Machine::enter);
  }
  for (Warp& warp : cta.warps) {
    warp.cta = &cta;
    warp.index = int(&warp - cta.warps.data());
    warp.lanes = &cta.lanes[size_t(warp.index) * 32];
    resume(warp, ~0u);
  }
}

void Machine::end(Cta& cta) {
  for (size_t i = 0; i < living_.size(); ++i) {
    if (living_[i] == &cta) living_.erase(living_.begin() + std::ptrdiff_t(i));
  }
}

// ---- Fibers -------------------------------------------------------------------------------------------------------

void perform(Operation& operation) { machine->wait_for(operation, __builtin_return_address(0)); }

void Machine::enter() {
  begin_fiber(machine->scheduler_);
  machine->kernel_.call(machine->request_.parameters);
  machine->leave();
}

void Machine::leave() {
  Lane& lane = *queue_[queue_at_];
  lane.exited = true;
  lane.operation = nullptr;
  next_fiber(lane.fiber);
  abort();  // nothing switches back
}

void Machine::wait_for(Operation& operation, void const* program_counter) {
  Lane& lane = *queue_[queue_at_];
  lane.operation = &operation;
  lane.program_counter = program_counter;
  next_fiber(lane.fiber);
}

// Goes on with the next lane that is to run, or with the scheduler.
void Machine::next_fiber(Fiber& from) {
  if (++queue_at_ < queue_end_) {
    place = queue_[queue_at_];
    switch_fiber(from, queue_[queue_at_]->fiber);
  } else {
    switch_fiber(from, scheduler_);
  }
}

// Lets lanes run to their next operations.
void Machine::resume(Warp& warp, uint32_t lanes) {
  queue_end_ = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) queue_[queue_end_++] = &warp.lanes[__builtin_ctz(rest)];
  queue_at_ = 0;
  place = queue_[0];
  switch_fiber(scheduler_, queue_[0]->fiber);
  warp.parked |= lanes;
  warp.may_run = true;
  for (int i = 0; i < queue_end_; ++i) {
    Lane& lane = *queue_[i];
    if (!lane.exited) continue;
    uint32_t const bit = 1u << (lane.thread % 32);
    warp.parked &= ~bit;
    warp.exited |= bit;
    --lane.cta->lanes_left;
    if (!lane.copies.empty()) {
      findings_.add("pending", lane.copies.front().site, [&] {
        return text("%s ends with %zu asynchronous copies in flight", whoami(lane).c_str(), lane.copies.size());
      });
    }
  }
}

}  // namespace hgemm::executor
