// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Finite fields of odd order: just enough of them for Paley's Hadamard matrices.

#include <optional>
#include <vector>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/error.hpp>

namespace rmsfold {

/// \f$p^k\f$ with p prime and k ≥ 1.
struct PrimePower {
  Index prime = 0;     ///< p
  Index exponent = 0;  ///< k
};

/// q as a power of a prime; nothing when it is none. @par Cost √q divisions.
[[nodiscard]] constexpr std::optional<PrimePower> prime_power(Index q) noexcept {
  if (q < 2) return std::nullopt;
  Index p = 2;
  while (q % p != 0) p = p < q / p ? p + 1 : q;  // the smallest divisor above 1 is prime, and q itself when none is below √q
  PrimePower power{p, 0};
  for (; q % p == 0; q /= p) ++power.exponent;
  if (q != 1) return std::nullopt;
  return power;
}

/// GF(q) for an odd prime power \f$q = p^k\f$.
///
/// An element is its number 0 … q-1: the polynomial \f$\sum c_ix^i\f$ over GF(p), modulo a primitive polynomial, has number \f$\sum c_ip^i\f$. So 0
/// and 1 are zero and one, the numbers below p are the integers modulo p, and for k = 1 there are no others. The polynomial is the first in the order
/// of numbers.
/// @par Cost a few passes over the q elements to construct, 2q numbers to hold; sums k digits, products one table look-up each way.
class FiniteField {
 public:
  /// @param q  number of elements.
  /// @throws InvariantError when q is not a power of an odd prime.
  explicit FiniteField(Index q) : order_(q) {
    const std::optional<PrimePower> power = prime_power(q);
    if (!power || power->prime == 2) detail::raise<InvariantError>("finite field of order {}: a power of an odd prime is needed", q);
    prime_ = power->prime;
    // x^k = r turns multiplication by x into a shift of the digits. r is right when the powers of x run through all q-1 non-zero elements: then all
    // of them are invertible.
    for (Index r = 1; static_cast<Index>(power_.size()) != q - 1; ++r) list_powers(r);
    log_.resize(static_cast<std::size_t>(q));
    for (std::size_t e = 0; e < power_.size(); ++e) log_[static_cast<std::size_t>(power_[e])] = static_cast<Index>(e);
  }

  /// q.
  [[nodiscard]] Index order() const noexcept { return order_; }

  /// \f$a+b\f$. @pre both are elements: 0 … q-1.
  [[nodiscard]] Index add(Index a, Index b) const noexcept { return combine(a, b, 1); }
  /// \f$a-b\f$. @pre both are elements.
  [[nodiscard]] Index subtract(Index a, Index b) const noexcept { return combine(a, b, prime_ - 1); }
  /// \f$ab\f$. @pre both are elements.
  [[nodiscard]] Index multiply(Index a, Index b) const noexcept {
    if (a == 0 || b == 0) return 0;
    return power_[static_cast<std::size_t>((log(a) + log(b)) % (order_ - 1))];
  }
  /// Quadratic character \f$\chi(a)\f$: 0 for zero, +1 for the other squares, -1 for the rest. @pre a is an element.
  [[nodiscard]] int character(Index a) const noexcept {
    if (a == 0) return 0;
    return log(a) % 2 == 0 ? 1 : -1;  // squares are the even powers of a primitive element
  }

 private:
  /// \f$a+cb\f$, digit by digit.
  [[nodiscard]] Index combine(Index a, Index b, Index c) const noexcept {
    Index sum = 0;
    for (Index place = 1; place < order_; place *= prime_) {
      sum += (a / place + c * (b / place)) % prime_ * place;
    }
    return sum;
  }

  /// 1, x, x², … until 1 comes back; left empty when it does not within q-1 steps, for then x is no unit.
  void list_powers(Index r) {
    const Index top = order_ / prime_;
    power_.clear();
    Index next = 1;
    do {
      if (static_cast<Index>(power_.size()) == order_ - 1) return power_.clear();
      power_.push_back(next);
      next = combine(next % top * prime_, r, next / top);
    } while (next != 1);
  }

  [[nodiscard]] Index log(Index a) const noexcept { return log_[static_cast<std::size_t>(a)]; }

  Index order_;
  Index prime_ = 0;
  std::vector<Index> power_;
  std::vector<Index> log_;
};

}  // namespace rmsfold
