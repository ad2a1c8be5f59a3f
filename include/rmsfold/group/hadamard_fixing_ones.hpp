// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Fast random rotations that keep the ones vector: what rotates a model with LayerNorms and stays one.

#include <cmath>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/permutation.hpp>
#include <rmsfold/group/sign_flip.hpp>
#include <rmsfold/group/signed_permutation.hpp>

namespace rmsfold {

/// \f$Q = L\,(HSH^T)\,R\f$ with permutations L, R, signs S, and H the orthonormal Hadamard matrix whose first COLUMN is constant \f$1/\sqrt n\f$.
///
/// \f$H^T\mathbf 1 = \sqrt n\,e_1\f$, so \f$Q\mathbf 1 = S_{11}\mathbf 1\f$. H is the library's matrix with rows negated (negating columns makes
/// the first ROW constant, which is no help). Without L and R, Q would be a symmetric involution.
/// @par Cost `apply`: two fast transforms; memory O(n).
class HadamardFixingOnes {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::fixes_ones;

  /// \f$Q = HSH^TP\f$. @throws ShapeError when the dimensions differ; RefusedError, as `Hadamard`, when there is no Hadamard matrix of this order.
  HadamardFixingOnes(SignFlip signs, Permutation permutation)
      : left_(Permutation::identity(signs.dim())),
        right_(std::move(permutation)),
        signs_(std::move(signs)),
        h_(constant_first_column(signs_.dim())),
        h_transposed_(h_.inverse()) {
    if (right_.dim() != dim()) detail::raise<ShapeError>("{} signs, but a permutation of dimension {}", dim(), right_.dim());
  }

  /// \f$S_{11} = 1\f$, then n-1 signs and a permutation, drawn in this order: for n > 2 neither symmetric nor an involution, but by rare chance.
  /// @throws RefusedError as above.
  [[nodiscard]] static HadamardFixingOnes random(Index n, Random& random) {
    std::vector<int> signs(static_cast<std::size_t>(n), 1);
    for (std::size_t i = 1; i < signs.size(); ++i) signs[i] = random.sign();
    return {SignFlip(std::move(signs)), Permutation::random(n, random)};
  }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return signs_.dim(); }
  /// \f$\sigma = S_{11}\f$ of \f$Q\mathbf 1 = \sigma\mathbf 1\f$.
  [[nodiscard]] int sign() const noexcept { return signs_.sign().front(); }
  /// An upper bound on \f$\|Q\mathbf 1-\sigma\mathbf 1\|_2/\sqrt n\f$: exactly \f$HH^T = H^TH = (1+\delta)I\f$ in floating point, so
  /// \f$Q\mathbf 1 = (1+\delta)\sigma\mathbf 1\f$. (That is of Q as represented; applying it rounds as any `apply` does.)
  [[nodiscard]] double ones_defect() const noexcept { return h_.orthogonality_defect(); }

  /// \f$Q^T = R^T(HSH^T)L^T\f$.
  [[nodiscard]] HadamardFixingOnes inverse() const {
    HadamardFixingOnes result = *this;
    result.left_ = right_.inverse();
    result.right_ = left_.inverse();
    return result;
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place.
  template <Real S>
  void apply(S* data, Index outer, Index inner) const {
    left_.apply(data, outer, inner);
    h_.apply(data, outer, inner);
    signs_.apply(data, outer, inner);
    h_transposed_.apply(data, outer, inner);
    right_.apply(data, outer, inner);
  }

  /// \f$QQ^T = (1+\delta)^2I\f$.
  [[nodiscard]] double orthogonality_defect() const noexcept { return (2 + h_.orthogonality_defect()) * h_.orthogonality_defect(); }

  /// \f$(\sqrt n\,t+t')\sqrt{1+\delta}\f$ for transforms of t and t' terms: each entry after the first errs by \f$\gamma_t\|x\|\f$, hence the vector by
  /// \f$\sqrt n\,\gamma_t\|x\|\f$, which the second carries on, and adds \f$\gamma_{t'}\f$ of the norm it meets. Summed as in `Kronecker::error_terms`.
  [[nodiscard]] double error_terms() const noexcept {
    return (std::sqrt(static_cast<double>(dim())) * h_.error_terms() + h_transposed_.error_terms()) * std::sqrt(1 + h_.orthogonality_defect());
  }

 private:
  /// \f$H/\sqrt n\f$ with every row negated whose first entry is negative.
  [[nodiscard]] static Hadamard constant_first_column(Index n) {
    RowVector<double> column = RowVector<double>::Zero(n);
    if (n > 0) column[0] = 1;
    Hadamard(n).inverse().apply(column.data(), 1, 1);  // e₁Hᵀ
    std::vector<int> signs;
    for (const double entry : column) signs.push_back(entry < 0 ? -1 : 1);
    return {SignedPermutation(Permutation::identity(n), SignFlip(std::move(signs))), SignedPermutation::identity(n)};
  }

  Permutation left_;
  Permutation right_;
  SignFlip signs_;
  Hadamard h_;
  Hadamard h_transposed_;
};

static_assert(Isometry<HadamardFixingOnes> && !ExactIsometry<HadamardFixingOnes>);

}  // namespace rmsfold
