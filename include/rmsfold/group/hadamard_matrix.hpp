// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Hadamard matrices as integers, \f$HH^T = nI\f$ with entries ±1, and the orders there are: constructions and searches, no shipped tables.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/error.hpp>
#include <rmsfold/group/finite_field.hpp>

namespace rmsfold {

/// A matrix of signs, +1 and -1: not normalised. The rotation \f$H/\sqrt n\f$ is `Hadamard`.
using SignMatrix = Matrix<std::int8_t>;

namespace detail {

/// The bordered Jacobsthal matrix \f$\begin{pmatrix}0&1\\\chi(-1)&\chi(i-j)\end{pmatrix}\f$ of order q+1, χ the quadratic character of GF(q). It is
/// skew for q ≡ 3 and symmetric for q ≡ 1 (mod 4), and \f$CC^T = qI\f$.
[[nodiscard]] inline SignMatrix conference_matrix(Index q) {
  const FiniteField field(q);
  SignMatrix c(q + 1, q + 1);
  c(0, 0) = 0;
  for (Index i = 0; i < q; ++i) {
    c(0, i + 1) = 1;
    c(i + 1, 0) = static_cast<std::int8_t>(field.character(field.subtract(0, 1)));
    for (Index j = 0; j < q; ++j) c(i + 1, j + 1) = static_cast<std::int8_t>(field.character(field.subtract(i, j)));
  }
  return c;
}

}  // namespace detail

/// \f$I + C\f$, C the conference matrix of GF(q): a Hadamard matrix of order q+1.
/// @param q  a prime power ≡ 3 (mod 4). @throws InvariantError when it is none.
/// @note Source: Paley, On orthogonal matrices (1933), construction I.
[[nodiscard]] inline SignMatrix paley_one(Index q) {
  if (q % 4 != 3) detail::raise<InvariantError>("Paley's first construction with q = {}: a prime power ≡ 3 (mod 4) is needed", q);
  SignMatrix h = detail::conference_matrix(q);
  h.diagonal().array() = std::int8_t{1};
  return h;
}

/// \f$C\otimes\begin{pmatrix}1&1\\1&-1\end{pmatrix} + I\otimes\begin{pmatrix}1&-1\\-1&-1\end{pmatrix}\f$, C the conference matrix of GF(q): a
/// symmetric Hadamard matrix of order 2(q+1).
/// @param q  a prime power ≡ 1 (mod 4). @throws InvariantError when it is none.
/// @note Source: Paley (1933), construction II.
[[nodiscard]] inline SignMatrix paley_two(Index q) {
  if (q % 4 != 1) detail::raise<InvariantError>("Paley's second construction with q = {}: a prime power ≡ 1 (mod 4) is needed", q);
  const SignMatrix c = detail::conference_matrix(q);
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

/// Williamson's quaternion array of four symmetric circulants: a Hadamard matrix of order 4t when \f$A^2+B^2+C^2+D^2 = 4tI\f$.
///
/// \f[\begin{pmatrix}A&B&C&D\\-B&A&-D&C\\-C&D&A&-B\\-D&-C&B&A\end{pmatrix}\f]
/// @param first_rows  4 x t, the first rows of A, B, C and D, as `williamson_rows` finds them; what they promise is not checked.
/// @throws ShapeError when there are not four rows.
/// @note Source: Williamson, Hadamard's determinant theorem and the sum of four squares (1944).
[[nodiscard]] inline SignMatrix williamson(const SignMatrix& first_rows) {
  if (first_rows.rows() != 4) detail::raise<ShapeError>("Williamson's array is made of 4 circulants, not of {}", first_rows.rows());
  constexpr std::array<std::array<int, 4>, 4> which{{{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}}};
  constexpr std::array<std::array<int, 4>, 4> sign{{{1, 1, 1, 1}, {-1, 1, -1, 1}, {-1, 1, 1, -1}, {-1, -1, 1, 1}}};
  const Index t = first_rows.cols();
  SignMatrix h(4 * t, 4 * t);
  for (Index i = 0; i < 4 * t; ++i) {
    for (Index j = 0; j < 4 * t; ++j) {
      const std::size_t row = static_cast<std::size_t>(i / t);
      const std::size_t col = static_cast<std::size_t>(j / t);
      h(i, j) = static_cast<std::int8_t>(sign[row][col] * first_rows(which[row][col], (j % t - i % t + t) % t));
    }
  }
  return h;
}

namespace detail {

/// Searches for Williamson's sequences among those constant on the orbits of a group of multipliers: sequences of signs are bit sets here (a set bit
/// is a -1, bit 0 is clear), of odd length t ≤ 63.
class WilliamsonSearch {
 public:
  /// Bit sets of the orbits of the multipliers ±1, ±g, ±g², … on 1 … t-1. @pre g and t have no common divisor.
  [[nodiscard]] static std::vector<std::uint64_t> orbits(Index t, Index g) {
    std::vector<std::uint64_t> result;
    std::uint64_t seen = 0;
    for (Index i = 1; i < t; ++i) {
      if ((seen >> i & 1) != 0) continue;
      std::uint64_t orbit = 0;
      for (Index k = i; (orbit >> k & 1) == 0; k = k * g % t) orbit |= std::uint64_t{1} << k | std::uint64_t{1} << (t - k);
      seen |= orbit;
      result.push_back(orbit);
    }
    return result;
  }

  WilliamsonSearch(Index t, const std::vector<std::uint64_t>& orbits) : t_(t) {
    for (const std::uint64_t orbit : orbits) lags_.push_back(std::countr_zero(orbit));
    for (Index i = 0; i < t; ++i) cosines_.push_back(std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(t)));
    for (std::uint64_t choice = 0; choice < std::uint64_t{1} << orbits.size(); ++choice) {
      std::uint64_t signs = 0;
      for (std::size_t k = 0; k < orbits.size(); ++k) signs |= (choice >> k & 1) != 0 ? orbits[k] : 0;
      if (!power_in_reach(signs)) continue;
      // Linear in the autocorrelation, so that keys of sequences add up to 0 where autocorrelations do.
      std::uint64_t key = 0;
      for (const int lag : lags_) key = key * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(autocorrelation(signs, lag));
      by_sum_[t - 2 * std::popcount(signs)].push_back({signs, key});
    }
  }

  /// Four sequences whose periodic autocorrelations add up to 0 at every lag but 0. Sums of rows are tried in ascending order: their squares add up
  /// to 4t.
  [[nodiscard]] std::optional<std::array<std::uint64_t, 4>> run() const {
    for (auto a = by_sum_.begin(); a != by_sum_.end(); ++a) {
      for (auto b = a; b != by_sum_.end(); ++b) {
        for (auto c = b; c != by_sum_.end(); ++c) {
          for (auto d = c; d != by_sum_.end(); ++d) {
            if (a->first * a->first + b->first * b->first + c->first * c->first + d->first * d->first != 4 * t_) continue;
            if (const auto found = meet_in_the_middle(a->second, b->second, c->second, d->second)) return found;
          }
        }
      }
    }
    return std::nullopt;
  }

 private:
  struct Sequence {
    std::uint64_t signs;
    std::uint64_t key;
  };
  struct Pair {
    std::uint64_t key;
    std::uint64_t first;
    std::uint64_t second;
  };

  [[nodiscard]] Index autocorrelation(std::uint64_t signs, int lag) const {
    const std::uint64_t shifted = (signs << lag | signs >> (t_ - lag)) & ((std::uint64_t{1} << t_) - 1);
    return t_ - 2 * std::popcount(signs ^ shifted);
  }

  /// Whether the power spectrum stays below the 4t that the four spectra add up to. A sequence within rounding of 4t stays in: nothing depends on the
  /// C library.
  [[nodiscard]] bool power_in_reach(std::uint64_t signs) const {
    return std::all_of(lags_.begin(), lags_.end(), [&](int frequency) {
      double amplitude = 0;
      for (Index i = 0; i < t_; ++i) {
        const double wave = cosines_[static_cast<std::size_t>(i * frequency % t_)];
        amplitude += (signs >> i & 1) != 0 ? -wave : wave;
      }
      return amplitude * amplitude <= 4 * static_cast<double>(t_) + 0x1p-20;
    });
  }

  /// One of each class of sequences that a multiplier carries into each other: it may be applied to all four sequences of a solution.
  [[nodiscard]] std::vector<Sequence> representatives(const std::vector<Sequence>& all) const {
    std::vector<Sequence> result;
    std::set<std::uint64_t> seen;
    for (const Sequence& sequence : all) {
      if (seen.count(sequence.signs) != 0) continue;
      result.push_back(sequence);
      for (Index g = 1; g < t_; ++g) {
        if (std::gcd(g, t_) != 1) continue;
        std::uint64_t image = 0;
        for (Index i = 0; i < t_; ++i) image |= (sequence.signs >> i & 1) << (i * g % t_);
        seen.insert(image);
      }
    }
    return result;
  }

  /// Sorted sums of keys on one side, looked up for every pair on the other. The result does not depend on the platform: all is integers, all orders
  /// are total.
  [[nodiscard]] std::optional<std::array<std::uint64_t, 4>> meet_in_the_middle(const std::vector<Sequence>& as, const std::vector<Sequence>& bs,
                                                                               const std::vector<Sequence>& cs,
                                                                               const std::vector<Sequence>& ds) const {
    constexpr int filter_bits = 22;  // most look-ups end at one bit of these
    std::vector<bool> filter(std::size_t{1} << filter_bits);
    std::vector<Pair> pairs;
    for (const Sequence& a : representatives(as)) {
      for (const Sequence& b : bs) {
        pairs.push_back({a.key + b.key, a.signs, b.signs});
        filter[(a.key + b.key) >> (64 - filter_bits)] = true;
      }
    }
    std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& p, const Pair& q) { return p.key < q.key; });
    for (const Sequence& c : cs) {
      for (const Sequence& d : ds) {
        const std::uint64_t missing = 0 - (c.key + d.key);
        if (!filter[missing >> (64 - filter_bits)]) continue;
        auto pair = std::lower_bound(pairs.begin(), pairs.end(), missing, [](const Pair& p, std::uint64_t key) { return p.key < key; });
        for (; pair != pairs.end() && pair->key == missing; ++pair) {
          const std::array<std::uint64_t, 4> four{pair->first, pair->second, c.signs, d.signs};
          if (complementary(four)) return four;
        }
      }
    }
    return std::nullopt;
  }

  /// The sum itself, not its key.
  [[nodiscard]] bool complementary(const std::array<std::uint64_t, 4>& four) const {
    return std::all_of(lags_.begin(), lags_.end(), [&](int lag) {
      Index sum = 0;
      for (const std::uint64_t signs : four) sum += autocorrelation(signs, lag);
      return sum == 0;
    });
  }

  Index t_;
  std::vector<int> lags_;
  std::vector<double> cosines_;
  std::map<Index, std::vector<Sequence>> by_sum_;
};

}  // namespace detail

/// First rows of four symmetric circulants of order t with \f$A^2+B^2+C^2+D^2 = 4tI\f$, found by search, the same on every platform.
///
/// Rows are constant on the orbits of a group of multipliers modulo t that holds -1. Large groups come first, since they leave few sequences, and the
/// search ends at groups with more than 14 orbits, that is at \f$2^{14}\f$ sequences: a limit of work, not of time. t = 39 has solutions beyond it, t = 47
/// and 59 have none at all.
/// @returns 4 x t; nothing when t is even, beyond 63, or the search came to its end.
/// @par Cost below 0.1 s with optimisation, also where nothing is found.
/// @note Source: Williamson (1944); for t = 23 Baumert, Golomb and Hall, Discovery of an Hadamard matrix of order 92 (1962).
[[nodiscard]] inline std::optional<SignMatrix> williamson_rows(Index t) {
  constexpr std::size_t most_orbits = 14;
  if (t < 1 || t > 63 || t % 2 == 0) return std::nullopt;
  std::set<std::pair<std::size_t, std::vector<std::uint64_t>>> partitions;  // fewest orbits first
  for (Index g = 1; g <= t; ++g) {
    if (std::gcd(g, t) != 1) continue;
    std::vector<std::uint64_t> orbits = detail::WilliamsonSearch::orbits(t, g);
    const std::size_t count = orbits.size();
    if (count <= most_orbits) partitions.emplace(count, std::move(orbits));
  }
  for (const auto& [count, orbits] : partitions) {
    const std::optional<std::array<std::uint64_t, 4>> four = detail::WilliamsonSearch(t, orbits).run();
    if (!four) continue;
    SignMatrix rows(4, t);
    for (Index i = 0; i < t; ++i) {
      for (std::size_t k = 0; k < 4; ++k) rows(static_cast<Index>(k), i) = ((*four)[k] >> i & 1) != 0 ? std::int8_t{-1} : std::int8_t{1};
    }
    return rows;
  }
  return std::nullopt;
}

namespace detail {

/// Largest order of a factor that is held as a matrix.
inline constexpr Index largest_block_order = 256;

/// How the Hadamard matrix of a block is made.
enum class BlockConstruction { none, paley_one, paley_two, williamson };

/// The construction of the block of order n = 4t, t > 1 odd. Prime fields come first where both of Paley's constructions give the order, then the
/// smaller field.
[[nodiscard]] constexpr BlockConstruction block_construction(Index n) noexcept {
  if (n < 12 || n > largest_block_order || n % 8 != 4) return BlockConstruction::none;
  const std::optional<PrimePower> power = prime_power(n - 1);
  if (power && power->exponent == 1) return BlockConstruction::paley_one;
  if (prime_power(n / 2 - 1)) return BlockConstruction::paley_two;
  // What is left are t = 23, 29, 39, 43, 47 and 59; no search has to be run to know that 39, 47 and 59 are none (a test runs them all).
  return n == 4 * 23 || n == 4 * 29 || n == 4 * 43 ? BlockConstruction::williamson : BlockConstruction::none;
}

/// Williamson's matrix of order 4t, searched for once.
template <Index t>
[[nodiscard]] const SignMatrix& williamson_block() {
  static const SignMatrix h = williamson(williamson_rows(t).value());
  return h;
}

}  // namespace detail

/// The Hadamard matrix that stands for the factor n of a Kronecker product: \f$\begin{pmatrix}1&1\\1&-1\end{pmatrix}\f$ for 2; by Paley over a prime
/// field, else by Paley over GF(p^k), else by Williamson for n = 4t ≤ 256, t odd: all of them but 156, 188 and 236.
/// @throws RefusedError for other n. @par Cost O(n²); the searches for 92, 116 and 172 run once in a program.
[[nodiscard]] inline SignMatrix hadamard_block(Index n) {
  if (n == 2) {
    SignMatrix h(2, 2);
    h << std::int8_t{1}, std::int8_t{1}, std::int8_t{1}, std::int8_t{-1};
    return h;
  }
  switch (detail::block_construction(n)) {
    case detail::BlockConstruction::paley_one:
      return paley_one(n - 1);
    case detail::BlockConstruction::paley_two:
      return paley_two(n / 2 - 1);
    case detail::BlockConstruction::williamson:
      if (n == 4 * 23) return detail::williamson_block<23>();
      return n == 4 * 29 ? detail::williamson_block<29>() : detail::williamson_block<43>();
    case detail::BlockConstruction::none:
      break;
  }
  detail::raise<RefusedError>(
      "{} is not the order of a Hadamard block: 2, or 4t ≤ 256 with t > 1 odd but 156, 188 and 236; other orders are products, see hadamard_factors", n);
}

namespace detail {

using HadamardFactors = std::optional<std::vector<Index>>;

/// Additions per element of the transform with these factors.
[[nodiscard]] inline Index additions(const std::vector<Index>& factors) {
  Index count = 0;
  for (const Index f : factors) count += f - 1;
  return count;
}

/// `hadamard_factors` for n ≥ 1; `known` holds what was found for divisors.
[[nodiscard]] inline HadamardFactors fewest_additions(Index n, std::map<Index, HadamardFactors>& known) {
  const int twos = std::countr_zero(static_cast<std::uint64_t>(n));
  Index odd = n >> twos;
  if (odd == 1) return std::vector<Index>(static_cast<std::size_t>(twos), 2);
  // Every block takes two twos and at most 63 of the odd part.
  for (int pair = 0; pair < twos / 2; ++pair) odd = (odd + 62) / 63;
  if (odd > 1) return std::nullopt;
  if (const auto entry = known.find(n); entry != known.end()) return entry->second;
  HadamardFactors best;
  for (Index block = 12; block <= largest_block_order; block += 8) {
    if (n % block != 0 || block_construction(block) == BlockConstruction::none) continue;
    HadamardFactors rest = fewest_additions(n / block, known);
    if (!rest) continue;
    rest->insert(std::lower_bound(rest->begin(), rest->end(), block, [](Index a, Index b) { return a != 2 && a < b; }), block);
    if (!best || additions(*rest) < additions(*best)) best = std::move(rest);
  }
  known.emplace(n, best);
  return best;
}

}  // namespace detail

/// Factors (blocks in ascending order, then twos) of the Kronecker product for a Hadamard matrix of order n that takes the fewest additions per
/// element, \f$\sum(f-1)\f$; among equals the one with the smaller first block. Every factor is an order of `hadamard_block`.
/// @returns nothing when there is no such product, and for n < 1. @par Cost one step per divisor of n that blocks can make up.
[[nodiscard]] inline std::optional<std::vector<Index>> hadamard_factors(Index n) {
  if (n < 1) return std::nullopt;
  std::map<Index, detail::HadamardFactors> known;
  return detail::fewest_additions(n, known);
}

/// The largest b ≤ n that divides n and is a Hadamard order: the block size to offer when n itself is none. For n < 1 it is 1. @par Cost O(√n).
[[nodiscard]] inline Index largest_hadamard_block(Index n) {
  Index count = 1;
  for (; count <= n / count; ++count) {
    if (n % count == 0 && hadamard_factors(n / count)) return n / count;
  }
  for (Index block = count; block > 1; --block) {
    if (n % block == 0 && hadamard_factors(block)) return block;
  }
  return 1;
}

}  // namespace rmsfold
