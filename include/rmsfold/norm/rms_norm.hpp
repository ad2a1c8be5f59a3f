// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// RMSNorm with its learned gain, and the gain-free type that any rotation commutes with.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/norm/gain_convention.hpp>
#include <rmsfold/tensor/matrix.hpp>

namespace rmsfold {

namespace detail {

/// \f$1/\sqrt{\overline{x^2}+\epsilon}\f$ as a product of two factors: a power of two, 1 unless the squares leave the range of the type, and the rest.
template <Real T>
struct InverseRms {
  T power{1};
  T rest{0};
};

/// The squares are summed in `double` or wider; a zero row with eps = 0 gets 0, so that it gives zeros.
template <DenseExpr D>
[[nodiscard]] auto inverse_rms(const D& row, double eps) {
  using std::sqrt;
  using T = Wide<typename D::Scalar>;
  const auto square = [&](const T& power) {
    T sum{0};
    for (Index j = 0; j < row.size(); ++j) {
      const T x = static_cast<T>(row[j]) * power;
      sum += x * x;
    }
    return T(sum / static_cast<T>(row.size()) + static_cast<T>(eps) * power * power);
  };
  InverseRms<T> result;
  T s = square(T{1});
  if constexpr (std::floating_point<T>) {
    using Limits = std::numeric_limits<T>;
    if (!(s >= (Limits::min)() / Limits::epsilon() && s <= (Limits::max)())) {  // once more, with the largest of the entries and sqrt(eps) near 1
      T largest = std::sqrt(static_cast<T>(eps));
      for (Index j = 0; j < row.size(); ++j) largest = (std::max)(largest, std::fabs(static_cast<T>(row[j])));
      if (!(largest > 0)) return result;
      result.power = std::ldexp(T{1}, std::clamp(-std::ilogb(largest), Limits::min_exponent, Limits::max_exponent - 1));
      s = square(result.power);
    }
  } else if (s == T{0}) {
    return result;
  }
  result.rest = T{1} / sqrt(s);
  return result;
}

inline void check_eps(double eps) {
  if (!is_finite(eps) || !(eps >= 0)) raise<InvariantError>("norm: eps = {} must be finite and not negative", eps);
}

}  // namespace detail

/// RMSNorm without a gain: \f$\mathrm{rms}(x) = x\,/\sqrt{\frac1n\sum_j x_j^2+\epsilon}\f$, eps inside the root.
///
/// \f$\mathrm{rms}(xQ) = \mathrm{rms}(x)\,Q\f$ for every orthogonal Q and every eps (identity 1), so any rotation may pass it.
/// @tparam S  storage scalar of the model; activations may be of any real type.
/// @note Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4.
template <Storage S>
class UnitRMSNorm {
 public:
  /// @throws ShapeError when n < 1; InvariantError when eps is negative or not finite.
  UnitRMSNorm(Index n, double eps) : dim_(n), eps_(eps) {
    if (n < 1) detail::raise<ShapeError>("UnitRMSNorm: dimension {}", n);
    detail::check_eps(eps);
  }

  /// Length of the rows it normalises.
  [[nodiscard]] Index dim() const noexcept { return dim_; }
  /// eps, inside the root.
  [[nodiscard]] double eps() const noexcept { return eps_; }

  /// \f$\mathrm{rms}(x)\f$ of each row. @param x `tokens x n`. @returns `tokens x n`; zero rows give zeros. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    if (x.cols() != dim_) detail::raise<ShapeError>("RMSNorm of dimension {} on rows of length {}", dim_, x.cols());
    const auto& rows = x.derived().eval();  // an expression is evaluated once; a matrix is not copied
    Matrix<typename D::Scalar> y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
      const auto scale = detail::inverse_rms(rows.row(t), eps_);
      for (Index j = 0; j < dim_; ++j) {
        y(t, j) = static_cast<typename D::Scalar>(static_cast<decltype(scale.rest)>(rows(t, j)) * scale.power * scale.rest);
      }
    }
    return y;
  }

 private:
  Index dim_;
  double eps_;
};

/// RMSNorm with a learned gain: \f$\mathrm{RMSNorm}_g(x) = \mathrm{rms}(x)\odot g\f$.
///
/// It may be transported by a `SignedPermutation`; a dense rotation does not commute with \f$\mathrm{diag}(g)\f$ and does not compile: `fold_gain` first.
/// @tparam S  storage scalar of the weight that the gain is stored as.
template <Storage S>
class RMSNorm {
 public:
  /// @param weight  w, as stored.
  /// @throws ShapeError when it is empty; InvariantError when eps is negative or not finite.
  RMSNorm(RowVector<S> weight, double eps, GainConvention convention = GainConvention::plain)
      : unit_(weight.size(), eps), weight_(std::move(weight)), convention_(convention) {}

  /// Length of the rows it normalises.
  [[nodiscard]] Index dim() const noexcept { return unit_.dim(); }
  /// eps, inside the root.
  [[nodiscard]] double eps() const noexcept { return unit_.eps(); }
  /// w, as stored.
  [[nodiscard]] const RowVector<S>& weight() const noexcept { return weight_; }
  /// How w gives g.
  [[nodiscard]] GainConvention convention() const noexcept { return convention_; }
  /// g, as a runtime forms it from w.
  [[nodiscard]] RowVector<Wide<S>> gain() const { return gain_of(weight_, convention_); }
  /// The same norm without its gain; not the same function unless g = 1: use `fold_gain`, which gives the gain to the readers.
  [[nodiscard]] const UnitRMSNorm<S>& without_gain() const noexcept { return unit_; }

  /// \f$\mathrm{rms}(x)\odot g\f$ of each row. @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    using T = typename D::Scalar;
    const RowVector<Wide<S>> g = gain();
    Matrix<T> y = unit_.apply(x);
    for (Index j = 0; j < dim(); ++j) y.col(j) *= static_cast<T>(g[j]);
    return y;
  }

 private:
  UnitRMSNorm<S> unit_;
  RowVector<S> weight_;
  GainConvention convention_;
};

/// The same function with its gain in the type that factors are composed in, exactly: for folds into widened layers.
template <Storage S>
[[nodiscard]] RMSNorm<Wide<S>> widened(const RMSNorm<S>& norm) {
  return RMSNorm<Wide<S>>(norm.gain(), norm.eps());
}

}  // namespace rmsfold
