// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The library's own random numbers: the same stream from the same seed on every platform and standard library.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// xoshiro256**, seeded by SplitMix64. Every seed, 0 included, is a seed like any other.
///
/// Integers, signs and permutations are bit-identical everywhere. `normal()` goes through `log`, `cos` and `sqrt`, so its last bits follow the C library.
/// @note Source: Blackman and Vigna, Scrambled Linear Pseudorandom Number Generators (2021), fig. 1; Steele, Lea and Flood, Fast Splittable
///   Pseudorandom Number Generators (2014), fig. 17. `stream` separates uses of one seed: it is mixed into the SplitMix64 state.
class Random {
 public:
  /// Starts stream number `stream` of `seed`.
  explicit constexpr Random(std::uint64_t seed, std::uint64_t stream = 0) noexcept {
    std::uint64_t mix = stream;
    std::uint64_t splitmix = seed ^ split_mix(mix);
    for (std::uint64_t& word : state_) word = split_mix(splitmix);
  }

  /// Uniform over all 64-bit words.
  [[nodiscard]] constexpr std::uint64_t bits() noexcept {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform over 0 … bound-1, without bias (words beyond the largest multiple of `bound` are drawn again). @pre bound > 0
  [[nodiscard]] constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t excess = (0 - bound) % bound;  // 2^64 mod bound
    for (;;) {
      const std::uint64_t word = bits();
      if (word >= excess) return word % bound;
    }
  }

  /// +1 or -1.
  [[nodiscard]] constexpr int sign() noexcept { return (bits() >> 63) != 0 ? -1 : 1; }

  /// Uniform over the multiples of 2^-53 in [0, 1).
  [[nodiscard]] constexpr double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// Standard normal (Box and Muller 1958; the second variate is not used, so that a draw is a pure function of two words).
  [[nodiscard]] double normal() noexcept {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  /// Uniform over the permutations of 0 … n-1 (Fisher and Yates, from the back).
  [[nodiscard]] std::vector<Index> permutation(Index n) {
    std::vector<Index> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), Index{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    return order;
  }

 private:
  static constexpr std::uint64_t split_mix(std::uint64_t& state) noexcept {
    std::uint64_t word = (state += 0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
  }

  std::array<std::uint64_t, 4> state_{};
};

/// `rows x cols` of independent standard normals, row by row.
[[nodiscard]] inline Matrix<double> normal_matrix(Index rows, Index cols, Random& random) {
  Matrix<double> result(rows, cols);
  for (Index i = 0; i < result.size(); ++i) result.data()[i] = random.normal();
  return result;
}

}  // namespace rmsfold
