// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Integer arithmetic on sizes that come from outside: it throws where plain arithmetic would wrap.

#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include <rmsfold/core/error.hpp>

namespace rmsfold {

/// `a + b`. @throws RangeError when the sum does not fit 64 bits.
[[nodiscard]] inline std::uint64_t checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > (std::numeric_limits<std::uint64_t>::max)() - b) detail::raise<RangeError>("{} + {} does not fit 64 bits", a, b);
  return a + b;
}

/// `a * b`. @throws RangeError when the product does not fit 64 bits.
[[nodiscard]] inline std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > (std::numeric_limits<std::uint64_t>::max)() / b) {
    detail::raise<RangeError>("{} * {} does not fit 64 bits", a, b);
  }
  return a * b;
}

/// `value` as a `T`. @throws RangeError when `T` cannot represent it.
template <std::integral T, std::integral From>
[[nodiscard]] T narrow(From value) {
  if (!std::in_range<T>(value)) detail::raise<RangeError>("{} does not fit the target integer type", value);
  return static_cast<T>(value);
}

}  // namespace rmsfold
