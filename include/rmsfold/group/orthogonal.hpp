// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dense orthogonal matrices, checked on both sides.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <utility>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/group/isometry.hpp>

namespace rmsfold {

/// Marks a construction whose invariant is already proved by the caller.
struct Unchecked {};

/// How far a square matrix is from orthogonal: largest entries of \f$|Q^TQ-I|\f$ and \f$|QQ^T-I|\f$, summed in `double` or wider; NaN when an entry is not finite.
struct OrthogonalityResidual {
  double columns = 0;  ///< \f$\max|Q^TQ-I|\f$
  double rows = 0;     ///< \f$\max|QQ^T-I|\f$
  /// The larger one; NaN if either is.
  [[nodiscard]] double worst() const noexcept { return is_finite(rows) && !(columns <= rows) ? columns : rows; }
};

/// Both residuals of `q`. A matrix whose rows are scaled by 1.0005 has a small one and a large one, so both are needed. @par Cost two products of n^3.
template <DenseExpr D>
[[nodiscard]] OrthogonalityResidual orthogonality_residual(const D& q) {
  using T = Wide<typename D::Scalar>;
  const Matrix<T> wide = q.derived().template cast<T>();
  if (first_non_finite(wide.data(), wide.size()) >= 0) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  const auto residual = [&](const Matrix<T>& gram) {
    return gram.size() == 0 ? 0.0 : static_cast<double>(T((gram - Matrix<T>::Identity(gram.rows(), gram.cols())).cwiseAbs().maxCoeff()));
  };
  const Matrix<T> columns = wide.transpose() * wide;
  const Matrix<T> rows = wide * wide.transpose();
  return {residual(columns), residual(rows)};
}

/// An orthogonal matrix \f$Q \in O(n)\f$, stored densely.
///
/// @invariant \f$\|Q^TQ-I\|_2\f$ and \f$\|QQ^T-I\|_2\f$ are at most `orthogonality_defect()`; from a matrix, only one within `orthogonality_tolerance<S>(n)` is accepted.
/// @par Cost inverse O(n^2), action on k rows O(n^2 k), checked construction O(n^3).
template <Real S>
class Orthogonal {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::orthogonal;

  /// @throws ShapeError when `q` is not square; InvariantError naming both residuals when it is not orthogonal.
  explicit Orthogonal(Matrix<S> q) : Orthogonal(std::move(q), Unchecked{}, 0) {
    if (q_.rows() != q_.cols()) detail::raise<ShapeError>("orthogonal matrix: {} x {} is not square", q_.rows(), q_.cols());
    const OrthogonalityResidual r = orthogonality_residual(q_);
    const double tolerance = orthogonality_tolerance<S>(dim());
    if (!is_finite(r.worst()) || !(r.worst() <= tolerance)) {
      detail::raise<InvariantError>(
          "not orthogonal: max|QᵀQ - I| = {:.3g}, max|QQᵀ - I| = {:.3g}, allowed {:.3g}; "
          "a scaled rotation is not absorbed by a norm either, since eps > 0 fixes the scale",
          r.columns, r.rows, tolerance);
    }
    // The measured residual, and what summing n products may hide of it; n times the largest entry bounds the norm.
    defect_ = static_cast<double>(dim()) * (r.worst() + gamma_n(static_cast<double>(dim()), unit_roundoff<Wide<S>>()));
  }

  /// Takes `q` as it is. @pre `orthogonality_residual(q).worst() <= orthogonality_tolerance<S>(n)`, by construction.
  Orthogonal(Matrix<S> q, Unchecked) noexcept : q_(std::move(q)), defect_(static_cast<double>(dim()) * orthogonality_tolerance<S>(dim())) {}

  /// Takes `q` as it is. @pre \f$\|Q^TQ-I\|_2\f$ and \f$\|QQ^T-I\|_2\f$ are at most `defect`, by construction.
  Orthogonal(Matrix<S> q, Unchecked, double defect) noexcept : q_(std::move(q)), defect_(defect) {}

  /// n.
  [[nodiscard]] Index dim() const noexcept { return q_.rows(); }
  /// Q.
  [[nodiscard]] const Matrix<S>& matrix() const noexcept { return q_; }
  /// \f$Q^T\f$.
  [[nodiscard]] Orthogonal inverse() const { return Orthogonal(q_.transpose(), Unchecked{}, defect_); }

  /// The matrix product \f$AB\f$: `a` acts first on a row. @throws ShapeError when the dimensions differ.
  [[nodiscard]] friend Orthogonal operator*(const Orthogonal& a, const Orthogonal& b) {
    if (a.dim() != b.dim()) detail::raise<ShapeError>("orthogonal matrices of dimensions {} and {}", a.dim(), b.dim());
    // fl(AB) = AB + E with |E| ≤ γ_n |A||B|, so ‖E‖ ≤ nγ_n; ‖AB‖² ≤ (1 + a)(1 + b).
    const double n = static_cast<double>(a.dim());
    const double exact = (1 + a.defect_) * (1 + b.defect_) - 1;
    const double rounding = n * gamma_n(n, unit_roundoff<S>()) * (1 + exact);
    return Orthogonal(a.q_ * b.q_, Unchecked{}, exact + 2 * (1 + exact) * rounding + rounding * rounding);
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place, in tiles of fixed size, so that the bits do not depend on how callers split `outer`
  /// into multiples of `tile`.
  template <Real T>
  void apply(T* data, Index outer, Index inner) const {
    if constexpr (std::same_as<T, S>) {
      apply_matrix(q_, data, outer, inner);
    } else {
      apply_matrix(Matrix<T>(q_.template cast<T>()), data, outer, inner);
    }
  }

  /// Rows, or columns, that are multiplied at once.
  static constexpr Index tile = 256;

  /// An upper bound on the spectral norm of both defects: measured by the checked constructor, tracked through products.
  [[nodiscard]] double orthogonality_defect() const noexcept { return defect_; }
  /// n products, summed; and the entries of Q rounded to a narrower type that `apply` is carried out in.
  [[nodiscard]] double error_terms() const noexcept { return static_cast<double>(dim() + 1); }

 private:
  template <class T>
  static void apply_matrix(const Matrix<T>& q, T* data, Index outer, Index inner) {
    const Index n = q.rows();
    const Index most = (std::min)(tile, inner == 1 ? outer : inner);
    thread_local Matrix<T> product;  // kept from call to call: memory that is touched for the first time costs more than any copy
    if (product.size() < most * n) product.resize(most, n);
    if (inner == 1) {
      for (Index start = 0; start < outer; start += tile) {
        Eigen::Map<Matrix<T>> rows(data + start * n, (std::min)(tile, outer - start), n);
        Eigen::Map<Matrix<T>> result(product.data(), rows.rows(), n);
        result.noalias() = rows * q;
        rows = result;
      }
      return;
    }
    for (Index o = 0; o < outer; ++o) {
      for (Index start = 0; start < inner; start += tile) {
        Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> columns(data + o * n * inner + start, n, (std::min)(tile, inner - start),
                                                               Eigen::OuterStride<>(inner));
        Eigen::Map<Matrix<T>> result(product.data(), columns.cols(), n);
        result.noalias() = columns.transpose() * q;  // as rows: Qᵀ times narrow columns is a sixth slower
        columns = result.transpose();
      }
    }
  }

  Matrix<S> q_;
  double defect_;
};

/// Rounds an n x n matrix that was orthogonal to within `defect` in T: the entries move by u relative, so the matrix by at most \f$u\sqrt n\f$ in norm.
template <Real S, Real T>
[[nodiscard]] Orthogonal<S> rounded_orthogonal(Matrix<T> q, double defect) {
  if constexpr (std::same_as<S, T>) {
    return Orthogonal<S>(std::move(q), Unchecked{}, defect);
  } else {
    const double moved = unit_roundoff<S>() > unit_roundoff<T>() ? unit_roundoff<S>() * std::sqrt(static_cast<double>(q.rows()) * (1 + defect)) : 0;
    return Orthogonal<S>(Matrix<S>(q.template cast<S>()), Unchecked{}, defect + 2 * (1 + defect) * moved + moved * moved);
  }
}

static_assert(Isometry<Orthogonal<double>> && !ExactIsometry<Orthogonal<double>>);

/// Any rotation, written out densely in `S`: exact for signed permutations and what is built of them. @par Cost n rows of `apply`.
template <Real S, Isometry G>
[[nodiscard]] Orthogonal<S> to_orthogonal(const G& q) {
  if constexpr (ExactIsometry<G>) return Orthogonal<S>(matrix_of<S>(q), Unchecked{}, 0);
  const double n = static_cast<double>(q.dim());
  const double applied = std::sqrt(n) * std::sqrt(n) * gamma_n(q.error_terms(), unit_roundoff<Wide<S>>());  // n rows, each within √n γ
  return rounded_orthogonal<S>(matrix_of<Wide<S>>(q), q.orthogonality_defect() + 2 * (1 + q.orthogonality_defect()) * applied + applied * applied);
}

}  // namespace rmsfold
