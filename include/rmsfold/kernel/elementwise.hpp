// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels that look at each element once: whether all are finite, products, and the largest difference in units of a bound.

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel {

/// Whether all stored elements are finite.
template <Storage S>
struct AllFinite {
  /// The reference.
  static bool scalar(const std::byte* from, Index count) noexcept {
    for (Index i = 0; i < count; ++i) {
      S stored;
      std::memcpy(&stored, from + i * static_cast<Index>(sizeof(S)), sizeof(S));
      if (!is_finite(to_double(stored))) return false;
    }
    return true;
  }

#ifdef RMSFOLD_VECTORS
  /// The same by vectors: the bits of a magnitude, as an integer, are at most those of the largest finite S.
  template <int bytes>
  RMSFOLD_INLINE static inline bool run(const std::byte* from, Index count) noexcept {
    using Word = std::conditional_t<sizeof(S) == 2, std::int16_t, std::conditional_t<sizeof(S) == 4, std::int32_t, std::int64_t>>;
    using Words = Vec<Word, bytes>;
    constexpr Word magnitude = (std::numeric_limits<Word>::max)();
    constexpr Word largest = static_cast<Word>(magnitude - (Word{1} << fraction_bits));
    Words beyond{};
    Index i = 0;
    for (; i + lanes<Word, bytes> <= count; i += lanes<Word, bytes>) {
      Words word;
      load(word, from + i * static_cast<Index>(sizeof(S)));
      beyond |= largest - (word & magnitude);
    }
    using Longs = Vec<std::int64_t, bytes>;
    const Longs signs = reinterpret_cast<Longs>(beyond & (std::numeric_limits<Word>::min)());
    std::int64_t any = 0;
    for (std::size_t k = 0; k < bytes / sizeof(std::int64_t); ++k) any |= signs[k];
    return any == 0 && scalar(from + i * static_cast<Index>(sizeof(S)), count - i);
  }

 private:
  static constexpr int fraction_bits = [] {
    if constexpr (Half<S>) {
      return S::fraction_bits;
    } else {
      return std::numeric_limits<S>::digits - 1;
    }
  }();
#endif
};

/// `x[i] *= by[i]`.
struct Multiply {
  /// The reference.
  static void scalar(double* x, const double* by, Index count) noexcept {
    for (Index i = 0; i < count; ++i) x[i] *= by[i];
  }

#ifdef RMSFOLD_VECTORS
  /// The same by vectors.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(double* x, const double* by, Index count) noexcept {
    Index i = 0;
    for (; i + lanes<double, bytes> <= count; i += lanes<double, bytes>) {
      Vec<double, bytes> value, factor;
      load(value, x + i);
      load(factor, by + i);
      store(x + i, value * factor);
    }
    scalar(x + i, by + i, count - i);
  }
#endif
};

/// \f$\max_i |found_i - expected_i| / (u(|expected_i| + e_i) + a + e_i)\f$ with \f$e_i = c + c'_i\f$; NaN when a term is not finite.
struct WorstRatio {
  /// The reference. @param u,a,c  not negative. @param more  \f$c'\f$, not negative; null for zeros.
  static double scalar(const double* expected, const double* found, Index count, double u, double a, double c, const double* more) noexcept {
    double worst = 0;
    bool finite = true;
    for (Index i = 0; i < count; ++i) {
      const double error = more != nullptr ? c + more[i] : c;
      const double ratio = std::fabs(found[i] - expected[i]) / (u * (std::fabs(expected[i]) + error) + a + error);
      finite = finite && is_finite(ratio);
      worst = ratio > worst ? ratio : worst;
    }
    return finite ? worst : std::numeric_limits<double>::quiet_NaN();
  }

#ifdef RMSFOLD_VECTORS
  /// The same by vectors: a maximum does not depend on the order.
  template <int bytes>
  RMSFOLD_INLINE static inline double run(const double* expected, const double* found, Index count, double u, double a, double c,
                                                  const double* more) noexcept {
    using Doubles = Vec<double, bytes>;
    using Words = Vec<std::int64_t, bytes>;
    constexpr std::int64_t magnitude = (std::numeric_limits<std::int64_t>::max)();
    constexpr std::int64_t largest = magnitude - (std::int64_t{1} << 52);
    Doubles worst{}, error = Doubles{} + c;
    Words beyond{};
    Index i = 0;
    for (; i + lanes<double, bytes> <= count; i += lanes<double, bytes>) {
      Doubles e, f;
      load(e, expected + i);
      load(f, found + i);
      if (more != nullptr) {
        load(error, more + i);
        error = c + error;
      }
      const Words difference = reinterpret_cast<Words>(f - e) & magnitude;
      const Words size = reinterpret_cast<Words>(e) & magnitude;
      const Doubles ratio = reinterpret_cast<Doubles>(difference) / (u * (reinterpret_cast<Doubles>(size) + error) + a + error);
      beyond |= largest - (reinterpret_cast<Words>(ratio) & magnitude);
      worst = ratio > worst ? ratio : worst;
    }
    double result = scalar(expected + i, found + i, count - i, u, a, c, more != nullptr ? more + i : nullptr);
    for (std::size_t k = 0; k < bytes / sizeof(double); ++k) {
      if (beyond[k] < 0) return std::numeric_limits<double>::quiet_NaN();
      if (worst[k] > result) result = worst[k];
    }
    return result;
  }
#endif
};

}  // namespace rmsfold::kernel
