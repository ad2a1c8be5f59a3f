// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Deferred normalisation: the matrix product runs on the raw rows, and one scalar per row normalises its result.

#include <concepts>

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// \f$(xW^T)\,s + b\f$ with \f$s = 1/\sqrt{\overline{x^2}+\epsilon}\f$ (identity 10): the same as `reader.apply(norm.apply(x))`, but norm and product can overlap.
///
/// The bias is added after the scale. s is formed as the norm forms it, so squares do not overflow; but \f$xW^T\f$ may, for x near the end of its type, where the
/// normalised product would not. The scale costs one pass over x and one over the result; weights of the type of x are read where they are, others converted once.
/// @param norm    a norm without a gain: fold it first.
/// @param x       `tokens x n`.
/// @returns `tokens x reader.out()`. @throws ShapeError.
/// @note Source: Graef et al., FlashNorm (2024).
template <Storage S, DenseExpr D>
[[nodiscard]] Matrix<typename D::Scalar> apply_deferred(const UnitRMSNorm<S>& norm, const Linear<S>& reader, const D& x) {
  using T = typename D::Scalar;
  if (x.cols() != norm.dim()) detail::raise<ShapeError>("RMSNorm of dimension {} on rows of length {}", norm.dim(), x.cols());
  if (x.cols() != reader.in()) detail::raise<ShapeError>("a linear layer {} x {} cannot read rows of length {}", reader.out(), reader.in(), x.cols());
  detail::check_bias(reader);
  const auto& rows = x.derived().eval();  // an expression is evaluated once; a matrix is not copied
  Matrix<T> y;
  if constexpr (std::same_as<S, T>) {
    y.noalias() = rows * reader.weight.transpose();
  } else {
    y.noalias() = rows * reader.weight.unaryExpr([](S value) { return static_cast<T>(widen(value)); }).transpose();
  }
  for (Index t = 0; t < y.rows(); ++t) {
    const auto scale = detail::inverse_rms(rows.row(t), norm.eps());
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
