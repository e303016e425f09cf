// What a kernel's threads ask of the executor. Every atom fills in one Operation and waits until it was carried out.
#pragma once

#include <stdint.h>

namespace hgemm::executor {

// The line of the kernel's text that asks. As a default argument, here() is the line that calls the atom.
struct Site {
  char const* file;
  int line;
};
constexpr Site here(char const* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

enum class Kind : uint8_t {
  // Each lane for itself.
  load,
  store,
  fetch_add,
  global_fence,
  cp_async,
  cp_async_commit,
  cp_async_wait,
  barrier_sync,
  barrier_arrive,
  // All 32 lanes of a warp at once.
  warp_barrier,
  ldmatrix,
  mma,
  count
};
constexpr bool is_collective(Kind kind) { return kind >= Kind::warp_barrier; }

enum class Space : uint8_t { global, shared };
enum class Element : uint8_t { f16, bf16, f32 };

struct Operation {
  Kind kind;
  Space space = Space::global;
  bool flag = true;           // cp_async: valid; ldmatrix: transpose
  Element in = Element::f16;  // mma: of a and b
  Element sum = Element::f32;  // mma: of d
  uint32_t bytes = 0;         // that a lane accesses
  uint32_t number = 0;        // wait: groups that may be pending; barrier: its id; ldmatrix: matrices; mma: depth
  uint32_t threads = 0;       // barrier: that take part, 0 for all
  void* to = nullptr;         // memory written; mma: the caller's d; ldmatrix: its registers
  void const* from = nullptr;  // memory read; mma: the caller's a
  void const* second = nullptr;  // mma: the caller's b
  Site site;
};

// Suspends the calling thread of the kernel until the executor has carried out `operation`.
void perform(Operation& operation);

// Where the running thread of the kernel is.
struct Place {
  int thread = 0;
  uint32_t cta_index[3] = {};
  uint32_t cluster_rank = 0;
  unsigned char* shared = nullptr;
};
extern Place const* place;
extern uint32_t grid[3], cluster[3];

}  // namespace hgemm::executor
