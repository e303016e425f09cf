// The operations of translated PTX: each fills in an Operation, as an atom of the templates does.
#pragma once

#include <executor/machine.hpp>
#include <executor/ptx.hpp>

namespace hgemm::executor::ptx {

namespace {

constexpr char file[] = "kernel.ptx";

Operation operation(int line, Kind kind) {
  Operation result{};
  result.kind = kind;
  result.site = {file, line};
  return result;
}

// A pointer into the CTA's own shared memory. Addresses past its end are findings of the operations.
unsigned char* own(uint64_t address) { return place->shared + address; }

// A pointer into the CTA's own shared memory, at the offset of an address in the cluster, and 1 + the rank of its CTA, or 0.
struct ClusterAddress {
  unsigned char* pointer;
  uint32_t rank;
};
ClusterAddress in_cluster(uint64_t address) {
  if (address >> 32) return {own(address), 0};  // out of bounds
  return {own(address & 0xffffff), uint32_t(address) >> rank_bit};
}

// A generic address, resolved: arenas of a cluster follow one another.
bool is_shared(uint64_t address, ClusterAddress& found) {
  uint64_t const first = reinterpret_cast<uintptr_t>(place->shared) - uint64_t(place->cluster_rank) * shared_window;
  if (address < first || address >= first + uint64_t(cluster_ctas) * shared_window) return false;
  uint32_t const rank = uint32_t((address - first) / shared_window);
  found = {place->shared + address % shared_window, rank == place->cluster_rank ? 0 : rank + 1};
  return true;
}

// Fills in the space and the pointer of an access.
void* locate(Operation& operation, At space, uint64_t address) {
  ClusterAddress shared = {nullptr, 0};
  bool const is = space == At::generic && is_shared(address, shared);
  if (space == At::shared) shared = {own(address), 0};
  if (space == At::shared_cluster) shared = in_cluster(address);
  if (!is && (space == At::global || space == At::generic)) {
    operation.space = Space::global;
    return reinterpret_cast<void*>(address);
  }
  operation.space = Space::shared;
  operation.threads = shared.rank;
  return shared.pointer;
}

}  // namespace

// ---- Memory --------------------------------------------------------------------------------------------------------

void load(int line, At space, void* to, uint64_t address, uint32_t bytes) {
  if (space == At::generic && machine->is_local(address)) {
    memcpy(to, reinterpret_cast<void const*>(address), bytes);
    return;
  }
  Operation read = operation(line, Kind::load);
  read.from = locate(read, space, address);
  read.to = to;
  read.bytes = bytes;
  executor::perform(read);
}
void store(int line, At space, uint64_t address, void const* from, uint32_t bytes) {
  if (space == At::generic && machine->is_local(address)) {
    memcpy(reinterpret_cast<void*>(address), from, bytes);
    return;
  }
  Operation write = operation(line, Kind::store);
  write.to = locate(write, space, address);
  write.from = from;
  write.bytes = bytes;
  executor::perform(write);
}
void store_async(int line, uint64_t address, void const* from, uint32_t bytes, uint64_t barrier) {
  ClusterAddress const its_barrier = in_cluster(barrier);
  StoreAsyncArguments const arguments = {its_barrier.pointer, its_barrier.rank};
  Operation write = operation(line, Kind::store_async);
  write.to = locate(write, At::shared_cluster, address);
  write.from = from;
  write.bytes = bytes;
  write.second = &arguments;
  executor::perform(write);
}
void atomic(int line, At space, uint64_t address, uint32_t bytes, AtomicArguments& arguments) {
  Operation update = operation(line, Kind::fetch_add);
  update.to = locate(update, space, address);
  update.second = &arguments;
  update.bytes = bytes;
  executor::perform(update);
}
void cp_async(int line, uint64_t shared, uint64_t global, uint32_t bytes, uint32_t copied) {
  Operation copy = operation(line, Kind::cp_async);
  copy.to = own(shared);
  copy.from = reinterpret_cast<void const*>(global);
  copy.bytes = bytes;
  copy.flag = copied > 0;
  copy.number = copied > 0 && copied < bytes ? bytes - copied : 0;
  executor::perform(copy);
}

uint64_t generic_of_shared(uint64_t address) {
  if (address >> rank_bit == 0 || address >> 32) return reinterpret_cast<uintptr_t>(own(address));
  uint64_t const rank = (address >> rank_bit) - 1;
  return reinterpret_cast<uintptr_t>(place->shared) + (rank - place->cluster_rank) * shared_window + (address & 0xffffff);
}
uint64_t shared_of_generic(uint64_t address) {
  ClusterAddress found;
  if (is_shared(address, found) && found.rank) {
    return uint64_t(found.pointer - place->shared) | uint64_t(found.rank) << rank_bit;
  }
  return address - reinterpret_cast<uintptr_t>(place->shared);
}

// ---- Operations with few operands ----------------------------------------------------------------------------------

void perform(int line, Kind kind, uint32_t number, bool flag, uint32_t threads) {
  Operation simple = operation(line, kind);
  simple.number = number;
  simple.flag = flag;
  simple.threads = threads;
  executor::perform(simple);
}
bool elect(int line, uint32_t members, uint32_t& lane) {
  bool elected = false;
  Operation election = operation(line, Kind::elect_one);
  election.number = members;
  election.to = &elected;
  election.second = &lane;
  executor::perform(election);
  return elected;
}
uint32_t shuffle(int line, Shuffle mode, uint32_t value, uint32_t by, uint32_t clamp_and_mask, uint32_t members,
                 bool& in_range) {
  ShuffleArguments arguments = {value, by, clamp_and_mask, members, mode, false};
  uint32_t result = 0;
  Operation exchange = operation(line, Kind::shuffle);
  exchange.number = members;
  exchange.to = &result;
  exchange.second = &arguments;
  executor::perform(exchange);
  in_range = arguments.in_range;
  return result;
}
uint32_t reduce(int line, uint32_t (*combine)(uint32_t, uint32_t), uint32_t value, uint32_t members) {
  ShuffleArguments arguments = {value, 0, 0, members, Shuffle::index, false, combine};
  uint32_t result = 0;
  Operation exchange = operation(line, Kind::shuffle);
  exchange.number = members;
  exchange.to = &result;
  exchange.second = &arguments;
  executor::perform(exchange);
  return result;
}
// movmatrix: lane l holds columns l % 4 * 2 and the next one of row l / 4.
uint32_t transpose(int line, uint32_t value) {
  uint32_t const lane = uint32_t(place->thread) % 32, half = lane / 4 % 2 * 16, from = lane % 4 * 8 + lane / 8;
  bool in_range;
  uint32_t const low = shuffle(line, Shuffle::index, value, from, 31, ~0u, in_range) >> half & 0xffff;
  uint32_t const high = shuffle(line, Shuffle::index, value, from + 4, 31, ~0u, in_range) >> half & 0xffff;
  return low | high << 16;
}
uint32_t vote(int line, bool predicate, uint32_t members, uint32_t& voters) {
  VoteArguments arguments = {predicate, members, 0, 0};
  Operation ballot = operation(line, Kind::vote);
  ballot.number = members;
  ballot.second = &arguments;
  executor::perform(ballot);
  voters = arguments.voters;
  return arguments.lanes;
}
void warp_barrier(int line, uint32_t members) { perform(line, Kind::warp_barrier, members); }

void mbarrier_init(int line, uint64_t address, uint32_t arrivals) {
  Operation init = operation(line, Kind::mbarrier_init);
  init.to = own(address);
  init.number = arrivals;
  executor::perform(init);
}
void mbarrier_invalidate(int line, uint64_t address) {
  Operation end = operation(line, Kind::mbarrier_init);
  end.flag = false;
  end.to = own(address);
  executor::perform(end);
}
uint64_t mbarrier_arrive(int line, At space, uint64_t address, uint32_t bytes, uint32_t arrivals, bool in_cluster) {
  uint64_t parity = 0;
  Operation arrive = operation(line, Kind::mbarrier_arrive);
  arrive.number = arrivals;
  arrive.in_cluster = in_cluster;
  arrive.to = locate(arrive, space, address);
  arrive.second = &parity;
  arrive.bytes = bytes;
  executor::perform(arrive);
  return parity;
}
void mbarrier_expect(int line, At space, uint64_t address, uint32_t bytes) {
  Operation expect = operation(line, Kind::mbarrier_arrive);
  expect.to = locate(expect, space, address);
  expect.bytes = bytes;
  expect.flag = false;
  executor::perform(expect);
}
bool mbarrier_test(int line, uint64_t address, uint32_t parity, bool in_cluster) {
  bool ended = false;
  Operation test = operation(line, Kind::mbarrier_test);
  test.in_cluster = in_cluster;
  test.to = own(address);
  test.number = parity & 1;
  test.second = &ended;
  executor::perform(test);
  return ended;
}
void mbarrier_arrive_after_copies(int line, uint64_t address) {
  Operation arrive = operation(line, Kind::mbarrier_arrive_after_copies);
  arrive.to = own(address);
  executor::perform(arrive);
}
void mbarrier_wait(int line, uint64_t address, uint32_t parity, bool in_cluster) {
  Operation wait = operation(line, Kind::mbarrier_wait);
  wait.in_cluster = in_cluster;
  wait.to = own(address);
  wait.number = parity & 1;
  executor::perform(wait);
}

void tma_prefetch(int line, uint64_t map) {
  TmaArguments const arguments = {reinterpret_cast<void const*>(map), {}, nullptr, 0, 0};
  Operation prefetch = operation(line, Kind::tma_prefetch);
  prefetch.second = &arguments;
  executor::perform(prefetch);
}
static TmaArguments tma_arguments_of(uint64_t map, Coordinates const& box, uint64_t* barrier, uint32_t ranks) {
  TmaArguments result = {reinterpret_cast<void const*>(map), {}, barrier, uint16_t(ranks), box.dimensions};
  memcpy(result.at, box.at, sizeof box.at);
  return result;
}
void tma_load(int line, uint64_t shared, uint64_t map, Coordinates const& box, uint64_t barrier, uint32_t ranks) {
  TmaArguments const arguments = tma_arguments_of(map, box, reinterpret_cast<uint64_t*>(own(barrier)), ranks);
  Operation copy = operation(line, Kind::tma_load);
  copy.to = own(shared);
  copy.second = &arguments;
  executor::perform(copy);
}
void tma_store(int line, uint64_t map, Coordinates const& box, uint64_t shared) {
  TmaArguments const arguments = tma_arguments_of(map, box, nullptr, 0);
  Operation copy = operation(line, Kind::tma_store);
  copy.from = own(shared);
  copy.second = &arguments;
  executor::perform(copy);
}

// ---- Matrices ------------------------------------------------------------------------------------------------------

void ldmatrix(int line, uint32_t* registers, uint64_t address, uint32_t matrices, bool transpose) {
  Operation read = operation(line, Kind::ldmatrix);
  read.space = Space::shared;
  read.from = own(address);
  read.to = registers;
  read.bytes = 16;
  read.number = matrices;
  read.flag = transpose;
  executor::perform(read);
}
void stmatrix(int line, uint64_t address, uint32_t const* registers, uint32_t matrices, bool transpose) {
  Operation write = operation(line, Kind::stmatrix);
  write.space = Space::shared;
  write.to = own(address);
  write.from = registers;
  write.bytes = 16;
  write.number = matrices;
  write.flag = transpose;
  executor::perform(write);
}
void wmma_load(int line, uint32_t* registers, uint64_t address, uint32_t pitch, bool of_a, bool by_rows) {
  bool const transpose = of_a != by_rows, down_first = of_a != transpose;
  uint32_t const lane = uint32_t(place->thread) % 32;
  uint32_t const down = down_first ? lane / 8 % 2 : lane / 16, across = down_first ? lane / 16 : lane / 8 % 2;
  Operation read = operation(line, Kind::wmma_load);
  read.space = Space::shared;
  read.from = own(address + ((down * 8 + lane % 8) * uint64_t(pitch) + across * 8) * 2);
  read.second = own(address);
  read.to = registers;
  read.bytes = 16;
  read.number = pitch;
  read.flag = transpose;
  executor::perform(read);
}
void mma(int line, Element in, Element acc, uint32_t depth, uint32_t* d, uint32_t const* a, uint32_t const* b) {
  Operation product = operation(line, Kind::mma);
  product.in = in;
  product.acc = acc;
  product.number = depth;
  product.flag = false;
  product.to = d;
  product.from = a;
  product.second = b;
  executor::perform(product);
}
void wgmma(int line, Element in, Element acc, uint32_t n, WgmmaRegisters& registers, uint16_t const* list,
           uint16_t const* a_list, uint64_t a, uint64_t b, bool accumulate, bool a_mn_major, bool b_mn_major) {
  WgmmaArguments const arguments = {a, b, n, !a_mn_major, !b_mn_major, accumulate, list, a_list};
  Operation product = operation(line, Kind::wgmma);
  product.in = in;
  product.acc = acc;
  product.to = &registers;
  product.second = &arguments;
  executor::perform(product);
}
void wgmma_order(int line, Kind kind, WgmmaRegisters& registers, uint32_t number) {
  Operation order = operation(line, kind);
  order.to = &registers;
  order.number = number;
  executor::perform(order);
}

void register_in_flight(int line, char const* name) { machine->report_register({file, line}, name); }
void assertion_failed(int line) { machine->report_stop({file, line}, "an assert of the kernel fails"); }
void trapped(int line) { machine->report_stop({file, line}, "the kernel traps"); }

}  // namespace hgemm::executor::ptx
