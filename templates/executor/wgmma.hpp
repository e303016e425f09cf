// wgmma: four warps multiply matrices in shared memory. Their accumulators are not accessible until the wait.
#pragma once

#include <executor/machine.hpp>
#include <executor/tensor_core.hpp>

namespace hgemm::executor {

// An operand in shared memory, as a descriptor describes it. A 16-byte vector holds 8 elements (4 of tf32) that are adjacent
// along k (K-major), or along m or n (MN-major).
// Source: PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout"; CUTLASS, cute/arch/mma_sm90_desc.hpp.
class WgmmaOperand {
 public:
  WgmmaOperand(uint64_t descriptor, bool k_major, Element element)
      : start_(uint32_t(descriptor & 0x3fff) << 4),
        leading_(uint32_t(descriptor >> 16 & 0x3fff) << 4),
        stride_(uint32_t(descriptor >> 32 & 0x3fff) << 4),
        bits_(descriptor >> 62 ? 4 - uint32_t(descriptor >> 62) : 0),
        vector_elements_(element == Element::tf32 ? 4 : 8),
        k_major_(k_major) {}

  // Returns the shared address of the vector with the element at `extent` (of m or n) and `k`.
  uint32_t vector_address(uint32_t extent, uint32_t k) const {
    uint32_t const along = k_major_ ? k : extent, across = k_major_ ? extent : k;  // along: the contiguous index
    uint32_t const width = 16u << bits_, vectors = 1u << bits_, at = along / vector_elements_;
    uint32_t address = start_ + across % 8 * width;
    if (bits_ == 0) {
      address += k_major_ ? at * leading_ + across / 8 * stride_ : at * stride_ + across / 8 * leading_;
    } else {
      address += at % vectors * 16 + at / vectors * leading_ + across / 8 * stride_;
    }
    return uint32_t(swizzle_address(address, bits_)) % shared_window;
  }
  bool k_major() const { return k_major_; }
  uint32_t vector_elements() const { return vector_elements_; }

 private:
  uint32_t start_, leading_, stride_, bits_, vector_elements_;
  bool k_major_;
};

inline WgmmaArguments const& wgmma_arguments(Operation const& operation) {
  return *static_cast<WgmmaArguments const*>(operation.second);
}
inline uint32_t depth_of(Wgmma const& op) { return op.in == Element::tf32 ? 8 : 16; }
inline uint32_t registers_of(Wgmma const& op) { return op.arguments.n / (op.acc == Element::f32 ? 2 : 4); }

// Issues one warp's part of the next wgmma of its warpgroup.
void Machine::wgmma(Warp& warp, SiteCost& cost) {
  Operation const& first = *warp.lanes[0].operation;
  WgmmaArguments const arguments = wgmma_arguments(first);
  Cta& cta = *warp.cta;
  Warpgroup& group = cta.warpgroups[size_t(warp.index) / 4];
  int const quarter = warp.index % 4;
  if (group.agent == no_agent) group.agent = cta.new_agent();
  warp.wgmma_site = first.site;

  size_t const at = warp.wgmma_issued++ - group.first;
  if (at == group.in_flight.size()) {
    group.in_flight.emplace_back();
    group.in_flight.back().arguments = arguments;
    group.in_flight.back().in = first.in;
    group.in_flight.back().acc = first.acc;
  }
  Wgmma& op = group.in_flight[at];
  bool same = op.acc == first.acc;
  for (int i = 0; i < 32; ++i) {
    Operation const& operation = *warp.lanes[i].operation;
    WgmmaArguments const& its = wgmma_arguments(operation);
    same &= its.a == op.arguments.a && its.b == op.arguments.b && its.n == op.arguments.n &&
            its.accumulate == op.arguments.accumulate && its.list == op.arguments.list &&
            its.a_list == op.arguments.a_list;
    op.d[quarter][i] = operation.to;
  }
  if (!same) {
    findings_.add("wgmma", first.site,
                  [&] { return describe(warp.lanes[0]) + ": threads of a warpgroup have different operands"; });
  }
  if ((arguments.a | arguments.b) >> 49 & 7) {
    findings_.add("wgmma", first.site,
                  [&] { return describe(warp.lanes[0]) + ": descriptors with a base offset are not supported"; });
  }
  op.group[quarter] = warp.wgmma_committed;
  op.issued[quarter] = true;
  take_accumulators(warp, op, quarter);
  if (op.arguments.a_list) take_a(warp, op, quarter);
  op.valid[quarter] = op.arguments.a_list || check_operand(warp, op, false, &cost);
  bool const judged = op.reader && covers(warp.lanes[0].knowledge.clock.get(), op.reader.get());
  if (judged) {
    for (int other = 0; other < 4; ++other) op.valid[quarter] &= !op.issued[other] || op.valid[other];
  } else {
    op.valid[quarter] &= check_operand(warp, op, true, op.reader ? nullptr : &cost);
    if (!op.reader) op.reader = warp.lanes[0].knowledge.clock;
  }
  if (quarter == 0) counters_.add(text("wgmma_m64n%uk%u", op.arguments.n, depth_of(op)));
  if (request_.timing == HGEMM_EARLY) compute_wgmma(warp, op, quarter);
}

void Machine::wgmma_fence(Warp& warp) {
  warp.wgmma_fenced = true;
  for (int i = 0; i < 32; ++i) {
    auto* const registers = static_cast<WgmmaRegisters*>(warp.lanes[i].operation->to);
    if (!registers || !registers->any_accessed) continue;
    registers->any_accessed = false;
    for (uint32_t j = 0; j < registers->count; ++j) {
      if (registers->tokens[j] == WgmmaRegisters::accessed) registers->tokens[j] = 0;
    }
  }
}

void Machine::check_fenced(Warp const& warp) {
  if (warp.wgmma_fenced) return;
  findings_.add("wgmma", warp.lanes[0].operation->site, [&] {
    return describe(warp.lanes[0]) + ": no wgmma fence since the accumulators were last in registers";
  });
}

// Replaces tokens `before` by `after`. Returns whether a token was another one.
HGEMM_CLONES static bool renumber(uint64_t* tokens, uint32_t count, uint64_t before, uint64_t after) {
  uint64_t different = 0;
  for (uint32_t j = 0; j < count; ++j) {
    different |= tokens[j] ^ (before | j);
    tokens[j] = after | j;
  }
  return different != 0;
}

// Tells whether a wgmma names the registers of the last wgmma with these accumulators, and nothing has touched a register since.
// Then their tokens are as it left them, and no copy of them exists.
static bool has_kept_registers(Wgmma const& op, int quarter, Accumulators const& accumulators) {
  uint32_t const count = registers_of(op);
  bool const same = accumulators.list.size() == count && accumulators.d.size() >= 16 * op.arguments.n &&
                    memcmp(accumulators.list.data(), op.arguments.list, count * sizeof(uint16_t)) == 0;
  for (int i = 0; same && i < 32; ++i) {
    if (static_cast<WgmmaRegisters const*>(op.d[quarter][i])->changes != accumulators.changes[i]) return false;
  }
  return same;
}

// Moves the accumulators out of the caller's registers. These must all be ready, or all hold the accumulators of one earlier wgmma in flight,
// in the same order. Compilers copy registers between wgmmas in flight, but ptxas gives such copies the same register.
void Machine::take_accumulators(Warp& warp, Wgmma& op, int quarter) {
  auto& all = warp.cta->warpgroups[size_t(warp.index) / 4].accumulators[quarter];
  uint16_t const* const list = op.arguments.list;
  auto file = [&](int lane) -> WgmmaRegisters& { return *static_cast<WgmmaRegisters*>(op.d[quarter][lane]); };
  uint64_t const found = file(0).tokens[list[0]] >> 32, number = found ? found : ++listed_accumulators_;
  op.key[quarter] = reinterpret_cast<void*>(uintptr_t(number));
  Accumulators& accumulators = all[op.key[quarter]];
  bool const first = accumulators.users++ == 0;
  uint32_t const count = registers_of(op);
  if (first) check_fenced(warp);
  if (!first && has_kept_registers(op, quarter, accumulators)) return;
  bool mixed = !first && accumulators.count != count, accessed = false;
  accumulators.count = count;
  if (accumulators.d.size() < 16 * op.arguments.n) accumulators.d.resize(16 * op.arguments.n, float_of(~0u));
  bool in_a_row = true;  // the numbers of the registers
  for (uint32_t j = 1; j < count; ++j) in_a_row &= list[j] == list[0] + j;
  uint64_t const before = number << 32 | uint64_t(accumulators.version) << 8;
  uint64_t const after = number << 32 | uint64_t(++accumulators.version) << 8;
  for (int i = 0; i < 32; ++i) {
    uint64_t* const tokens = file(i).tokens;
    uint32_t* const values = file(i).values;
    if (first) {
      uint32_t taken[128];
      for (uint32_t j = 0; j < count; ++j) {
        uint64_t const token = tokens[list[j]];
        taken[j] = values[list[j]];
        accessed |= token == WgmmaRegisters::accessed;
        mixed |= token > WgmmaRegisters::accessed;
      }
      WgmmaTile::move_in(uint32_t(i), op.arguments.n, taken, op.acc, accumulators.d.data());
    }
    if (in_a_row) {
      mixed |= renumber(tokens + list[0], count, before, after) && !first;
      memset(values + list[0], 0xff, count * 4);
      continue;
    }
    for (uint32_t j = 0; !first && j < count; ++j) mixed |= tokens[list[j]] != (before | j);
    for (uint32_t j = 0; j < count; ++j) {
      tokens[list[j]] = after | j;
      values[list[j]] = ~0u;
    }
  }
  for (uint32_t j = 0; j < count; ++j) mixed |= file(0).tokens[list[j]] != (after | j);  // a register that is listed twice
  accumulators.list.assign(list, list + count);
  for (int i = 0; i < 32; ++i) {
    accumulators.changes[i] = file(i).changes;
    file(i).changes += mixed;  // tokens of other accumulators may be lost
  }
  if (accessed) {
    findings_.add("wgmma", warp.lanes[0].operation->site, [&] {
      return describe(warp.lanes[0]) + ": an accumulator was accessed after the last wgmma fence";
    });
  }
  if (mixed) {
    findings_.add("wgmma", warp.lanes[0].operation->site, [&] {
      return describe(warp.lanes[0]) + ": an accumulator is that of another wgmma in flight, of another shape or order";
    });
  }
}

// Reads a from registers. Until the wait, they must not be accessed.
void Machine::take_a(Warp& warp, Wgmma& op, int quarter) {
  op.a_number[quarter] = ++listed_accumulators_;
  op.a_values[quarter].resize(128);
  bool accessed = false, mixed = false;
  for (int i = 0; i < 32; ++i) {
    WgmmaRegisters& registers = *static_cast<WgmmaRegisters*>(op.d[quarter][i]);
    for (int j = 0; j < 4; ++j) {
      uint64_t& token = registers.tokens[op.arguments.a_list[j]];
      accessed |= token == WgmmaRegisters::accessed;
      mixed |= token > WgmmaRegisters::accessed && (token & WgmmaRegisters::input) == 0;
      registers.changes += mixed;
      token = op.a_number[quarter] << 32 | WgmmaRegisters::input;
      op.a_values[quarter][size_t(i) * 4 + size_t(j)] = registers.values[op.arguments.a_list[j]];
    }
  }
  if (!accessed && !mixed) return;
  findings_.add("wgmma", warp.lanes[0].operation->site, [&] {
    return describe(warp.lanes[0]) + (mixed ? ": a register of a is an accumulator in flight"
                                            : ": a register of a was accessed after the last wgmma fence");
  });
}

void Machine::return_a(Wgmma const& op, int quarter) {
  for (void* const lane : op.d[quarter]) {
    WgmmaRegisters& registers = *static_cast<WgmmaRegisters*>(lane);
    for (uint32_t i = 0; i < registers.count; ++i) {
      if (registers.tokens[i] == (op.a_number[quarter] << 32 | WgmmaRegisters::input)) registers.tokens[i] = 0;
    }
  }
}

// Moves the accumulators back to the registers of one warp.
void Machine::return_accumulators(Wgmma const& op, int quarter, Accumulators const& accumulators) {
  for (uint32_t i = 0; i < 32; ++i) {
    uint32_t from[128];
    WgmmaTile::move_out(i, op.arguments.n, from, op.acc, accumulators.d.data());
    WgmmaRegisters& registers = *static_cast<WgmmaRegisters*>(op.d[quarter][i]);
    for (uint32_t j = 0; j < registers.count; ++j) {
      uint64_t& token = registers.tokens[j];
      if (token >> 32 != reinterpret_cast<uintptr_t>(op.key[quarter])) continue;
      if ((token >> 8 & 0xffffff) == accumulators.version) registers.values[j] = from[token & 0x7f];
      token = 0;
    }
  }
}

void Machine::report_register(Site site, char const* name) {
  Lane const& lane = *queue_[queue_at_];
  findings_.add("wgmma", site, [&] {
    return text("%s accesses %s, which a wgmma in flight writes: wait for its group first", describe(lane).c_str(), name);
  });
}

void Machine::report_stop(Site site, char const* what) {
  Lane const& lane = *queue_[queue_at_];
  findings_.add("assert", site, [&] { return describe(lane) + ": " + what; });
}

// Checks the reads of one warp: 16 rows of A, or all of B.
bool Machine::check_operand(Warp& warp, Wgmma const& op, bool is_b, SiteCost* cost) {
  Lane& lane = warp.lanes[0];
  Operation const& operation = *lane.operation;
  WgmmaArguments const& arguments = op.arguments;
  WgmmaOperand const matrix(is_b ? arguments.b : arguments.a, is_b ? arguments.b_k_major : arguments.a_k_major, op.in);
  uint32_t const first = is_b ? 0 : uint32_t(warp.index % 4) * 16, extent = is_b ? arguments.n : 16;
  Access const me = {warp.wgmma_committed + 1, warp.cta->number, warp.cta->warpgroups[size_t(warp.index) / 4].agent,
                     costs_.site_index(operation)};
  Shadow& shadow = warp.cta->shadow;
  uint32_t offsets[256 * 2];  // the shadow memory of a CTA exceeds a processor's cache, so all lines are fetched first
  uint32_t count = 0;
  for (uint32_t block = 0; block < extent; block += 8) {  // 8 vectors form one phase of shared memory
    for (uint32_t k = 0; k < depth_of(op); k += matrix.vector_elements()) {
      for (uint32_t i = 0; i < 8; ++i) {
        uint32_t const row = first + block + (matrix.k_major() ? i : 0);
        offsets[count] = matrix.vector_address(row, k + (matrix.k_major() ? 0 : i));
        shadow.prefetch(offsets[count++]);
      }
    }
  }
  Access known;  // the last write of most vectors: one TMA load
  for (uint32_t phase = 0; phase < count; phase += 8) {
    Addresses addresses;
    for (uint32_t i = 0; i < 8; ++i) {
      uint32_t const offset = offsets[phase + i];
      unsigned char const* const vector = warp.cta->arena + offset;
      if (!check_shared(lane, operation, vector, 16)) return false;
      if (!known.epoch || !shadow.read_line(offset, lane.knowledge, me, known)) {
        bool const ordered = record_async(lane, operation, *lane.cta, vector, 16, false, me);
        known = ordered ? shadow.last_write(offset) : Access();
      }
      addresses.add(int(i), vector);
    }
    if (cost) count_wavefronts(addresses, 16, *cost);
  }
  if (cost) {
    cost->shared = true;
    cost->bytes += extent * 32;
  }
  return true;
}

// Computes one warp's part, 16 rows. Returns whether it has read B, which the next part need not do (`has_b`) if nothing has run
// in between.
bool Machine::compute_wgmma(Warp& warp, Wgmma& op, int quarter, bool has_b) {
  if (op.done[quarter]) return false;
  op.done[quarter] = true;
  uint32_t const n = op.arguments.n, depth = depth_of(op);
  Accumulators& accumulators = warp.cta->warpgroups[size_t(warp.index) / 4].accumulators[quarter].at(op.key[quarter]);
  if (!op.valid[quarter]) {
    std::fill(accumulators.d.begin(), accumulators.d.end(), float_of(~0u));
    return false;
  }
  static WgmmaTile tile;
  // Reads an operand. In `to`, a row of k is contiguous, or with `transposed`, a column is.
  auto read = [&](uint64_t descriptor, bool k_major, uint32_t first, uint32_t extent, bool transposed, float* to, size_t pitch) {
    WgmmaOperand const matrix(descriptor, k_major, op.in);
    uint32_t const step = matrix.vector_elements();
    uint32_t const alongs = k_major ? depth : extent, acrosses = k_major ? extent : depth;
    auto vector = [&](uint32_t along, uint32_t across) -> unsigned char const* {
      return warp.cta->arena +
             (k_major ? matrix.vector_address(first + across, along) : matrix.vector_address(first + along, across));
    };
    for (uint32_t along = 0; along < alongs; along += step) {
      for (uint32_t across = 0; across < acrosses; across += 8) {
        if (k_major != transposed) {  // vectors are contiguous
          for (uint32_t i = across; i < across + 8; ++i) widen_16_bytes(vector(along, i), to + i * pitch + along, op.in);
        } else if (step == 8) {
          Halves rows[8];
          for (uint32_t i = 0; i < 8; ++i) memcpy(&rows[i], vector(along, across + i), 16);
          widen_transposed(rows, to + along * pitch + across, pitch, op.in);
        } else {
          for (uint32_t i = across; i < across + 8; ++i) {
            float values[4];
            widen_16_bytes(vector(along, i), values, op.in);
            for (uint32_t e = 0; e < step; ++e) to[(along + e) * pitch + i] = values[e];
          }
        }
      }
    }
  };
  if (op.arguments.a_list) {
    tile.read_a(op.a_values[quarter].data(), op.in);
  } else {
    read(op.arguments.a, op.arguments.a_k_major, uint32_t(quarter) * 16, 16, false, tile.a[0], 16);
  }
  if (!has_b) read(op.arguments.b, op.arguments.b_k_major, 0, n, true, tile.b[0], 256);
  if (!op.arguments.accumulate) std::fill(accumulators.d.begin(), accumulators.d.end(), 0.f);
  tile.multiply(accumulators.d.data(), n, int(depth), op.in, op.acc, arithmetic_.fraction_bits, has_b);
  return true;
}

// Completes some wgmmas in flight, in the order of issue.
void Machine::compute_some_wgmma(Warpgroup& group, Cta& cta) {
  size_t const first_warp = size_t(&group - cta.warpgroups.data()) * 4;
  for (size_t quarter = 0; quarter < 4 && first_warp + quarter < cta.warps.size(); ++quarter) {
    for (Wgmma& op : group.in_flight) {
      if (!op.issued[quarter] || random(2)) break;
      compute_wgmma(cta.warps[first_warp + quarter], op, int(quarter));
    }
  }
}

// Completes all but `pending` groups, for all four warps at once, and moves the accumulators back to the registers.
void Machine::wgmma_wait(Warp& warp, uint32_t pending) {
  Cta& cta = *warp.cta;
  Warpgroup& group = cta.warpgroups[size_t(warp.index) / 4];
  int const quarter = warp.index % 4;
  if (warp.wgmma_committed <= pending) return;
  uint32_t const complete = warp.wgmma_committed - pending;  // groups
  uint32_t number = group.first;
  for (Wgmma& op : group.in_flight) {
    if (number++ < warp.wgmma_retired || !op.issued[quarter]) continue;
    if (op.group[quarter] >= complete) break;
    bool has_b = false;
    for (int other = 0; other < 4; ++other) {
      has_b |= compute_wgmma(cta.warps[size_t(warp.index) / 4 * 4 + size_t(other)], op, other, has_b);
    }
    ++warp.wgmma_retired;
    if (op.arguments.a_list) return_a(op, quarter);
    auto const found = group.accumulators[quarter].find(op.key[quarter]);
    if (--found->second.users) continue;
    return_accumulators(op, quarter, found->second);
    group.accumulators[quarter].erase(found);
    warp.wgmma_fenced = false;
  }
  while (!group.in_flight.empty()) {
    bool all = true;
    for (size_t i = 0; i < 4; ++i) {
      size_t const other = size_t(warp.index) / 4 * 4 + i;
      all &= other < cta.warps.size() && cta.warps[other].wgmma_retired > group.first;
    }
    if (!all) break;
    group.in_flight.pop_front();
    ++group.first;
  }
  if (group.agent == no_agent) return;
  ClockUnion read;
  read.set(cta.number, group.agent, complete);
  ClockUpdate learning(read.clock());
  for (int i = 0; i < 32; ++i) learning.apply(warp.lanes[i].knowledge);
}

}  // namespace hgemm::executor
