// Requests of the kernel's threads to the executor. Each instruction that touches more than registers fills in one Operation and
// waits until it has been executed.
#pragma once

#include <stdint.h>

namespace hgemm::executor {

// A line of the PTX.
struct Site {
  char const* file;
  int line;
};
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
  mbarrier_test,
  store_async,
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
  shuffle,
  vote,
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
// Collective for the lanes of a mask only.
constexpr bool has_members(Kind kind) { return kind >= Kind::warp_barrier && kind <= Kind::vote; }

enum class Space : uint8_t { global, shared };
enum class Element : uint8_t { f16, bf16, tf32, f32 };

// Additional arguments of some kinds.
struct TmaArguments {
  void const* map;    // struct hgemm_tensor_map
  int at[5];          // coordinates of the box, in elements
  uint64_t* barrier;  // load: the mbarrier that counts its bytes
  uint16_t ranks;     // load: mask of the cluster's CTAs that receive it; 0 for this CTA only
  uint32_t dimensions = 3;  // of the instruction; 0: any
};
struct WgmmaArguments {
  uint64_t a, b;  // descriptors
  uint32_t n;
  bool a_k_major, b_k_major;
  bool accumulate;
  uint16_t const* list;    // the accumulators, as indices of WgmmaRegisters
  uint16_t const* a_list;  // the four registers of a, or null if it is in shared memory
};

// The registers of a thread that may hold accumulators of wgmma. A copy of a register copies its token.
struct WgmmaRegisters {
  static constexpr uint64_t accessed = 1;  // since the last wgmma fence
  static constexpr uint64_t input = uint64_t(1) << 31;  // a wgmma in flight reads the register: with its number

  uint32_t* values;
  // 0, `accessed`, or that a wgmma in flight writes the register: 32 bits that number the accumulators, 24 bits that count
  // their wgmmas, 8 bits for the index of the accumulator
  uint64_t* tokens;
  uint32_t count;
  bool any_accessed = false;  // false: no token is `accessed`
  uint32_t changes = 0;       // accesses and copies of registers so far
};

// st.async: the mbarrier that counts the bytes, and 1 + the rank of its CTA, or 0.
struct StoreAsyncArguments {
  void* barrier;
  uint32_t rank;
};

// An atomic operation on one number in memory. `apply` reads the number and writes the new one, if it `writes`.
struct AtomicArguments {
  void (*apply)(AtomicArguments& self, void* memory);
  bool reads, writes;
};

// shfl.sync: how the lane to read from follows from the operand.
enum class Shuffle : uint8_t { up, down, butterfly, index };
struct ShuffleArguments {
  uint32_t value, by, clamp_and_mask, members;
  Shuffle mode;
  bool in_range;  // out: the predicate
  uint32_t (*reduce)(uint32_t, uint32_t) = nullptr;  // redux.sync: all members get the result
};
// vote.sync: out: the lanes that vote, and those whose predicate is true.
struct VoteArguments {
  bool predicate;
  uint32_t members, lanes, voters;
};

struct Operation {
  Kind kind;
  Space space = Space::global;
  // cp_async: copy (true) or fill with zeros; cp_async_wait for all groups: also for copies that are in none; ldmatrix, stmatrix,
  // wmma_load: transpose; setmaxnreg: increase; mma of depth 8: two instructions; mbarrier_init: false ends the mbarrier;
  // mbarrier_arrive: false only expects bytes
  bool flag = true;
  bool in_cluster = false;     // mbarrier_arrive, mbarrier_wait, mbarrier_test: in the scope of the cluster, not of the CTA
  Element in = Element::f16;   // mma, wgmma: type of a and b
  Element acc = Element::f32;  // mma, wgmma: type of d
  uint32_t bytes = 0;          // bytes that a lane accesses; mbarrier_arrive: bytes to expect
  // cp_async: zeros at the end; group waits: groups that may stay pending; mbarrier_wait: parity; barriers: index;
  // mbarrier_init: arrival count; mbarrier_arrive: arrivals, 0 for 1; warp_barrier, elect_one, shuffle, vote: members, 0 for all;
  // ldmatrix, stmatrix: matrices; wmma_load: pitch; mma: depth; setmaxnreg: registers
  uint32_t number = 0;
  uint32_t threads = 0;          // barriers: participants, 0 for the whole CTA; mbarrier_arrive, load, store: 1 + rank of a CTA, or 0
  // memory to write, or the mbarrier; mma, wgmma: d; ldmatrix, wmma_load, shuffle: registers; other wgmma operations of PTX:
  // WgmmaRegisters
  void* to = nullptr;
  void const* from = nullptr;    // memory to read; mma: a; stmatrix: registers
  // mma: b; wmma_load: first element of the fragment; elect_one: gets the elected lane; mbarrier_arrive: gets the parity of the
  // phase; mbarrier_test: gets whether the phase has ended; or further arguments
  void const* second = nullptr;
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
extern uint32_t block[3], cluster[3];
extern uint32_t cta_threads, cluster_ctas;

// The shared memory of each CTA begins at a multiple of this, so that address % shared_window is the offset in shared memory.
constexpr uint32_t shared_window = 256 << 10;

}  // namespace hgemm::executor
