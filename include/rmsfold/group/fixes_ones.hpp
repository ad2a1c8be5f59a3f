// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rotations that keep the ones vector, \f$Q\mathbf 1 = \pm\mathbf 1\f$: the ones that a LayerNorm survives.

#include <cmath>
#include <utility>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/isometry.hpp>
#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold {

/// A rotation whose value was found to satisfy \f$Q\mathbf 1 = \sigma\mathbf 1\f$, \f$\sigma = \pm1\f$, so that
/// \f$\mathrm{LN}(xQ) = \mathrm{LN}(x)\,Q\f$ for a LayerNorm without gain (identity 8).
///
/// @invariant \f$\|Q\mathbf 1-\sigma\mathbf 1\|_2/\sqrt n\f$ and \f$\|Q^T\mathbf 1-\sigma\mathbf 1\|_2/\sqrt n\f$ are at most `ones_defect()`.
template <Isometry G>
class FixesOnes {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = intersect(Gauge::fixes_ones, G::gauge);

  /// Applies `q` and its inverse to the ones vector in `double`.
  ///
  /// Allowed is \f$\delta+\sqrt n\,\gamma\f$: an exact element that was moved by E may be off orthogonal by \f$2\|E\|_2\f$ and off the ones by
  /// \f$\|E\|_2\f$, so what `q` says of the former, δ, is granted to the latter; γ = `gamma_n(q.error_terms(), 2^-53)` bounds what each entry of the two
  /// products rounds, relative to \f$\|\mathbf 1\|_2\f$. Signed permutations are held to 0.
  /// @throws InvariantError naming the residual, when it exceeds that.
  explicit FixesOnes(G q) : q_(std::move(q)) {
    const Index n = q_.dim();
    const double count = static_cast<double>(n);
    RowVector<double> rows = RowVector<double>::Ones(n);
    RowVector<double> columns = rows;
    q_.inverse().apply(rows.data(), 1, 1);  // (Q1)ᵀ
    q_.apply(columns.data(), 1, 1);         // 1ᵀQ
    if (rows.sum() < 0) sign_ = -1;
    const auto off = [&](const RowVector<double>& image) { return n == 0 ? 0.0 : (image.array() - sign_).matrix().norm() / std::sqrt(count); };
    const double rows_off = off(rows);
    const double columns_off = off(columns);
    const double residual = rows_off <= columns_off ? columns_off : rows_off;
    const double rounding = std::sqrt(count) * gamma_n(q_.error_terms(), 0x1p-53);
    const double allowed = q_.orthogonality_defect() + rounding;
    if (!(rows_off <= allowed && columns_off <= allowed)) {
      detail::raise<InvariantError>(
          "does not fix the ones vector: |Q1 ∓ 1|/√n = {:.3g}, allowed {:.3g}, so a LayerNorm does not commute with it; use HadamardFixingOnes or "
          "haar_fixing_ones, or move the LayerNorm's mean into the writers before it, which leaves a norm that any rotation commutes with",
          residual, allowed);
    }
    ones_defect_ = residual * (1 + gamma_n(count + 5, 0x1p-53)) + rounding;
  }

  /// n.
  [[nodiscard]] Index dim() const { return q_.dim(); }
  /// Q.
  [[nodiscard]] const G& rotation() const noexcept { return q_; }
  /// \f$\sigma\f$ of \f$Q\mathbf 1 = \sigma\mathbf 1\f$.
  [[nodiscard]] int sign() const noexcept { return sign_; }
  /// An upper bound on how far Q, as it is represented, moves the ones vector, relative to its length: measured, plus what measuring may hide.
  [[nodiscard]] double ones_defect() const noexcept { return ones_defect_; }

  /// \f$Q^T\f$, which has the same sign.
  [[nodiscard]] FixesOnes inverse() const { return FixesOnes(q_.inverse(), sign_, ones_defect_); }

  /// \f$|P|\f$.
  [[nodiscard]] FixesOnes unsigned_part() const
    requires ExactIsometry<G>
  {
    return FixesOnes(q_.unsigned_part(), 1, 0);
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place.
  template <class S>
  void apply(S* data, Index outer, Index inner) const {
    q_.apply(data, outer, inner);
  }

  /// That of Q.
  [[nodiscard]] double orthogonality_defect() const { return q_.orthogonality_defect(); }
  /// That of Q.
  [[nodiscard]] double error_terms() const { return q_.error_terms(); }

 private:
  FixesOnes(G q, int sign, double ones_defect) : q_(std::move(q)), sign_(sign), ones_defect_(ones_defect) {}

  G q_;
  int sign_ = 1;
  double ones_defect_ = 0;
};

/// Drawn from the Haar measure on \f$\{Q\in O(n): Q\mathbf 1 = \mathbf 1\}\f$: \f$Q = U\,\mathrm{diag}(1, R)\,U^T\f$, U the reflection that exchanges the first axis and
/// \f$-\mathbf 1/\sqrt n\f$, R from `haar_orthogonal` of order n-1.
/// @tparam S  what Q is rounded to, once, from `double`.
/// @par Cost that of `haar_orthogonal`, and O(n^2).
template <Real S>
[[nodiscard]] FixesOnes<Orthogonal<S>> haar_fixing_ones(Index n, Random& random) {
  Matrix<double> q = Matrix<double>::Identity(n, n);
  if (n > 1) {
    q.bottomRightCorner(n - 1, n - 1) = haar_orthogonal<double>(n - 1, random).matrix();
    RowVector<double> v = RowVector<double>::Constant(n, 1 / std::sqrt(static_cast<double>(n)));
    v[0] += 1;
    const RowVector<double> scaled = (2 / v.squaredNorm()) * v;
    const RowVector<double> from_left = v * q;
    q.noalias() -= scaled.transpose() * from_left;
    const RowVector<double> from_right = v * q.transpose();
    q.noalias() -= from_right.transpose() * scaled;
  }
  // Two reflections more than `haar_orthogonal` counts.
  return FixesOnes<Orthogonal<S>>(rounded_orthogonal<S>(q, static_cast<double>(n + 2) * orthogonality_tolerance<double>(n)));
}

}  // namespace rmsfold
