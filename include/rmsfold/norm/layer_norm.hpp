// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// LayerNorm with its gain and bias, and the gain-free type that any rotation fixing the ones vector commutes with.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

namespace detail {

/// \f$p\,(x-\bar x)\f$, p a power of two: 1 unless a sum of the entries could leave the range of the type.
template <Real T>
struct Centred {
  RowVector<T> values;
  T power{1};
};

/// Centred twice: the second pass takes what rounding left of the mean, and leaves exact zeros of a constant row.
template <DenseExpr D>
[[nodiscard]] auto centred(const D& row, double eps) {
  using T = Wide<typename D::Scalar>;
  Centred<T> result{row.template cast<T>(), T{1}};
  if constexpr (std::floating_point<T>) {
    using Limits = std::numeric_limits<T>;
    const T largest = (std::max)(result.values.cwiseAbs().maxCoeff(), std::sqrt(static_cast<T>(eps)));
    const T terms = static_cast<T>(2 * row.size());  // entries of the sum, and room for a difference
    if (largest > 0 && !(largest >= (Limits::min)() / Limits::epsilon() && largest <= (Limits::max)() / terms)) {
      result.power = std::ldexp(T{1}, std::clamp(-std::ilogb(largest), Limits::min_exponent, Limits::max_exponent - 1));
      result.values *= result.power;
    }
  }
  for (int pass = 0; pass < 2; ++pass) {
    const T mean = T(result.values.sum() / static_cast<T>(row.size()));
    for (Index j = 0; j < row.size(); ++j) result.values[j] -= mean;
  }
  return result;
}

/// \f$\mathrm{LN}_1(x)\odot g+\beta\f$ of each row, rounded once to the type of x; g or β may be absent.
template <DenseExpr D, Real G>
[[nodiscard]] Matrix<typename D::Scalar> layer_norm(const D& x, double eps, const RowVector<G>* gain, const RowVector<G>* bias) {
  using T = Wide<typename D::Scalar>;
  const auto& rows = x.derived().eval();  // an expression is evaluated once; a matrix is not copied
  Matrix<typename D::Scalar> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const Centred<T> row = centred(rows.row(t), eps);
    const InverseRms<T> scale = inverse_rms(row.values, static_cast<double>(static_cast<T>(eps) * row.power * row.power));
    for (Index j = 0; j < x.cols(); ++j) {
      T value = T(row.values[j] * scale.power * scale.rest);
      if (gain != nullptr) value *= static_cast<T>((*gain)[j]);
      if (bias != nullptr) value += static_cast<T>((*bias)[j]);
      y(t, j) = static_cast<typename D::Scalar>(value);
    }
  }
  return y;
}

template <Storage S>
[[nodiscard]] std::optional<RowVector<Wide<S>>> widened_bias(const std::optional<RowVector<S>>& bias) {
  if (!bias) return std::nullopt;
  return widened(*bias);
}

template <Storage S>
void check_bias(const std::optional<RowVector<S>>& bias, Index n) {
  if (bias && bias->size() != n) raise<ShapeError>("LayerNorm of dimension {} with a bias of length {}", n, bias->size());
}

}  // namespace detail

/// LayerNorm without a gain: \f$\mathrm{LN}_1(x)+\beta,\ \mathrm{LN}_1(x) = (x-\bar x)\,/\sqrt{\frac1n\sum_j(x_j-\bar x)^2+\epsilon}\f$, eps inside the root.
///
/// \f$\mathrm{LN}_1(x) = \mathrm{rms}(xC),\ C = I-\mathbf 1\mathbf 1^T/n\f$ (identity 7), so \f$\mathrm{LN}_1(xQ) = \mathrm{LN}_1(x)\,Q\f$ for exactly
/// the orthogonal Q with \f$Q\mathbf 1 = \pm\mathbf 1\f$ (identity 8). A bias that no reader can take stays here and is rotated like a writer's.
/// @tparam S  storage scalar of the model; activations may be of any real type.
/// @note Source: Ba, Kiros and Hinton, Layer Normalization (2016), equation 3; eps as in the runtimes.
template <Storage S>
class UnitLayerNorm {
 public:
  /// @param bias  β, as stored; none for most.
  /// @throws ShapeError when n < 1 or the bias has another length; InvariantError when eps is negative or not finite.
  UnitLayerNorm(Index n, double eps, std::optional<RowVector<S>> bias = std::nullopt) : dim_(n), eps_(eps), bias_(std::move(bias)) {
    if (n < 1) detail::raise<ShapeError>("UnitLayerNorm: dimension {}", n);
    detail::check_eps(eps);
    detail::check_bias(bias_, n);
  }

  /// Length of the rows it normalises.
  [[nodiscard]] Index dim() const noexcept { return dim_; }
  /// eps, inside the root.
  [[nodiscard]] double eps() const noexcept { return eps_; }
  /// β, as stored.
  [[nodiscard]] const std::optional<RowVector<S>>& bias() const noexcept { return bias_; }

  /// \f$\mathrm{LN}_1(x)+\beta\f$ of each row. @param x `tokens x n`. @returns `tokens x n`; constant rows give β. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    if (x.cols() != dim_) detail::raise<ShapeError>("LayerNorm of dimension {} on rows of length {}", dim_, x.cols());
    const std::optional<RowVector<Wide<S>>> beta = detail::widened_bias(bias_);
    return detail::layer_norm<D, Wide<S>>(x, eps_, nullptr, beta ? &*beta : nullptr);
  }

 private:
  Index dim_;
  double eps_;
  std::optional<RowVector<S>> bias_;
};

/// LayerNorm as models have it: \f$\mathrm{LN}(x) = \mathrm{LN}_1(x)\odot g+\beta\f$.
///
/// It may be transported by a permutation, times a global sign; nothing else commutes with both its mean and its gain: `fold_gain` first.
/// @tparam S  storage scalar of the weight that the gain is stored as.
template <Storage S>
class LayerNorm {
 public:
  /// @param weight  w, as stored.
  /// @param bias    β, as stored, where the family has one.
  /// @throws ShapeError when w is empty or β has another length; InvariantError when eps is negative or not finite.
  LayerNorm(RowVector<S> weight, std::optional<RowVector<S>> bias, double eps, GainConvention convention = GainConvention::plain)
      : unit_(weight.size(), eps), weight_(std::move(weight)), bias_(std::move(bias)), convention_(convention) {
    detail::check_bias(bias_, dim());
  }

  /// Length of the rows it normalises.
  [[nodiscard]] Index dim() const noexcept { return unit_.dim(); }
  /// eps, inside the root.
  [[nodiscard]] double eps() const noexcept { return unit_.eps(); }
  /// w, as stored.
  [[nodiscard]] const RowVector<S>& weight() const noexcept { return weight_; }
  /// β, as stored.
  [[nodiscard]] const std::optional<RowVector<S>>& bias() const noexcept { return bias_; }
  /// How w gives g.
  [[nodiscard]] GainConvention convention() const noexcept { return convention_; }
  /// g, as a runtime forms it from w.
  [[nodiscard]] RowVector<Wide<S>> gain() const { return gain_of(weight_, convention_); }
  /// \f$\mathrm{LN}_1\f$: no gain, no bias; not the same function: use `fold_gain`, which gives both to the readers.
  [[nodiscard]] const UnitLayerNorm<S>& without_gain() const noexcept { return unit_; }

  /// \f$\mathrm{LN}_1(x)\odot g+\beta\f$ of each row. @param x `tokens x n`. @returns `tokens x n`; constant rows give β. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    if (x.cols() != dim()) detail::raise<ShapeError>("LayerNorm of dimension {} on rows of length {}", dim(), x.cols());
    const RowVector<Wide<S>> g = gain();
    const std::optional<RowVector<Wide<S>>> beta = detail::widened_bias(bias_);
    return detail::layer_norm<D, Wide<S>>(x, eps(), &g, beta ? &*beta : nullptr);
  }

 private:
  UnitLayerNorm<S> unit_;
  RowVector<S> weight_;
  std::optional<RowVector<S>> bias_;
  GainConvention convention_;
};

}  // namespace rmsfold
