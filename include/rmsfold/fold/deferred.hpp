// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Deferred normalisation: the matrix product runs on the raw rows, and one scalar per row normalises its result.

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// \f$(xW^T)\,s + b\f$ with \f$s = 1/\sqrt{\overline{x^2}+\epsilon}\f$ (identity 10): the same as `reader.apply(norm.apply(x))`, but norm and product can overlap.
///
/// The bias is added after the scale. s is formed as the norm forms it, so squares do not overflow; but \f$xW^T\f$ may, for x near the end of its type, where the
/// normalised product would not.
/// @param norm    a norm without a gain: fold it first.
/// @param x       `tokens x n`.
/// @returns `tokens x reader.out()`. @throws ShapeError.
/// @note Source: Graef et al., FlashNorm (2024).
template <Storage S, DenseExpr D>
[[nodiscard]] Matrix<typename D::Scalar> apply_deferred(const UnitRMSNorm<S>& norm, const Linear<S>& reader, const D& x) {
  using T = typename D::Scalar;
  if (x.cols() != norm.dim()) detail::raise<ShapeError>("RMSNorm of dimension {} on rows of length {}", norm.dim(), x.cols());
  detail::check_bias(reader);
  Matrix<T> y = Linear<S>{reader.weight, std::nullopt}.apply(x);
  for (Index t = 0; t < y.rows(); ++t) {
    const auto scale = detail::inverse_rms(x.row(t), norm.eps());
    using R = decltype(scale.rest);
    for (Index i = 0; i < y.cols(); ++i) {
      R value = static_cast<R>(y(t, i)) * scale.power * scale.rest;
      if (reader.bias) value += static_cast<R>(widen((*reader.bias)[i]));
      y(t, i) = static_cast<T>(value);
    }
  }
  return y;
}

}  // namespace rmsfold
