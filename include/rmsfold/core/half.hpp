// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Storage scalars F16 and BF16, and the one correctly rounded conversion between storage and the type that weights are composed in.

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. Storage only: it has no arithmetic, so none can be written by accident.
struct F16 {
  std::uint16_t bits = 0;                   ///< sign, exponent, fraction
  static constexpr int exponent_bits = 5;   ///< width of the exponent
  static constexpr int fraction_bits = 10;  ///< width of the fraction
  /// Same bits.
  friend constexpr bool operator==(F16, F16) = default;
};

/// bfloat16: 1 sign, 8 exponent, 7 fraction bits. Storage only.
struct BF16 {
  std::uint16_t bits = 0;                  ///< sign, exponent, fraction
  static constexpr int exponent_bits = 8;  ///< width of the exponent
  static constexpr int fraction_bits = 7;  ///< width of the fraction
  /// Same bits.
  friend constexpr bool operator==(BF16, BF16) = default;
};

/// A 16-bit storage scalar.
template <class S>
concept Half = std::same_as<S, F16> || std::same_as<S, BF16>;

/// A type that weights are stored in.
template <class S>
concept Storage = Real<S> || Half<S>;

/// The type a runtime computes in when weights are stored as `S`: 16-bit weights are multiplied and summed in `float`.
template <Storage S>
using Compute = std::conditional_t<Half<S>, float, S>;

/// The type that factors of a weight stored as `S` are composed in before the one rounding: `double`, or `S` itself when that is wider.
template <Storage S>
using Wide = std::conditional_t<Half<S> || std::same_as<S, float>, double, S>;

/// Exact value of a number stored in a type no wider than `double`.
template <Storage S>
  requires std::same_as<Wide<S>, double>
[[nodiscard]] constexpr double to_double(S value) noexcept {
  if constexpr (std::same_as<S, BF16>) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16));
  } else if constexpr (std::same_as<S, F16>) {
    const std::uint64_t sign = static_cast<std::uint64_t>(value.bits >> 15) << 63;
    const unsigned exponent = (value.bits >> 10) & 0x1fu;
    const std::uint64_t fraction = value.bits & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: fraction * 2^-24
      const double magnitude = static_cast<double>(fraction) * 0x1p-24;
      return std::bit_cast<double>(std::bit_cast<std::uint64_t>(magnitude) | sign);
    }
    const std::uint64_t wide = exponent == 0x1f ? 0x7ffu : exponent - 15u + 1023u;
    return std::bit_cast<double>(sign | (wide << 52) | (fraction << 42));
  } else {
    return static_cast<double>(value);
  }
}

/// Exact value of a stored number.
template <Storage S>
[[nodiscard]] constexpr Wide<S> widen(const S& value) {
  if constexpr (std::same_as<Wide<S>, double>) {
    return to_double(value);
  } else {
    return value;
  }
}

namespace detail {

/// `x` rounded once, to nearest, ties to even, to the format of `S`; overflow gives the format's infinity, a NaN stays a NaN.
template <Half S>
[[nodiscard]] constexpr S round_to_half(double x) noexcept {
  constexpr int dropped = 52 - S::fraction_bits;
  constexpr int bias = (1 << (S::exponent_bits - 1)) - 1;
  constexpr std::uint64_t infinity = ((std::uint64_t{1} << S::exponent_bits) - 1) << S::fraction_bits;
  const std::uint64_t word = std::bit_cast<std::uint64_t>(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((word >> 63) << 15);
  const std::uint64_t magnitude = word & ~(std::uint64_t{1} << 63);
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  std::uint64_t result = 0;
  if (exponent == 1024) {  // infinity, or a NaN kept quiet whatever its payload
    const bool is_nan = (magnitude << 12) != 0;
    result = infinity | (is_nan ? std::uint64_t{1} << (S::fraction_bits - 1) : 0);
  } else if (exponent > bias) {
    result = infinity;
  } else if (exponent >= 1 - bias) {
    const std::uint64_t rounded = magnitude + ((std::uint64_t{1} << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1);
    result = (rounded >> dropped) - (static_cast<std::uint64_t>(1023 - bias) << S::fraction_bits);
  } else {  // subnormal: shift the significand to the format's fixed last place
    const int shift = dropped + (1 - bias - exponent);
    if (shift <= 53) {
      const std::uint64_t significand = (magnitude & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
      const std::uint64_t half_ulp_less_one = (std::uint64_t{1} << (shift - 1)) - 1;
      result = (significand + half_ulp_less_one + ((significand >> shift) & 1)) >> shift;
    }
  }
  return S{static_cast<std::uint16_t>(sign | result)};
}

}  // namespace detail

/// `x` rounded once, to nearest, ties to even, directly to `S` (through `float` a bf16 would be rounded twice).
///
/// Magnitudes beyond the largest finite `S` become infinities; NaN stays NaN.
template <Storage S>
[[nodiscard]] constexpr S round_to(const Wide<S>& x) {
  if constexpr (Half<S>) {
    return detail::round_to_half<S>(x);
  } else {
    return static_cast<S>(x);
  }
}

/// Unit roundoff \f$u = 2^{-p}\f$ of a storage type: half the distance from 1 to the next number.
template <Storage S>
[[nodiscard]] constexpr double unit_roundoff() noexcept {
  if constexpr (Half<S>) {
    return 0.5 / static_cast<double>(1 << S::fraction_bits);
  } else {
    return static_cast<double>(std::numeric_limits<S>::epsilon()) / 2;  // 0 for exact types
  }
}

/// Half the smallest positive subnormal: the absolute error that rounding to `S` may make near zero.
template <Storage S>
[[nodiscard]] constexpr double underflow_unit() noexcept {
  if constexpr (std::same_as<S, F16>) {
    return 0x1p-25;
  } else if constexpr (std::same_as<S, BF16>) {
    return 0x1p-134;
  } else if constexpr (std::same_as<S, float>) {
    return 0x1p-150;
  } else {
    return 0x1p-1074;  // half of it is no double; wider types round less
  }
}

/// Largest finite value.
template <Storage S>
  requires std::same_as<Wide<S>, double>
[[nodiscard]] constexpr double largest_finite() noexcept {
  if constexpr (std::same_as<S, F16>) {
    return 65504.0;
  } else if constexpr (std::same_as<S, BF16>) {
    return 0x1.fep127;
  } else {
    return static_cast<double>((std::numeric_limits<S>::max)());
  }
}

}  // namespace rmsfold
