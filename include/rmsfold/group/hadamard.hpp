// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Orthonormal Hadamard rotations and their fast transform: no n x n storage.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/hadamard_matrix.hpp>
#include <rmsfold/group/signed_permutation.hpp>
#include <rmsfold/kernel/hadamard.hpp>

namespace rmsfold {

/// A randomised Hadamard rotation \f$Q = L\,\frac{1}{\sqrt n}H\,R\f$ with signed permutations L, R and H a Kronecker product of ±1 blocks (or its
/// transpose).
///
/// \f$HH^T = nI\f$ holds in integers; the one factor \f$1/\sqrt n\f$ is computed in `double`, so \f$\|Q^TQ-I\|_2 \le 2^{-51}\f$; it is the same for
/// all built-in scalars, while other `Real`s divide by a root of their own precision.
/// @par Cost `apply`: n additions for each factor 2, n(f/4 + 3) for a block of order f, one multiplication; memory O(n) plus the blocks
/// (order ≤ 256).
/// @note Source: Sylvester (1867); `hadamard_matrix.hpp` names those of the blocks. Randomising by signs: Ailon and Chazelle (2006).
class Hadamard {
 public:
  /// The smallest group of the lattice that holds every value of this type.
  static constexpr Gauge gauge = Gauge::orthogonal;

  /// The plain \f$H/\sqrt n\f$. For powers of two it is symmetric and its own inverse, and it sends a constant row to a single outlier: prefer
  /// `random`.
  /// @throws RefusedError when `hadamard_factors` has nothing for n; the message offers a block-diagonal size.
  explicit Hadamard(Index n) : Hadamard(SignedPermutation::identity(n), SignedPermutation::identity(n)) {}

  /// \f$L\,\frac{1}{\sqrt n}H\,R\f$. @throws ShapeError when dimensions differ; RefusedError as above.
  Hadamard(SignedPermutation left, SignedPermutation right) : left_(std::move(left)), right_(std::move(right)) {
    const Index n = left_.dim();
    if (right_.dim() != n) detail::raise<ShapeError>("Hadamard: left factor of dimension {}, right of {}", n, right_.dim());
    std::optional<std::vector<Index>> factors = hadamard_factors(n);
    if (!factors) {
      const Index block = largest_hadamard_block(n);
      detail::raise<RefusedError>(
          "no Hadamard matrix of order {} from powers of two and the blocks of Paley and Williamson up to 256; "
          "use a block-diagonal one with {} blocks of {}, or a dense orthogonal rotation",
          n, n / block, block);
    }
    factors_ = std::move(*factors);
    for (const Index f : factors_) blocks_.push_back(f == 2 ? SignMatrix() : hadamard_block(f));
    scale_ = 1 / std::sqrt(static_cast<double>(n));
    prepare();
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
    for (SignMatrix& block : result.blocks_) block = block.transpose().eval();
    result.prepare();
    return result;
  }

  /// Multiplies the middle axis of `[outer, dim, inner]` by Q, in place. @throws nothing but bad_alloc.
  /// @note `float` and `double` go through kernels that do the same additions in the same order: the bits are those of the loops below.
  template <Real S>
  void apply(S* data, Index outer, Index inner) const {
    if constexpr (std::same_as<S, float> || std::same_as<S, double>) {
      if (kernel::apply(std::get<kernel::Transform<S>>(*kernels_), data, outer, inner)) return;
    }
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
    normalise(data, outer * dim() * inner);
    right_.apply(data, outer, inner);
  }

  /// \f$|n\,\mathrm{fl}(1/\mathrm{fl}(\sqrt n))^2 - 1|\f$: two roundings, squared, so at most \f$4u = 2^{-51}\f$ (2.7e-16 at n = 12).
  [[nodiscard]] double orthogonality_defect() const noexcept { return 0x1p-51; }
  /// Additions on the longest path (1 for a factor 2; for a block 2 for four inputs and f/4 - 1 for the fours), and the scale (its own rounding and
  /// the multiplication; or a root and a division).
  [[nodiscard]] double error_terms() const noexcept {
    Index additions = 0;
    for (const Index f : factors_) additions += f == 2 ? 1 : f / 4 + 1;
    return static_cast<double>(additions + 2);
  }

 private:
  /// Times \f$1/\sqrt n\f$, with two roundings at most.
  template <class S>
  void normalise(S* data, Index size) const {
    if constexpr (std::floating_point<S>) {
      const S scale = static_cast<S>(scale_);
      for (Index i = 0; i < size; ++i) data[i] *= scale;
    } else {
      using std::sqrt;
      const S root = sqrt(S(static_cast<double>(dim())));
      for (Index i = 0; i < size; ++i) data[i] = data[i] / root;
    }
  }

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

  /// `[before, f, after]` by a ±1 block of order f, in panels that stay in cache: sums of `kernel::combination`s in ascending order.
  template <class S>
  static void multiply_block(const SignMatrix& block, S* data, Index before, Index after) {
    constexpr Index panel = 64;
    const Index f = block.rows();
    std::vector<S> table(static_cast<std::size_t>(2 * f * panel));  // eight rows for every four
    for (Index b = 0; b < before; ++b) {
      for (Index start = 0; start < after; start += panel) {
        const Index width = (std::min)(panel, after - start);
        S* const base = data + b * f * after + start;
        for (Index i = 0; i < f; i += 4) combine(base + i * after, after, table.data() + 2 * i * panel, panel, width);
        for (Index j = 0; j < f; ++j) {
          S* const out = base + j * after;
          std::fill(out, out + width, S(0.0));
          for (Index i = 0; i < f; i += 4) {
            const int which = kernel::combination(block(i, j) > 0, block(i + 1, j) > 0, block(i + 2, j) > 0, block(i + 3, j) > 0);
            const S* const in = table.data() + (2 * i + which) * panel;
            if (block(i, j) > 0) {
              for (Index k = 0; k < width; ++k) out[k] = out[k] + in[k];
            } else {
              for (Index k = 0; k < width; ++k) out[k] = out[k] - in[k];
            }
          }
        }
      }
    }
  }

  /// The eight combinations of four rows.
  template <class S>
  static void combine(const S* rows, Index after, S* to, Index panel, Index width) {
    for (int which = 0; which < 8; ++which) {
      for (Index k = 0; k < width; ++k) {
        const S &a = rows[k], &b = rows[after + k], &c = rows[2 * after + k], &d = rows[3 * after + k];
        const S first = (which & 1) == 0 ? S(a + b) : S(a - b);
        const S second = (which & 4) == 0 ? S(c + d) : S(c - d);
        to[which * panel + k] = (which & 2) == 0 ? S(first + second) : S(first - second);
      }
    }
  }

  /// What the kernels need, made once and shared by copies.
  void prepare() {
    kernels_ = std::make_shared<const std::tuple<kernel::Transform<float>, kernel::Transform<double>>>(transform<float>(), transform<double>());
  }

  template <class S>
  [[nodiscard]] kernel::Transform<S> transform() const {
    const Index n = dim();
    kernel::Transform<S> result(n, static_cast<S>(scale_));
    for (Index i = 0; i < n; ++i) {
      const std::size_t k = static_cast<std::size_t>(i);
      result.take(i, left_.source()[k], left_.sign()[k] < 0);
      result.put(right_.source()[k], i, right_.sign()[k] < 0);
    }
    std::size_t f = 0;
    for (; f < factors_.size() && factors_[f] != 2; ++f) {
      result.add_block(factors_[f], [&](Index i, Index j) { return blocks_[f](i, j) > 0; });
    }
    result.add_twos(static_cast<int>(factors_.size() - f));
    return result;
  }

  SignedPermutation left_;
  SignedPermutation right_;
  std::vector<Index> factors_;
  std::vector<SignMatrix> blocks_;
  double scale_ = 1;
  std::shared_ptr<const std::tuple<kernel::Transform<float>, kernel::Transform<double>>> kernels_;
};

static_assert(Isometry<Hadamard>);

}  // namespace rmsfold
