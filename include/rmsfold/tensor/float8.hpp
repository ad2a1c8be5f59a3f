// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Eight-bit floating-point codes, read only: what quantised checkpoints store beside scales.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace rmsfold {

namespace detail {

/// \f$(-1)^s\,2^{e-7}(1+m/8)\f$, or \f$(-1)^s\,2^{-6}m/8\f$ for e = 0; e = 15, m = 7 is NaN; there is no infinity.
[[nodiscard]] inline double decode_e4m3(unsigned code) {
  const unsigned exponent = (code >> 3) & 15u, mantissa = code & 7u;
  const double sign = (code & 128u) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<double>(mantissa), -9);
  return sign * std::ldexp(static_cast<double>(8 + mantissa), static_cast<int>(exponent) - 10);
}

}  // namespace detail

/// The value of a code of type F8_E4M3 of safetensors (torch's float8_e4m3fn), exactly. Source: OCP 8-bit Floating Point Specification, section 5.3.
[[nodiscard]] inline double value_of_e4m3(std::byte code) {
  static const std::array<double, 256> table = [] {
    std::array<double, 256> values{};
    for (unsigned c = 0; c < 256; ++c) values[c] = detail::decode_e4m3(c);
    return values;
  }();
  return table[std::to_integer<std::size_t>(code)];
}

}  // namespace rmsfold
