// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Matrices of storage scalars to and from the type that weights are composed in.

#include <type_traits>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>

namespace rmsfold {

namespace detail {

/// \f$\|m\|_F\f$ without overflow or underflow on the way; NaN when an entry is NaN, which Eigen's `stableNorm` hides.
template <DenseExpr D>
[[nodiscard]] typename D::Scalar safe_norm(const D& m) {
  using T = typename D::Scalar;
  if (m.size() == 0) return T(0);
  const T largest = m.derived().cwiseAbs().template maxCoeff<Eigen::PropagateNaN>();
  if (!(largest > T(0))) return largest;
  return largest * (m.derived() / largest).matrix().norm();
}

}  // namespace detail

/// Exact values of a stored matrix or vector. @returns the same shape.
template <Storage S, int Rows>
[[nodiscard]] Eigen::Matrix<Wide<S>, Rows, Eigen::Dynamic, Eigen::RowMajor> widened(
    const Eigen::Matrix<S, Rows, Eigen::Dynamic, Eigen::RowMajor>& stored) {
  Eigen::Matrix<Wide<S>, Rows, Eigen::Dynamic, Eigen::RowMajor> result(stored.rows(), stored.cols());
  for (Index i = 0; i < stored.size(); ++i) result.data()[i] = widen(stored.data()[i]);
  return result;
}

/// Every entry rounded once to `S`. @returns the same shape.
/// @throws RangeError when a finite entry is beyond the largest finite `S`: it would have become an infinity. (Where `S` is what factors are composed in, `double` or
///   wider, there is no wider number to see it in: an overflow is an infinity, as in all arithmetic.)
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
