// What a kernel's threads ask of the executor. Every atom fills in one Operation and waits until it is carried out.
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
  mbarrier_init,
  mbarrier_init_fence,
  mbarrier_arrive,
  mbarrier_arrive_after_copies,
  mbarrier_wait,
  tma_prefetch,
  tma_load,
  tma_store,
  tma_store_commit,
  tma_store_wait_read,
  async_proxy_fence,
  next_launch_may_begin,
  await_previous_launches,
  // All lanes of a warp at once, as their PTX has it (.aligned).
  barrier_sync,
  barrier_arrive,
  warp_barrier,
  elect_one,
  cluster_arrive,
  cluster_wait,
  ldmatrix,
  stmatrix,
  wmma_load,
  mma,
  wgmma_fence,
  wgmma,
  wgmma_commit,
  wgmma_wait,
  setmaxnreg,
  count
};
constexpr bool is_collective(Kind kind) { return kind >= Kind::barrier_sync; }

enum class Space : uint8_t { global, shared };
enum class Element : uint8_t { f16, bf16, tf32, f32 };

// What a few kinds need besides.
struct TmaArguments {
  void const* map;    // struct hgemm_tensor_map
  int at[3];          // of the box in the map, elements
  uint64_t* barrier;  // load: where its bytes count
  uint16_t ranks;     // load: CTAs of the cluster that receive it, 0 for this one
};
struct WgmmaArguments {
  uint64_t a, b;  // descriptors
  uint32_t n;
  bool a_k_major, b_k_major;
  bool accumulate;
};

struct Operation {
  Kind kind;
  Space space = Space::global;
  bool flag = true;  // cp_async: valid; ldmatrix, stmatrix, wmma_load: transpose; setmaxnreg: increase; mma of depth 8: two
  Element in = Element::f16;     // mma, wgmma: of a and b
  Element sum = Element::f32;    // mma, wgmma: of d
  uint32_t bytes = 0;            // that a lane accesses; mbarrier_arrive: to expect
  uint32_t number = 0;  // waits: groups that may be pending, parity; barriers: id, count; matrices; pitch; mma: depth; registers
  uint32_t threads = 0;          // barriers: that take part, 0 for all; mbarrier_arrive, load: 1 + rank of a CTA, or 0
  void* to = nullptr;            // memory written, the mbarrier; mma, wgmma: the caller's d; loads of fragments: its registers
  void const* from = nullptr;    // memory read; mma: the caller's a; stmatrix: its registers
  void const* second = nullptr;  // mma: the caller's b; wmma_load: the fragment's first element; TmaArguments; WgmmaArguments
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
extern uint32_t grid[3];

constexpr uint32_t shared_window = 256 << 10;  // shared memory begins on a multiple of it: the rest is the address in it

}  // namespace hgemm::executor
