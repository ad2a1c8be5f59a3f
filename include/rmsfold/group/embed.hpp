// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// From one rotation type to another along the lattice: up without loss (`to_…`), down when the value allows it (`as_…`).

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <rmsfold/group/orthogonal.hpp>
#include <rmsfold/group/signed_permutation.hpp>

namespace rmsfold {

/// Any isometry that only moves and negates, as the indices and signs it is made of. (On to a dense matrix: `to_orthogonal`.)
/// @par Cost O(n): read off its action on (1, 2, …, n), which is exact.
template <ExactIsometry G>
[[nodiscard]] SignedPermutation to_signed_permutation(const G& q) {
  RowVector<double> image(q.dim());
  std::iota(image.begin(), image.end(), 1.0);
  q.apply(image.data(), 1, 1);
  std::vector<Index> source;
  std::vector<int> sign;
  for (const double value : image) {
    source.push_back(static_cast<Index>(value < 0 ? -value : value) - 1);
    sign.push_back(value < 0 ? -1 : 1);
  }
  return {std::move(source), std::move(sign)};
}

/// \f$\Pi D\f$. @throws ShapeError when the dimensions differ.
[[nodiscard]] inline SignedPermutation operator*(const Permutation& a, const SignFlip& b) { return {a, b}; }

/// \f$D\,\Pi\f$. @throws ShapeError when the dimensions differ.
[[nodiscard]] inline SignedPermutation operator*(const SignFlip& a, const Permutation& b) {
  return SignedPermutation(Permutation::identity(a.dim()), a) * SignedPermutation(b, SignFlip::identity(b.dim()));
}

/// The permutation, when no sign is -1.
[[nodiscard]] inline std::optional<Permutation> as_permutation(const SignedPermutation& p) {
  if (p.flips() != SignFlip::identity(p.dim())) return std::nullopt;
  return p.moves();
}

/// The sign flip, when nothing moves.
[[nodiscard]] inline std::optional<SignFlip> as_sign_flip(const SignedPermutation& p) {
  if (p.moves() != Permutation::identity(p.dim())) return std::nullopt;
  return p.flips();
}

/// The signed permutation, when `q` is square and every entry is exactly 0 or ±1, one ±1 in each row and column. @par Cost O(n^2)
template <DenseExpr D>
[[nodiscard]] std::optional<SignedPermutation> as_signed_permutation(const D& q) {
  using S = typename D::Scalar;
  if (q.rows() != q.cols()) return std::nullopt;
  constexpr Index none = -1;
  std::vector<Index> source(static_cast<std::size_t>(q.cols()), none);
  std::vector<int> sign(source.size(), 1);
  const Matrix<S> entries = q;
  for (Index i = 0; i < entries.rows(); ++i) {
    Index found = none;
    for (Index j = 0; j < entries.cols(); ++j) {
      const S& entry = entries(i, j);
      if (entry == S(0)) continue;
      const std::size_t column = static_cast<std::size_t>(j);
      if ((entry != S(1) && entry != S(-1)) || found != none || source[column] != none) return std::nullopt;
      found = j;
      source[column] = i;
      sign[column] = entry < S(0) ? -1 : 1;
    }
    if (found == none) return std::nullopt;
  }
  return SignedPermutation(std::move(source), std::move(sign));
}

/// The signed permutation that a dense rotation is exactly, if it is one.
template <Real S>
[[nodiscard]] std::optional<SignedPermutation> as_signed_permutation(const Orthogonal<S>& q) {
  return as_signed_permutation(q.matrix());
}

}  // namespace rmsfold
