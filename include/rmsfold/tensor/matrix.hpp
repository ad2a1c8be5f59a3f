// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Matrices of storage scalars to and from the type that weights are composed in.

#include <type_traits>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>

namespace rmsfold {

/// Exact values of a stored matrix or vector. @returns the same shape.
template <Storage S, int Rows>
[[nodiscard]] Eigen::Matrix<Wide<S>, Rows, Eigen::Dynamic, Eigen::RowMajor> widened(
    const Eigen::Matrix<S, Rows, Eigen::Dynamic, Eigen::RowMajor>& stored) {
  Eigen::Matrix<Wide<S>, Rows, Eigen::Dynamic, Eigen::RowMajor> result(stored.rows(), stored.cols());
  for (Index i = 0; i < stored.size(); ++i) result.data()[i] = widen(stored.data()[i]);
  return result;
}

/// Every entry rounded once to `S`. @returns the same shape.
/// @throws RangeError when a finite entry is beyond the largest finite `S`: it would have become an infinity.
template <Storage S, int Rows>
[[nodiscard]] Eigen::Matrix<S, Rows, Eigen::Dynamic, Eigen::RowMajor> rounded(
    const Eigen::Matrix<std::type_identity_t<Wide<S>>, Rows, Eigen::Dynamic, Eigen::RowMajor>& values) {
  if constexpr (std::same_as<S, Wide<S>>) {
    return values;
  } else {
    Eigen::Matrix<S, Rows, Eigen::Dynamic, Eigen::RowMajor> result(values.rows(), values.cols());
    for (Index i = 0; i < values.size(); ++i) {
      const double value = values.data()[i];
      result.data()[i] = round_to<S>(value);
      if (is_finite(value) && !is_finite(to_double(result.data()[i]))) {
        detail::raise<RangeError>("entry ({}, {}) = {:g} overflows its storage type, largest finite value {:g}", i / values.cols(),
                                  i % values.cols(), value, largest_finite<S>());
      }
    }
    return result;
  }
}

}  // namespace rmsfold
