// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// RMSNorm with an elementwise gate before or behind it: the inner norms of linear attention and state-space layers.

#include <cmath>
#include <utility>

#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// Which comes first.
enum class GateOrder {
  gate_first,  ///< \f$\mathrm{rms}(x\odot a(z))\odot g\f$ (mamba2)
  norm_first,  ///< \f$\mathrm{rms}(x)\odot g\odot a(z)\f$ (qwen3_next, minimax)
};

/// What is made of the gate's input z.
enum class GateActivation {
  silu,     ///< \f$a(z) = z\,/\,(1+e^{-z})\f$
  sigmoid,  ///< \f$a(z) = 1\,/\,(1+e^{-z})\f$ (minimax)
};

namespace detail {

/// a(z), every operation in T.
template <Real T>
[[nodiscard]] T gate_value(const T& z, GateActivation activation) {
  using std::exp;
  return T((activation == GateActivation::silu ? z : T{1}) / (T{1} + exp(T(-z))));
}

}  // namespace detail

/// Gated RMSNorm over groups of channels: its gain commutes with the gate, whichever comes first, so it folds into the reader behind it.
/// @tparam S  storage scalar of the weight that the gain is stored as.
/// @note Source: Dao and Gu, Transformers are SSMs (2024), section 7.1 (grouped, gate first).
template <Storage S>
class GatedRMSNorm {
 public:
  /// @param n       length of the rows it normalises.
  /// @param weight  w = g, as stored: n values, or those of one group, shared by all.
  /// @param groups  the root mean square is taken over each n / groups channels.
  /// @throws ShapeError when the sizes do not fit; InvariantError when eps is negative or not finite.
  GatedRMSNorm(Index n, RowVector<S> weight, double eps, Index groups, GateOrder order, GateActivation activation = GateActivation::silu)
      : dim_(n), groups_(groups), weight_(std::move(weight)), eps_(eps), order_(order), activation_(activation) {
    if (n < 1 || groups < 1 || n % groups != 0) detail::raise<ShapeError>("GatedRMSNorm: {} groups of {} channels in all", groups, n);
    if (weight_.size() != n && weight_.size() != n / groups) {
      detail::raise<ShapeError>("GatedRMSNorm: {} weights, expected {} or the {} of a group", weight_.size(), n, n / groups);
    }
    detail::check_eps(eps);
  }

  /// Length of the rows it normalises.
  [[nodiscard]] Index dim() const noexcept { return dim_; }
  /// Number of groups.
  [[nodiscard]] Index groups() const noexcept { return groups_; }
  /// eps, inside the root.
  [[nodiscard]] double eps() const noexcept { return eps_; }
  /// w, as stored: of all channels or of one group.
  [[nodiscard]] const RowVector<S>& weight() const noexcept { return weight_; }
  /// Which comes first.
  [[nodiscard]] GateOrder order() const noexcept { return order_; }
  /// What is made of the gate's input.
  [[nodiscard]] GateActivation activation() const noexcept { return activation_; }
  /// g of all channels, for the fold into the reader.
  [[nodiscard]] RowVector<Wide<S>> gain() const { return widened(weight_).replicate(1, dim_ / weight_.size()); }

  /// The gated norm of each row, rounded once. @param x,gate `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D, DenseExpr Z>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x, const Z& gate) const {
    using T = Wide<typename D::Scalar>;
    if (x.cols() != dim_ || gate.cols() != dim_ || gate.rows() != x.rows()) {
      detail::raise<ShapeError>("GatedRMSNorm of dimension {} on [{}, {}], gate [{}, {}]", dim_, x.rows(), x.cols(), gate.rows(), gate.cols());
    }
    const RowVector<Wide<S>> g = gain();
    const Index width = dim_ / groups_;
    Matrix<typename D::Scalar> y(x.rows(), dim_);
    RowVector<T> row(width);
    RowVector<T> factor(width);  // what the normalised row is multiplied by
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index start = 0; start < dim_; start += width) {
        for (Index j = 0; j < width; ++j) {
          const T a = detail::gate_value(static_cast<T>(gate(t, start + j)), activation_);
          row[j] = static_cast<T>(x(t, start + j));
          factor[j] = static_cast<T>(g[start + j]);
          (order_ == GateOrder::gate_first ? row : factor)[j] *= a;
        }
        const detail::InverseRms<T> scale = detail::inverse_rms(row, eps_);
        for (Index j = 0; j < width; ++j) {
          y(t, start + j) = static_cast<typename D::Scalar>(T(row[j] * scale.power * scale.rest * factor[j]));
        }
      }
    }
    return y;
  }

 private:
  Index dim_;
  Index groups_;
  RowVector<S> weight_;
  double eps_;
  GateOrder order_;
  GateActivation activation_;
};

}  // namespace rmsfold
