// Replaces CuTe's <cute/numeric/complex.hpp>: what the declarations of the double-precision atoms in <cute/arch/mma_sm80.hpp>
// need. No kernel here uses those atoms. See cute/config.hpp.
#pragma once

#include <cute/config.hpp>

namespace cute {

template <class T>
struct complex {
  T re, im;

  CUTE_HOST_DEVICE constexpr complex(T real = T(0), T imaginary = T(0)) : re(real), im(imaginary) {}
  CUTE_HOST_DEVICE constexpr T real() const { return re; }
  CUTE_HOST_DEVICE constexpr T imag() const { return im; }
  CUTE_HOST_DEVICE constexpr void real(T value) { re = value; }
  CUTE_HOST_DEVICE constexpr void imag(T value) { im = value; }

  friend CUTE_HOST_DEVICE constexpr complex operator+(complex const& a, complex const& b) {
    return {a.re + b.re, a.im + b.im};
  }
  friend CUTE_HOST_DEVICE constexpr complex operator*(complex const& a, complex const& b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};

}  // namespace cute
