// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Signed permutations: the changes of basis that a gain-carrying RMSNorm survives, kept as integers and applied without rounding.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <rmsfold/core/half.hpp>
#include <rmsfold/core/random.hpp>
#include <rmsfold/group/isometry.hpp>

namespace rmsfold {

namespace detail {

template <class S>
[[nodiscard]] constexpr S negated(S value) noexcept {
  if constexpr (Half<S>) {
    return S{static_cast<std::uint16_t>(value.bits ^ 0x8000u)};
  } else {
    return -value;
  }
}

}  // namespace detail

/// An element of the hyperoctahedral group: \f$(xP)_j = s_j\,x_{\pi(j)}\f$, that is \f$P_{\pi(j),j} = s_j = \pm1\f$.
///
/// @invariant `source()` is a permutation of 0 … n-1 and every sign is +1 or -1. `==` is exact.
class SignedPermutation {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::signed_permutation;

  /// @param source  \f$\pi\f$: channel j of the result is channel `source[j]` of the operand.
  /// @param sign    \f$s\f$, +1 or -1 for each channel of the result.
  /// @throws ShapeError when the lengths differ; InvariantError when `source` is no permutation or a sign is not ±1.
  SignedPermutation(std::vector<Index> source, std::vector<int> sign) : source_(std::move(source)), sign_(std::move(sign)) {
    if (source_.size() != sign_.size()) {
      detail::raise<ShapeError>("signed permutation: {} sources but {} signs", source_.size(), sign_.size());
    }
    std::vector<bool> seen(source_.size(), false);
    for (std::size_t j = 0; j < source_.size(); ++j) {
      if (source_[j] < 0 || source_[j] >= dim() || seen[static_cast<std::size_t>(source_[j])]) {
        detail::raise<InvariantError>("signed permutation: source[{}] = {} is out of range or used twice", j, source_[j]);
      }
      seen[static_cast<std::size_t>(source_[j])] = true;
      if (sign_[j] != 1 && sign_[j] != -1) detail::raise<InvariantError>("signed permutation: sign[{}] = {} is not ±1", j, sign_[j]);
    }
  }

  /// Leaves everything where it is.
  [[nodiscard]] static SignedPermutation identity(Index n) {
    std::vector<Index> source(static_cast<std::size_t>(n));
    std::iota(source.begin(), source.end(), Index{0});
    return {std::move(source), std::vector<int>(static_cast<std::size_t>(n), 1)};
  }

  /// Uniform over the group: a permutation, then n signs, drawn in this order.
  [[nodiscard]] static SignedPermutation random(Index n, Random& random) {
    std::vector<Index> source = random.permutation(n);
    std::vector<int> sign(source.size());
    for (int& s : sign) s = random.sign();
    return {std::move(source), std::move(sign)};
  }

  /// Uniform over the permutations: all signs +1.
  [[nodiscard]] static SignedPermutation random_permutation(Index n, Random& random) {
    std::vector<Index> source = random.permutation(n);
    std::vector<int> sign(source.size(), 1);
    return {std::move(source), std::move(sign)};
  }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return static_cast<Index>(source_.size()); }
  /// \f$\pi\f$.
  [[nodiscard]] const std::vector<Index>& source() const noexcept { return source_; }
  /// \f$s\f$.
  [[nodiscard]] const std::vector<int>& sign() const noexcept { return sign_; }

  /// \f$P^T\f$.
  [[nodiscard]] SignedPermutation inverse() const {
    SignedPermutation result = *this;
    for (std::size_t j = 0; j < source_.size(); ++j) {
      const std::size_t i = static_cast<std::size_t>(source_[j]);
      result.source_[i] = static_cast<Index>(j);
      result.sign_[i] = sign_[j];
    }
    return result;
  }

  /// \f$|P|\f$: the same moves without the signs, which is how a gain is transported.
  [[nodiscard]] SignedPermutation unsigned_part() const { return {source_, std::vector<int>(sign_.size(), 1)}; }

  /// The matrix product \f$AB\f$: `a` acts first on a row. @throws ShapeError when the dimensions differ.
  [[nodiscard]] friend SignedPermutation operator*(const SignedPermutation& a, const SignedPermutation& b) {
    if (a.dim() != b.dim()) detail::raise<ShapeError>("signed permutations of dimensions {} and {}", a.dim(), b.dim());
    SignedPermutation result = b;
    for (std::size_t j = 0; j < b.source_.size(); ++j) {
      const std::size_t middle = static_cast<std::size_t>(b.source_[j]);
      result.source_[j] = a.source_[middle];
      result.sign_[j] = b.sign_[j] * a.sign_[middle];
    }
    return result;
  }

  /// Same moves and same signs.
  friend bool operator==(const SignedPermutation&, const SignedPermutation&) = default;

  /// Multiplies the middle axis of `[outer, dim, inner]` by P, in place; on storage scalars too. @par Cost one read and one write; exact, no rounding.
  template <class S>
    requires(Real<S> || Storage<S>)
  void apply(S* data, Index outer, Index inner) const {
    std::vector<S> block(source_.size() * static_cast<std::size_t>(inner));
    for (Index o = 0; o < outer; ++o) {
      S* const out = data + o * dim() * inner;
      std::copy(out, out + dim() * inner, block.begin());
      for (Index j = 0; j < dim(); ++j) {
        const S* const from = block.data() + source_[static_cast<std::size_t>(j)] * inner;
        S* const to = out + j * inner;
        if (sign_[static_cast<std::size_t>(j)] > 0) {
          std::copy(from, from + inner, to);
        } else {
          for (Index k = 0; k < inner; ++k) to[k] = detail::negated(from[k]);
        }
      }
    }
  }

  /// 0: P is exactly orthogonal.
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0; }
  /// 0: nothing is rounded.
  [[nodiscard]] double error_terms() const noexcept { return 0; }

 private:
  std::vector<Index> source_;
  std::vector<int> sign_;
};

static_assert(ExactIsometry<SignedPermutation>);

}  // namespace rmsfold
