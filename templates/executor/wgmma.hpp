// Products of a warpgroup (wgmma): four warps multiply matrices in shared memory while their sums are out of reach.
#pragma once

#include <executor/machine.hpp>
#include <executor/tensor_core.hpp>

namespace hgemm::executor {

// How a descriptor says that the 16-byte pieces of a matrix lie: neighbours along k (K-major) or along m or n (MN-major), 8 of
// them, or 4 of tf32.
// Source: PTX ISA, "Asynchronous warpgroup-level matrix shared memory layout"; CUTLASS, cute/arch/mma_sm90_desc.hpp.
class MatrixInShared {
 public:
  MatrixInShared(uint64_t descriptor, bool k_major, Element element)
      : start_(uint32_t(descriptor & 0x3fff) << 4),
        leading_(uint32_t(descriptor >> 16 & 0x3fff) << 4),
        stride_(uint32_t(descriptor >> 32 & 0x3fff) << 4),
        bits_(descriptor >> 62 ? 4 - uint32_t(descriptor >> 62) : 0),
        neighbours_(element == Element::tf32 ? 4 : 8),
        k_major_(k_major) {}

  // The shared address of the piece that holds element `extent` of m or n and `k`.
  uint32_t piece(uint32_t extent, uint32_t k) const {
    uint32_t const along = k_major_ ? k : extent, across = k_major_ ? extent : k;  // of the contiguous index
    uint32_t const width = 16u << bits_, pieces = 1u << bits_, at = along / neighbours_;
    uint32_t address = start_ + across % 8 * width;
    if (bits_ == 0) {
      address += k_major_ ? at * leading_ + across / 8 * stride_ : at * stride_ + across / 8 * leading_;
    } else {
      address += at % pieces * 16 + at / pieces * leading_ + across / 8 * stride_;
    }
    return uint32_t(swizzled(address, bits_)) % shared_window;
  }
  bool k_major() const { return k_major_; }
  uint32_t neighbours() const { return neighbours_; }

 private:
  uint32_t start_, leading_, stride_, bits_, neighbours_;
  bool k_major_;
};

inline WgmmaArguments const& wgmma_arguments(Operation const& operation) {
  return *static_cast<WgmmaArguments const*>(operation.second);
}
inline uint32_t depth_of(Product const& product) { return product.in == Element::tf32 ? 8 : 16; }
inline uint32_t registers_of(Product const& product) { return product.arguments.n / (product.sum == Element::f32 ? 2 : 4); }

// A warp's part of the next product of its warpgroup.
void Machine::issue(Warp& warp, SiteCost& cost) {
  Operation const& first = *warp.lanes[0].operation;
  WgmmaArguments const arguments = wgmma_arguments(first);
  Cta& cta = *warp.cta;
  Warpgroup& group = cta.warpgroups[size_t(warp.index) / 4];
  int const quarter = warp.index % 4;
  if (group.agent == no_agent) group.agent = cta.new_agent();
  warp.wgmma_site = first.site;

  size_t const at = warp.wgmma_issued++ - group.first;
  if (at == group.products.size()) {
    group.products.emplace_back();
    group.products.back().arguments = arguments;
    group.products.back().in = first.in;
    group.products.back().sum = first.sum;
  }
  Product& product = group.products[at];
  bool same = product.sum == first.sum;
  for (int i = 0; i < 32; ++i) {
    Operation const& operation = *warp.lanes[i].operation;
    WgmmaArguments const& its = wgmma_arguments(operation);
    same &= its.a == product.arguments.a && its.b == product.arguments.b && its.n == product.arguments.n &&
            its.accumulate == product.arguments.accumulate;
    product.d[quarter][i] = operation.to;
  }
  if (!same) {
    findings_.add("wgmma", first.site,
                  [&] { return whoami(warp.lanes[0]) + ": threads of a warpgroup give different operands"; });
  }
  if ((arguments.a | arguments.b) >> 49 & 7) {
    findings_.add("wgmma", first.site,
                  [&] { return whoami(warp.lanes[0]) + ": a descriptor has a base offset, which is not known here"; });
  }
  product.group[quarter] = warp.wgmma_committed;
  product.issued[quarter] = true;
  take_sums(warp, product, quarter);
  product.sound[quarter] = judge_operand(warp, product, false, &cost);
  bool const judged = product.reader && covers(warp.lanes[0].knowledge.clock.get(), product.reader.get());
  if (judged) {
    for (int other = 0; other < 4; ++other) product.sound[quarter] &= !product.issued[other] || product.sound[other];
  } else {
    product.sound[quarter] &= judge_operand(warp, product, true, product.reader ? nullptr : &cost);
    if (!product.reader) product.reader = warp.lanes[0].knowledge.clock;
  }
  if (quarter == 0) counters_.add(text("wgmma_m64n%uk%u", product.arguments.n, depth_of(product)));
  if (request_.timing == HGEMM_EARLY) compute(warp, product, quarter);
}

// Takes the sums out of the callers' hands, unless an earlier product in flight has them already.
void Machine::take_sums(Warp& warp, Product& product, int quarter) {
  auto& all = warp.cta->warpgroups[size_t(warp.index) / 4].sums[quarter];
  Sums& sums = all[product.d[quarter][0]];
  if (sums.users++) return;
  if (!warp.wgmma_fenced) {
    findings_.add("wgmma", warp.lanes[0].operation->site, [&] {
      return whoami(warp.lanes[0]) + ": no wgmma fence since the sums were last in registers";
    });
  }
  uint32_t const count = registers_of(product);
  sums.registers.resize(count * 32);
  for (int i = 0; i < 32; ++i) {
    memcpy(&sums.registers[size_t(i) * count], product.d[quarter][i], count * 4);
    memset(product.d[quarter][i], HGEMM_POISON, count * 4);
  }
}

// Checks what a warp's part of a product reads of A, its 16 rows, or of B, all of it.
bool Machine::judge_operand(Warp& warp, Product const& product, bool is_b, SiteCost* cost) {
  Lane& lane = warp.lanes[0];
  Operation const& operation = *lane.operation;
  WgmmaArguments const& arguments = product.arguments;
  MatrixInShared const matrix(is_b ? arguments.b : arguments.a, is_b ? arguments.b_k_major : arguments.a_k_major, product.in);
  uint32_t const first = is_b ? 0 : uint32_t(warp.index % 4) * 16, extent = is_b ? arguments.n : 16;
  Access const me = {warp.wgmma_committed + 1, warp.cta->number, warp.cta->warpgroups[size_t(warp.index) / 4].agent,
                     costs_.index_of(operation)};
  for (uint32_t block = 0; block < extent; block += 8) {  // 8 pieces, which shared memory serves at once
    for (uint32_t k = 0; k < depth_of(product); k += matrix.neighbours()) {
      Addresses addresses;
      for (uint32_t i = 0; i < 8; ++i) {
        uint32_t const offset = matrix.piece(first + block + (matrix.k_major() ? i : 0), k + (matrix.k_major() ? 0 : i));
        unsigned char const* const piece = warp.cta->arena + offset;
        if (!may_access_shared(lane, operation, piece, 16)) return false;
        note_async_read(lane, operation, piece, 16, me);
        addresses.add(int(i), piece);
      }
      if (cost) count_wavefronts(addresses, 16, *cost);
    }
  }
  if (cost) {
    cost->shared = true;
    cost->bytes += extent * 32;
  }
  return true;
}

// Carries out a warp's part: 16 rows.
void Machine::compute(Warp& warp, Product& product, int quarter) {
  if (product.done[quarter]) return;
  product.done[quarter] = true;
  uint32_t const n = product.arguments.n, depth = depth_of(product), count = registers_of(product);
  Sums& sums = warp.cta->warpgroups[size_t(warp.index) / 4].sums[quarter].at(product.d[quarter][0]);
  if (!product.sound[quarter]) {
    std::fill(sums.registers.begin(), sums.registers.end(), ~0u);
    return;
  }
  static WgmmaTile tile;
  auto read = [&](uint64_t descriptor, bool k_major, uint32_t first, uint32_t extent, auto put) {
    MatrixInShared const matrix(descriptor, k_major, product.in);
    uint32_t const neighbours = matrix.neighbours();
    for (uint32_t along = 0; along < (k_major ? depth : extent); along += neighbours) {
      for (uint32_t across = 0; across < (k_major ? extent : depth); ++across) {
        float values[8];
        uint32_t const offset = k_major ? matrix.piece(first + across, along) : matrix.piece(first + along, across);
        widen_piece(warp.cta->arena + offset, values, product.in);
        for (uint32_t e = 0; e < neighbours; ++e) put(k_major ? across : along + e, k_major ? along + e : across, values[e]);
      }
    }
  };
  read(product.arguments.a, product.arguments.a_k_major, uint32_t(quarter) * 16, 16,
       [](uint32_t m, uint32_t k, float value) { tile.a[m][k] = value; });
  read(product.arguments.b, product.arguments.b_k_major, 0, n,
       [](uint32_t column, uint32_t k, float value) { tile.b[k][column] = value; });
  for (uint32_t l = 0; l < 32; ++l) tile.move_in(l, n, &sums.registers[l * count], product.sum, product.arguments.accumulate);
  tile.multiply(n, int(depth));
  for (uint32_t l = 0; l < 32; ++l) tile.move_out(l, n, &sums.registers[l * count], product.sum);
}

// Lets some products in flight take effect, in the order of their issue.
void Machine::compute_some(Warpgroup& group, Cta& cta) {
  size_t const first_warp = size_t(&group - cta.warpgroups.data()) * 4;
  for (size_t quarter = 0; quarter < 4 && first_warp + quarter < cta.warps.size(); ++quarter) {
    for (Product& product : group.products) {
      if (!product.issued[quarter] || random(2)) break;
      compute(cta.warps[first_warp + quarter], product, int(quarter));
    }
  }
}

// Hands back the sums of products whose groups are complete: they are so for all four warps at once.
void Machine::end_wait(Warp& warp, uint32_t pending) {
  Cta& cta = *warp.cta;
  Warpgroup& group = cta.warpgroups[size_t(warp.index) / 4];
  int const quarter = warp.index % 4;
  if (warp.wgmma_committed <= pending) return;
  uint32_t const complete = warp.wgmma_committed - pending;  // groups
  uint32_t number = group.first;
  for (Product& product : group.products) {
    if (number++ < warp.wgmma_retired || !product.issued[quarter]) continue;
    if (product.group[quarter] >= complete) break;
    for (int other = 0; other < 4; ++other) compute(cta.warps[size_t(warp.index) / 4 * 4 + size_t(other)], product, other);
    ++warp.wgmma_retired;
    auto const sums = group.sums[quarter].find(product.d[quarter][0]);
    if (--sums->second.users) continue;
    size_t const count = registers_of(product);
    for (size_t i = 0; i < 32; ++i) memcpy(product.d[quarter][i], &sums->second.registers[i * count], count * 4);
    group.sums[quarter].erase(sums);
    warp.wgmma_fenced = false;
  }
  while (!group.products.empty()) {
    bool all = true;
    for (size_t i = 0; i < 4; ++i) {
      size_t const other = size_t(warp.index) / 4 * 4 + i;
      all &= other < cta.warps.size() && cta.warps[other].wgmma_retired > group.first;
    }
    if (!all) break;
    group.products.erase(group.products.begin());
    ++group.first;
  }
  if (group.agent == no_agent) return;
  Joined read;
  read.set(cta.number, group.agent, complete);
  Learning learning(read.clock());
  for (int i = 0; i < 32; ++i) learning.teach(warp.lanes[i].knowledge);
}

}  // namespace hgemm::executor
