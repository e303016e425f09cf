// WMMA: fragments of 16 x 16 that a warp loads from one address and a pitch, and multiplies.
#pragma once

#include <common/atoms.cuh>

namespace hgemm {
namespace atoms {

// Registers of a fragment of A or B. PTX passes halves in 8 registers; only sm_70 needs more than 4.
template <class In>
constexpr int wmma_registers = 4;
template <>
constexpr int wmma_registers<f16> = 8;

// ---- Loads --------------------------------------------------------------------------------------------------------

#define HGEMM_WMMA_LOAD(MATRIX, ORDER)                                                                                 \
  do {                                                                                                                  \
    if constexpr (wmma_registers<In> == 8) {                                                                            \
      asm volatile("wmma.load." MATRIX ".sync.aligned." ORDER                                                           \
                   ".m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                  \
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])     \
                   : "r"(address), "r"(pitch));                                                                         \
    } else {                                                                                                            \
      asm volatile("wmma.load." MATRIX ".sync.aligned." ORDER ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"      \
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                     \
                   : "r"(address), "r"(pitch));                                                                         \
    }                                                                                                                   \
  } while (false)

// Loads the 16 x 16 of A (m, k), or of B (k, n), whose first element is at `corner`. Its rows (BY_ROWS) or columns are `pitch`
// elements apart.
template <class In, bool OF_A, bool BY_ROWS>
HGEMM_DEVICE void wmma_load(In const* corner, int pitch, uint32_t (&r)[wmma_registers<In>]) {
  uint32_t const address = cute::cast_smem_ptr_to_uint(corner);
  if constexpr (OF_A && BY_ROWS) {
    HGEMM_WMMA_LOAD("a", "row");
  } else if constexpr (OF_A) {
    HGEMM_WMMA_LOAD("a", "col");
  } else if constexpr (BY_ROWS) {
    HGEMM_WMMA_LOAD("b", "row");
  } else {
    HGEMM_WMMA_LOAD("b", "col");
  }
}

// ---- Products -----------------------------------------------------------------------------------------------------

#define HGEMM_WMMA(ORDERS)                                                                                             \
  do {                                                                                                                  \
    if constexpr (REGISTERS == 2) {                                                                                     \
      asm volatile("wmma.mma.sync.aligned." ORDERS                                                                      \
                   ".m16n16k16.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "                          \
                   "{%12, %13, %14, %15, %16, %17, %18, %19}, {%0, %1, %2, %3};"                                        \
                   : "+r"(left[0]), "+r"(left[1]), "+r"(right[0]), "+r"(right[1])                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),            \
                     "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));           \
    } else if constexpr (wmma_registers<In> == 8) {                                                                     \
      asm volatile("wmma.mma.sync.aligned." ORDERS                                                                      \
                   ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "      \
                   "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"                        \
                   : "+f"(left[0]), "+f"(left[1]), "+f"(left[2]), "+f"(left[3]),                                        \
                     "+f"(right[0]), "+f"(right[1]), "+f"(right[2]), "+f"(right[3])                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),            \
                     "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));           \
    } else {                                                                                                            \
      asm volatile("wmma.mma.sync.aligned." ORDERS                                                                      \
                   ".m16n16k16.f32.bf16.bf16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "                \
                   "{%12, %13, %14, %15}, {%0, %1, %2, %3, %4, %5, %6, %7};"                                            \
                   : "+f"(left[0]), "+f"(left[1]), "+f"(left[2]), "+f"(left[3]),                                        \
                     "+f"(right[0]), "+f"(right[1]), "+f"(right[2]), "+f"(right[3])                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));           \
    }                                                                                                                   \
  } while (false)

// (left, right) (16, 16) += a (16, 16) b (16, 16), by one warp, of fragments loaded in these orders.
//
// PTX does not say which accumulator is in which register. From sm_75 on, GPUs run it as two mma.m16n8: the first half of the
// registers is d of the left 8 columns, the second half d of the right 8. tests/test_mma_sync.py finds these instructions in the
// SASS and compares a GPU's results with the CPU's.
template <class In, bool A_BY_ROWS, bool B_BY_ROWS, int K, class Accumulator, int REGISTERS>
HGEMM_DEVICE void wmma(Accumulator (&left)[REGISTERS], Accumulator (&right)[REGISTERS],
                       uint32_t const (&a)[wmma_registers<In>], uint32_t const (&b)[wmma_registers<In>]) {
  if constexpr (A_BY_ROWS && B_BY_ROWS) {
    HGEMM_WMMA("row.row");
  } else if constexpr (A_BY_ROWS) {
    HGEMM_WMMA("row.col");
  } else if constexpr (B_BY_ROWS) {
    HGEMM_WMMA("col.row");
  } else {
    HGEMM_WMMA("col.col");
  }
}

}  // namespace atoms
}  // namespace hgemm
