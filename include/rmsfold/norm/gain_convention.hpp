// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a stored norm weight w says about the gain g: a property of each tensor of each family, never guessed from values.

#include <rmsfold/tensor/matrix.hpp>

namespace rmsfold {

/// How a stored vector w gives the gain g.
enum class GainConvention {
  plain,                 ///< \f$g = w\f$ (llama and most)
  one_plus,              ///< \f$g = 1 + w\f$, added in float32, or in the type of w when that is wider (gemma, qwen3_next)
  one_plus_in_own_type,  ///< \f$g = 1 + w\f$, rounded to the type of w (nemotron)
};

/// g, exactly as a runtime forms it.
template <Storage S>
[[nodiscard]] RowVector<Wide<S>> gain_of(const RowVector<S>& weight, GainConvention convention) {
  RowVector<Wide<S>> gain = widened(weight);
  if (convention == GainConvention::plain) return gain;
  for (Index j = 0; j < gain.size(); ++j) {
    if (convention == GainConvention::one_plus) {
      using Sum = Compute<S>;
      gain[j] = static_cast<Wide<S>>(static_cast<Sum>(Sum(1) + static_cast<Sum>(gain[j])));
    } else {
      gain[j] = widen(round_to<S>(static_cast<Wide<S>>(1) + gain[j]));
    }
  }
  return gain;
}

/// The stored value that means a gain of 1, which a folded norm keeps so that stock runtimes load it: 1, or 0 where \f$g = 1 + w\f$.
template <Storage S>
[[nodiscard]] S neutral_weight(GainConvention convention) {
  return round_to<S>(static_cast<Wide<S>>(convention == GainConvention::plain ? 1 : 0));
}

}  // namespace rmsfold
