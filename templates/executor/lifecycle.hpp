// Start and end of clusters, CTAs and threads, and the switches between fibers.
#pragma once

#include <sys/mman.h>

#include <executor/machine.hpp>

namespace hgemm::executor {

inline Machine* machine = nullptr;
Place const* place = nullptr;
uint32_t grid[3];
uint32_t block[3], cluster[3];
uint32_t cta_threads, cluster_ctas;

// Memory that is reused by the next launch, because fresh pages cost more time than most launches.
class Pages {
 public:
  unsigned char* at_least(size_t bytes) {
    if (bytes <= bytes_) return memory_;
    release();
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    bytes_ = bytes;
    return memory_ = static_cast<unsigned char*>(memory);
  }
  void release() {
    if (memory_) munmap(memory_, bytes_);
    memory_ = nullptr;
    bytes_ = 0;
  }

 private:
  unsigned char* memory_ = nullptr;
  size_t bytes_ = 0;
};
inline Pages arena_pages, stack_pages;
inline std::vector<Shadow> kept_shadows;  // of the shared memory of each slot, for the same reason

Machine::Machine(hgemm_emulation const& request, Kernel const& kernel)
    : request_(request),
      arithmetic_(TensorCoreArithmetic::of(request.arch ? request.arch : 90)),
      kernel_(kernel),
      memory_(request),
      random_state_(request.seed * 2 + 1) {
  uint32_t const ctas = request.grid[0] * request.grid[1] * request.grid[2];
  cluster_ctas_ = request.cluster[0] * request.cluster[1] * request.cluster[2];
  size_t const resident = std::min(request.resident_ctas ? request.resident_ctas : default_resident_ctas, ctas);
  clusters_.resize(std::max<size_t>(resident / cluster_ctas_, 1));
  size_t const slots = clusters_.size() * cluster_ctas_;
  ctas_.resize(slots);
  uintptr_t const arenas = reinterpret_cast<uintptr_t>(arena_pages.at_least((slots + 1) * shared_window));
  uintptr_t const first = (arenas + shared_window - 1) / shared_window * shared_window;
  stacks_ = stack_pages.at_least(slots * request.threads * stack_bytes);
  protect_stacks();
  for (size_t slot = 0; slot < slots; ++slot) {
    ctas_[slot].arena = reinterpret_cast<unsigned char*>(first + slot * shared_window);
    ctas_[slot].cluster = &clusters_[slot / cluster_ctas_];
    if (slot < kept_shadows.size()) std::swap(ctas_[slot].shadow, kept_shadows[slot]);
    clusters_[slot / cluster_ctas_].ctas.push_back(&ctas_[slot]);
  }
  for (uint32_t number = ctas / cluster_ctas_; number-- > 0;) waiting_clusters_.push_back(number);
  if (!request_.registers) request_.registers = std::min(65536 / request.threads / 8 * 8, 248u);
  memcpy(grid, request.grid, sizeof grid);
  memcpy(cluster, request.cluster, sizeof cluster);
  uint32_t const line[3] = {request.threads, 1, 1};
  memcpy(block, request.block[0] ? request.block : line, sizeof block);
  cta_threads = request.threads;
  hgemm::executor::cluster_ctas = cluster_ctas_;
  machine = this;
}

// Makes a stack overflow stop the process. Only the first lane of each warp in one CTA is guarded; the others use their stacks
// alike.
void Machine::protect_stacks() const {
  for (uint32_t thread = 0; thread < request_.threads; thread += 32) mprotect(stacks_ + thread * stack_bytes, 4096, PROT_NONE);
}

bool Machine::is_local(uint64_t address) const {
  uint64_t const first = reinterpret_cast<uintptr_t>(stacks_);
  return address >= first && address < first + ctas_.size() * request_.threads * stack_bytes;
}

Machine::~Machine() {
  if (ctas_.size() * request_.threads > max_cached_threads) {
    arena_pages.release();
    stack_pages.release();
    kept_shadows.clear();
  } else {
    kept_shadows.resize(std::max(kept_shadows.size(), ctas_.size()));
    for (size_t slot = 0; slot < ctas_.size(); ++slot) std::swap(ctas_[slot].shadow, kept_shadows[slot]);
  }
  machine = nullptr;
  place = nullptr;
}

uint32_t Machine::next_cluster() {
  size_t at = waiting_clusters_.size() - 1;
  if (request_.order == HGEMM_AHEAD_HIGH) at = 0;
  if (request_.order == HGEMM_ANY_ORDER) at = random(uint32_t(waiting_clusters_.size()));
  uint32_t const number = waiting_clusters_[at];
  waiting_clusters_.erase(waiting_clusters_.begin() + std::ptrdiff_t(at));
  return number;
}

// Starts clusters in the free slots. A cluster without operations ends at once.
void Machine::start_clusters() {
  for (Cluster& cluster : clusters_) {
    while (!cluster.resident && !waiting_clusters_.empty()) {
      start(cluster, next_cluster());
      if (!cluster.has_running_threads()) finish(cluster);
    }
  }
}

void Machine::start(Cluster& cluster, uint32_t number) {
  cluster.resident = true;
  cluster.arrived = cluster.phase = 0;
  cluster.gathered = ClockUnion();
  cluster.done = Ref<Clock>();
  uint32_t const* const size = request_.cluster;
  uint32_t const across = grid[0] / size[0], down = grid[1] / size[1];
  uint32_t const first[3] = {number % across * size[0], number / across % down * size[1], number / across / down * size[2]};
  for (uint32_t rank = 0; rank < cluster_ctas_; ++rank) {
    Cta& cta = *cluster.ctas[rank];
    cta.index[0] = first[0] + rank % size[0];
    cta.index[1] = first[1] + rank / size[0] % size[1];
    cta.index[2] = first[2] + rank / size[0] / size[1];
    cta.number = cta.index[0] + grid[0] * (cta.index[1] + grid[1] * cta.index[2]);
    resident_.push_back(&cta);
    start(cta, rank);
  }
}

void Machine::start(Cta& cta, uint32_t rank) {
  uint32_t const threads = request_.threads;
  size_t const slot = size_t(&cta - ctas_.data());
  cta.agents = threads;
  cta.lanes_left = threads;
  cta.free_registers = 0;
  cta.may_run = cta.polling = 0;
  memset(cta.arena, HGEMM_POISON, request_.shared_bytes);
  cta.shadow.reset(request_.shared_bytes, false);
  uintptr_t const arena = reinterpret_cast<uintptr_t>(cta.arena);
  atomics_.erase(atomics_.lower_bound(arena), atomics_.lower_bound(arena + shared_window));
  for (Barrier& barrier : cta.barriers) barrier = Barrier();
  cta.mbarriers.clear();
  cta.remote_accesses.clear();
  cta.copiers.clear();
  cta.warpgroups.assign((threads + 127) / 128, Warpgroup());
  cta.warps.assign(threads / 32, Warp());
  cta.lanes.assign(threads, Lane());
  for (uint32_t thread = 0; thread < threads; ++thread) {
    Lane& lane = cta.lanes[thread];
    lane.thread = int(thread);
    lane.shared = cta.arena;
    lane.cluster_rank = rank;
    memcpy(lane.cta_index, cta.index, sizeof cta.index);
    lane.cta = &cta;
    lane.knowledge.cta = cta.number;
    lane.knowledge.thread = uint16_t(thread);
    lane.fenced.epoch = lane.proxy_fenced.epoch = 0;
    // Stacks start at different offsets in a page, because equal offsets would compete for the same cache lines.
    unsigned char* const stack = stacks_ + (slot * threads + thread) * stack_bytes;
    size_t const bytes = stack_bytes - thread * 1088 % 16384 / 64 * 64;
    prepare(lane.fiber, stack, bytes, &Machine::fiber_main);
  }
  for (Warp& warp : cta.warps) {
    warp.cta = &cta;
    warp.index = int(&warp - cta.warps.data());
    warp.lanes = &cta.lanes[size_t(warp.index) * 32];
    warp.registers = request_.registers;
    resume(warp, ~0u);
  }
}

void Machine::finish(Cluster& cluster) {
  cluster.resident = false;
  auto of_cluster = [&](BoxLoad const& load) { return load.cta->cluster == &cluster; };
  box_loads_.erase(std::remove_if(box_loads_.begin(), box_loads_.end(), of_cluster), box_loads_.end());
  auto to_cluster = [&](AsyncStore const& store) { return store.cta->cluster == &cluster; };
  async_stores_.erase(std::remove_if(async_stores_.begin(), async_stores_.end(), to_cluster), async_stores_.end());
  auto by_cluster = [&](CopyArrival const& arrival) { return arrival.lane->cta->cluster == &cluster; };
  copy_arrivals_.erase(std::remove_if(copy_arrivals_.begin(), copy_arrivals_.end(), by_cluster), copy_arrivals_.end());
  resident_.erase(std::remove_if(resident_.begin(), resident_.end(), [&](Cta* cta) { return cta->cluster == &cluster; }),
                resident_.end());
}

// ---- Fibers --------------------------------------------------------------------------------------------------------

void perform(Operation& operation) {
  machine->wait_for(operation, reinterpret_cast<void const*>(uintptr_t(operation.site.line)));
}

void Machine::fiber_main() {
  begin_fiber(machine->scheduler_);
  machine->kernel_.call(machine->request_.parameters);
  machine->finish_fiber();
}

void Machine::finish_fiber() {
  Lane& lane = *queue_[queue_at_];
  lane.exited = true;
  lane.operation = nullptr;
  uniform_ = false;
  run_next_fiber(lane.fiber);
  abort();  // never reached
}

void Machine::wait_for(Operation& operation, void const* program_counter) {
  Lane& lane = *queue_[queue_at_];
  lane.operation = &operation;
  lane.program_counter = program_counter;
  if (uniform_ && queue_at_ > 0) uniform_ = same_request(*queue_[0]->operation, operation);
  run_next_fiber(lane.fiber);
}

// Continues the next lane of the queue, or the scheduler.
void Machine::run_next_fiber(Fiber& from) {
  if (++queue_at_ < queue_end_) {
    place = queue_[queue_at_];
    if (queue_at_ + 6 < queue_end_) __builtin_prefetch(queue_[queue_at_ + 6]);
    if (queue_at_ + 2 < queue_end_) prefetch(queue_[queue_at_ + 2]->fiber);
    switch_fiber(from, queue_[queue_at_]->fiber);
  } else {
    switch_fiber(from, scheduler_);
  }
}

// Lets lanes run until their next operations.
void Machine::resume(Warp& warp, uint32_t lanes) {
  queue_end_ = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) queue_[queue_end_++] = &warp.lanes[__builtin_ctz(rest)];
  queue_at_ = 0;
  place = queue_[0];
  uniform_ = lanes == ~0u;
  switch_fiber(scheduler_, queue_[0]->fiber);
  warp.uniform = uniform_;
  warp.waiting |= lanes;
  warp.cta->may_run |= 1u << warp.index;
  for (int i = 0; i < queue_end_; ++i) {
    if (queue_[i]->exited) exit_lane(warp, *queue_[i]);
  }
}

void Machine::exit_lane(Warp& warp, Lane& lane) {
  uint32_t const bit = 1u << (lane.thread % 32);
  warp.waiting &= ~bit;
  warp.exited |= bit;
  --lane.cta->lanes_left;
  if (!lane.copies.empty()) {
    findings_.add("pending", lane.copies.front().site, [&] {
      return text("%s ends with %zu asynchronous copies in flight", describe(lane).c_str(), lane.copies.size());
    });
  }
  if (!lane.stores.empty()) {
    findings_.add("pending", lane.stores.front().operation.site, [&] {
      return text("%s ends while its TMA stores may still read shared memory", describe(lane).c_str());
    });
    for (BoxStore& store : lane.stores) complete_store(store, lane);
  }
  if (warp.wgmma_retired < warp.wgmma_issued) {
    findings_.add("pending", warp.wgmma_site, [&] { return text("%s ends with wgmmas in flight", describe(lane).c_str()); });
  }
  if (lane.cta->lanes_left == 0) exit_cta(*lane.cta);
}

// Every access of others to the CTA's shared memory must be known to be complete to some thread of the CTA.
void Machine::exit_cta(Cta const& cta) {
  for (CopyArrival const& arrival : copy_arrivals_) {
    if (arrival.lane->cta != &cta) continue;
    findings_.add("pending", arrival.site, [&] {
      return text("CTA %u ends before the copies of thread %d arrive at an mbarrier", cta.number, arrival.lane->thread);
    });
  }
  for (auto const& [agent, visit] : cta.remote_accesses) {
    auto knows = [&visit = visit](Lane const& lane) { return lane.knowledge.writes_after(visit.access); };
    if (std::any_of(cta.lanes.begin(), cta.lanes.end(), knows)) continue;
    findings_.add(visit.access.cta == cta.number ? "pending" : "cluster", visit.site, [&visit = visit, &cta, this] {
      return text("CTA %u ends without synchronization after the access to its shared memory by %s", cta.number,
                  describe(visit.access).c_str());
    });
  }
}

}  // namespace hgemm::executor
