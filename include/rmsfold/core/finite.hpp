// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Finiteness by exponent bits: `std::isfinite` returns true for a NaN under `-ffast-math`, this does not, for `float` and `double`.

#include <bit>
#include <cstdint>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// Neither infinite nor NaN.
[[nodiscard]] constexpr bool is_finite(double x) noexcept {
  return ((std::bit_cast<std::uint64_t>(x) >> 52) & 0x7ff) != 0x7ff;
}

/// Neither infinite nor NaN.
[[nodiscard]] constexpr bool is_finite(float x) noexcept {
  return ((std::bit_cast<std::uint32_t>(x) >> 23) & 0xff) != 0xff;
}

/// Neither infinite nor NaN, of a type whose bits are not known here: by arithmetic, which `-ffast-math` may take away.
template <Real S>
[[nodiscard]] constexpr bool is_finite(const S& x) {
  return x - x == S(0);
}

/// Position of the first entry that is infinite or NaN, in storage order; -1 when all are finite.
template <Real S>
[[nodiscard]] Index first_non_finite(const S* values, Index count) {
  for (Index i = 0; i < count; ++i) {
    if (!is_finite(values[i])) return i;
  }
  return -1;
}

}  // namespace rmsfold
