// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The shape of a stored tensor, slowest axis first, with overflow-checked sizes.

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/core/checked.hpp>

namespace rmsfold {

/// Extents, slowest axis first; empty for a rank-0 scalar. Extents may be 0.
using Shape = std::vector<std::uint64_t>;

/// Product of the extents; 1 for rank 0. @throws RangeError when it does not fit 64 bits.
[[nodiscard]] inline std::uint64_t element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count = checked_mul(count, extent);
  return count;
}

/// As "[32, 64]".
[[nodiscard]] inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += fmt::format("{}{}", axis == 0 ? "" : ", ", shape[axis]);
  return text + "]";
}

}  // namespace rmsfold
