// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels of the conversions between stored elements and `double`.

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/half.hpp>
#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel {

#ifdef RMSFOLD_VECTORS
namespace detail {

/// Whether an element has its sign bit set.
template <class V>
RMSFOLD_INLINE inline bool any_negative(const V& vector) noexcept {
  auto all = vector[0];
  for (std::size_t k = 1; k < sizeof(V) / sizeof(all); ++k) all |= vector[k];
  return all < 0;
}

}  // namespace detail
#endif

/// Exact doubles of stored elements.
template <Storage S>
struct Load {
  static constexpr bool exact_products = true;  ///< none is added to anything
  /// The reference.
  static void scalar(const std::byte* from, double* to, Index count) noexcept {
    for (Index i = 0; i < count; ++i) {
      S stored;
      std::memcpy(&stored, from + i * static_cast<Index>(sizeof(S)), sizeof(S));
      to[i] = to_double(stored);
    }
  }

#ifdef RMSFOLD_VECTORS
  /// Blocks of 32, by way of floats in L1, the rest by the reference. A signalling NaN of binary16 would come out quiet: a block with an infinity or
  /// a NaN is done again by the reference.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(const std::byte* from, double* to, Index count) noexcept {
    constexpr Index block = 32;
    constexpr Index size = static_cast<Index>(sizeof(S));
    Index i = 0;
    for (; i + block <= count; i += block) {
      if constexpr (std::same_as<S, float>) {
        for (Index k = 0; k < block; k += lanes<double, bytes>) widen<bytes>(from + (i + k) * size, to + i + k);
      } else {
        float single[block];
        Vec<std::int32_t, bytes> special{};
        for (Index k = 0; k < block; k += lanes<float, bytes>) to_float<bytes>(from + (i + k) * size, single + k, special);
        for (Index k = 0; k < block; k += lanes<double, bytes>) widen<bytes>(single + k, to + i + k);
        if (detail::any_negative(special)) scalar(from + i * size, to + i, block);
      }
    }
    scalar(from + i * size, to + i, count - i);
  }

 private:
  template <int bytes>
  RMSFOLD_INLINE static inline void widen(const void* from, double* to) noexcept {
    Vec<float, bytes / 2> single;
    Vec<double, bytes> result;
    load(single, from);
    convert<double>(result, single);
    store(to, result);
  }

  template <int bytes>
  RMSFOLD_INLINE static inline void to_float(const std::byte* from, float* to, [[maybe_unused]] Vec<std::int32_t, bytes>& special) noexcept {
    using Words = Vec<std::int32_t, bytes>;
    using Floats = Vec<float, bytes>;
    Vec<std::uint16_t, bytes / 2> stored;
    Words bits;
    load(stored, from);
    convert<std::int32_t>(bits, stored);
    if constexpr (std::same_as<S, BF16>) {  // the upper half of a float
      store(to, bits << 16);
    } else {  // the exponent gets a new bias; a subnormal is 2^-14 (1 + f/1024) - 2^-14
      const Words magnitude = bits & 0x7fff;
      special |= 0x7bff - magnitude;
      const Words is_subnormal = magnitude < 0x400;
      const Words word = (magnitude << 13) + (112 << 23) + (is_subnormal & (1 << 23));
      const Floats value = reinterpret_cast<Floats>(word) - reinterpret_cast<Floats>(is_subnormal & (113 << 23));
      store(to, reinterpret_cast<Words>(value) | (bits & 0x8000) << 16);
    }
  }
#endif
};

/// Doubles rounded once to S.
template <Storage S>
requires(!std::same_as<S, double>) struct Store {
  static constexpr bool exact_products = true;  ///< there are none
  /// The reference. @returns the position of the first finite value that became an infinity; -1 when there is none.
  static Index scalar(const double* from, std::byte* to, Index count) noexcept {
    Index overflow = -1;
    for (Index i = 0; i < count; ++i) {
      const S stored = round_to<S>(from[i]);
      if (overflow < 0 && !is_finite(to_double(stored)) && is_finite(from[i])) overflow = i;
      std::memcpy(to + i * static_cast<Index>(sizeof(S)), &stored, sizeof(S));
    }
    return overflow;
  }

#ifdef RMSFOLD_VECTORS
  /// Blocks of 64. One that holds a value beyond the largest finite S, or one that is not finite, is done again by the reference.
  template <int bytes>
  RMSFOLD_INLINE static inline Index run(const double* from, std::byte* to, Index count) noexcept {
    constexpr Index block = 64;
    constexpr Index size = static_cast<Index>(sizeof(S));
    Index overflow = -1;
    Index i = 0;
    for (; i + block <= count; i += block) {
      if (!in_range<bytes, block>(from + i, to + i * size)) first_of(overflow, i, scalar(from + i, to + i * size, block));
    }
    first_of(overflow, i, scalar(from + i, to + i * size, count - i));
    return overflow;
  }

 private:
  static void first_of(Index& overflow, Index start, Index found) noexcept {
    if (overflow < 0 && found >= 0) overflow = start + found;
  }

  /// Stores `count` values; right when it returns true: all magnitudes are at most the largest finite S.
  template <int bytes, Index count>
  RMSFOLD_INLINE static inline bool in_range(const double* from, std::byte* to) noexcept {
    constexpr Index step = lanes<double, bytes>;
    constexpr Index size = static_cast<Index>(sizeof(S));
    Vec<std::int64_t, bytes> beyond{};
    for (Index i = 0; i < count; i += 4 * step) {
      if constexpr (std::same_as<S, float>) {
        for (Index k = i; k < i + 4 * step; k += step) {
          Vec<double, bytes> x;
          load(x, from + k);
          note<bytes>(beyond, x);
          store(to + k * size, __builtin_convertvector(x, Vec<float, bytes / 2>));
        }
      } else {
        Vec<std::int64_t, bytes> a, b, c, d;
        round<bytes>(a, beyond, from + i);
        round<bytes>(b, beyond, from + i + step);
        round<bytes>(c, beyond, from + i + 2 * step);
        round<bytes>(d, beyond, from + i + 3 * step);
        narrow<bytes>(a, b, c, d, to + i * size);
      }
    }
    return !detail::any_negative(beyond);
  }

  /// Makes a word of `beyond` negative where x is larger than the largest finite S or not finite.
  template <int bytes>
  RMSFOLD_INLINE static inline void note(Vec<std::int64_t, bytes>& beyond, const Vec<double, bytes>& x) noexcept {
    beyond |= std::bit_cast<std::int64_t>(largest_finite<S>()) - (reinterpret_cast<Vec<std::int64_t, bytes>>(x) & ~sign_bit);
  }

  static constexpr std::int64_t sign_bit = (std::numeric_limits<std::int64_t>::min)();

  /// The sixteen bits of S in the low end of each word. Adding \f$2^{e+52-f}\f$, e the exponent of x or the least one of S and f its fraction bits,
  /// makes the adder round to the last place of S, ties to even: subnormals too, and below the sum is the significand as an integer.
  template <int bytes>
  RMSFOLD_INLINE static inline void round(Vec<std::int64_t, bytes>& result, Vec<std::int64_t, bytes>& beyond, const double* from) noexcept {
    using Words = Vec<std::int64_t, bytes>;
    using Doubles = Vec<double, bytes>;
    constexpr std::int64_t least = std::int64_t{1023 + 2 - (1 << (S::exponent_bits - 1))} << 52;
    Doubles x;
    load(x, from);
    note<bytes>(beyond, x);
    const Words word = reinterpret_cast<Words>(x);
    const Words magnitude = word & ~sign_bit;
    const Doubles power = reinterpret_cast<Doubles>(word & (std::int64_t{2047} << 52));
    const Doubles floor = reinterpret_cast<Doubles>(Words{} + least);
    const Words exponent = reinterpret_cast<Words>(power > floor ? power : floor);
    const Words adder = exponent + (std::int64_t{52 - S::fraction_bits} << 52);
    const Words sum = reinterpret_cast<Words>(reinterpret_cast<Doubles>(magnitude) + reinterpret_cast<Doubles>(adder));
    const Words significand = sum - adder;
    result = significand + ((exponent - least) >> (52 - S::fraction_bits)) +
             reinterpret_cast<Words>(reinterpret_cast<Vec<std::uint64_t, bytes>>(word & sign_bit) >> 48);
  }

  /// The low sixteen bits of each word of a, b, c, d.
  template <int bytes>
  RMSFOLD_INLINE static inline void narrow(const Vec<std::int64_t, bytes>& a, const Vec<std::int64_t, bytes>& b,
                                                   const Vec<std::int64_t, bytes>& c, const Vec<std::int64_t, bytes>& d, std::byte* to) noexcept {
    using Twos = Vec<std::int32_t, bytes>;
    Twos low, high;
    even<bytes>(low, reinterpret_cast<Twos>(a), reinterpret_cast<Twos>(b));
    even<bytes>(high, reinterpret_cast<Twos>(c), reinterpret_cast<Twos>(d));
    Vec<std::int16_t, bytes> packed;
    even<bytes>(packed, reinterpret_cast<Vec<std::int16_t, bytes>>(low), reinterpret_cast<Vec<std::int16_t, bytes>>(high));
    store(to, packed);
  }

  /// Every second element of a, then of b.
  template <int bytes, class V>
  RMSFOLD_INLINE static inline void even(V& result, const V& a, const V& b) noexcept {
    constexpr std::size_t count = sizeof(V) / sizeof(a[0]);
    even_of(result, a, b, std::make_integer_sequence<int, count>());
  }
  template <class V, int... k>
  RMSFOLD_INLINE static inline void even_of(V& result, const V& a, const V& b, std::integer_sequence<int, k...>) noexcept {
    result = __builtin_shufflevector(a, b, 2 * k...);
  }
#endif
};

/// Stored elements, each multiplied by a double, rounded once to S: what `Load`, a product and `Store` give, by way of L1.
template <Storage S>
requires(!std::same_as<S, double>) struct Scale {
  static constexpr bool exact_products = true;  ///< none is added to anything
  /// The reference. @returns as `Store`.
  static Index scalar(const std::byte* from, const double* by, std::byte* to, Index count) noexcept {
    constexpr Index size = static_cast<Index>(sizeof(S));
    Index overflow = -1;
    for (Index i = 0; i < count; ++i) {
      double value;
      Load<S>::scalar(from + i * size, &value, 1);
      value *= by[i];
      if (Store<S>::scalar(&value, to + i * size, 1) == 0 && overflow < 0) overflow = i;
    }
    return overflow;
  }

#ifdef RMSFOLD_VECTORS
  /// The same by vectors.
  template <int bytes>
  RMSFOLD_INLINE static inline Index run(const std::byte* from, const double* by, std::byte* to, Index count) noexcept {
    constexpr Index size = static_cast<Index>(sizeof(S));
    Index overflow = -1;
    double wide[block];
    for (Index i = 0; i < count; i += block) {
      const Index some = (std::min)(block, count - i);
      Load<S>::template run<bytes>(from + i * size, wide, some);
      Index k = 0;
      for (; k + lanes<double, bytes> <= some; k += lanes<double, bytes>) {
        Vec<double, bytes> value, factor;
        load(value, wide + k);
        load(factor, by + i + k);
        store(wide + k, value * factor);
      }
      for (; k < some; ++k) wide[k] *= by[i + k];
      const Index found = Store<S>::template run<bytes>(wide, to + i * size, some);
      if (overflow < 0 && found >= 0) overflow = i + found;
    }
    return overflow;
  }
#endif

 private:
  static constexpr Index block = 256;
};

}  // namespace rmsfold::kernel
