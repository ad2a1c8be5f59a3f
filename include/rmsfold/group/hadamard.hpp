// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Orthonormal Hadamard rotations and their fast transform: no n x n storage, no shipped tables.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/signed_permutation.hpp>

namespace rmsfold {

namespace detail {

/// Quadratic character of a modulo the odd prime q: 0, +1 for squares, -1 otherwise.
[[nodiscard]] inline int quadratic_character(Index a, Index q) {
  a = ((a % q) + q) % q;
  if (a == 0) return 0;
  for (Index root = 1; root <= q / 2; ++root) {
    if (root * root % q == a) return 1;
  }
  return -1;
}

using SignMatrix = Matrix<std::int8_t>;

/// The bordered Jacobsthal matrix \f$\begin{pmatrix}0&1\\\pm1&\chi(i-j)\end{pmatrix}\f$ of order q+1; the border's column carries χ(-1), which makes it
/// skew for q ≡ 3 and symmetric for q ≡ 1 (mod 4).
[[nodiscard]] inline SignMatrix conference_matrix(Index q) {
  SignMatrix c(q + 1, q + 1);
  c(0, 0) = 0;
  for (Index i = 0; i < q; ++i) {
    c(0, i + 1) = 1;
    c(i + 1, 0) = static_cast<std::int8_t>(quadratic_character(-1, q));
    for (Index j = 0; j < q; ++j) c(i + 1, j + 1) = static_cast<std::int8_t>(quadratic_character(i - j, q));
  }
  return c;
}

/// \f$I + C\f$, order q+1, q ≡ 3 (mod 4) prime. @note Source: Paley, On orthogonal matrices (1933), construction I.
[[nodiscard]] inline SignMatrix paley_one(Index q) {
  SignMatrix h = conference_matrix(q);
  h.diagonal().array() = std::int8_t{1};
  return h;
}

/// \f$C\otimes\begin{pmatrix}1&1\\1&-1\end{pmatrix} + I\otimes\begin{pmatrix}1&-1\\-1&-1\end{pmatrix}\f$, order 2(q+1), q ≡ 1 (mod 4) prime.
/// @note Source: Paley (1933), construction II.
[[nodiscard]] inline SignMatrix paley_two(Index q) {
  const SignMatrix c = conference_matrix(q);
  SignMatrix h(2 * c.rows(), 2 * c.cols());
  for (Index i = 0; i < c.rows(); ++i) {
    for (Index j = 0; j < c.cols(); ++j) {
      const int on = c(i, j);
      const int diagonal = i == j ? 1 : 0;
      h(2 * i, 2 * j) = static_cast<std::int8_t>(on + diagonal);
      h(2 * i, 2 * j + 1) = static_cast<std::int8_t>(on - diagonal);
      h(2 * i + 1, 2 * j) = static_cast<std::int8_t>(on - diagonal);
      h(2 * i + 1, 2 * j + 1) = static_cast<std::int8_t>(-on - diagonal);
    }
  }
  return h;
}

/// Orders of the blocks whose Kronecker products with powers of two are available.
inline constexpr std::array<Index, 4> hadamard_block_orders{12, 20, 28, 36};

/// A ±1 Hadamard matrix of one of `hadamard_block_orders`.
[[nodiscard]] inline SignMatrix hadamard_block(Index order) {
  return order == 12 || order == 20 ? paley_one(order - 1) : paley_two(order / 2 - 1);
}

/// Additions per element of the transform with these factors.
[[nodiscard]] inline Index additions(const std::vector<Index>& factors) {
  Index count = 0;
  for (const Index f : factors) count += f - 1;
  return count;
}

}  // namespace detail

/// Factors (blocks in ascending order, then twos) of the Kronecker product for a Hadamard matrix of order n that takes the fewest additions per element.
/// Nothing when n is not a product of 12, 20, 28, 36 and twos.
[[nodiscard]] inline std::optional<std::vector<Index>> hadamard_factors(Index n) {
  if (n < 1) return std::nullopt;
  std::optional<std::vector<Index>> best;
  if ((n & (n - 1)) == 0) {
    best.emplace();
    for (Index rest = n; rest > 1; rest /= 2) best->push_back(2);
  }
  for (const Index block : detail::hadamard_block_orders) {
    if (n % block != 0) continue;
    std::optional<std::vector<Index>> rest = hadamard_factors(n / block);
    if (!rest) continue;
    rest->insert(std::lower_bound(rest->begin(), rest->end(), block, [](Index a, Index b) { return a != 2 && a < b; }), block);
    if (!best || detail::additions(*rest) < detail::additions(*best)) best = std::move(rest);
  }
  return best;
}

/// The largest b ≤ n that divides n and is a Hadamard order: the block size to offer when n itself is none.
[[nodiscard]] inline Index largest_hadamard_block(Index n) {
  for (Index blocks = 1; blocks <= n; ++blocks) {
    if (n % blocks == 0 && hadamard_factors(n / blocks)) return n / blocks;
  }
  return 1;
}

/// A randomised Hadamard rotation \f$Q = L\,\frac{1}{\sqrt n}H\,R\f$ with signed permutations L, R and H a Kronecker product of ±1 blocks (or its transpose).
///
/// \f$HH^T = nI\f$ holds in integers; the one factor \f$1/\sqrt n\f$ is computed in `double`, so \f$\|Q^TQ-I\|_2 \le 2^{-51}\f$.
/// @par Cost `apply`: n(Σ(f-1)) additions for factors f, one multiplication; memory O(n) plus the blocks (order ≤ 36).
/// @note Source: Sylvester (1867); Paley (1933). Randomising by signs: Ailon and Chazelle (2006).
class Hadamard {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::orthogonal;

  /// The plain \f$H/\sqrt n\f$. For powers of two it is symmetric and its own inverse, and it sends a constant row to a single outlier: prefer `random`.
  /// @throws RefusedError when n is not a product of 12, 20, 28, 36 and twos; the message offers a block-diagonal size.
  explicit Hadamard(Index n) : Hadamard(SignedPermutation::identity(n), SignedPermutation::identity(n)) {}

  /// \f$L\,\frac{1}{\sqrt n}H\,R\f$. @throws ShapeError when dimensions differ; RefusedError as above.
  Hadamard(SignedPermutation left, SignedPermutation right) : left_(std::move(left)), right_(std::move(right)) {
    const Index n = left_.dim();
    if (right_.dim() != n) detail::raise<ShapeError>("Hadamard: left factor of dimension {}, right of {}", n, right_.dim());
    std::optional<std::vector<Index>> factors = hadamard_factors(n);
    if (!factors) {
      const Index block = largest_hadamard_block(n);
      detail::raise<RefusedError>(
          "no Hadamard matrix of order {} from the blocks 12, 20, 28, 36 and powers of two; "
          "use a block-diagonal one with {} blocks of {}, or a dense orthogonal rotation",
          n, n / block, block);
    }
    factors_ = std::move(*factors);
    for (const Index f : factors_) blocks_.push_back(f == 2 ? detail::SignMatrix() : detail::hadamard_block(f));
    scale_ = 1 / std::sqrt(static_cast<double>(n));
  }

  /// Random signs on the left, a random signed permutation on the right, drawn in this order: neither symmetric nor an involution (for n > 2).
  [[nodiscard]] static Hadamard random(Index n, Random& random) {
    SignedPermutation left = SignedPermutation::identity(n);
    std::vector<int> signs(static_cast<std::size_t>(n));
    for (int& s : signs) s = random.sign();
    left = SignedPermutation(left.source(), std::move(signs));
    return {std::move(left), SignedPermutation::random(n, random)};
  }

  /// n.
  [[nodiscard]] Index dim() const noexcept { return left_.dim(); }
  /// Orders of the Kronecker factors.
  [[nodiscard]] const std::vector<Index>& factors() const noexcept { return factors_; }

  /// \f$Q^T = R^T\,\frac{1}{\sqrt n}H^T\,L^T\f$.
  [[nodiscard]] Hadamard inverse() const {
    Hadamard result = *this;
    result.left_ = right_.inverse();
    result.right_ = left_.inverse();
    for (detail::SignMatrix& block : result.blocks_) block = block.transpose().eval();
    return result;
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place. @throws nothing but bad_alloc.
  template <Real S>
  void apply(S* data, Index outer, Index inner) const {
    left_.apply(data, outer, inner);
    Index after = dim() * inner;  // elements behind one index of the current factor's axis
    Index before = outer;
    for (std::size_t f = 0; f < factors_.size(); ++f) {
      after /= factors_[f];
      if (factors_[f] == 2) {
        butterflies(data, before, after);
      } else {
        multiply_block(blocks_[f], data, before, after);
      }
      before *= factors_[f];
    }
    const S scale = static_cast<S>(scale_);
    for (Index i = 0; i < outer * dim() * inner; ++i) data[i] *= scale;
    right_.apply(data, outer, inner);
  }

  /// \f$|n\,\mathrm{fl}(1/\mathrm{fl}(\sqrt n))^2 - 1|\f$: two roundings, squared, so at most \f$4u = 2^{-51}\f$ (2.7e-16 at n = 12).
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0x1p-51; }
  /// Additions on the longest path, and the scale (its own rounding and the multiplication).
  [[nodiscard]] double error_terms() const noexcept { return static_cast<double>(detail::additions(factors_) + 2); }

 private:
  /// `[before, 2, after]` by [[1, 1], [1, -1]].
  template <class S>
  static void butterflies(S* data, Index before, Index after) {
    for (Index b = 0; b < before; ++b) {
      S* const low = data + b * 2 * after;
      S* const high = low + after;
      for (Index k = 0; k < after; ++k) {
        const S sum = low[k] + high[k];
        high[k] = low[k] - high[k];
        low[k] = sum;
      }
    }
  }

  /// `[before, f, after]` by a ±1 block of order f, in panels that stay in cache.
  template <class S>
  static void multiply_block(const detail::SignMatrix& block, S* data, Index before, Index after) {
    constexpr Index panel = 64;
    const Index f = block.rows();
    std::vector<S> columns(static_cast<std::size_t>(f * panel));
    for (Index b = 0; b < before; ++b) {
      for (Index start = 0; start < after; start += panel) {
        const Index width = (std::min)(panel, after - start);
        S* const base = data + b * f * after + start;
        for (Index i = 0; i < f; ++i) std::copy(base + i * after, base + i * after + width, columns.data() + i * panel);
        for (Index j = 0; j < f; ++j) {
          S* const out = base + j * after;
          std::fill(out, out + width, S{0});
          for (Index i = 0; i < f; ++i) {
            const S* const in = columns.data() + i * panel;
            if (block(i, j) > 0) {
              for (Index k = 0; k < width; ++k) out[k] += in[k];
            } else {
              for (Index k = 0; k < width; ++k) out[k] -= in[k];
            }
          }
        }
      }
    }
  }

  SignedPermutation left_;
  SignedPermutation right_;
  std::vector<Index> factors_;
  std::vector<detail::SignMatrix> blocks_;
  double scale_ = 1;
};

static_assert(Isometry<Hadamard>);

}  // namespace rmsfold
