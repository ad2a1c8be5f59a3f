// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The lattice of groups of basis changes: what a node allows, and what a whole model allows.

#include <array>
#include <cstddef>
#include <string_view>

namespace rmsfold {

/// A group of changes of basis \f$x' = xQ\f$ of an n-dimensional space, ordered by inclusion:
///
///     orthogonal ⊃ signed_permutation ⊃ permutation_up_to_sign ⊃ permutation ⊃ identity
///     orthogonal ⊃ fixes_ones (Q·1 = ±1) ⊃ permutation_up_to_sign
///
/// The two chains meet: signed_permutation ∩ fixes_ones = permutation_up_to_sign.
enum class Gauge { identity, permutation, permutation_up_to_sign, signed_permutation, fixes_ones, orthogonal };

/// Whether every element of `inner` is an element of `outer`.
[[nodiscard]] constexpr bool contains(Gauge outer, Gauge inner) noexcept {
  const bool incomparable = (outer == Gauge::fixes_ones && inner == Gauge::signed_permutation) ||
                            (outer == Gauge::signed_permutation && inner == Gauge::fixes_ones);
  return outer >= inner && !incomparable;
}

/// Largest group contained in both.
[[nodiscard]] constexpr Gauge intersect(Gauge a, Gauge b) noexcept {
  if (contains(a, b)) return b;
  if (contains(b, a)) return a;
  return Gauge::permutation_up_to_sign;
}

/// Smallest group of the lattice that contains both.
[[nodiscard]] constexpr Gauge join(Gauge a, Gauge b) noexcept {
  if (contains(a, b)) return a;
  if (contains(b, a)) return b;
  return Gauge::orthogonal;
}

/// As a user reads it.
[[nodiscard]] constexpr std::string_view name_of(Gauge gauge) noexcept {
  constexpr std::array<std::string_view, 6> names{"identity only",       "permutations", "permutations up to one global sign",
                                                  "signed permutations", "rotations that fix the ones vector", "any rotation"};
  return names[static_cast<std::size_t>(gauge)];
}

}  // namespace rmsfold
