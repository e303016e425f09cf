// The executor: it holds the CTAs that live, lets an adversary choose which warp goes on and when asynchronous work takes effect,
// carries out warp instructions, and judges them.
//
// A thread of the kernel is a fiber. It runs to its next atom and waits there. Lanes of a warp that wait at the same line for the
// same kind of operation form one warp instruction; a collective one needs all 32. Carrying it out checks every address, asks the
// shadow of the memory whether each access is ordered with those before it, counts costs, and lets the lanes run on.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <executor/abi.h>
#include <executor/costs.hpp>
#include <executor/cta.hpp>
#include <executor/findings.hpp>
#include <executor/global_memory.hpp>
#include <executor/kernel.hpp>

namespace hgemm::executor {

class Machine {
 public:
  Machine(hgemm_emulation const& request, Kernel const& kernel);
  ~Machine();

  void run();
  std::string report() const;

  // Called on a fiber: waits until `operation` was carried out.
  void wait_for(Operation& operation, void const* program_counter);

 private:
  static constexpr size_t arena_bytes = 256 << 10;  // also their alignment: the low 18 bits are the address in shared memory
  static constexpr size_t stack_bytes = 64 << 10;
  static constexpr size_t poisoned_stack_bytes = 6 << 10;

  // ---- Living and dying: lives.hpp ----
  void admit();
  void begin(Cta& cta, uint32_t number);
  void end(Cta& cta);
  static void enter();
  [[noreturn]] void leave();
  void next_fiber(Fiber& from);
  void resume(Warp& warp, uint32_t lanes);
  uint32_t next_number();

  // ---- Choosing what happens next: schedule.hpp ----
  bool step();
  uint32_t choose(Warp& warp) const;
  bool ready(Lane const& lane) const;
  void land_some();
  void deadlock();
  std::string standing(Warp const& warp) const;
  uint32_t random(uint32_t below);

  // ---- Carrying out: execute.hpp ----
  void execute(Warp& warp, uint32_t lanes);
  void load(Lane& lane, Operation& operation, SiteCost& cost);
  void store(Lane& lane, Operation& operation, SiteCost& cost);
  void fetch_add(Lane& lane, Operation& operation);
  void fence(Lane& lane);
  void warp_barrier(Warp& warp);
  void arrive(Warp& warp, uint32_t lanes);
  void release(Cta& cta, Barrier& barrier);
  void load_matrices(Warp& warp, SiteCost& cost);
  void multiply(Warp& warp);

  // ---- Copies: copies.hpp ----
  void start_copy(Lane& lane, Operation& operation, SiteCost& cost);
  static void land(Copy& copy);
  void wait_for_copies(Lane& lane, uint32_t pending);

  // ---- Judging accesses: access.hpp ----
  bool may_access_shared(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes);
  bool may_access_global(Lane const& lane, Operation const& operation, void const* address, uint32_t bytes, bool write);
  void note_shared(Lane& lane, Operation const& operation, void const* address, uint32_t bytes, bool write, uint16_t agent,
                   uint32_t epoch);
  void note_global_read(Lane& lane, Operation const& operation);
  void note_global_write(Lane& lane, Operation const& operation, void const* value);
  void say_conflict(Lane const& lane, Operation const& operation, Conflict const& conflict, char const* memory, bool write);
  Access access_of(Lane const& lane, Operation const& operation);
  std::string who(Access const& access) const;
  std::string whoami(Lane const& lane) const;

  hgemm_emulation request_;
  Kernel kernel_;
  GlobalMemory memory_;
  Findings findings_;
  Costs costs_;
  Counters counters_;

  unsigned char* arenas_ = nullptr;
  unsigned char* stacks_ = nullptr;
  size_t slots_ = 0;                        // CTAs that may live at once
  std::vector<std::unique_ptr<Cta>> ctas_;  // of each slot
  std::vector<Cta*> living_;                // in the order in which the adversary sees them
  std::vector<uint32_t> numbers_;           // CTAs that have not begun, the next one last
  std::map<uintptr_t, Held<Clock>> atomics_;  // what an address's atomic operations pass on
  size_t next_warp_ = 0;                    // where round robin goes on
  uint64_t steps_ = 0, random_state_ = 1;
  uint64_t mma_counts_[2] = {};             // of depth 16, of depth 8 in pairs
  bool stopped_ = false;

  Fiber scheduler_;
  Lane* queue_[32] = {};
  int queue_at_ = 0, queue_end_ = 0;
};

}  // namespace hgemm::executor
