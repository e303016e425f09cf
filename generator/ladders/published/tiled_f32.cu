// A plain tiled f32 kernel without tensor cores: the baseline of the tf32 ladder.
// D (m, n) = alpha * A (m, k) * B (k, n), all row-major. A CTA of 32 x 32 threads computes a tile of D, each thread one element.

#include <common/problem.cuh>

namespace {

constexpr int tile = 32;

struct Shared {
  float a[tile][tile];  // (m, k)
  float b[tile][tile];  // (k, n)
};

}  // namespace

HGEMM_KERNEL(1024, 1) baseline_tiled_f32(HGEMM_PARAMETER hgemm::Problem problem) {
  namespace atoms = hgemm::atoms;
  HGEMM_SHARED(Shared, shared);

  // ---- The element of D that this thread computes: (row, column) of one matrix of the batch -----------------------
  int const tiles_n = (problem.n + tile - 1) / tile;
  int const tiles_m = (problem.m + tile - 1) / tile;
  int const work = int(atoms::cta_x());
  int const batch = work / (tiles_m * tiles_n);
  int const x = atoms::thread_index() % tile;
  int const y = atoms::thread_index() / tile;
  int const row = work / tiles_n % tiles_m * tile + y;
  int const column = work % tiles_n * tile + x;
  auto const* a = static_cast<float const*>(problem.a) + batch * problem.batch_stride_a + row * problem.lda;
  auto const* b = static_cast<float const*>(problem.b) + batch * problem.batch_stride_b + column;

  // ---- Mainloop: copy a k-tile, wait, multiply, wait ----------------------------------------------------------------
  float accumulator = 0.f;
  for (int k = 0; k < problem.k; k += tile) {
    bool const in_a = row < problem.m && k + x < problem.k;
    bool const in_b = column < problem.n && k + y < problem.k;
    atoms::st_shared(&shared.a[y][x], in_a ? atoms::ld_global(a + k + x) : 0.f);
    atoms::st_shared(&shared.b[y][x], in_b ? atoms::ld_global(b + (k + y) * problem.ldb) : 0.f);
    atoms::cta_barrier();
    HGEMM_UNROLL
    for (int i = 0; i < tile; ++i) {
      accumulator += atoms::ld_shared(&shared.a[y][i]) * atoms::ld_shared(&shared.b[i][x]);
    }
    atoms::cta_barrier();
  }

  if (row < problem.m && column < problem.n) {
    auto* d = static_cast<float*>(problem.d) + batch * problem.batch_stride_d + row * problem.ldd + column;
    atoms::st_global(d, problem.alpha * accumulator);
  }
}
