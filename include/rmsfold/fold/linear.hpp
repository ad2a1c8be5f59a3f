// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A linear layer as checkpoints store it, and as factors are composed into it.

#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <rmsfold/tensor/matrix.hpp>

namespace rmsfold {

namespace detail {

/// A bias has one entry for every output.
template <class Layer>
void check_bias(const Layer& layer) {
  if (layer.bias && layer.bias->size() != layer.out()) raise<ShapeError>("a linear layer with {} outputs has {} biases", layer.out(), layer.bias->size());
}

}  // namespace detail

/// \f$y = xW^T + b\f$ with W stored `[out, in]`.
/// @tparam S  storage scalar of the weights.
template <Storage S>
struct Linear {
  Matrix<S> weight;                 ///< `out x in`
  std::optional<RowVector<S>> bias;  ///< `out`, or none

  /// Length of the rows it reads.
  [[nodiscard]] Index in() const noexcept { return weight.cols(); }
  /// Length of the rows it writes.
  [[nodiscard]] Index out() const noexcept { return weight.rows(); }

  /// @param x `tokens x in`, of any real type, which the product is carried out in. @returns `tokens x out`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    using T = typename D::Scalar;
    if (x.cols() != in()) detail::raise<ShapeError>("a linear layer {} x {} cannot read rows of length {}", out(), in(), x.cols());
    detail::check_bias(*this);
    const Matrix<T> w = weight.unaryExpr([](S value) { return static_cast<T>(widen(value)); });
    Matrix<T> y = x.derived() * w.transpose();
    if (bias) {
      const RowVector<T> b = bias->unaryExpr([](S value) { return static_cast<T>(widen(value)); });
      y.rowwise() += b;
    }
    return y;
  }
};

/// The layer's numbers in the type that factors are composed in, exactly. Folds and rotations of it round nothing to storage: apply as many as a layer takes, then
/// `rounded<S>` once.
template <Storage S>
[[nodiscard]] Linear<Wide<S>> widened(const Linear<S>& layer) {
  Linear<Wide<S>> result{widened(layer.weight), std::nullopt};
  if (layer.bias) result.bias = widened(*layer.bias);
  return result;
}

/// Every number of the layer rounded once to `S`. @throws RangeError when one is beyond the largest finite `S`.
template <Storage S>
[[nodiscard]] Linear<S> rounded(const std::type_identity_t<Linear<Wide<S>>>& layer) {
  Linear<S> result{rounded<S>(layer.weight), std::nullopt};
  if (layer.bias) result.bias = rounded<S>(*layer.bias);
  return result;
}

/// A list of layers as a parameter: takes a vector, an array or a span, and leaves it to the other parameters to say what S is.
template <Storage S>
using Readers = std::type_identity_t<std::span<const Linear<S>>>;

}  // namespace rmsfold
