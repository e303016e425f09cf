// The threads that live: lanes in warps in CTAs.
#pragma once

#include <memory>
#include <vector>

#include <executor/clock.hpp>
#include <executor/fiber.hpp>
#include <executor/operation.hpp>
#include <executor/shadow.hpp>

namespace hgemm::executor {

struct Cta;
struct Warp;

// An asynchronous copy to shared memory that was started and not yet waited for.
struct Copy {
  unsigned char* to;
  void const* from;  // null: zeros, or poison where the source was no good
  uint32_t bytes;
  uint32_t group;
  unsigned char fill;  // where from is null
  bool landed;
  Site site;
};

// One thread of the kernel. Between two operations it has run up to the next one already: nobody else sees what it computes.
struct alignas(64) Lane : Place {
  Operation* operation = nullptr;  // that it waits for
  void const* program_counter = nullptr;
  Cta* cta = nullptr;
  bool exited = false;
  Fiber fiber;
  Knowledge knowledge;

  // ---- Asynchronous copies ----
  std::vector<Copy> copies;  // in flight, in the order of their start
  uint32_t groups_committed = 0;

  // ---- Global memory ----
  Knowledge fenced;         // when it last fenced; epoch 0 before it ever did
  Held<Clock> seen_atomic;  // what it may rely on after its next fence
};

struct Warp {
  Cta* cta = nullptr;
  Lane* lanes = nullptr;
  int index = 0;         // in the CTA
  uint32_t parked = 0;   // lanes whose operation is to be carried out
  uint32_t exited = 0;
  uint32_t at_barrier = 0;
  bool may_run = true;  // false: found blocked, and nothing has happened since
};

// Threads counted at one of a CTA's 16 barriers.
struct Barrier {
  std::vector<Lane*> waiting;
  uint32_t arrived = 0;  // also by those that do not wait
  uint32_t expected = 0;
  Joined knowledge;
};

struct Cta {
  uint32_t number = 0;  // in the grid
  uint32_t index[3] = {};
  unsigned char* arena = nullptr;  // shared memory
  Shadow shadow;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  Barrier barriers[16];
  uint32_t agents = 0;  // numbers given away so far: threads first
  uint32_t lanes_left = 0;

  uint16_t new_agent() { return uint16_t(agents++); }
};

}  // namespace hgemm::executor
