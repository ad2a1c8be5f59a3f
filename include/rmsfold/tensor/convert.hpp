// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Between stored bytes and `double`: exact on the way in, one rounding on the way out, at any alignment.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

#include <rmsfold/core/error.hpp>
#include <rmsfold/kernel/convert.hpp>
#include <rmsfold/tensor/dtype.hpp>

namespace rmsfold {

static_assert(std::endian::native == std::endian::little, "stored tensors are little-endian; big-endian hosts are not supported");

/// Exact values of `out.size()` stored elements. @pre bytes holds that many. @par Cost one pass.
template <Storage S>
void load_as_double(std::span<const std::byte> bytes, std::span<double> out) noexcept {
  if constexpr (std::same_as<S, double>) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size_bytes());
  } else {
    kernel::dispatch<kernel::Load<S>>(bytes.data(), out.data(), static_cast<Index>(out.size()));
  }
}

/// Rounds each value once to `S` and stores it. @pre out holds that many.
/// @returns the position of the first finite value that `S` cannot hold (it would have become an infinity); -1 when there is none.
template <Storage S>
[[nodiscard]] Index store_rounded(std::span<const double> values, std::span<std::byte> out) noexcept {
  if constexpr (std::same_as<S, double>) {
    if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
    return -1;
  } else {
    return kernel::dispatch<kernel::Store<S>>(values.data(), out.data(), static_cast<Index>(values.size()));
  }
}

/// Stored elements times `factors`, each product formed in `double` and rounded once to `S`: a gain folded into one row, without a row of doubles.
/// @pre bytes and out hold `factors.size()` elements; they may be the same memory. @returns as `store_rounded` of the products.
template <Storage S>
[[nodiscard]] Index scale_rounded(std::span<const std::byte> bytes, std::span<const double> factors, std::span<std::byte> out) noexcept {
  if constexpr (std::same_as<S, double>) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
      double value;
      std::memcpy(&value, bytes.data() + i * sizeof(double), sizeof(double));
      value *= factors[i];
      std::memcpy(out.data() + i * sizeof(double), &value, sizeof(double));
    }
    return -1;
  } else {
    return kernel::dispatch<kernel::Scale<S>>(bytes.data(), factors.data(), out.data(), static_cast<Index>(factors.size()));
  }
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

/// `load_as_double` of a block of stored elements: rows of `cols`, `stride` elements apart, dense in `out`. @pre bytes holds them.
inline void load_as_double(Dtype dtype, std::span<const std::byte> bytes, Index stride, Index cols, std::span<double> out) {
  if (stride == cols) return load_as_double(dtype, bytes.first(out.size() * size_of(dtype)), out);
  const std::size_t length = static_cast<std::size_t>(cols);
  visit_dtype(dtype, [&](auto scalar) {
    using S = decltype(scalar);
    for (std::size_t at = 0, from = 0; at < out.size(); at += length, from += static_cast<std::size_t>(stride) * sizeof(S)) {
      load_as_double<S>(bytes.subspan(from, length * sizeof(S)), out.subspan(at, length));
    }
  });
}

/// `store_rounded` of a dense block to rows of `cols`, `stride` elements apart. @pre out holds them. @returns a position in `values`.
[[nodiscard]] inline Index store_rounded(Dtype dtype, std::span<const double> values, Index stride, Index cols, std::span<std::byte> out) {
  if (stride == cols) return store_rounded(dtype, values, out.first(values.size() * size_of(dtype)));
  const std::size_t length = static_cast<std::size_t>(cols);
  return visit_dtype(dtype, [&](auto scalar) {
    using S = decltype(scalar);
    Index overflow = -1;
    for (std::size_t at = 0, to = 0; at < values.size(); at += length, to += static_cast<std::size_t>(stride) * sizeof(S)) {
      const Index found = store_rounded<S>(values.subspan(at, length), out.subspan(to, length * sizeof(S)));
      if (overflow < 0 && found >= 0) overflow = static_cast<Index>(at) + found;
    }
    return overflow;
  });
}

/// `scale_rounded` for a dtype known at run time.
[[nodiscard]] inline Index scale_rounded(Dtype dtype, std::span<const std::byte> bytes, std::span<const double> factors, std::span<std::byte> out) {
  if (out.size() != factors.size() * size_of(dtype) || bytes.size() != out.size()) {
    detail::raise<ShapeError>("{} bytes to {} bytes do not hold {} elements of {}", bytes.size(), out.size(), factors.size(), name_of(dtype));
  }
  return visit_dtype(dtype, [&](auto scalar) { return scale_rounded<decltype(scalar)>(bytes, factors, out); });
}

}  // namespace rmsfold
