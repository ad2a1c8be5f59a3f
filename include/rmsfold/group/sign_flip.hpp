// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Sign flips: the diagonal ±1 matrices, kept as integers and applied without rounding.

#include <cstdint>
#include <utility>
#include <vector>

#include <rmsfold/core/half.hpp>
#include <rmsfold/core/random.hpp>
#include <rmsfold/group/isometry.hpp>

namespace rmsfold {

namespace detail {

template <Storage S>
[[nodiscard]] constexpr S negated(const S& value) {
  if constexpr (Half<S>) {
    return S{static_cast<std::uint16_t>(value.bits ^ 0x8000u)};
  } else {
    return -value;
  }
}

}  // namespace detail

/// \f$D = \mathrm{diag}(s)\f$: \f$(xD)_j = s_j\,x_j\f$, \f$s_j = \pm1\f$.
///
/// @invariant every sign is +1 or -1. `==` is exact.
class SignFlip {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::signed_permutation;

  /// @param sign  \f$s\f$, +1 or -1 for each channel. @throws InvariantError when one is not ±1.
  explicit SignFlip(std::vector<int> sign) : sign_(std::move(sign)) {
    for (std::size_t j = 0; j < sign_.size(); ++j) {
      if (sign_[j] != 1 && sign_[j] != -1) detail::raise<InvariantError>("sign flip: sign[{}] = {} is not ±1", j, sign_[j]);
    }
  }

  /// All signs +1.
  [[nodiscard]] static SignFlip identity(Index n) { return SignFlip(std::vector<int>(static_cast<std::size_t>(n), 1)); }

  /// Uniform over the 2^n choices: n signs, drawn in order.
  [[nodiscard]] static SignFlip random(Index n, Random& random) {
    std::vector<int> sign(static_cast<std::size_t>(n));
    for (int& s : sign) s = random.sign();
    return SignFlip(std::move(sign));
  }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return static_cast<Index>(sign_.size()); }
  /// \f$s\f$.
  [[nodiscard]] const std::vector<int>& sign() const noexcept { return sign_; }

  /// Itself.
  [[nodiscard]] SignFlip inverse() const { return *this; }
  /// \f$|D| = I\f$.
  [[nodiscard]] SignFlip unsigned_part() const { return identity(dim()); }

  /// The matrix product. @throws ShapeError when the dimensions differ.
  [[nodiscard]] friend SignFlip operator*(const SignFlip& a, const SignFlip& b) {
    if (a.dim() != b.dim()) detail::raise<ShapeError>("sign flips of dimensions {} and {}", a.dim(), b.dim());
    SignFlip result = a;
    for (std::size_t j = 0; j < b.sign_.size(); ++j) result.sign_[j] *= b.sign_[j];
    return result;
  }

  /// Same signs.
  friend bool operator==(const SignFlip&, const SignFlip&) = default;

  /// Multiplies the middle axis of `[outer, dim, inner]` by D, in place; on storage scalars too. @par Cost exact, no rounding; touches what it negates.
  template <Storage S>
  void apply(S* data, Index outer, Index inner) const {
    for (Index o = 0; o < outer; ++o) {
      for (const int s : sign_) {
        if (s < 0) {
          for (Index k = 0; k < inner; ++k) data[k] = detail::negated(data[k]);
        }
        data += inner;
      }
    }
  }

  /// 0: D is exactly orthogonal.
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0; }
  /// 0: nothing is rounded.
  [[nodiscard]] double error_terms() const noexcept { return 0; }

 private:
  std::vector<int> sign_;
};

static_assert(ExactIsometry<SignFlip>);

}  // namespace rmsfold
