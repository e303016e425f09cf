/* Test data: integers from -2 to 2, so that f32 accumulates exactly, and f16 without a type for it. */
#ifndef EXAMPLE_NUMBERS_H
#define EXAMPLE_NUMBERS_H

#include <stdint.h>

static int number(int64_t i, int64_t j) { return (int)((i * 7 + j * 3 + i * j % 11) % 5) - 2; }

static uint16_t half_of(int value) {
  static uint16_t const halves[5] = {0xC000, 0xBC00, 0x0000, 0x3C00, 0x4000};
  return halves[value + 2];
}

static float float_of(uint16_t half) { /* finite normal numbers and zero */
  int const exponent = half >> 10 & 31;
  float value = (float)(exponent ? 1024 + (half & 1023) : half & 1023);
  int shift = (exponent ? exponent : 1) - 25;
  for (; shift > 0; --shift) value *= 2.0f;
  for (; shift < 0; ++shift) value *= 0.5f;
  return half & 0x8000 ? -value : value;
}

static int is_close(float found, float expected) { /* f16 has 11 significant bits */
  float const error = found - expected;
  return (error < 0 ? -error : error) <= (expected < 0 ? -expected : expected) / 2048;
}

#endif
