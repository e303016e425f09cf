// What each atom does with given bits, thread by thread: the same text for a GPU and for the CPU, so that both can be compared.
// The numbers in the Instance stand for one instruction; other ones are put in their place.
#include <common/atoms_sm90.cuh>
#include <mma_sync/wmma.cuh>

namespace {

using namespace hgemm;

struct Probe {
  uint32_t const* in;  // 4608 words, which shared memory begins with; then 64 words a thread
  uint32_t* out;       // 4608 words of shared memory at the end; then 128 words a thread
  uint32_t mode, offset;  // bytes of shared memory that the probe begins at
  int32_t x, y, z;        // of a box
  uint32_t bytes;         // of a box
  uint64_t a, b;          // descriptors, of shared memory that begins at 0
};

struct Instance {
  using In = f16;
  using Sum = float;
  HGEMM_WGMMA(64x64x16_F32F16F16_SS);
  static constexpr int registers = 32;
  struct A { static constexpr bool k_major = true; };
  struct B { static constexpr bool k_major = true; };
};

struct Shared {
  alignas(1024) uint32_t words[4608];
  uint64_t barrier;
};

struct Thread {
  Probe const& probe;
  TensorMap const& map;
  Shared& shared;
  int index = atoms::thread_index();

  HGEMM_DEVICE uint32_t in(int i) const { return atoms::ld_global(probe.in + 4608 + index * 64 + i); }
  HGEMM_DEVICE void out(int i, uint32_t value) const { atoms::st_global(probe.out + 4608 + index * 128 + i, value); }
  HGEMM_DEVICE static uint32_t bits(float value) { return atoms::float_bits(value); }
  HGEMM_DEVICE static uint32_t bits(uint32_t value) { return value; }
  HGEMM_DEVICE unsigned char* bytes() const { return reinterpret_cast<unsigned char*>(shared.words) + probe.offset; }

  HGEMM_DEVICE void matrices() const {  // each lane reads another row of 16 bytes, in no order
    unsigned char* const row = bytes() + index * 37 % 128 * 16;
    uint32_t r[12];
    atoms::ldmatrix_x4<false>(row, r[0], r[1], r[2], r[3]);
    atoms::ldmatrix_x4<true>(row, r[4], r[5], r[6], r[7]);
    atoms::ldmatrix_x2<false>(row, r[8], r[9]);
    atoms::ldmatrix_x2<true>(row, r[10], r[11]);
    for (int i = 0; i < 12; ++i) out(i, r[i]);
    atoms::cta_barrier();
    unsigned char* const to = bytes() + index * 37 % 128 * 16;
    atoms::stmatrix_x4<false>(to, in(0), in(1), in(2), in(3));
    atoms::stmatrix_x4<true>(to + 2048, in(0), in(1), in(2), in(3));
    atoms::stmatrix_x2<false>(to + 4096, in(0), in(1));
    atoms::stmatrix_x2<true>(to + 6144, in(0), in(1));
  }

  template <class In, int K>
  HGEMM_DEVICE void product(int at) const {
    uint32_t const a[4] = {in(0), in(1), in(2), in(3)}, b[2] = {in(4), in(5)};
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = atoms::bits_float(in(6 + i));
    atoms::mma<In, K>(d, a, b);
    for (int i = 0; i < 4; ++i) out(at + i, atoms::float_bits(d[i]));
  }
  template <int K>
  HGEMM_DEVICE void product_in_halves(int at) const {
    uint32_t const a[4] = {in(0), in(1), in(2), in(3)}, b[2] = {in(4), in(5)};
    uint32_t d[2] = {in(10), in(11)};
    atoms::mma<f16, K>(d, a, b);
    for (int i = 0; i < 2; ++i) out(at + i, d[i]);
  }
  HGEMM_DEVICE void products() const {
    product<f16, 16>(0);
    product<f16, 8>(4);
    product_in_halves<16>(8);
    product_in_halves<8>(10);
  }
  HGEMM_DEVICE void products_of_bf16() const {
    product<bf16, 16>(0);
    product<bf16, 8>(4);
  }

  HGEMM_DEVICE void products_of_tf32() const { product<tf32, 8>(0); }

  // A begins at each warp's number x 16 with a pitch of 40, B at 4096 with one of 24; the sums begin as four floats, and one more.
  template <class In, bool A_BY_ROWS, bool B_BY_ROWS>
  HGEMM_DEVICE void product_of_fragments(int at) const {
    auto const* const halves = reinterpret_cast<In const*>(shared.words);
    uint32_t a[atoms::wmma_registers<In>], b[atoms::wmma_registers<In>];
    atoms::wmma_load<In, true, A_BY_ROWS>(halves + index / 32 * 16, 40, a);
    atoms::wmma_load<In, false, B_BY_ROWS>(halves + 4096, 24, b);
    float left[4], right[4];
    for (int i = 0; i < 4; ++i) left[i] = atoms::bits_float(in(6 + i)), right[i] = left[i] + 1.f;
    atoms::wmma<In, A_BY_ROWS, B_BY_ROWS, 16>(left, right, a, b);
    for (int i = 0; i < 4; ++i) out(at + i, atoms::float_bits(left[i])), out(at + 4 + i, atoms::float_bits(right[i]));
    if constexpr (atoms::wmma_registers<In> == 8) {
      uint32_t upper[2] = {in(10), in(11)}, lower[2] = {in(12), in(13)};
      atoms::wmma<In, A_BY_ROWS, B_BY_ROWS, 16>(upper, lower, a, b);
      for (int i = 0; i < 2; ++i) out(at + 8 + i, upper[i]), out(at + 10 + i, lower[i]);
    }
  }
  template <class In>
  HGEMM_DEVICE void products_of_fragments() const {
    product_of_fragments<In, true, true>(0);
    product_of_fragments<In, true, false>(12);
    product_of_fragments<In, false, true>(24);
    product_of_fragments<In, false, false>(36);
  }

  HGEMM_DEVICE void numbers() const {
    for (int i = 0; i < 32; ++i) {
      float const value = atoms::bits_float(in(i));
      out(i, atoms::pack<f16>(value, -value));
      out(32 + i, atoms::pack<bf16>(value, -value));
      out(64 + i, atoms::float_bits(atoms::low_half(in(i))));
      out(96 + i, atoms::float_bits(atoms::high_half(in(i))));
    }
  }

  HGEMM_DEVICE void copies() const {  // whole and left out, of each width
    bool const valid = index % 3 != 0;
    atoms::cp_async<4>(shared.words + index, probe.in + 4607 - index, valid);
    atoms::cp_async<8>(shared.words + 512 + index * 2, probe.in + 2048 + index * 2, valid);
    atoms::cp_async<16>(shared.words + 1024 + index * 4, probe.in + index * 4, valid);
    atoms::cp_async_commit();
    atoms::cp_async_wait<0>();
  }

  HGEMM_DEVICE void counted_copies() const {  // the same, and an mbarrier waits for them
    if (index == 0) {
      atoms::mbarrier_init(&shared.barrier, 128);
      atoms::mbarrier_init_fence();
    }
    atoms::cta_barrier();
    bool const valid = index % 5 != 0;
    atoms::cp_async<4>(shared.words + index, probe.in + 4607 - index, valid);
    atoms::cp_async<8>(shared.words + 512 + index * 2, probe.in + 2048 + index * 2, valid);
    atoms::cp_async<16>(shared.words + 1024 + index * 4, probe.in + index * 4, valid);
    atoms::cp_async_mbarrier_arrive(&shared.barrier);
    atoms::mbarrier_wait(&shared.barrier, 0);
    atoms::cp_async_wait<0>();
  }

  HGEMM_DEVICE void load_box() const {
    if (index == 0) {
      atoms::mbarrier_init(&shared.barrier, 1);
      atoms::mbarrier_init_fence();
    }
    atoms::cta_barrier();
    if (index == 0) {
      atoms::mbarrier_arrive_expect_tx(&shared.barrier, probe.bytes);
      atoms::tma_load(bytes(), map, &shared.barrier, probe.x, probe.y, probe.z);
    }
    atoms::mbarrier_wait(&shared.barrier, 0);
  }
  HGEMM_DEVICE void store_box() const {
    if (index == 0) {
      atoms::tma_store(map, bytes(), probe.x, probe.y, probe.z);
      atoms::tma_store_commit();
      atoms::tma_store_wait_read<0>();
    }
  }

  HGEMM_DEVICE void multiply() const {
    uint64_t const base = atoms::shared_address(shared.words) / 16;
    Instance::Sum sums[Instance::registers];
    // opaque, because the compiler would set constants after the fence
    for (int i = 0; i < Instance::registers; ++i) sums[i] = Instance::Sum(atoms::opaque(i % 7));
    atoms::wgmma_fence();
    atoms::wgmma<Instance>(sums, probe.a + base, probe.b + base, true);
    atoms::wgmma<Instance>(sums, probe.a + base, probe.b + base, true);
    atoms::wgmma_commit();
    atoms::wgmma_wait<0>();
    for (int i = 0; i < Instance::registers; ++i) out(i, bits(sums[i]));
  }

  HGEMM_DEVICE void election() const { out(0, atoms::elect_one()); }

  HGEMM_DEVICE void run() const {
    for (int i = index; i < 4608; i += 128) atoms::st_shared(shared.words + i, atoms::ld_global(probe.in + i));
    atoms::fence_proxy_async();
    atoms::cta_barrier();
    if (probe.mode == 0) matrices();
    if (probe.mode == 1) products();
    if (probe.mode == 2) products_of_bf16();
    if (probe.mode == 3) numbers();
    if (probe.mode == 4) copies();
    if (probe.mode == 5) load_box();
    if (probe.mode == 6) store_box();
    if (probe.mode == 7) multiply();
    if (probe.mode == 8) election();
    if (probe.mode == 9) products_of_tf32();
    if (probe.mode == 10) products_of_fragments<f16>();
    if (probe.mode == 11) products_of_fragments<bf16>();
    if (probe.mode == 12) counted_copies();
    atoms::cta_barrier();
    for (int i = index; i < 4608; i += 128) atoms::st_global(probe.out + i, atoms::ld_shared(shared.words + i));
  }
};

}  // namespace

HGEMM_CLUSTER_KERNEL(128, 1, 1) atom_probes(HGEMM_PARAMETER Probe probe, HGEMM_PARAMETER hgemm::TensorMap map) {
  HGEMM_SHARED(Shared, shared);
  Thread const thread = {probe, map, shared};
  thread.run();
}
