// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Permutations of the channels: the changes of basis that every pointwise node survives, kept as indices and applied without rounding.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <rmsfold/core/half.hpp>
#include <rmsfold/core/random.hpp>
#include <rmsfold/group/isometry.hpp>
#include <rmsfold/kernel/permute.hpp>

namespace rmsfold {

namespace detail {

/// `kernel::permute` where elements are negated by their highest bit. @returns whether it was done.
template <class S>
[[nodiscard]] bool permuted_by_kernel(S* data, Index outer, Index dim, Index inner, const Index* source, const int* sign) {
  if constexpr (Half<S>) {
    return kernel::permute<std::uint16_t>(data, outer, dim, inner, source, sign);
  } else if constexpr (std::same_as<S, float>) {
    return kernel::permute<std::uint32_t>(data, outer, dim, inner, source, sign);
  } else if constexpr (std::same_as<S, double>) {
    return kernel::permute<std::uint64_t>(data, outer, dim, inner, source, sign);
  } else {
    return false;
  }
}

}  // namespace detail

/// An element of the symmetric group: \f$(xP)_j = x_{\pi(j)}\f$, that is \f$P_{\pi(j),j} = 1\f$.
///
/// @invariant `source()` is a permutation of 0 … n-1. `==` is exact.
class Permutation {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::permutation;

  /// @param source  \f$\pi\f$: channel j of the result is channel `source[j]` of the operand. @throws InvariantError when it is no permutation.
  explicit Permutation(std::vector<Index> source) : source_(std::move(source)) {
    std::vector<bool> seen(source_.size(), false);
    for (std::size_t j = 0; j < source_.size(); ++j) {
      if (source_[j] < 0 || source_[j] >= dim() || seen[static_cast<std::size_t>(source_[j])]) {
        detail::raise<InvariantError>("permutation: source[{}] = {} is out of range or used twice", j, source_[j]);
      }
      seen[static_cast<std::size_t>(source_[j])] = true;
    }
  }

  /// Leaves everything where it is.
  [[nodiscard]] static Permutation identity(Index n) {
    std::vector<Index> source(static_cast<std::size_t>(n));
    std::iota(source.begin(), source.end(), Index{0});
    return Permutation(std::move(source));
  }

  /// Uniform over the group.
  [[nodiscard]] static Permutation random(Index n, Random& random) { return Permutation(random.permutation(n)); }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return static_cast<Index>(source_.size()); }
  /// \f$\pi\f$.
  [[nodiscard]] const std::vector<Index>& source() const noexcept { return source_; }

  /// \f$P^T\f$.
  [[nodiscard]] Permutation inverse() const {
    Permutation result = *this;
    for (std::size_t j = 0; j < source_.size(); ++j) result.source_[static_cast<std::size_t>(source_[j])] = static_cast<Index>(j);
    return result;
  }

  /// Itself.
  [[nodiscard]] Permutation unsigned_part() const { return *this; }

  /// The matrix product \f$AB\f$: `a` acts first on a row. @throws ShapeError when the dimensions differ.
  [[nodiscard]] friend Permutation operator*(const Permutation& a, const Permutation& b) {
    if (a.dim() != b.dim()) detail::raise<ShapeError>("permutations of dimensions {} and {}", a.dim(), b.dim());
    Permutation result = b;
    for (Index& i : result.source_) i = a.source_[static_cast<std::size_t>(i)];
    return result;
  }

  /// Same moves.
  friend bool operator==(const Permutation&, const Permutation&) = default;

  /// Multiplies the middle axis of `[outer, dim, inner]` by P, in place; on storage scalars too. @par Cost one read and one write; exact, no rounding.
  template <Storage S>
  void apply(S* data, Index outer, Index inner) const {
    if (detail::permuted_by_kernel(data, outer, dim(), inner, source_.data(), nullptr)) return;
    gather(data, outer, inner, [inner](std::size_t, const S* from, S* to) { std::copy(from, from + inner, to); });
  }

  /// 0: P is exactly orthogonal.
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0; }
  /// 0: nothing is rounded.
  [[nodiscard]] double error_terms() const noexcept { return 0; }

 private:
  friend class SignedPermutation;

  /// For each channel j of each slice `put(j, from, to)`: `from` is channel \f$\pi(j)\f$ of a copy of the slice, `to` channel j of the slice.
  template <class S, class Put>
  void gather(S* data, Index outer, Index inner, const Put& put) const {
    const Index slice = dim() * inner;
    if (slice < 1) return;
    RowVector<S> block(slice);
    for (Index o = 0; o < outer; ++o) {
      std::copy(data, data + slice, block.data());
      for (std::size_t j = 0; j < source_.size(); ++j) put(j, block.data() + source_[j] * inner, data + static_cast<Index>(j) * inner);
      data += slice;
    }
  }

  std::vector<Index> source_;
};

static_assert(ExactIsometry<Permutation>);

}  // namespace rmsfold
