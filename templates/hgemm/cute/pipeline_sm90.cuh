// The ring of stages between the thread that loads by TMA and the warpgroups that multiply.
#pragma once

#include <hgemm/cute/tensor.cuh>
#include <cutlass/arch/barrier.h>

#include <hgemm/atoms_sm90.cuh>

namespace hgemm::with_cute {

using namespace cute;
using cutlass::arch::ClusterBarrier;
using cutlass::arch::ClusterTransactionBarrier;

// Where a CTA stands in its cluster, a ClusterShape (CTAs along m, along n) that is launched as a row of CTAs.
template <class ClusterShape>
struct ClusterPlace {
  using Ranks = Layout<ClusterShape>;  // (row, column) -> rank
  static constexpr int size = cute::size(ClusterShape{});
  static constexpr int neighbours = cute::size<0>(ClusterShape{}) + cute::size<1>(ClusterShape{}) - 1;  // itself among them

  int row, column;

  CUTE_DEVICE ClusterPlace() {
    int const rank = size > 1 ? int(block_rank_in_cluster()) : 0;
    row = rank % cute::size<0>(ClusterShape{});
    column = rank / cute::size<0>(ClusterShape{});
  }
  // The CTAs of its row, which share A, and of its column, which share B; a bit each.
  CUTE_DEVICE uint16_t row_mask() const {
    uint16_t mask = 0;
    CUTE_UNROLL
    for (int j = 0; j < cute::size<1>(ClusterShape{}); ++j) mask |= uint16_t(1 << Ranks{}(row, j));
    return mask;
  }
  CUTE_DEVICE uint16_t column_mask() const {
    uint16_t mask = 0;
    CUTE_UNROLL
    for (int i = 0; i < cute::size<0>(ClusterShape{}); ++i) mask |= uint16_t(1 << Ranks{}(i, column));
    return mask;
  }
  // The rank of neighbour `index`: the CTAs of the column, then the others of the row.
  CUTE_DEVICE int neighbour(int index) const {
    int const other = index - cute::size<0>(ClusterShape{});
    return other < 0 ? Ranks{}(index, column) : Ranks{}(row, other + (other >= column));
  }
};

template <class Kernel>
using PlaceOf = ClusterPlace<typename Kernel::ClusterShape>;

// A stage of the ring, and the parity of its round.
template <int STAGES>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  CUTE_DEVICE void operator++() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
  CUTE_DEVICE void advance(int count) {
    phase ^= (stage + count) / STAGES & 1;
    stage = (stage + count) % STAGES;
  }
};

// The barriers of a PipelineTmaAsync, which itself asks for clusters that are launched with two dimensions.
template <class ClusterShape, int STAGES>
struct TmaPipeline {
  using State = PipelineState<STAGES>;

  ClusterTransactionBarrier full[STAGES];  // the TMA has brought the stage
  ClusterBarrier empty[STAGES];            // the consumers of all CTAs that it is brought to have read it

  // By one thread, before anyone of the cluster uses them; `readers` are the warpgroups of a CTA that read a stage.
  CUTE_DEVICE void init(int readers) {
    for (int stage = 0; stage < STAGES; ++stage) {
      full[stage].init(1);
      empty[stage].init(readers * ClusterPlace<ClusterShape>::neighbours);
    }
  }

  CUTE_DEVICE void producer_acquire(State const& state, uint32_t bytes) {
    empty[state.stage].wait(state.phase ^ 1);
    full[state.stage].arrive_and_expect_tx(bytes);
  }
  CUTE_DEVICE void consumer_wait(State const& state) { full[state.stage].wait(state.phase); }

  // By all threads of a warpgroup, of which some tell a CTA each.
  CUTE_DEVICE void consumer_release(int stage, ClusterPlace<ClusterShape> const& place) {
    int const thread = atoms::thread_index() % 128;
    if constexpr (ClusterPlace<ClusterShape>::size == 1) {
      if (thread == 0) empty[stage].arrive();
    } else {
      if (thread < place.neighbours) empty[stage].arrive(place.neighbour(thread));
    }
  }
};

}  // namespace hgemm::with_cute
