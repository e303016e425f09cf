// What translated PTX calls: one function for each instruction that the executor executes, and the arithmetic that C++ lacks.
//
// Registers of 32 bits are uint32_t, whatever they hold. An address of shared memory is an offset in the CTA's own shared
// memory, or, from mapa on, has 1 + the rank of the CTA above bit 24. A generic address is an address of the host.
#pragma once

#include <fenv.h>
#include <stdint.h>
#include <string.h>

#include <executor/kernel.hpp>
#include <executor/numbers.hpp>
#include <executor/operation.hpp>

namespace hgemm::executor::ptx {

// Notes the value of an instruction's predicate: bit 0 for false, bit 1 for true.
inline bool noted(uint8_t& seen, bool value) {
  seen |= uint8_t(1 << value);
  return value;
}

constexpr uint32_t rank_bit = 24;

// ---- Memory: `line` is the line of the PTX -------------------------------------------------------------------------

enum class At : uint8_t { global, shared, shared_cluster, generic };

void load(int line, At space, void* to, uint64_t address, uint32_t bytes);
void store(int line, At space, uint64_t address, void const* from, uint32_t bytes);
void store_async(int line, uint64_t address, void const* from, uint32_t bytes, uint64_t barrier);
void atomic(int line, At space, uint64_t address, uint32_t bytes, AtomicArguments& arguments);

// An atomic operation: `update` computes the new number from the old one, a and b. Returns the old one.
template <class T, class Update>
inline T atomic(int line, At space, uint64_t address, bool reads, bool writes, Update update, T a = 0, T b = 0) {
  struct Call : AtomicArguments {
    Update update;
    T a, b, old;
    Call(Update update, bool reads, bool writes, T a, T b)
        : AtomicArguments{&run, reads, writes}, update(update), a(a), b(b), old(T(~T(0))) {}
    static void run(AtomicArguments& self, void* memory) {
      Call& call = static_cast<Call&>(self);
      memcpy(&call.old, memory, sizeof(T));
      T const now = T(call.update(call.old, call.a, call.b));
      if (call.writes) memcpy(memory, &now, sizeof(T));
    }
  } call(update, reads, writes, a, b);
  atomic(line, space, address, sizeof(T), call);
  return call.old;
}

void cp_async(int line, uint64_t shared, uint64_t global, uint32_t bytes, uint32_t copied);

uint64_t generic_of_shared(uint64_t address);
uint64_t shared_of_generic(uint64_t address);
inline uint32_t map_to_rank(uint32_t address, uint32_t rank) { return (address & 0xffffff) | (rank + 1) << rank_bit; }

// ---- Operations with few operands ----------------------------------------------------------------------------------

void perform(int line, Kind kind, uint32_t number = 0, bool flag = true, uint32_t threads = 0);
bool elect(int line, uint32_t members, uint32_t& lane);
uint32_t shuffle(int line, Shuffle mode, uint32_t value, uint32_t by, uint32_t clamp_and_mask, uint32_t members,
                 bool& in_range);
uint32_t reduce(int line, uint32_t (*operation)(uint32_t, uint32_t), uint32_t value, uint32_t members);
uint32_t transpose(int line, uint32_t value);
// Returns the lanes whose predicate is true; `voters` are all that take part.
uint32_t vote(int line, bool predicate, uint32_t members, uint32_t& voters);
void warp_barrier(int line, uint32_t members);

void mbarrier_init(int line, uint64_t address, uint32_t arrivals);
void mbarrier_invalidate(int line, uint64_t address);
// Returns the parity of the phase in which the thread arrives.
uint64_t mbarrier_arrive(int line, At space, uint64_t address, uint32_t bytes, uint32_t arrivals, bool in_cluster);
void mbarrier_expect(int line, At space, uint64_t address, uint32_t bytes);
bool mbarrier_test(int line, uint64_t address, uint32_t parity, bool in_cluster);
void mbarrier_arrive_after_copies(int line, uint64_t address);
void mbarrier_wait(int line, uint64_t address, uint32_t parity, bool in_cluster);

void tma_prefetch(int line, uint64_t map);
// The coordinates of a box in a tensor of 1 to 5 dimensions.
struct Coordinates {
  int32_t at[5];
  uint32_t dimensions;
};
template <class... T>
inline Coordinates box_at(T... at) {
  return {{at...}, sizeof...(at)};
}
void tma_load(int line, uint64_t shared, uint64_t map, Coordinates const& box, uint64_t barrier, uint32_t ranks);
void tma_store(int line, uint64_t map, Coordinates const& box, uint64_t shared);

// ---- Matrices ------------------------------------------------------------------------------------------------------

void ldmatrix(int line, uint32_t* registers, uint64_t address, uint32_t matrices, bool transpose);
void stmatrix(int line, uint64_t address, uint32_t const* registers, uint32_t matrices, bool transpose);
// wmma.load of 16 x 16 elements; see templates/mma_sync/wmma.cuh.
void wmma_load(int line, uint32_t* registers, uint64_t address, uint32_t pitch, bool of_a, bool by_rows);
// d += a b. a, b and d hold the registers of m16n8k16; those that a smaller shape lacks are 0.
void mma(int line, Element in, Element acc, uint32_t depth, uint32_t* d, uint32_t const* a, uint32_t const* b);
// `a_list`: the registers of a, or null if `a` describes it in shared memory.
void wgmma(int line, Element in, Element acc, uint32_t n, WgmmaRegisters& registers, uint16_t const* list,
           uint16_t const* a_list, uint64_t a, uint64_t b, bool accumulate, bool a_mn_major, bool b_mn_major);
void wgmma_order(int line, Kind kind, WgmmaRegisters& registers, uint32_t number = 0);

void register_in_flight(int line, char const* name);
void assertion_failed(int line);
void trapped(int line);

// The registers that may hold accumulators of wgmma.
template <int COUNT>
struct AccumulatorRegisters {
  uint32_t values[COUNT];
  uint64_t tokens[COUNT] = {};
  WgmmaRegisters file = {values, tokens, COUNT};
  char const* const* names;

  explicit AccumulatorRegisters(char const* const* names) : names(names) { memset(values, 0xff, sizeof values); }
  void access(int line, int i) {
    if (tokens[i] > WgmmaRegisters::accessed) {
      register_in_flight(line, names[i]);
      ++file.changes;
    } else {
      mark_accessed(i);
    }
  }
  void mark_accessed(int i) {
    tokens[i] = WgmmaRegisters::accessed;
    file.any_accessed = true;
    ++file.changes;
  }
  __attribute__((noinline)) uint32_t read(int line, int i) {
    access(line, i);
    return values[i];
  }
  __attribute__((noinline)) void write(int line, int i, uint32_t value) {
    access(line, i);
    values[i] = value;
  }
  // mov of another value, which gives the name to a new register
  __attribute__((noinline)) void set(int i, uint32_t value) {
    mark_accessed(i);
    values[i] = value;
  }
  // mov from one to the other, in this order: pairs of `to` and `from`.
  template <int PAIRS>
  void copy(uint16_t const (&pairs)[PAIRS][2]) {
    ++file.changes;
    for (auto const& [to, from] : pairs) {
      tokens[to] = tokens[from];
      values[to] = values[from];
    }
  }
  // The same for neighbours, which do not overlap.
  __attribute__((noinline)) void copy(int to, int from, int count) {
    ++file.changes;
    memcpy(tokens + to, tokens + from, size_t(count) * sizeof tokens[0]);
    memcpy(values + to, values + from, size_t(count) * sizeof values[0]);
  }
};

// ---- Arithmetic ----------------------------------------------------------------------------------------------------

inline float f32(uint32_t bits) { return float_of(bits); }
inline double f64(uint64_t bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}
inline uint64_t bits64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, 8);
  return bits;
}
inline uint32_t bits32(float value) { return bits_of(value); }

// Shifts by more than the width, which C++ leaves undefined.
template <class T>
inline T shl(T value, uint32_t by) {
  return by < sizeof(T) * 8 ? T(value << by) : T(0);
}
template <class T>
inline T shr(T value, uint32_t by) {
  return by < sizeof(T) * 8 ? T(value >> by) : T(value < 0 ? -1 : 0);
}
template <class T>
inline T div(T a, T b) {
  return b == 0 ? T(-1) : T(-1) < T(0) && b == T(-1) ? T(0 - a) : T(a / b);
}
template <class T>
inline T rem(T a, T b) {
  return b == 0 ? a : T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
inline uint32_t bfi(uint32_t a, uint32_t b, uint32_t at, uint32_t length) {
  uint32_t const mask = shl((length & 255) < 32 ? (1u << (length & 255)) - 1 : ~0u, at & 255);
  return (b & ~mask) | (shl(a, at & 255) & mask);
}
inline uint64_t bfi(uint64_t a, uint64_t b, uint32_t at, uint32_t length) {
  uint64_t const mask = shl((length & 255) < 64 ? (uint64_t(1) << (length & 255)) - 1 : ~uint64_t(0), at & 255);
  return (b & ~mask) | (shl(a, at & 255) & mask);
}
// The bits from `at` on, and the sign of the last of them.
template <class T>
inline T bfe(T a, uint32_t at, uint32_t length) {
  constexpr uint32_t bits = sizeof(T) * 8;
  at &= 255, length &= 255;
  if (!length) return 0;
  if (length >= bits) return shr(a, at);
  uint32_t const last = at + length - 1 < bits ? at + length - 1 : bits - 1;  // beyond the end, the sign
  bool const negative = T(-1) < T(0) && (uint64_t(a) >> last & 1);
  uint64_t const mask = (uint64_t(1) << length) - 1;
  uint64_t const unsigned_bits = bits == 32 ? uint64_t(uint32_t(a)) : uint64_t(a);
  uint64_t result = shr(unsigned_bits, at) & mask;
  if (negative) result |= ~((uint64_t(1) << (last >= at ? last - at + 1 : 0)) - 1);
  return T(result);
}
// The place of the highest bit that differs from the sign, or all ones.
template <class T>
inline uint32_t bfind(T a, bool shift = false) {
  T const bits = T(-1) < T(0) && a < 0 ? T(~a) : a;
  if (bits == 0) return ~0u;
  uint32_t const place = 63 - uint32_t(__builtin_clzll(sizeof(T) == 4 ? uint64_t(uint32_t(bits)) : uint64_t(bits)));
  return shift ? uint32_t(sizeof(T) * 8 - 1) - place : place;
}
template <class T>
inline T reversed(T a) {
  T result = 0;
  for (size_t i = 0; i < sizeof(T) * 8; ++i) result |= T(a >> i & 1) << (sizeof(T) * 8 - 1 - i);
  return result;
}
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}
inline uint32_t funnel(uint32_t low, uint32_t high, uint32_t by, bool left, bool wrap) {
  by = wrap ? by & 31 : by < 32 ? by : 32;
  uint64_t const both = uint64_t(high) << 32 | low;
  return left ? uint32_t(both << by >> 32) : uint32_t(both >> by);
}
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t const bytes = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t const select = selector >> 4 * i;
    uint32_t byte = uint32_t(bytes >> 8 * (select & 7)) & 255;
    if (select & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}
template <class Wide, class T>
inline T mul_hi(T a, T b) {
  return T(Wide(a) * Wide(b) >> sizeof(T) * 8);
}

// PTX returns the operand that is a number, if only one is. Poison stays poison.
inline float max_of(float a, float b) {
  return is_poison_float(bits_of(a)) ? a : is_poison_float(bits_of(b)) ? b : __builtin_fmaxf(a, b);
}
inline float min_of(float a, float b) {
  return is_poison_float(bits_of(a)) ? a : is_poison_float(bits_of(b)) ? b : __builtin_fminf(a, b);
}
inline bool is_poison(double value) { return is_poison_float(bits_of(float(value))); }
inline double max_of(double a, double b) { return is_poison(a) ? a : is_poison(b) ? b : __builtin_fmax(a, b); }
inline double min_of(double a, double b) { return is_poison(a) ? a : is_poison(b) ? b : __builtin_fmin(a, b); }
inline double relu(double value) { return value < 0 ? 0 : value; }
// .sat: the range 0 to 1, and 0 for a NaN. Poison stays poison.
template <class T>
inline T saturated(T value) {
  if (is_poison(double(value))) return value;
  return value > T(0) ? value < T(1) ? value : T(1) : T(0);
}
// Another direction of rounding than to nearest, for the arithmetic in `compute`.
template <int MODE, class Compute>
__attribute__((noinline)) auto directed(Compute compute) {
  int const before = fegetround();
  fesetround(MODE);
  __asm__ volatile("" ::: "memory");
  auto volatile const result = compute();
  fesetround(before);
  return result;
}
// Subnormal numbers become zero of the same sign (.ftz).
inline float flush(float value) {
  uint32_t const bits = bits_of(value);
  return bits & 0x7f800000 ? value : float_of(bits & 0x80000000);
}
template <class T>
inline T integer_of(double value) {  // clamps, and turns a NaN into 0
  constexpr T least = T(-1) < T(0) ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0);
  constexpr T most = T(~least);
  if (!(value == value)) return 0;
  if (value <= double(least)) return least;
  if (value >= double(most)) return most;
  return T(value);
}
template <class T, class From>
inline T clamped(From value) {
  __int128 const least = T(-1) < T(0) ? -(__int128(1) << (sizeof(T) * 8 - 1)) : 0;
  __int128 const most = least + (__int128(1) << sizeof(T) * 8) - 1;
  return T(__int128(value) < least ? least : __int128(value) > most ? most : __int128(value));
}
// Round to nearest, ties away, to the 10 bits of tf32.
inline uint32_t rounded_tf32(float value) {
  uint32_t const bits = bits_of(value);
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000;
}
inline uint32_t rounded_tf32_even(float value) {
  uint32_t const bits = bits_of(value);
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000;
}
inline uint32_t cut_tf32(float value) { return bits_of(value) & 0xffffe000; }

// ---- Numbers of 16 bits --------------------------------------------------------------------------------------------

struct F16 {
  static float widen(uint16_t half) { return half_to_float(half); }
  static uint16_t narrow(float value) { return float_to_half(value); }
  static uint16_t infinity() { return 0x7c00; }
};
struct BF16 {
  static float widen(uint16_t half) { return bfloat_to_float(half); }
  static uint16_t narrow(float value) { return float_to_bfloat(value); }
  static uint16_t infinity() { return 0x7f80; }
};
// Of a program with two kernels that differ in this type: whether the second one runs.
inline bool is_twin = false;
template <class First, class Second>
struct Either {
  __attribute__((noinline)) static float widen(uint16_t half) { return is_twin ? Second::widen(half) : First::widen(half); }
  static uint16_t narrow(float value) { return is_twin ? Second::narrow(value) : First::narrow(value); }
  static uint16_t infinity() { return is_twin ? Second::infinity() : First::infinity(); }
};
enum class Direction : uint8_t { nearest, to_zero, down, up };

// Rounds once: the float in between is rounded to odd, which keeps what a further rounding to nearest needs.
template <class Half>
inline uint16_t narrow(double value, Direction direction = Direction::nearest) {
  float between = float(value);
  if (value == value && double(between) != value) {
    uint32_t bits = bits_of(between);
    if (__builtin_fabs(double(between)) > __builtin_fabs(value)) --bits;
    between = float_of(bits | 1);
  }
  uint16_t const nearest = Half::narrow(between);
  if (direction == Direction::nearest || !(value == value) || (nearest & 0x7fff) > Half::infinity()) return nearest;
  double const found = double(Half::widen(nearest));
  bool const negative = value < 0;
  if (found == value) return nearest;
  if (direction == Direction::to_zero) direction = negative ? Direction::up : Direction::down;
  if (direction == Direction::down && found < value) return nearest;
  if (direction == Direction::up && found > value) return nearest;
  bool const away = (direction == Direction::up) != negative;  // from zero
  if (!away && (nearest & 0x7fff) == 0) return nearest;
  return uint16_t(away ? nearest + 1 : nearest - 1);
}
// .satfinite: the largest finite number in place of infinity, and a NaN as it is.
template <class Half>
inline uint16_t finite(uint16_t half) {
  return (half & 0x7fff) == Half::infinity() ? uint16_t(half - 1) : half;
}
// An operation on numbers of 16 bits, or on the two halves of words.
template <class Half, class Operation, class Word, class... Others>
inline Word halves(Operation operation, Word word, Others... others) {
  auto of = [&](auto half) { return uint32_t(narrow<Half>(operation(half(word), half(others)...))); };
  uint32_t result = of([](uint32_t one) { return double(Half::widen(uint16_t(one))); });
  if (sizeof(Word) == 4) result |= of([](uint32_t one) { return double(Half::widen(uint16_t(one >> 16))); }) << 16;
  return Word(result);
}
inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; }

}  // namespace hgemm::executor::ptx
