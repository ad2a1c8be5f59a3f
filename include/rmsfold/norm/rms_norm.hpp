// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// RMSNorm with its learned gain, and the gain-free type that any rotation commutes with.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/kernel/rms_norm.hpp>
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

/// The squares are summed in `double` or wider (those of BF16, four by four in `float`); a zero row with eps = 0 gets 0, so that it gives zeros.
template <Storage T>
[[nodiscard]] auto inverse_rms(const T* x, Index n, double eps) {
  using std::sqrt;
  using W = Wide<T>;
  const auto mean = [&](const W& power) {
    W sum{0};
    for (Index j = 0; j < n; ++j) {
      const W value = widen(x[j]) * power;
      sum += value * value;
    }
    return W(sum / static_cast<W>(n) + static_cast<W>(eps) * power * power);
  };
  InverseRms<W> result;
  W s;
  if constexpr (kernel::RowElement<T>) {
    s = kernel::dispatch<kernel::SumOfSquares<T>>(x, n) / static_cast<W>(n) + static_cast<W>(eps);
  } else {
    s = mean(W{1});
  }
  if constexpr (std::floating_point<W>) {
    using Limits = std::numeric_limits<W>;
    using Squares = std::numeric_limits<std::conditional_t<std::same_as<T, BF16>, float, W>>;  // of what they are formed in
    if (!(s >= (Squares::min)() / Squares::epsilon() && s <= (Squares::max)())) {  // once more, with the largest of the entries and sqrt(eps) near 1
      W largest = std::sqrt(static_cast<W>(eps));
      for (Index j = 0; j < n; ++j) largest = (std::max)(largest, std::fabs(widen(x[j])));
      if (!(largest > 0)) return result;
      result.power = std::ldexp(W{1}, std::clamp(-std::ilogb(largest), Limits::min_exponent, Limits::max_exponent - 1));
      s = mean(result.power);
    }
  } else if (s == W{0}) {
    return result;
  }
  result.rest = W{1} / sqrt(s);
  return result;
}

/// The same of a row of any expression.
template <DenseExpr D>
[[nodiscard]] auto inverse_rms(const D& row, double eps) {
  using T = typename D::Scalar;
  const Eigen::Ref<const RowVector<T>> values(row.derived());  // a copy only where the entries are not side by side
  return inverse_rms(values.data(), values.size(), eps);
}

/// \f$y=\mathrm{rms}(x)\odot g\f$ of rows of n. y may be x. @param gain  may be null: all 1.
template <Storage T, Real G>
void rms_norm(const T* x, T* y, Index rows, Index n, double eps, const G* gain) {
  using W = Wide<T>;
  for (Index t = 0; t < rows; ++t, x += n, y += n) {
    const InverseRms<W> scale = inverse_rms(x, n, eps);
    if constexpr (requires { typename kernel::Normalise<T, G>; }) {
      if (scale.power == W{1} && scale.rest > W{0}) {  // not zeros, nothing that is not finite, no squares that leave the range
        kernel::dispatch<kernel::Normalise<T, G>>(x, scale.rest, gain, y, n, t + 1 < rows ? x + n : x);
        continue;
      }
    }
    for (Index j = 0; j < n; ++j) {
      W value = widen(x[j]) * scale.power * scale.rest;
      if (gain != nullptr) value *= static_cast<W>(gain[j]);
      y[j] = round_to<T>(value);
    }
  }
}

/// The same of all rows of an expression.
template <DenseExpr D, Real G>
[[nodiscard]] Matrix<typename D::Scalar> rms_norm(const D& x, Index n, double eps, const G* gain) {
  using T = typename D::Scalar;
  if (x.cols() != n) raise<ShapeError>("RMSNorm of dimension {} on rows of length {}", n, x.cols());
  const auto& rows = x.derived().eval();  // an expression is evaluated once; a matrix is not copied
  Matrix<T> y(x.rows(), n);
  const T* from = rows.data();
  if constexpr (!std::remove_cvref_t<decltype(rows)>::IsRowMajor) {
    y = rows;
    from = y.data();
  }
  rms_norm(from, y.data(), y.rows(), n, eps, gain);
  return y;
}

/// The same of rows in memory.
template <Storage T, Real G>
void rms_norm(std::span<const T> x, std::span<T> y, Index n, double eps, const G* gain) {
  const Index count = static_cast<Index>(x.size());
  if (x.size() != y.size() || count % n != 0) {
    raise<ShapeError>("RMSNorm of dimension {} from {} numbers to {}: as many of both are expected, and whole rows", n, x.size(), y.size());
  }
  rms_norm(x.data(), y.data(), count / n, n, eps, gain);
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

  /// \f$\mathrm{rms}(x)\f$ of each row, rounded once to the type of x; zero rows give zeros.
  /// @param x  `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    return detail::rms_norm(x, dim_, eps_, no_gain);
  }

  /// The same of rows in memory, one after the other: one pass, at about the speed of a copy, and nothing is allocated.
  /// @tparam T  `float`, `double` or BF16.
  /// @param x  whole rows of n. @param y  as long as x: x itself (the fastest), or memory apart from it. @throws ShapeError.
  /// @note Products of BF16 are formed in `float`, others in `double`.
  template <kernel::RowElement T>
  void apply(std::span<const std::type_identity_t<T>> x, std::span<T> y) const {
    detail::rms_norm(x, y, dim_, eps_, no_gain);
  }

 private:
  static constexpr const float* no_gain = nullptr;

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
      : unit_(weight.size(), eps),
        weight_(std::move(weight)),
        gain_(gain_of(weight_, convention).template cast<Compute<S>>()),
        convention_(convention) {
    for (Compute<S>& g : gain_.reshaped()) {
      if (g != g) g = std::numeric_limits<Compute<S>>::quiet_NaN();  // kernels look at no payload
    }
  }

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

  /// \f$\mathrm{rms}(x)\odot g\f$ of each row, rounded once to the type of x. @param x `tokens x n`. @returns `tokens x n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    return detail::rms_norm(x, dim(), eps(), gain_.data());
  }

  /// The same of rows in memory, one after the other: one pass, at about the speed of a copy, and nothing is allocated.
  /// @tparam T  `float`, `double` or BF16.
  /// @param x  whole rows of n. @param y  as long as x: x itself (the fastest), or memory apart from it. @throws ShapeError.
  /// @note Products of BF16 are formed in `float`, unless the gain is wider; others in `double`.
  template <kernel::RowElement T>
  void apply(std::span<const std::type_identity_t<T>> x, std::span<T> y) const {
    detail::rms_norm(x, y, dim(), eps(), gain_.data());
  }

 private:
  UnitRMSNorm<S> unit_;
  RowVector<S> weight_;
  RowVector<Compute<S>> gain_;  // g, which that type holds exactly
  GainConvention convention_;
};

/// The same function with its gain in the type that factors are composed in, exactly: for folds into widened layers.
template <Storage S>
[[nodiscard]] RMSNorm<Wide<S>> widened(const RMSNorm<S>& norm) {
  return RMSNorm<Wide<S>>(norm.gain(), norm.eps());
}

}  // namespace rmsfold
