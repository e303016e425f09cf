// The atom layer on the CPU: every atom hands one operation to the executor. The executor runs all threads of the launch as
// fibers, checks what they do and carries it out; see templates/executor/README.md.
#pragma once

#include <executor/operation.hpp>

#include <common/types.cuh>

// Dynamic shared memory of the calling thread's CTA.
#define HGEMM_SHARED(Type, name) Type& name = *reinterpret_cast<Type*>(hgemm::executor::place->shared)
#define HGEMM_STATIC_SHARED(Type, name) HGEMM_SHARED(Type, name)

namespace hgemm {
namespace atoms {

using executor::Element;
using executor::here;
using executor::Kind;
using executor::Operation;
using executor::perform;
using executor::Site;
using executor::Space;

inline Operation operation(Kind kind, Site site) {
  Operation result{};
  result.kind = kind;
  result.site = site;
  return result;
}

template <class T>
struct ElementOf;
template <>
struct ElementOf<f16> { static constexpr auto value = Element::f16; };
template <>
struct ElementOf<bf16> { static constexpr auto value = Element::bf16; };
template <>
struct ElementOf<tf32> { static constexpr auto value = Element::tf32; };
template <>
struct ElementOf<float> { static constexpr auto value = Element::f32; };
template <>
struct ElementOf<uint32_t> { static constexpr auto value = Element::f16; };  // a pair

// ---- Indices ------------------------------------------------------------------------------------------------------

HGEMM_DEVICE int thread_index() { return executor::place->thread; }
HGEMM_DEVICE uint32_t cta_x() { return executor::place->cta_index[0]; }
HGEMM_DEVICE uint32_t grid_x() { return executor::grid[0]; }

// ---- Barriers and fences ------------------------------------------------------------------------------------------

HGEMM_DEVICE void cta_barrier(Site site = here()) {
  Operation sync = operation(Kind::barrier_sync, site);
  perform(sync);
}
HGEMM_DEVICE void warp_barrier(Site site = here()) {
  Operation sync = operation(Kind::warp_barrier, site);
  perform(sync);
}

HGEMM_DEVICE void scheduling_barrier(uint32_t) {}

HGEMM_DEVICE int opaque(int value) { return value; }

HGEMM_DEVICE void global_fence(Site site = here()) {
  Operation fence = operation(Kind::global_fence, site);
  perform(fence);
}
HGEMM_DEVICE uint32_t global_fetch_add(uint32_t* counter, uint32_t value, Site site = here()) {
  struct Add : executor::AtomicArguments {
    uint32_t value;
    static void run(executor::AtomicArguments& self, void* memory) {
      uint32_t const before = *static_cast<uint32_t*>(memory);
      *static_cast<uint32_t*>(memory) += static_cast<Add&>(self).value;
      static_cast<Add&>(self).value = before;
    }
  } arguments{{&Add::run, true, true}, value};
  Operation add = operation(Kind::fetch_add, site);
  add.to = counter;
  add.second = &arguments;
  add.bytes = 4;
  perform(add);
  return arguments.value;
}

// ---- Asynchronous copies ------------------------------------------------------------------------------------------

template <int BYTES>
HGEMM_DEVICE void cp_async(void* shared, void const* global, bool valid, Site site = here()) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  Operation copy = operation(Kind::cp_async, site);
  copy.to = shared;
  copy.from = global;
  copy.bytes = BYTES;
  copy.flag = valid;
  perform(copy);
}

HGEMM_DEVICE void cp_async_commit(Site site = here()) {
  Operation commit = operation(Kind::cp_async_commit, site);
  perform(commit);
}

template <int PENDING>
HGEMM_DEVICE void cp_async_wait(Site site = here()) {
  Operation wait = operation(Kind::cp_async_wait, site);
  wait.number = PENDING;
  perform(wait);
}

// ---- Plain loads and stores ---------------------------------------------------------------------------------------

template <class T>
HGEMM_DEVICE T load(Space space, T const* pointer, Site site) {
  T value;
  Operation read = operation(Kind::load, site);
  read.space = space;
  read.to = &value;
  read.from = pointer;
  read.bytes = sizeof(T);
  perform(read);
  return value;
}
template <class T>
HGEMM_DEVICE void store(Space space, T* pointer, T const& value, Site site) {
  Operation write = operation(Kind::store, site);
  write.space = space;
  write.to = pointer;
  write.from = &value;
  write.bytes = sizeof(T);
  perform(write);
}

template <class T>
HGEMM_DEVICE T ld_global(T const* pointer, Site site = here()) {
  return load(Space::global, pointer, site);
}
HGEMM_DEVICE Vec16B ld_global_l2(Vec16B const* pointer, Site site = here()) { return load(Space::global, pointer, site); }
HGEMM_DEVICE Vec16B ld_global_once(Vec16B const* pointer, bool valid, Site site = here()) {
  return valid ? load(Space::global, pointer, site) : Vec16B{};
}
template <class T>
HGEMM_DEVICE void st_global(T* pointer, T value, Site site = here()) {
  store(Space::global, pointer, value, site);
}
template <class T>
HGEMM_DEVICE T ld_shared(T const* pointer, Site site = here()) {
  return load(Space::shared, pointer, site);
}
template <class T>
HGEMM_DEVICE void st_shared(T* pointer, T value, Site site = here()) {
  store(Space::shared, pointer, value, site);
}

// ---- Fragments ----------------------------------------------------------------------------------------------------

HGEMM_DEVICE void ldmatrix(void const* row, uint32_t* registers, uint32_t matrices, bool transpose, Site site) {
  Operation read = operation(Kind::ldmatrix, site);
  read.space = Space::shared;
  read.from = row;
  read.to = registers;
  read.bytes = 16;
  read.number = matrices;
  read.flag = transpose;
  perform(read);
}
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x4(void const* row, uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, Site site = here()) {
  uint32_t registers[4];
  ldmatrix(row, registers, 4, TRANSPOSE, site);
  r0 = registers[0];
  r1 = registers[1];
  r2 = registers[2];
  r3 = registers[3];
}
template <bool TRANSPOSE>
HGEMM_DEVICE void ldmatrix_x2(void const* row, uint32_t& r0, uint32_t& r1, Site site = here()) {
  uint32_t registers[2];
  ldmatrix(row, registers, 2, TRANSPOSE, site);
  r0 = registers[0];
  r1 = registers[1];
}

// ---- Tensor cores -------------------------------------------------------------------------------------------------

template <class In, int K, class Accumulator, int REGISTERS>
HGEMM_DEVICE void mma(Accumulator (&d)[REGISTERS], uint32_t const (&a)[4], uint32_t const (&b)[2], Site site = here()) {
  static_assert(K == 8 || (K == 16 && sizeof(In) == 2), "mma.m16n8 has a depth of 8, or 16 of halves");
  static_assert(sizeof(Accumulator) == 4 && (REGISTERS == 4 || REGISTERS == 2), "4 floats or 2 pairs of halves");
  Operation product = operation(Kind::mma, site);
  product.in = ElementOf<In>::value;
  product.acc = ElementOf<Accumulator>::value;
  product.number = K;
  product.to = d;
  product.from = a;
  product.second = b;
  perform(product);
}

}  // namespace atoms
}  // namespace hgemm
