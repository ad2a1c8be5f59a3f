// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Signed permutations: the changes of basis that a gain-carrying RMSNorm survives, kept as integers and applied without rounding.

#include <algorithm>
#include <utility>
#include <vector>

#include <rmsfold/group/permutation.hpp>
#include <rmsfold/group/sign_flip.hpp>

namespace rmsfold {

/// An element of the hyperoctahedral group: \f$(xP)_j = s_j\,x_{\pi(j)}\f$, that is \f$P_{\pi(j),j} = s_j = \pm1\f$; a permutation, then a sign flip.
///
/// @invariant `source()` is a permutation of 0 … n-1 and every sign is +1 or -1. `==` is exact.
class SignedPermutation {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::signed_permutation;

  /// \f$P = \Pi D\f$: `moves` acts first on a row. @throws ShapeError when the dimensions differ.
  SignedPermutation(Permutation moves, SignFlip flips) : moves_(std::move(moves)), flips_(std::move(flips)) {
    if (moves_.dim() != flips_.dim()) detail::raise<ShapeError>("signed permutation: {} sources but {} signs", moves_.dim(), flips_.dim());
  }

  /// @param source  \f$\pi\f$: channel j of the result is channel `source[j]` of the operand.
  /// @param sign    \f$s\f$, +1 or -1 for each channel of the result.
  /// @throws ShapeError when the lengths differ; InvariantError when `source` is no permutation or a sign is not ±1.
  SignedPermutation(std::vector<Index> source, std::vector<int> sign)
      : SignedPermutation(Permutation(std::move(source)), SignFlip(std::move(sign))) {}

  /// Leaves everything where it is.
  [[nodiscard]] static SignedPermutation identity(Index n) { return {Permutation::identity(n), SignFlip::identity(n)}; }

  /// Uniform over the group: a permutation, then n signs, drawn in this order.
  [[nodiscard]] static SignedPermutation random(Index n, Random& random) {
    Permutation moves = Permutation::random(n, random);
    return {std::move(moves), SignFlip::random(n, random)};
  }

  /// Uniform over the permutations: all signs +1.
  [[nodiscard]] static SignedPermutation random_permutation(Index n, Random& random) { return {Permutation::random(n, random), SignFlip::identity(n)}; }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return moves_.dim(); }
  /// \f$\pi\f$.
  [[nodiscard]] const std::vector<Index>& source() const noexcept { return moves_.source(); }
  /// \f$s\f$.
  [[nodiscard]] const std::vector<int>& sign() const noexcept { return flips_.sign(); }
  /// \f$\Pi\f$ of \f$P = \Pi D\f$.
  [[nodiscard]] const Permutation& moves() const noexcept { return moves_; }
  /// \f$D\f$ of \f$P = \Pi D\f$.
  [[nodiscard]] const SignFlip& flips() const noexcept { return flips_; }

  /// \f$P^T = \Pi^T(\Pi D\Pi^T)\f$.
  [[nodiscard]] SignedPermutation inverse() const {
    Permutation back = moves_.inverse();
    SignFlip flips = conjugated(flips_, back);
    return {std::move(back), std::move(flips)};
  }

  /// \f$|P|\f$: the same moves without the signs, which is how a gain is transported.
  [[nodiscard]] SignedPermutation unsigned_part() const { return {moves_, flips_.unsigned_part()}; }

  /// The matrix product \f$AB = (\Pi_A\Pi_B)(\Pi_B^TD_A\Pi_B\,D_B)\f$: `a` acts first on a row. @throws ShapeError when the dimensions differ.
  [[nodiscard]] friend SignedPermutation operator*(const SignedPermutation& a, const SignedPermutation& b) {
    if (a.dim() != b.dim()) detail::raise<ShapeError>("signed permutations of dimensions {} and {}", a.dim(), b.dim());
    return {a.moves_ * b.moves_, conjugated(a.flips_, b.moves_) * b.flips_};
  }

  /// Same moves and same signs.
  friend bool operator==(const SignedPermutation&, const SignedPermutation&) = default;

  /// Multiplies the middle axis of `[outer, dim, inner]` by P, in place; on storage scalars too. @par Cost one read and one write; exact, no rounding.
  template <Storage S>
  void apply(S* data, Index outer, Index inner) const {
    if (detail::permuted_by_kernel(data, outer, dim(), inner, source().data(), sign().data())) return;
    moves_.gather(data, outer, inner, [&](std::size_t j, const S* from, S* to) {
      if (sign()[j] > 0) {
        std::copy(from, from + inner, to);
      } else {
        std::transform(from, from + inner, to, [](const S& value) { return detail::negated(value); });
      }
    });
  }

  /// 0: P is exactly orthogonal.
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0; }
  /// 0: nothing is rounded.
  [[nodiscard]] double error_terms() const noexcept { return 0; }

 private:
  /// \f$\Pi^TD\,\Pi\f$: the signs move with their channels.
  [[nodiscard]] static SignFlip conjugated(const SignFlip& flips, const Permutation& moves) {
    std::vector<int> sign;
    sign.reserve(flips.sign().size());
    for (const Index i : moves.source()) sign.push_back(flips.sign()[static_cast<std::size_t>(i)]);
    return SignFlip(std::move(sign));
  }

  Permutation moves_;
  SignFlip flips_;
};

static_assert(ExactIsometry<SignedPermutation>);

}  // namespace rmsfold
