// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Between stored bytes and `double`: exact on the way in, one rounding on the way out, at any alignment.

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/tensor/dtype.hpp>

namespace rmsfold {

static_assert(std::endian::native == std::endian::little, "stored tensors are little-endian; big-endian hosts are not supported");

/// Exact values of `out.size()` stored elements. @pre bytes holds that many. @par Cost one pass.
template <Storage S>
void load_as_double(std::span<const std::byte> bytes, std::span<double> out) noexcept {
  for (std::size_t i = 0; i < out.size(); ++i) {
    S stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(S), sizeof(S));
    out[i] = to_double(stored);
  }
}

/// Rounds each value once to `S` and stores it.
/// @returns the position of the first finite value that `S` cannot hold (it would have become an infinity); -1 when there is none.
template <Storage S>
[[nodiscard]] Index store_rounded(std::span<const double> values, std::span<std::byte> out) noexcept {
  Index overflow = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const S stored = round_to<S>(values[i]);
    if constexpr (!std::same_as<S, double>) {
      if (!is_finite(to_double(stored)) && is_finite(values[i]) && overflow < 0) overflow = static_cast<Index>(i);
    }
    std::memcpy(out.data() + i * sizeof(S), &stored, sizeof(S));
  }
  return overflow;
}

/// `load_as_double` for a dtype known at run time.
inline void load_as_double(Dtype dtype, std::span<const std::byte> bytes, std::span<double> out) {
  if (bytes.size() != out.size() * size_of(dtype)) {
    detail::raise<ShapeError>("{} bytes do not hold {} elements of {}", bytes.size(), out.size(), name_of(dtype));
  }
  visit_dtype(dtype, [&](auto scalar) { load_as_double<decltype(scalar)>(bytes, out); });
}

/// `store_rounded` for a dtype known at run time.
[[nodiscard]] inline Index store_rounded(Dtype dtype, std::span<const double> values, std::span<std::byte> out) {
  if (out.size() != values.size() * size_of(dtype)) {
    detail::raise<ShapeError>("{} bytes do not hold {} elements of {}", out.size(), values.size(), name_of(dtype));
  }
  return visit_dtype(dtype, [&](auto scalar) { return store_rounded<decltype(scalar)>(values, out); });
}

}  // namespace rmsfold
