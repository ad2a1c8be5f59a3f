// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kronecker products of rotations, which act without being formed.

#include <algorithm>
#include <cmath>
#include <utility>

#include <rmsfold/group/isometry.hpp>

namespace rmsfold {

/// \f$Q = A\otimes B\f$, \f$Q_{(i,k),(j,l)} = A_{ij}\,B_{kl}\f$, the index of B running faster: a row of length ab, seen as an a x b matrix X, becomes
/// \f$A^TXB\f$.
///
/// @tparam A  acts across blocks. @tparam B  acts within each.
/// @par Cost of applying A to b columns and B to a rows.
template <Isometry A, Isometry B>
class Kronecker {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = join(A::gauge, B::gauge);

  /// Both factors, the slower index first.
  Kronecker(A left, B right) : left_(std::move(left)), right_(std::move(right)) {}

  /// ab.
  [[nodiscard]] Index dim() const { return left_.dim() * right_.dim(); }
  /// A.
  [[nodiscard]] const A& left() const noexcept { return left_; }
  /// B.
  [[nodiscard]] const B& right() const noexcept { return right_; }

  /// \f$A^T\otimes B^T\f$.
  [[nodiscard]] Kronecker inverse() const { return {left_.inverse(), right_.inverse()}; }

  /// \f$|A|\otimes|B|\f$.
  [[nodiscard]] Kronecker unsigned_part() const
    requires(ExactIsometry<A> && ExactIsometry<B>)
  {
    return {left_.unsigned_part(), right_.unsigned_part()};
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place: first A, then B.
  template <class S>
  void apply(S* data, Index outer, Index inner) const {
    left_.apply(data, outer, right_.dim() * inner);
    right_.apply(data, outer * left_.dim(), inner);
  }

  /// The eigenvalues of \f$Q^TQ = A^TA\otimes B^TB\f$ are products: \f$(1+\delta_A)(1+\delta_B)-1\f$.
  [[nodiscard]] double orthogonality_defect() const { return (1 + left_.orthogonality_defect()) * (1 + right_.orthogonality_defect()) - 1; }

  /// \f$(t_A+t_B)\sqrt{1+\delta}\f$, δ the larger defect.
  ///
  /// A errs in entry (j, k) by \f$\gamma_A\|X_{:k}\|\f$, column by column, hence in row j by \f$\gamma_A\|X\|_F\f$ in norm: no factor \f$\sqrt n\f$ arises. B carries
  /// that row on, \f$\sqrt{1+\delta_B}\f$, and adds \f$\gamma_B\f$ of the row's own norm, at most \f$(\sqrt{1+\delta_A}+\gamma_A)\|X\|_F\f$. And
  /// \f$c\gamma_t\le\gamma_{ct}\f$ for \f$c\ge1\f$, \f$\gamma_s+\gamma_t+\gamma_s\gamma_t\le\gamma_{s+t}\f$ (Higham, Lemma 3.3).
  [[nodiscard]] double error_terms() const {
    const double defect = (std::max)(static_cast<double>(left_.orthogonality_defect()), static_cast<double>(right_.orthogonality_defect()));
    return (left_.error_terms() + right_.error_terms()) * std::sqrt(1 + defect);
  }

 private:
  A left_;
  B right_;
};

}  // namespace rmsfold
