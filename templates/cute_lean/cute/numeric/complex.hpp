// Stands in for CuTe's <cute/numeric/complex.hpp>: enough of a complex number for the declarations of the double-precision
// atoms in <cute/arch/mma_sm80.hpp>, which no kernel here uses. See cute/config.hpp beside it.
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
