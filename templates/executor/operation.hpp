// Requests of the kernel's threads to the executor. Each atom fills in one Operation and waits until it has been executed.
#pragma once

#include <stdint.h>

namespace hgemm::executor {

// A source line of the kernel. As a default argument, here() is the line that calls the atom.
struct Site {
  char const* file;
  int line;
};
constexpr Site here(char const* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

enum class Kind : uint8_t {
  // Executed by each lane independently.
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
  // Collective: executed by all lanes of a warp together (.aligned in PTX).
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

// Additional arguments of some kinds.
struct TmaArguments {
  void const* map;    // struct hgemm_tensor_map
  int at[3];          // coordinates of the box, in elements
  uint64_t* barrier;  // load: the mbarrier that counts its bytes
  uint16_t ranks;     // load: mask of the cluster's CTAs that receive it; 0 for this CTA only
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
  // cp_async: copy (true) or fill with zeros; ldmatrix, stmatrix, wmma_load: transpose; setmaxnreg: increase; mma of depth 8:
  // two instructions
  bool flag = true;
  Element in = Element::f16;   // mma, wgmma: type of a and b
  Element acc = Element::f32;  // mma, wgmma: type of d
  uint32_t bytes = 0;          // bytes that a lane accesses; mbarrier_arrive: bytes to expect
  // group waits: groups that may stay pending; mbarrier_wait: parity; barriers: index; mbarrier_init: arrival count;
  // ldmatrix, stmatrix: matrices; wmma_load: pitch; mma: depth; setmaxnreg: registers
  uint32_t number = 0;
  uint32_t threads = 0;          // barriers: participants, 0 for the whole CTA; mbarrier_arrive, load: 1 + rank of a CTA, or 0
  void* to = nullptr;            // memory to write, or the mbarrier; mma, wgmma: d; ldmatrix, wmma_load: registers
  void const* from = nullptr;    // memory to read; mma: a; stmatrix: registers
  void const* second = nullptr;  // mma: b; wmma_load: first element of the fragment; TmaArguments; WgmmaArguments
  Site site;
};

// Suspends the calling kernel thread until the executor has executed `operation`.
void perform(Operation& operation);

// The position of the running kernel thread in its launch.
struct Place {
  int thread = 0;
  uint32_t cta_index[3] = {};
  uint32_t cluster_rank = 0;
  unsigned char* shared = nullptr;
};
extern Place const* place;
extern uint32_t grid[3];

// The shared memory of each CTA begins at a multiple of this, so that address % shared_window is the offset in shared memory.
constexpr uint32_t shared_window = 256 << 10;

}  // namespace hgemm::executor
