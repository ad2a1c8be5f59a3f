// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Four-bit floating-point codes and their shared exponents, read only: the MXFP4 of quantised checkpoints.

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace rmsfold {

/// The value of a code of FP4 E2M1, exactly: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 and a sign. Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3.
/// @pre code < 16
[[nodiscard]] inline double value_of_e2m1(unsigned code) {
  constexpr std::array<double, 8> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8u) != 0 ? -magnitudes[code & 7u] : magnitudes[code & 7u];
}

/// \f$2^{code-127}\f$, the scale of a block; 255 is NaN. Source: the same, section 5.4.1.
[[nodiscard]] inline double value_of_e8m0(std::byte code) {
  const int exponent = std::to_integer<int>(code);
  return exponent == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent - 127);
}

}  // namespace rmsfold
